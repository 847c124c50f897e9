"""What models give back: dicts, dataclasses, tuples, and Data that goes in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from shared import Ddp, Results, descend, weights
from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv


def supervised(data: Data, out: Tensor) -> Tensor:
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


@dataclass
class Output:
    """What a model gives back."""

    logits: Tensor
    hidden: Tensor
    penalty: Tensor


def outputs_in_a_dataclass(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin = GCNConv(6, 8), Linear(8, 3)

        def forward(self, data: Data) -> Output:
            h = self.conv(data.x, data.edge_index).tanh()
            return Output(self.lin(h), h, h.pow(2).mean())

    torch.manual_seed(0)
    model = ddp(Model().double())

    def loss_of() -> Tensor:
        out = model(data)
        return supervised(data, out.logits) + 0.1 * out.penalty

    return {'losses': descend(loss_of, model), 'hidden': model(data).hidden, 'w': weights(model)}


def outputs_in_a_dict(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.heads = GCNConv(6, 8), torch.nn.ModuleList([Linear(8, 3), Linear(8, 1)])

        def forward(self, x: Tensor, edge_index: Tensor) -> dict[str, Tensor]:
            h = self.conv(x, edge_index).tanh()
            return {'y': self.heads[0](h), 'norm': self.heads[1](h), 'mean': h.mean()}

    torch.manual_seed(0)
    model = ddp(Model().double())

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        error = F.mse_loss(out['norm'].flatten(), data.x.norm(dim=1))
        return supervised(data, out['y']) + 0.1 * error + out['mean']

    return {'losses': descend(loss_of, model, 0.05), 'weights': weights(model)}


def outputs_in_nested_lists(data: Data, ddp: Ddp) -> Results:
    """Every layer's rows and their means; the loss reads all of them (deep supervision)."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = torch.nn.ModuleList(GCNConv(num, 8) for num in (6, 8))
            self.heads = torch.nn.ModuleList(Linear(8, 3) for _ in range(2))

        def forward(self, x: Tensor, edge_index: Tensor) -> tuple[list[Tensor], list[Tensor]]:
            outs, means = [], []
            for conv, head in zip(self.convs, self.heads, strict=True):
                x = conv(x, edge_index).tanh()
                outs.append(head(x))
                means.append(x.mean(dim=0))
            return outs, means

    torch.manual_seed(0)
    model = ddp(Model().double())

    def loss_of() -> Tensor:
        outs, means = model(data.x, data.edge_index)
        return sum(supervised(data, out) for out in outs) + torch.stack(means).pow(2).sum()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def loss_inside_of_forward(data: Data, ddp: Ddp) -> Results:
    """The model is called with labels and mask, and gives back the loss and the count of hits."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GCNConv(6, 3)

        def forward(
            self, x: Tensor, edge_index: Tensor, y: Tensor, mask: Tensor
        ) -> tuple[Tensor, int]:
            out = self.conv(x, edge_index)
            hits = int((out.argmax(-1) == y)[mask].sum())
            return F.cross_entropy(out[mask], y[mask]), hits

    torch.manual_seed(0)
    model = ddp(Model().double())
    hits = []

    def loss_of() -> Tensor:
        loss, count = model(data.x, data.edge_index, data.y, data.train_mask)
        hits.append(count)
        return loss

    return {'losses': descend(loss_of, model), 'hits': hits, 'weights': weights(model)}


def state_kept_between_calls(data: Data, ddp: Ddp) -> Results:
    """Rows of the last call are kept and mixed in (GAS-like history), with a count of calls."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin, self.history, self.calls = GCNConv(6, 8), Linear(8, 3), None, 0

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.conv(x, edge_index).tanh()
            self.calls += 1
            mixed = h if self.history is None else 0.8 * h + 0.2 * self.history
            self.history = mixed.detach()
            return self.lin(mixed)

    torch.manual_seed(0)
    model = ddp(Model().double())
    losses = descend(lambda: supervised(data, model(data.x, data.edge_index)), model)
    history = getattr(model, 'module', model).history
    return {'losses': losses, 'history': history, 'weights': weights(model)}


def buffer_of_class_means(data: Data, ddp: Ddp) -> Results:
    """A buffer follows the means of every class, and the loss pulls rows to them."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin = GCNConv(6, 8), Linear(8, 3)
            self.register_buffer('means', torch.zeros(3, 8))

        def forward(self, x: Tensor, edge_index: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            h = self.conv(x, edge_index).tanh()
            for c in range(3):
                self.means[c] = 0.5 * self.means[c] + 0.5 * h[y == c].detach().mean(dim=0)
            return self.lin(h), (h - self.means[y]).pow(2).sum(-1).mean()

    torch.manual_seed(0)
    model = ddp(Model().double())

    def loss_of() -> Tensor:
        out, pull = model(data.x, data.edge_index, data.y)
        return supervised(data, out) + 0.1 * pull

    return {'losses': descend(loss_of, model), 'weights': weights(model)}
