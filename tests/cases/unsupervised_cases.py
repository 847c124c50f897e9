"""Losses of autoencoders, LightGCN and Deep Graph Infomax; what is drawn is every node's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from conv_case import Case
from graphs import NUM_FEATURES
from model_cases import NUM_NODES
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch_geometric.nn import BatchNorm, GCNConv, SAGEConv
from torch_geometric.nn import models as M

H = 4


class Encoder(nn.Module):
    """Two layers; of a variational autoencoder with two heads."""

    def __init__(self, num_heads: int = 1) -> None:
        super().__init__()
        self.first, self.norm = SAGEConv(NUM_FEATURES, 8), BatchNorm(8)
        self.heads = nn.ModuleList(GCNConv(8, H) for _ in range(num_heads))

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        x = self.norm(self.first(x, edge_index)).relu()
        out = [head(x, edge_index) for head in self.heads]
        return out[0] if len(out) == 1 else tuple(out)


class DistMult(nn.Module):
    """A decoder with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, H))

    def forward(self, z: Tensor, edge_index: Tensor, sigmoid: bool = True) -> Tensor:
        value = (z[edge_index[0]] * self.weight * z[edge_index[1]]).sum(dim=1)
        return value.sigmoid() if sigmoid else value


def _discriminator() -> nn.Module:
    return nn.Sequential(nn.Linear(H, 5), nn.ReLU(), nn.Linear(5, 1))


@dataclass
class Given:
    """What a program has, on ranks and on one machine.

    Attributes:
        data: The graph.
        pos: Pairs of nodes.
        neg: Others.
        order: For every node another one.
    """

    data: Any
    pos: Tensor
    neg: Tensor
    order: Tensor


def _recon(model: Any, given: Given) -> Tensor:
    z = model.encode(given.data.x, given.data.edge_index)
    return model.recon_loss(z, given.data.edge_index, given.neg)


def _recon_of_ids(model: Any, given: Given) -> Tensor:
    z = model.encode(given.data.x, given.data.edge_index)
    return model.recon_loss(z, given.pos, given.neg)


def _recon_of_some(model: Any, given: Given) -> Tensor:
    data = given.data
    z = model(data.x, data.edge_index)
    return model.recon_loss(z, data.edge_index[:, data.edge_type == 1].flip(0), given.neg)


def _decoded(model: Any, given: Given) -> Tensor:
    z = model(given.data.x, given.data.edge_index)
    first = model.decode(z, given.pos, sigmoid=False)
    return first.square().mean() + model.decoder(z=z, edge_index=given.neg).log().mean()


def _variational(model: Any, given: Given) -> Tensor:
    z = model.encode(given.data.x, given.data.edge_index)
    return model.recon_loss(z, given.pos, given.neg) + model.kl_loss() / NUM_NODES


def _adversarial(model: Any, given: Given) -> Tensor:
    z = model.encode(given.data.x, given.data.edge_index)
    loss = model.recon_loss(z, given.pos, given.neg) + model.reg_loss(z)
    return loss + 2 * model.discriminator_loss(z)


def _both(model: Any, given: Given) -> Tensor:
    return _adversarial(model, given) + model.kl_loss()


def _infomax(model: Any, given: Given) -> Tensor:
    model.summary, model.corruption = _summary, _Corruption(given)
    return model.loss(*model(given.data.x, given.data.edge_index))


def _summary(z: Tensor, *_: Any) -> Tensor:
    return z.mean(0).sigmoid()


@dataclass
class _Corruption:
    given: Given

    def __call__(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return x[self.given.order], edge_index


def _light_links(model: Any, given: Given) -> Tensor:
    pairs = torch.cat([given.pos, given.neg], dim=1)
    labels = torch.cat([torch.ones(given.pos.size(1)), torch.zeros(given.neg.size(1))])
    pred = model(given.data.edge_index, pairs, given.data.edge_weight)
    weight = torch.tensor(2.0).double()
    total = model.link_pred_loss(pred, labels, reduction='sum')
    return model.link_pred_loss(pred, labels, pos_weight=weight) + total / 100


def _light_ranking(model: Any, given: Given) -> Tensor:
    neg = torch.stack([NUM_NODES - 1 - given.pos[0], given.pos[1]])
    ranks = [model(given.data.edge_index, pairs) for pairs in (given.pos, neg)]
    return model.recommendation_loss(*ranks, lambda_reg=0.1)


_MADE: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Given], Tensor]]] = {
    'GAE': (lambda: M.GAE(Encoder()), _recon),
    'GAE of ids': (lambda: M.GAE(Encoder()), _recon_of_ids),
    'GAE of some edges': (lambda: M.GAE(Encoder()), _recon_of_some),
    'GAE with a decoder': (lambda: M.GAE(Encoder(), DistMult()), _recon_of_ids),
    'GAE decodes': (lambda: M.GAE(Encoder(), DistMult()), _decoded),
    'VGAE': (lambda: M.VGAE(Encoder(2)), _variational),
    'ARGA': (lambda: M.ARGA(Encoder(), _discriminator()), _adversarial),
    'ARGVA': (lambda: M.ARGVA(Encoder(2), _discriminator()), _both),
    'DeepGraphInfomax': (lambda: M.DeepGraphInfomax(H, Encoder(), _summary, None), _infomax),
    'LightGCN links': (lambda: M.LightGCN(NUM_NODES, H, 2), _light_links),
    'LightGCN ranking': (lambda: M.LightGCN(NUM_NODES, H, 2), _light_ranking),
}


class _Noise(TorchFunctionMode):
    """``randn_like`` gives every node its own numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.randn_like:
            generator = torch.Generator().manual_seed(9)
            return torch.randn(args[0].shape, generator=generator, dtype=torch.float64)
        return func(*args, **(kwargs or {}))


def _pairs(seed: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(NUM_NODES, (2, count), generator=generator)


def given_of(data: Any) -> Given:
    return Given(data, _pairs(2, 31), _pairs(3, 53), _pairs(4, NUM_NODES)[0])


CASES = {
    name: Case(
        'unsupervised',
        name,
        make,
        lambda model, data, loss_of=loss_of: loss_of(model, given_of(data)),
        during=_Noise,
    )
    for name, (make, loss_of) in _MADE.items()
}
