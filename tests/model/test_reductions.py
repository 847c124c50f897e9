"""Readouts and rows of any nodes: the value of the whole graph, and all gradients, elementwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from ranks import run_as_threads, run_ranks
from small_graphs import assert_all_raise, assert_close, attempt, cut, small_graph
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv, global_add_pool, global_max_pool, global_mean_pool

import pyg_sar
from pyg_sar.comm import is_distributed, rank, world_size

Program = Callable[[Tensor, Tensor, Tensor], Tensor]

NUM_GRAPHS = 5


def _amax(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].amax(dim=0)


# Of x [N, 4], mask [N] and batch [N]: on the whole graph, and on a part.
PAIRS: dict[str, tuple[Program, Program]] = {
    'mean': (lambda x, m, b: x.mean(dim=0), lambda x, m, b: pyg_sar.global_mean(x, dim=0)),
    'mean of all': (lambda x, m, b: x.mean(), lambda x, m, b: pyg_sar.global_mean(x)),
    'mean of some': (
        lambda x, m, b: x[m].mean(dim=0),
        lambda x, m, b: pyg_sar.global_mean(x, m, dim=0),
    ),
    'mean by graph': (
        lambda x, m, b: global_mean_pool(x, b),
        lambda x, m, b: pyg_sar.global_mean(x, batch=b),
    ),
    'sum': (lambda x, m, b: x.sum(dim=0), lambda x, m, b: pyg_sar.global_sum(x, dim=0)),
    'sum by graph': (
        lambda x, m, b: global_add_pool(x, b, NUM_GRAPHS + 1),
        lambda x, m, b: pyg_sar.global_sum(x, batch=b, size=NUM_GRAPHS + 1),
    ),
    'max': (lambda x, m, b: x.amax(dim=0), lambda x, m, b: pyg_sar.global_max(x)),
    'max of some': (lambda x, m, b: _amax(x, m), lambda x, m, b: pyg_sar.global_max(x, m)),
    'max by graph': (
        lambda x, m, b: global_max_pool(x, b),
        lambda x, m, b: pyg_sar.global_max(x, batch=b),
    ),
    'max with ties': (
        lambda x, m, b: x.relu().neg().amax(dim=0),
        lambda x, m, b: pyg_sar.global_max(x.relu().neg()),
    ),
    'min': (lambda x, m, b: x.amin(dim=0), lambda x, m, b: pyg_sar.global_min(x)),
    'std': (lambda x, m, b: x.std(dim=0), lambda x, m, b: pyg_sar.global_std(x)),
    'std of some': (
        lambda x, m, b: x[m].std(dim=0, correction=0),
        lambda x, m, b: pyg_sar.global_std(x, m, correction=0),
    ),
    'standardised': (
        lambda x, m, b: (x - x.mean(dim=0)) / x.std(dim=0),
        lambda x, m, b: (x - pyg_sar.global_mean(x, dim=0)) / pyg_sar.global_std(x),
    ),
    'softmax': (lambda x, m, b: x.softmax(dim=0), lambda x, m, b: pyg_sar.global_softmax(x)),
    'softmax by graph': (
        lambda x, m, b: torch.cat([x[b == i].softmax(dim=0) for i in range(NUM_GRAPHS)])[
            torch.argsort(torch.argsort(b, stable=True))
        ],
        lambda x, m, b: pyg_sar.global_softmax(x, batch=b),
    ),
}


class Model(nn.Module):
    """A conv, something over all nodes, and what every node makes of it."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = SAGEConv(6, 4).double()
        self.program = program

    def forward(self, data: Any, mask: Tensor, batch: Tensor) -> Tensor:
        x = self.conv(data.x, data.edge_index)
        out = self.program(x, mask, batch)
        if out.dim() == 2 and len(out) == len(batch):
            return out * x
        return x * (out[batch] if out.dim() == 2 else out)


def _inputs(n_id: Tensor) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    mask = torch.rand(1000, generator=generator) < 0.4
    batch = torch.randint(NUM_GRAPHS, (1000,), generator=generator)
    return mask[n_id], batch[n_id]


def _train(data: Any, program: Program, n_id: Tensor) -> dict[str, Tensor]:
    """Output and gradients; on ranks those of the mean over the ranks."""
    data.x.requires_grad_()
    model: nn.Module = Model(program)
    if is_distributed():
        model = pyg_sar.DistributedDataParallel(model)
    out = model(data, *_inputs(n_id))
    mean = pyg_sar.global_mean if is_distributed() else torch.mean
    mean(out.square()).backward()
    names = ('weight', 'bias', 'root')
    grads = dict(zip(names, (p.grad for p in model.parameters()), strict=True))
    return {'out': out.detach(), 'x': data.x.grad, **grads}


def _on_rank(name: str, root: str) -> None:
    whole = small_graph()
    plain, program = PAIRS[name]
    model, data = Model(plain), whole
    data.x.requires_grad_()
    want = model(data, *_inputs(torch.arange(data.num_nodes)))
    want.square().mean().backward()
    data = pyg_sar.local(pyg_sar.load_shard(root))
    got = _train(data, program, data.n_id)
    assert_close(got['out'], want[data.n_id].detach())
    assert_close(got['x'], whole.x.grad[data.n_id])
    for parameter, name in zip(model.parameters(), ('weight', 'bias', 'root'), strict=True):
        assert_close(got[name], parameter.grad)


