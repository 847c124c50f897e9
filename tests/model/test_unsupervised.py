"""Autoencoders, LightGCN and Deep Graph Infomax: losses, scores and all gradients of PyG's own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from pyg_sar.models.unsupervised import GlobalGAE
from ranks import run_as_threads, run_ranks
from small_graphs import assert_all_raise, assert_close, attempt, cut, small_graph
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm, GCNConv, SAGEConv
from torch_geometric.nn import models as M

import pyg_sar
from pyg_sar.comm import rank, world_size
from pyg_sar.over_all_nodes import global_sum

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
    """What a program has on a rank, or on the whole graph.

    Attributes:
        data: The graph.
        pos: Pairs of nodes.
        neg: Others.
        order: For every own node another one.
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


def _recon_of_none(model: Any, given: Given) -> Tensor:
    """All pairs are those of the last rank."""
    is_last = 'n_id' not in given.data or rank() == world_size() - 1
    pos, neg = (pairs if is_last else pairs[:, :0] for pairs in (_pairs(2, 31), _pairs(3, 53)))
    z = model.encode(given.data.x, given.data.edge_index)
    return model.recon_loss(z, pos, neg)


def _decoded(model: Any, given: Given) -> Tensor:
    z = model(given.data.x, given.data.edge_index)
    mean = pyg_sar.over_all_nodes.global_mean if 'n_id' in given.data else torch.mean
    first = model.decode(z, given.pos, sigmoid=False)
    return mean(first.square()) + mean(model.decoder(z=z, edge_index=given.neg).log())


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
    model.given = given
    model.summary, model.corruption = _summary, _Corruption(given)
    return model.loss(*model(given.data.x, given.data.edge_index))


def _summary(z: Tensor, *_: Any) -> Tensor:
    count = torch.tensor(len(z))
    return (global_sum(z, dim=0) / global_sum(count)).sigmoid()


