"""Sums that travel in the place of rows: fewer rows, and the numbers of plain PyG."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from graphs import with_values
from ranks import run_ranks
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


def _run(root: Path, name: str, epochs: int = 2, **options: Any) -> dict[str, Tensor]:
    """Outputs and all gradients of every epoch, and the rows of the last one."""
    data = pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(Model(name), **options)
    found: dict[str, Tensor] = {}
    for epoch in range(epochs):
        rows = Rows()
        hook.add(rows)
        x = data.x.clone().requires_grad_()
        out = model(x, data.edge_index, data)
        (out * torch.sin(data.n_id.view(-1, 1) + torch.arange(out.size(1)))).sum().backward()
        hook.remove(rows)
        found |= {f'out {epoch}': gather(out.detach()), f'x {epoch}': gather(x.grad)}
        for key, parameter in model.named_parameters():
            found[f'{key} {epoch}'] = _grad(parameter).clone()
        model.zero_grad()
    found['rows'] = sum_of_ranks(torch.tensor(float(rows.count)))
    return found


def _grad(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _plain(data: Data, name: str) -> dict[str, Tensor]:
    model, x = Model(name), data.x.clone().requires_grad_()
    out = model(x, data.edge_index, data)
    nodes = torch.arange(NUM_NODES).view(-1, 1)
    (out * torch.sin(nodes + torch.arange(out.size(1)))).sum().backward()
    gradients = {key: _grad(parameter) for key, parameter in model.named_parameters()}
    return {'out': out.detach(), 'x': x.grad, **gradients}


def _check(data: Data, ranks: list[dict[str, Tensor]], name: str) -> None:
    for key, want in _plain(data, name).items():
        for epoch in range(2):
            for found in ranks:
                scale = max(1.0, want.abs().max().item())
                difference = (found[f'{key} {epoch}'] - want).abs()
                assert not difference.numel() or difference.max() <= TOLERANCE * scale, key


def _cut(data: Data, num_parts: int, how: str, root: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.rand(int(data.num_nodes or 0), generator=generator)
    method: Any = how
    if how == 'unequal':
        method = (drawn.sqrt() * num_parts).long()
    elif how == 'no nodes':
        method = (drawn * (num_parts - 1)).long() + 1
    pyg_sar.partition_graph(data, num_parts, root, method=method)


LAYOUTS = [
    (2, 2, 'random'),
    (3, 3, 'unequal'),
    (4, 4, 'metis'),
    (3, 3, 'no nodes'),
    (2, 6, 'unequal'),
    (4, 8, 'random'),
    (1, 4, 'metis'),
]


@pytest.mark.parametrize('name', CONVS)
@pytest.mark.parametrize(('world_size', 'num_parts', 'how'), few(LAYOUTS, 4))
def test_the_numbers_are_those_of_plain_pyg(
    tmp_path: Path, name: str, world_size: int, num_parts: int, how: str
) -> None:
    data = hubs()
    _cut(data, num_parts, how, tmp_path / 'parts')
    ranks = run_ranks(_run, world_size, tmp_path / 'parts', name)
    again = run_ranks(_run, world_size, tmp_path / 'parts', name)
    rows = run_ranks(_run, world_size, tmp_path / 'parts', name, partial_sums=False)
    _check(data, ranks, name)
    _check(data, rows, name)
    for one, other in zip(ranks, again, strict=True):
        assert all(torch.equal(value, other[key]) for key, value in one.items())
    if world_size > 1:
        assert ranks[0]['rows'] <= 0.9 * rows[0]['rows']


def test_hubs_spare_half_of_the_rows(tmp_path: Path) -> None:
    data = hubs(400, 1200, power=40.0)
    _cut(data, 4, 'random', tmp_path / 'parts')
    for name in ('SAGE', 'GCN'):
        covered = run_ranks(_run, 4, tmp_path / 'parts', name)[0]['rows']
        plain = run_ranks(_run, 4, tmp_path / 'parts', name, partial_sums=False)[0]['rows']
        assert covered <= 0.5 * plain


def _changing(root: Path) -> list[Tensor]:
    """Weights that stay, are written to, also unseen, on one rank only, and are made anew."""
    data = pyg_sar.load_shard(root)
    torch.manual_seed(0)
    conv = pyg_sar.SARConv(pyg.GraphConv(8, 8).double())
    weight, outs = data.edge_weight.clone(), []
    rank = pyg_sar.comm.ranks.rank()
    for step in range(12):
        if step == 2:
            weight.mul_(2)
        if step == 3 and rank == 1:
            pyg_sar.local(weight).data[::2] *= 3  # no version tells
        if step >= 5:
            weight = data.edge_weight * step
        outs.append(gather(weight))
        x = data.x.clone().requires_grad_()
        out = conv(x, data.edge_index, weight)
        out.sum().backward()
        outs += [gather(out.detach()), gather(x.grad)]
    return outs


def test_weights_that_change_are_told_again(tmp_path: Path) -> None:
    data = hubs()
    _cut(data, 3, 'random', tmp_path / 'parts')
    ranks = run_ranks(_changing, 3, tmp_path / 'parts')
    torch.manual_seed(0)
    conv = pyg.GraphConv(8, 8).double()
    for step in range(12):
        weight = ranks[0][3 * step]
        x = data.x.clone().requires_grad_()
        out = copy.deepcopy(conv)(x, data.edge_index, weight)
        out.sum().backward()
        for outs in ranks:
            scale = max(out.abs().max().item(), x.grad.abs().max().item())
            assert (outs[3 * step + 1] - out).abs().max() <= TOLERANCE * scale
            assert (outs[3 * step + 2] - x.grad).abs().max() <= TOLERANCE * scale


def _rounded(root: Path) -> Tensor:
    return _run(root, 'SAGE', exchange_dtype=torch.bfloat16)['out 1']


def test_rows_and_sums_are_rounded(tmp_path: Path) -> None:
    data = hubs()
    _cut(data, 3, 'random', tmp_path / 'parts')
    want = _plain(data, 'SAGE')['out']
    for out in run_ranks(_rounded, 3, tmp_path / 'parts'):
        assert 0 < (out - want).abs().max() <= 0.02 * want.abs().max()


def test_an_option_turns_it_off() -> None:
    with pytest.raises(ValueError, match=r"'partial_sums' .*True"):
        pyg_sar.SARConv(pyg.SAGEConv(8, 8), partial_sums=1)
    with pytest.raises(ValueError, match=r"'partial_sums' .*one_shot"):
        pyg_sar.SARConv(pyg.SAGEConv(8, 8), mode='one_shot', partial_sums=False)