@pytest.mark.parametrize('name', PAIRS)
@pytest.mark.parametrize('world_size', few([3, 1, 2, 4], every=4))
def test_is_that_of_the_whole_graph(tmp_path: Path, name: str, world_size: int) -> None:
    root = cut(small_graph(), world_size, tmp_path / 'parts')
    run_as_threads(_on_rank, world_size, name, str(root))


def test_on_processes(tmp_path: Path) -> None:
    root = cut(small_graph(), 3, tmp_path / 'parts')
    run_ranks(_on_rank, 3, 'max by graph', str(root))


def test_a_rank_without_nodes(tmp_path: Path) -> None:
    root = cut(small_graph(), 3, tmp_path / 'parts', 'empty')
    for name in PAIRS:
        run_as_threads(_on_rank, 3, name, str(root))


WRONG: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    'mask': (lambda x: pyg_sar.global_max(x, torch.ones(1, dtype=torch.bool)), "a bool 'mask'"),
    'mask of numbers': (lambda x: pyg_sar.global_max(x, torch.ones(len(x))), "a bool 'mask'"),
    'dim': (lambda x: pyg_sar.global_mean(x, dim=1), "'dim' must be 0"),
    'batch': (lambda x: pyg_sar.global_sum(x, batch=torch.zeros(len(x))), "an int64 'batch'"),
    'graphs': (
        lambda x: pyg_sar.global_sum(x, batch=torch.full((len(x),), 3), size=3),
        'graphs from 0 to 2',
    ),
    'rows': (
        lambda x: pyg_sar.rows(x, torch.tensor([10**6]), torch.arange(len(x))),
        "no node's id",
    ),
    'rows of ints': (
        lambda x: pyg_sar.rows(x, torch.tensor([0], dtype=torch.int32), torch.arange(len(x))),
        'int64',
    ),
    'rows that do not fit': (
        lambda x: pyg_sar.rows(x, torch.tensor([0]), torch.arange(len(x) + 1)),
        'one row of',
    ),
}


def _attempt(name: str) -> str:
    """Wrong on rank 1 alone."""
    wrong, right = WRONG[name][0], pyg_sar.global_max
    x = torch.ones(4, 2)
    if rank() == 1:
        return attempt(wrong, x)
    if name.startswith('rows'):
        return attempt(pyg_sar.rows, x, torch.tensor([1]), torch.arange(4))
    if name in ('batch', 'graphs'):
        return attempt(lambda: pyg_sar.global_sum(x, batch=torch.zeros(4).long(), size=3))
    return attempt({'dim': lambda x: pyg_sar.global_mean(x, dim=0)}.get(name, right), x)


@pytest.mark.parametrize('name', WRONG)
def test_wrong_on_one_rank(name: str) -> None:
    assert_all_raise(run_as_threads(_attempt, 2, name), 'ValueError', WRONG[name][1])


class Decoder(nn.Module):
    """An inner product over the ends of labelled edges, in ids of the whole graph."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = SAGEConv(6, 4).double()

    def forward(self, data: Any, labels: Tensor) -> Tensor:
        out = self.conv(data.x, data.edge_index)
        z = pyg_sar.rows(out, labels, data.n_id) if 'n_id' in data else out[labels]
        return (z[0] * z[1]).sum(dim=-1)


def _labels(num_nodes: int) -> Tensor:
    return torch.randint(num_nodes, (2, 50), generator=torch.Generator().manual_seed(3))


def _decoded(root: str) -> int:
    """Every rank has another number of the labelled edges."""
    whole, data = small_graph(), pyg_sar.local(pyg_sar.load_shard(root))
    labels = _labels(whole.num_nodes)
    ends = [0, *(50 * (i + 1) ** 2 // world_size() ** 2 for i in range(world_size()))]
    own = labels[:, ends[rank()] : ends[rank() + 1]]
    plain = Decoder()
    want = plain(whole, labels)
    want.square().mean().backward()
    model = pyg_sar.DistributedDataParallel(Decoder())
    for _ in range(2):  # the second time by the plan of the first
        model.zero_grad()
        got = model(data, own)
        pyg_sar.global_mean(got.square()).backward()
        assert_close(got.detach(), want[ends[rank()] : ends[rank() + 1]].detach())
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert_close(ours.grad, theirs.grad)
    own[:, :1] = 7  # written to
    got = model(data, own)
    if own.size(1):
        assert_close(got[0].detach(), plain(whole, torch.tensor([[7], [7]]))[0].detach())
    return own.size(1)


@pytest.mark.parametrize('world_size', [1, 2, 3, 4])
def test_rows(tmp_path: Path, world_size: int) -> None:
    root = cut(small_graph(), world_size, tmp_path / 'parts')
    counts = run_as_threads(_decoded, world_size, str(root))
    assert sum(counts) == 50


def test_rows_on_processes(tmp_path: Path) -> None:
    run_ranks(_decoded, 3, str(cut(small_graph(), 3, tmp_path / 'parts')))
