"""Readouts and rows of any nodes: the value of the whole graph, and all gradients, elementwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from ranks import run_as_threads
from small_graphs import assert_close, cut, small_graph
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv, global_add_pool, global_max_pool, global_mean_pool
from torch_geometric.utils import softmax

import pyg_sar
from pyg_sar.comm.ranks import rank, world_size
from pyg_sar.comm.rows_by_id import rows

Program = Callable[[Tensor, Tensor, Tensor], Tensor]

NUM_GRAPHS = 5


PROGRAMS: dict[str, Program] = {
    'mean': lambda x, m, b: x.mean(dim=0),
    'mean of all': lambda x, m, b: x.mean(),
    'mean of some': lambda x, m, b: x[m].mean(dim=0),
    'mean by graph': lambda x, m, b: global_mean_pool(x, b),
    'sum': lambda x, m, b: x.sum(dim=0),
    'sum by graph': lambda x, m, b: global_add_pool(x, b, NUM_GRAPHS + 1),
    'max': lambda x, m, b: x.amax(dim=0),
    'max of some': lambda x, m, b: x[m].amax(dim=0),
    'max by graph': lambda x, m, b: global_max_pool(x, b),
    'max with ties': lambda x, m, b: x.relu().neg().amax(dim=0),
    'min': lambda x, m, b: x.amin(dim=0),
    'std': lambda x, m, b: x.std(dim=0),
    'std of some': lambda x, m, b: x[m].std(dim=0, correction=0),
    'standardised': lambda x, m, b: (x - x.mean(dim=0)) / x.std(dim=0),
    'softmax': lambda x, m, b: x.softmax(dim=0),
    'softmax by graph': lambda x, m, b: softmax(x, b, num_nodes=NUM_GRAPHS),
}
"""Of x [N, 4], mask [N] and batch [N]."""


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


def _graph() -> Any:
    data = small_graph()
    generator = torch.Generator().manual_seed(2)
    data.chosen = torch.rand(data.num_nodes, generator=generator) < 0.4
    data.graph = torch.randint(NUM_GRAPHS, (data.num_nodes,), generator=generator)
    return data


def _trained(data: Any, program: Program, wrap: Callable[[nn.Module], nn.Module]) -> list[Tensor]:
    data.x.requires_grad_()
    model = wrap(Model(program))
    out = model(data, data.chosen, data.graph)
    out.square().mean().backward()
    return [out.detach(), data.x.grad, *(p.grad for p in model.parameters())]


def _on_rank(name: str, root: str) -> None:
    program = PROGRAMS[name]
    want = _trained(_graph(), program, lambda model: model)
    got = _trained(
        pyg_sar.load_shard(root), program, lambda model: pyg_sar.DistributedDataParallel(model)
    )
    for a, b in zip(got, want, strict=True):
        assert_close(pyg_sar.gather(a), b)


@pytest.mark.parametrize('name', PROGRAMS)
@pytest.mark.parametrize('world_size', few([3, 1, 2, 4], every=4))
def test_is_that_of_the_whole_graph(tmp_path: Path, name: str, world_size: int) -> None:
    root = cut(_graph(), world_size, tmp_path / 'parts')
    run_as_threads(_on_rank, world_size, name, str(root))


def test_a_rank_without_nodes(tmp_path: Path) -> None:
    root = cut(_graph(), 3, tmp_path / 'parts', 'empty part')
    for name in PROGRAMS:
        run_as_threads(_on_rank, 3, name, str(root))


class Decoder(nn.Module):
    """An inner product over the ends of labelled edges, in ids of the whole graph."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = SAGEConv(6, 4).double()

    def forward(self, data: Any, labels: Tensor) -> Tensor:
        out = self.conv(data.x, data.edge_index)
        is_plain = 'n_id' not in data
        own, n_id = (out, None) if is_plain else pyg_sar.local((out, data.n_id))
        z = out[labels] if is_plain else rows(own, labels, n_id)
        return (z[0] * z[1]).sum(dim=-1)


def _labels(num_nodes: int) -> Tensor:
    return torch.randint(num_nodes, (2, 50), generator=torch.Generator().manual_seed(3))


def _decoded(root: str) -> int:
    """Every rank has another number of the labelled edges."""
    whole, data = small_graph(), pyg_sar.load_shard(root)
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
        pyg_sar.loader.mean_of_batches(got.square()).backward()
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
