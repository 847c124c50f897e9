"""Sums that travel in the place of rows: fewer rows, and the numbers of plain PyG."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alike import assert_same, cut_of, gradient, leaves, take_step, whole
from few import few
from graphs import with_values
from ranks import run_as_threads
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data

import pyg_sar
from pyg_sar import gather
from pyg_sar.rows.one_loss import sum_of_ranks
from pyg_sar.utils import hook

TOLERANCE = 1e-12
NUM_NODES = 120

CONVS: dict[str, tuple[Callable[[int, int], torch.nn.Module], str | None]] = {
    'SAGE': (pyg.SAGEConv, None),
    'GCN': (pyg.GCNConv, None),
    'GCN weights': (pyg.GCNConv, 'edge_weight'),
    'GIN': (lambda a, b: pyg.GINConv(torch.nn.Linear(a, b)), None),
    'GraphConv weights': (pyg.GraphConv, 'edge_weight'),
    'RGCN': (lambda a, b: pyg.RGCNConv(a, b, num_relations=3), 'edge_type'),
    'SG weights': (lambda a, b: pyg.SGConv(a, b, K=2), 'edge_weight'),
    'SAGE narrow': (lambda a, b: pyg.SAGEConv(a, min(b, 3)), None),
}


def hubs(num_nodes: int = NUM_NODES, num_edges: int = 700, power: float = 3.0) -> Data:
    """Directed edges whose ends are often the same few nodes, as in a graph of packages."""
    generator = torch.Generator().manual_seed(7)
    ends = torch.rand(2, num_edges, generator=generator)
    ends[0, : num_edges // 2].pow_(power)
    ends[1, num_edges // 2 :].pow_(power)
    nodes = torch.randperm(num_nodes, generator=generator)
    return with_values(nodes[(ends * num_nodes).long()], num_nodes)


class Model(torch.nn.Module):
    """Two layers, so that rows of the second need gradients."""

    def __init__(self, name: str, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        make, self.argument = CONVS[name]
        self.first, self.second = make(8, width), make(3 if 'narrow' in name else width, 8)
        self.double()

    def forward(self, x: Tensor, edge_index: Tensor, data: Data) -> Tensor:
        values = () if self.argument is None else (data[self.argument],)
        return self.second(self.first(x, edge_index, *values).tanh(), edge_index, *values)


class Rows(hook.Watcher):
    """Counts the rows that this process receives from other ranks."""

    def __init__(self) -> None:
        self.count = 0

    def moved(self, transfer: hook.Transfer) -> None:
        self.count += transfer.rows_received * (transfer.what != 'all ranks')


def _step(model: Any, data: Data) -> list[Any]:
    return take_step(model, data, data, grad=gradient)


def _run(root: str, name: str, **options: Any) -> dict[str, Any]:
    """Of two epochs; and the rows of all ranks in the last one."""
    data = pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(Model(name), **options)
    found: dict[str, Any] = {}
    for epoch in range(2):
        rows = Rows()
        hook.add(rows)
        found[str(epoch)] = {k: whole(v) for k, v in leaves(_step(model, data)).items()}
        hook.remove(rows)
    return {**found, 'rows': sum_of_ranks(torch.tensor(float(rows.count)))}


def _assert_near(got: Tensor, want: Tensor, scale: float) -> None:
    torch.testing.assert_close(got / scale, want / scale, rtol=0, atol=TOLERANCE)


def _check(ranks: list[dict[str, Any]], want: dict[str, Any]) -> None:
    for found in ranks:
        for epoch in '01':
            for key, value in want.items():
                scale = max(1.0, value.abs().max().item()) if value.numel() else 1.0
                _assert_near(found[epoch][key], value, scale)


def _parts(how: str, num_nodes: int, num_parts: int) -> Any:
    drawn = torch.rand(num_nodes, generator=torch.Generator().manual_seed(1))
    if how == 'unequal':
        return (drawn.sqrt() * num_parts).long().tolist()
    if how == 'no nodes':
        return ((drawn * (num_parts - 1)).long() + 1).tolist()
    return how


LAYOUTS = [
    *((2, 2, 'random'), (3, 3, 'unequal'), (4, 4, 'metis'), (3, 3, 'no nodes')),
    *((2, 6, 'unequal'), (4, 8, 'random'), (1, 4, 'metis')),
]


@pytest.mark.parametrize('name', CONVS)
@pytest.mark.parametrize(('size', 'parts', 'how'), few(LAYOUTS, 4))
def test_the_numbers_are_those_of_plain_pyg(name: str, size: int, parts: int, how: str) -> None:
    """With sums and with rows, and with the same bits once more."""
    root = cut_of(hubs, parts, _parts(how, NUM_NODES, parts))
    ranks, again = (run_as_threads(_run, size, root, name) for _ in range(2))
    rows = run_as_threads(_run, size, root, name, partial_sums=False)
    want = leaves(_step(Model(name), hubs()))
    _check(ranks, want)
    _check(rows, want)
    for one, other in zip(ranks, again, strict=True):
        assert_same(leaves(one), leaves(other), tolerance=0)
    if size > 1:
        assert ranks[0]['rows'] <= 0.9 * rows[0]['rows']


_many_hubs = functools.partial(hubs, 400, 1200, power=40.0)


def test_hubs_spare_half_of_the_rows() -> None:
    root = cut_of(_many_hubs, 4, 'random')
    for name in ('SAGE', 'GCN'):
        covered = run_as_threads(_run, 4, root, name)[0]['rows']
        assert covered <= 0.5 * run_as_threads(_run, 4, root, name, partial_sums=False)[0]['rows']


def _changing(root: str) -> None:
    """Weights that stay, are written to, also unseen, on one rank only, and are made anew."""
    graph, data = hubs(), pyg_sar.load_shard(root)
    plain = pyg.GraphConv(8, 8).double()
    conv = pyg_sar.SARConv(copy.deepcopy(plain))
    weight = data.edge_weight.clone()
    for step in range(12):
        if step == 2:
            weight.mul_(2)
        if step == 3 and pyg_sar.comm.ranks.rank() == 1:
            pyg_sar.local(weight).data[::2] *= 3  # no version tells
        if step >= 5:
            weight = data.edge_weight * step
        want, found = (
            take_step(each, of, of_all)
            for each, of, of_all in ((plain, graph, gather(weight)), (conv, data, weight))
        )
        for a, b in zip(found[:2], want[:2], strict=True):
            scale = b.abs().max().item()
            _assert_near(gather(a), b, scale)


def test_weights_that_change_are_told_again() -> None:
    run_as_threads(_changing, 3, cut_of(hubs, 3, 'random'))


def test_rows_and_sums_are_rounded() -> None:
    want = _step(Model('SAGE'), hubs())[0]
    root = cut_of(hubs, 3, 'random')
    for found in run_as_threads(_run, 3, root, 'SAGE', exchange_dtype=torch.bfloat16):
        assert 0 < (found['1']['[0]'] - want).abs().max() <= 0.02 * want.abs().max()


def test_an_option_turns_it_off() -> None:
    with pytest.raises(ValueError, match=r"'partial_sums' .*True"):
        pyg_sar.SARConv(pyg.SAGEConv(8, 8), partial_sums=1)
    with pytest.raises(ValueError, match=r"'partial_sums' .*one_shot"):
        pyg_sar.SARConv(pyg.SAGEConv(8, 8), mode='one_shot', partial_sums=False)