@dataclass
class _Corruption:
    given: Given

    def __call__(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        n_id = self.given.data.get('n_id')
        order = self.given.order
        return (x[order] if n_id is None else pyg_sar.rows(x, order, n_id)), edge_index


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
    'GAE of the pairs of one rank': (lambda: M.GAE(Encoder()), _recon_of_none),
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

    def __init__(self, n_id: Tensor) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(9)
        numbers = torch.randn(NUM_NODES, H, generator=generator, dtype=torch.float64)
        self.numbers = numbers[n_id]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.randn_like:
            assert args[0].shape == self.numbers.shape
            return self.numbers
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
    pos, neg, order = _pairs(2, 31), _pairs(3, 53), _pairs(4, NUM_NODES)[0]
    if 'n_id' in data:
        pos, neg = pos[:, rank() :: world_size()], neg[:, rank() :: world_size()]
        order = order[data.n_id]
    return Given(data, pos, neg, order)


def _of_one_process(name: str) -> tuple[Tensor, Tensor | None, list[Tensor | None]]:
    data, model = small_graph(), _make(name)
    data.x.requires_grad_()
    with _Noise(torch.arange(NUM_NODES)):
        loss = CASES[name][1](model, _given(data))
    loss.backward()
    return loss.detach(), data.x.grad, [p.grad for p in model.parameters()]


def _check(name: str, root: str) -> None:
    want, want_x, wanted = _of_one_process(name)
    data = pyg_sar.local(pyg_sar.load_shard(root))
    data.x.requires_grad_()
    model = pyg_sar.DistributedDataParallel(_make(name))
    before = list(model.module.state_dict())
    for _ in range(2):
        model.zero_grad()
        data.x.grad = None
        with _Noise(data.n_id):
            loss = CASES[name][1](model.module, _given(data))
        loss.backward()
        assert_close(loss.detach(), want)
        for p, grad in zip(model.parameters(), wanted, strict=True):
            assert (p.grad is None) == (grad is None)
            if grad is not None:
                assert_close(p.grad, grad, tolerance=1e-10)
        if want_x is not None:
            assert_close(data.x.grad, want_x[data.n_id], tolerance=1e-10)
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
    model, given = pyg_sar.wrap(_make('GAE')), _given(pyg_sar.local(pyg_sar.load_shard(root)))
    with torch.no_grad():
        z = model.encode(given.data.x, given.data.edge_index)
        assert model.test(z, given.pos, given.neg) == pytest.approx(want, abs=1e-12)
        of_edges = plain.test(
            plain.encode(whole.data.x, whole.data.edge_index), whole.data.edge_index, whole.neg
        )
        got = model.test(z, given.data.edge_index, given.neg)
        assert got == pytest.approx(of_edges, abs=1e-12)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    infomax, y = pyg_sar.wrap(_make('DeepGraphInfomax')), whole.data.y
    want = infomax.test(whole.data.x, y, whole.data.x[:9], y[:9])
    infomax.encoder(given.data.x, given.data.edge_index)
    first = given.data.n_id < 9
    data = given.data
    got = infomax.test(data.x, data.y, data.x[first], data.y[first], max_iter=200)
    assert got == pytest.approx(want)


@pytest.mark.parametrize('kind', ['uneven', 'empty part'])
def test_scores(tmp_path: Path, kind: str) -> None:
    run_as_threads(_scores, 3, str(cut(small_graph(), 3, tmp_path / 'parts', kind)))


def _recommended(root: str) -> None:
    graph, data = small_graph(), pyg_sar.local(pyg_sar.load_shard(root))
    plain, model = _make('LightGCN links'), pyg_sar.wrap(_make('LightGCN links'))
    want = plain.recommend(graph.edge_index, k=3)
    assert torch.equal(model.recommend(data.edge_index, k=3), want[data.n_id])
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
        with _Noise(torch.arange(NUM_NODES)):
            loss = CASES[name][1](model, _given(small_graph()))
        loss.backward()
        assert_close(loss.detach(), want)
        for p, grad in zip(model.parameters(), grads, strict=True):
            assert (p.grad is None) == (grad is None)


def test_a_copy_forgets_the_graph(tmp_path: Path) -> None:
    given = _given(pyg_sar.local(pyg_sar.load_shard(cut(small_graph(), 3, tmp_path / 'parts'))))
    model = pyg_sar.wrap(_make('GAE'))
    loss = _recon_of_ids(model, given)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not other.last_graph.shards
        assert_close(_recon_of_ids(other, given), loss)


def _negatives_by_itself(root: str) -> Tensor:
    data = pyg_sar.local(pyg_sar.load_shard(root)) if root else small_graph()
    model = pyg_sar.wrap(_make('GAE'))
    torch.manual_seed(5)
    return model.recon_loss(model.encode(data.x, data.edge_index), data.edge_index).detach()


def test_negative_edges_by_itself(tmp_path: Path) -> None:
    want = _negatives_by_itself('')
    for ranks in (1, 3):
        root = str(cut(small_graph(), ranks, tmp_path / f'parts{ranks}'))
        for loss in run_as_threads(_negatives_by_itself, ranks, root):
            assert_close(loss, want)


class OwnGAE(M.GAE):
    """Of a user."""


class OwnGlobalGAE(GlobalGAE):
    """Of a user who has read the message."""


def test_subclasses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'derive it from pyg_sar.models.unsupervised.GlobalGAE'):
        pyg_sar.wrap(OwnGAE(Encoder()))
    model = pyg_sar.wrap(pyg_sar.wrap(OwnGlobalGAE(Encoder().double())))
    given = _given(pyg_sar.local(pyg_sar.load_shard(cut(small_graph(), 3, tmp_path / 'parts'))))
    assert len(model.decoder._forward_pre_hooks) == 1
    loss = _recon_of_ids(model, given)
    assert loss != M.GAE.recon_loss(model, torch.randn(NUM_NODES, H).double(), given.pos, given.neg)


def _refusals(root: str) -> list[str]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    model = pyg_sar.wrap(_make('GAE'))
    z = model.encode(data.x, data.edge_index)
    pairs, far = torch.zeros(2, 3, dtype=torch.int64), torch.full((2, 1), NUM_NODES)
    return [
        attempt(pyg_sar.wrap, M.GAE(Encoder(), lambda z, pairs, sigmoid: z)),
        attempt(model.recon_loss, z, pairs),
        attempt(model.recon_loss, z, far, pairs),
        attempt(model.recon_loss, z, pairs.int(), pairs),
        attempt(model.recon_loss, z[:-1], data.edge_index, pairs),
        attempt(model.recon_loss, (z, z), pairs, pairs),
        attempt(model.decoder.forward_all, z),
        attempt(pyg_sar.wrap, nn.Sequential(GCNConv(2, 2), M.InnerProductDecoder())),
    ]


def test_refused_on_all_ranks(tmp_path: Path) -> None:
    words = [
        'GAE cannot run on a partitioned graph: its decoder is a function',
        "expected 'neg_edge_index', as of pyg_sar.negative_sampling(data.edge_index)",
        "'ids' has 40, which is no node's id",
        "expected int64 'ids'",
        "one row in 'z' for each own node",
        "expected the rows of own nodes in 'z'",
        "'forward_all' sees the nodes of one rank",
        'InnerProductDecoder at',
    ]
    outcomes = run_as_threads(_refusals, 2, str(cut(small_graph(), 2, tmp_path / 'parts')))
    for found, part in zip(zip(*outcomes, strict=True), words, strict=True):
        assert_all_raise(found, 'ValueError', part)


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
