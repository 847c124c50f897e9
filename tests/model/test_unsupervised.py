"""Autoencoders, LightGCN and Deep Graph Infomax: losses, scores and all gradients of PyG's own."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from ranks import run_as_threads, run_ranks
from small_graphs import assert_close, cut, small_graph
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm, GCNConv, SAGEConv
from torch_geometric.nn import models as M

import pyg_sar

NUM_NODES, H = 40, 4


class Encoder(nn.Module):
    """Two layers; of a variational autoencoder with two heads."""

    def __init__(self, num_heads: int = 1) -> None:
        super().__init__()
        self.first, self.norm = SAGEConv(6, 8), BatchNorm(8)
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
    neg = torch.stack([39 - given.pos[0], given.pos[1]])
    ranks = [model(given.data.edge_index, pairs) for pairs in (given.pos, neg)]
    return model.recommendation_loss(*ranks, lambda_reg=0.1)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Given], Tensor]]] = {
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


def _make(name: str) -> nn.Module:
    torch.manual_seed(1)
    model = CASES[name][0]().double()
    for module in model.modules():
        if isinstance(module, (GCNConv, SAGEConv)):
            module.reset_parameters()
    return model


def _pairs(seed: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(NUM_NODES, (2, count), generator=generator)


def _given(data: Data) -> Given:
    return Given(data, _pairs(2, 31), _pairs(3, 53), _pairs(4, NUM_NODES)[0])


def _of_one_process(name: str) -> tuple[Tensor, Tensor | None, list[Tensor | None]]:
    data, model = small_graph(), _make(name)
    data.x.requires_grad_()
    with _Noise():
        loss = CASES[name][1](model, _given(data))
    loss.backward()
    return loss.detach(), data.x.grad, [p.grad for p in model.parameters()]


def _check(name: str, root: str) -> None:
    want, want_x, wanted = _of_one_process(name)
    data = pyg_sar.load_shard(root)
    data.x.requires_grad_()
    model = pyg_sar.DistributedDataParallel(_make(name))
    before = list(model.module.state_dict())
    for _ in range(2):
        model.zero_grad()
        data.x.grad = None
        with _Noise():
            loss = CASES[name][1](model.module, _given(data))
        loss.backward()
        assert_close(loss.detach(), want)
        for p, grad in zip(model.parameters(), wanted, strict=True):
            assert (p.grad is None) == (grad is None)
            if grad is not None:
                assert_close(p.grad, grad, tolerance=1e-10)
        if want_x is not None:
            assert_close(pyg_sar.gather(data.x.grad), want_x, tolerance=1e-10)
    assert list(model.module.state_dict()) == before


def _check_all(root: str, names: list[str]) -> None:
    for name in names:
        _check(name, root)


@pytest.mark.parametrize('name', few(CASES))
def test_exact(tmp_path: Path, name: str) -> None:
    run_as_threads(_check, 3, name, str(cut(small_graph(), 3, tmp_path / 'parts')))


@pytest.mark.slow
@pytest.mark.parametrize('world_size', [1, 2, 4])
def test_exact_on_other_numbers_of_ranks(tmp_path: Path, world_size: int) -> None:
    root = cut(small_graph(), world_size, tmp_path / 'parts')
    run_as_threads(_check_all, world_size, str(root), list(CASES))


@pytest.mark.slow
def test_exact_with_a_rank_without_nodes(tmp_path: Path) -> None:
    root = cut(small_graph(), 3, tmp_path / 'parts', 'empty part')
    run_as_threads(_check_all, 3, str(root), list(CASES))


@pytest.mark.slow
def test_exact_on_one_process_with_all_parts(tmp_path: Path) -> None:
    _check_all(str(cut(small_graph(), 3, tmp_path / 'parts')), list(CASES))


@pytest.mark.slow
def test_exact_on_processes(tmp_path: Path) -> None:
    root = cut(small_graph(), 2, tmp_path / 'parts')
    run_ranks(_check_all, 2, str(root), ['GAE', 'VGAE', 'ARGVA', 'DeepGraphInfomax'])


def _scores(root: str) -> None:
    plain, whole = _make('GAE'), _given(small_graph())
    with torch.no_grad():
        z = plain.encode(whole.data.x, whole.data.edge_index)
        want = plain.test(z, whole.pos, whole.neg)
    model, given = pyg_sar.wrap(_make('GAE')), _given(pyg_sar.load_shard(root))
    with torch.no_grad():
        z = model.encode(given.data.x, given.data.edge_index)
        assert model.test(z, given.pos, given.neg) == pytest.approx(want, abs=1e-12)
        of_edges = plain.test(
            plain.encode(whole.data.x, whole.data.edge_index), whole.data.edge_index, whole.neg
        )
        got = model.test(z, pyg_sar.gather(given.data.edge_index), given.neg)
        assert got == pytest.approx(of_edges, abs=1e-12)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    infomax, y = pyg_sar.wrap(_make('DeepGraphInfomax')), whole.data.y
    want = infomax.test(whole.data.x, y, whole.data.x[:9], y[:9])
    data = given.data
    x, y = pyg_sar.gather(data.x), pyg_sar.gather(data.y)
    assert infomax.test(x, y, x[:9], y[:9]) == pytest.approx(want)


@pytest.mark.parametrize('kind', ['uneven', 'empty part'])
def test_scores(tmp_path: Path, kind: str) -> None:
    run_as_threads(_scores, 3, str(cut(small_graph(), 3, tmp_path / 'parts', kind)))


def _recommended(root: str) -> None:
    graph, data = small_graph(), pyg_sar.load_shard(root)
    plain, model = _make('LightGCN links'), pyg_sar.wrap(_make('LightGCN links'))
    with pytest.raises(
        ValueError, match=r"'matmul' of rows .* would pair every row with every row"
    ):
        model.recommend(data.edge_index, k=3)
    some = {'src_index': torch.tensor([7, 3]), 'dst_index': torch.arange(5, 20)}
    want = plain.recommend(graph.edge_index, k=2, **some)
    assert torch.equal(model.recommend(data.edge_index, k=2, **some), want)
    assert torch.equal(model.recommend(graph.edge_index, k=2, **some), want)


def test_recommendations_are_ids_of_the_whole_graph(tmp_path: Path) -> None:
    root = str(cut(small_graph(), 3, tmp_path / 'parts', 'empty part'))
    run_as_threads(_recommended, 3, root)
    _recommended(root)


@pytest.mark.parametrize('name', CASES)
def test_a_wrapped_model_is_the_plain_one_on_a_plain_graph(name: str) -> None:
    want, _, grads = _of_one_process(name)
    wrapped = pyg_sar.wrap(_make(name))
    for model in (wrapped, copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        with _Noise():
            loss = CASES[name][1](model, _given(small_graph()))
        loss.backward()
        assert_close(loss.detach(), want)
        for p, grad in zip(model.parameters(), grads, strict=True):
            assert (p.grad is None) == (grad is None)


def _negatives_by_itself(root: str) -> Tensor:
    data = pyg_sar.load_shard(root) if root else small_graph()
    model = pyg_sar.wrap(_make('GAE'))
    random.seed(5)  # what negative_sampling of PyG draws from
    return model.recon_loss(model.encode(data.x, data.edge_index), data.edge_index).detach()


def test_negative_edges_by_itself(tmp_path: Path) -> None:
    want = _negatives_by_itself('')
    for ranks in (1, 3):
        root = str(cut(small_graph(), ranks, tmp_path / f'parts{ranks}'))
        for loss in run_as_threads(_negatives_by_itself, ranks, root):
            assert_close(loss, want)


def _step(model: Any, data: Any) -> Tensor:
    return model.recon_loss(model.encode(data.x, data.edge_index), data.edge_index)


def _wrong_step(model: Any, data: Any) -> Tensor:
    z = model.encode(data.x, data.edge_index)
    return model.recon_loss(z, data.edge_index) + pyg_sar.local(z).square().mean()


def test_the_check_of_a_step() -> None:
    pyg_sar.check(_step, M.GAE(Encoder()), small_graph(200, 900))
    pyg_sar.check(_step, M.VGAE(Encoder(2)), small_graph(200, 900))
    with pytest.raises(ValueError, match='the result differs'):
        pyg_sar.check(_wrong_step, M.GAE(Encoder()), small_graph(200, 900))
