"""Lines of PyG's programs in which plain tensors of the whole graph meet rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_as_threads
from small_graphs import small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import LGConv, SAGEConv
from torch_geometric.utils import add_self_loops, one_hot

import pyg_sar


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pyg_sar.partition_graph(small_graph(), 3, tmp_path / 'parts', method='random')
    return tmp_path / 'parts'


def _embedded(data: Data) -> tuple[Tensor, Any]:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(data.num_nodes, 4, dtype=torch.float64))
    conv = pyg_sar.DistributedDataParallel(LGConv())
    out = conv(weight, data.edge_index)
    (out * out).sum().backward()
    return pyg_sar.gather(out.detach()), weight.grad


def _one_hot(data: Data) -> tuple[Tensor, Tensor]:
    made = one_hot(data.y[data.train_mask], num_classes=3)
    return made.sum(dim=0), made * 2.0


def _pairs(data: Data) -> Tensor:
    seeds = {'num_nodes': data.num_nodes} if type(data.edge_index) is Tensor else {}
    others = pyg_sar.negative_sampling(data.edge_index, seed=1, **seeds)
    src, dst = torch.cat([data.edge_index, others], dim=1)
    return (data.x[src] * data.x[dst]).sum()


def _on_a_rank(program: Any, folder: Path) -> Any:
    return program(pyg_sar.load_shard(folder))


def _loops(data: Data) -> Tensor:
    """Of the nodes that have edges: fewer than there are."""
    edge_index, _ = add_self_loops(data.edge_index)
    torch.manual_seed(0)
    conv = pyg_sar.DistributedDataParallel(SAGEConv(data.num_features, 4).double())
    return pyg_sar.gather(conv(data.x, edge_index).detach())


def _all_edges(data: Data) -> tuple[Tensor, Tensor]:
    """With the ids of the whole graph."""
    return pyg_sar.gather(data.edge_index), pyg_sar.gather(data.edge_index.flip(0))


@pytest.mark.parametrize('program', [_embedded, _one_hot, _pairs, _loops, _all_edges])
@pytest.mark.parametrize('world_size', [1, 3])
def test_is_that_of_one_machine(folder: Path, program: Any, world_size: int) -> None:
    want = program(small_graph())
    for found in run_as_threads(_on_a_rank, world_size, program, folder):
        torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-10)
