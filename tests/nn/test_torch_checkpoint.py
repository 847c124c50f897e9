"""torch.utils.checkpoint: backward runs again what it is around, with the same masks of dropout."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from alike import cut_of, take_step
from ranks import run_as_threads, run_ranks
from small_graphs import assert_close, small_graph
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn as pyg
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.comm.ranks import current
from pyg_sar.nn.options import Mode


class _Block(torch.nn.Module):
    """Drops rows, messages, and the rows of a norm; another block may be inside."""

    def __init__(self, reentrant: bool | None = None, inner: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.reentrant, self.inner = reentrant, inner
        self.conv, self.norm = pyg.GATConv(6, 3, heads=2, dropout=0.3), torch.nn.LayerNorm(6)
        self.drop = torch.nn.Dropout(0.2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.drop(self.norm(self.conv(F.dropout(x, 0.2, self.training), edge_index)).relu())
        if self.inner is None:
            return x
        return F.dropout(_run(self.inner, x, edge_index, self.reentrant), 0.1, self.training)


def _run(block: torch.nn.Module, x: Tensor, edges: Tensor, reentrant: bool | None) -> Tensor:
    if reentrant is None:
        out: Tensor = block(x, edges)
    else:
        out = checkpoint(block, x, edges, use_reentrant=reentrant)
    return out


class _Net(torch.nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.blocks = torch.nn.ModuleList([_Block(), _Block(inner=_Block())])
        conv = pyg.TransformerConv(6, 6, dropout=0.3)
        norm = torch.nn.LayerNorm(6)
        self.deep = pyg.DeepGCNLayer(conv, norm, torch.nn.ReLU(), 'res+', 0.2)
        self.deep.ckpt_grad = reentrant  # by PyG itself, and reentrant
        self.last = pyg.SAGEConv(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(x, 0.2, self.training)
        for block in self.blocks:
            x = x + _run(block, x, edge_index, self.reentrant)
            x = F.dropout(x, 0.1, self.training)
        return self.last(self.deep(x, edge_index), edge_index)


def _trained(root: str, reentrant: bool | None, mode: str = 'sequential') -> list[Any]:
    """Losses and gradients of two steps."""
    data = pyg_sar.load_shard(root)
    torch.manual_seed(1)
    net = _Net(reentrant).double()
    model = pyg_sar.DistributedDataParallel(net, dropout_seed=5, mode=mode)
    torch.manual_seed(int(pyg_sar.local(data.n_id).sum()))  # another one on every rank
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found: list[Any] = []
    for _ in range(2):
        loss = F.cross_entropy(model(data.x.requires_grad_(), data.edge_index), data.y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        found += [loss.item(), [p.grad.clone() for p in model.parameters()]]
        optimizer.step()
    return found


@pytest.fixture(scope='module')
def expected() -> list[Any]:
    """Of one process, without any checkpoint."""
    return _trained(cut_of(small_graph, 1), None)


def _check(found: list[Any], expected: list[Any]) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('reentrant', [False, True])
def test_losses_and_gradients_are_those_without(expected: list[Any], reentrant: Any) -> None:
    for found in run_ranks(_trained, 3, cut_of(small_graph, 3), reentrant):
        _check(found, expected)
    for found in run_as_threads(_trained, 3, cut_of(small_graph, 3), reentrant, 'one_shot'):
        _check(found, expected)
    _check(_trained(cut_of(small_graph, 1), reentrant), expected)


@pytest.mark.parametrize('reentrant', [False, True])
def test_around_the_model_is_refused(reentrant: bool) -> None:
    data = pyg_sar.load_shard(cut_of(small_graph, 1))
    model = pyg_sar.DistributedDataParallel(_Net(None).double(), dropout_seed=5)
    with pytest.raises(ValueError, match='checkpoint inside of the forward of _Net'):
        _run(model, data.x.requires_grad_(), data.edge_index, reentrant)


@pytest.mark.parametrize('reentrant', [False, True])
def test_one_inside_of_another_is_refused(reentrant: bool) -> None:
    data = pyg_sar.load_shard(cut_of(small_graph, 1))
    net = _Net(False).double()
    net.blocks[1].reentrant = reentrant
    model = pyg_sar.DistributedDataParallel(net, dropout_seed=5)
    with pytest.raises(ValueError, match='checkpoint inside of another'):
        model(data.x.requires_grad_(), data.edge_index)


class _Page(torch.nn.Module):
    """Runs the example of docs/models.md, with or without its checkpoint."""

    def __init__(self, checkpoint: Any) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(6) for _ in range(2))
        self.convs = torch.nn.ModuleList(pyg.SAGEConv(6, 6) for _ in range(2))

    def forward(self, data: Any) -> Tensor:
        page = (Path(__file__).parents[2] / 'docs' / 'models.md').read_text()
        example = re.search(r'<!-- checkpoint-example -->\n```python\n(.*?)```', page, re.DOTALL)
        assert example is not None
        names = {'data': data, 'x': data.x, 'norms': self.norms, 'convs': self.convs, 'F': F}
        exec(example[1], names | {'checkpoint': self.checkpoint}, names)
        return names['x']


def _gradients_of_page(root: str, checkpoint: Any, seed: int | None) -> list[Tensor]:
    data = pyg_sar.load_shard(root)
    torch.manual_seed(1)
    model = pyg_sar.DistributedDataParallel(_Page(checkpoint).double(), dropout_seed=seed)
    for _ in range(2):
        F.cross_entropy(model(data), data.y).backward()
    return [p.grad for p in model.parameters()]


def _kept(function: Any, *args: Any, use_reentrant: bool) -> Any:
    return function(*args)


@pytest.mark.parametrize('seed', [None, 3])
def test_the_example_of_the_page(seed: int | None) -> None:
    expected = run_as_threads(_gradients_of_page, 3, cut_of(small_graph, 3), _kept, seed)
    assert all(grad.abs().max() > 1e-6 for grad in expected[0])
    found = run_as_threads(_gradients_of_page, 3, cut_of(small_graph, 3), checkpoint, seed)
    _check(found, expected)


# Convs of every path: backward runs them, and their exchange, again


def _convs() -> dict[str, torch.nn.Module]:
    """One for each path."""
    torch.manual_seed(0)
    return {
        'linear': pyg.SAGEConv(6, 4),
        'linear with weights': pyg.GCNConv(6, 4),
        'weighted': pyg.GATConv(6, 4, heads=2),
        'replay': pyg.EdgeConv(torch.nn.Linear(12, 4), aggr='max'),
        'softmax': pyg.TransformerConv(6, 4),
        'gather': pyg.SAGEConv(6, 4, aggr='median'),
    }


def _compare(data: Data, name: str, mode: Mode, reentrant: bool) -> None:
    plain, conv = (pyg_sar.SARConv(_convs()[name].double(), mode=mode) for _ in range(2))
    want = take_step(plain, data)

    def again(*args: Tensor) -> Tensor:
        return _run(conv, *args, reentrant)

    again.parameters = conv.parameters  # type: ignore[attr-defined]
    for _ in range(2):  # the first one agrees with the other ranks
        conv.zero_grad()
        for a, b in zip(take_step(again, data), want, strict=True):
            assert_close(pyg_sar.gather(a), pyg_sar.gather(b))


def _checkpointed(root: str, mode: Mode, reentrant: bool) -> int:
    data, before = pyg_sar.load_shard(root), current()._num_raised
    for name in _convs():
        _compare(data, name, mode, reentrant)
    return current()._num_raised - before


_CASES = [(mode, reentrant) for mode in get_args(Mode)[:3] for reentrant in (False, True)]


@pytest.mark.parametrize(
    ('mode', 'reentrant'),
    [_CASES[0], *(pytest.param(*case, marks=pytest.mark.bench) for case in _CASES[1:])],
)
def test_every_path(mode: Mode, reentrant: bool) -> None:
    root = cut_of(small_graph, 3, 'empty part')
    # torch ends what it computes again by an exception: that is no failure.
    assert run_ranks(_checkpointed, 3, root, mode, reentrant) == [0, 0, 0]
