"""Norms of classes that users derive."""

from __future__ import annotations

import copy
import pickle
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_as_threads
from small_graphs import assert_close, cut, small_graph
from torch import Tensor
from torch_geometric.nn import GraphNorm, SAGEConv

import pyg_sar


class SlowNorm(torch.nn.BatchNorm1d):
    """Other defaults."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, momentum=0.01)


class NamedNorm(GraphNorm):
    """More methods."""

    def scale(self) -> Tensor:
        return self.weight


class DoubledNorm(torch.nn.BatchNorm1d):
    """Another forward."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Net(torch.nn.Module):
    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = SAGEConv(6, 8), norm

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.norm(self.conv(x, edge_index))


NORMS = {
    'batch': lambda: SlowNorm(8),
    'graph': lambda: NamedNorm(8),
    'another forward': lambda: DoubledNorm(8),
    'lazy': torch.nn.LazyBatchNorm1d,
}


def _run(name: str, data: Any, copied: Any, wraps: bool) -> list[Tensor]:
    model: torch.nn.Module = Net(NORMS[name]()).double()
    if wraps:
        model = copied(pyg_sar.DistributedDataParallel(model))
        assert type(model.norm) is type(NORMS[name]())
    out = model(data.x, data.edge_index)
    model.eval()
    return [pyg_sar.gather(each.detach()) for each in (out, model(data.x, data.edge_index))]


def _of_rank(root: Path, name: str, copied: Any) -> Any:
    return _run(name, pyg_sar.load_shard(root), copied, True)


def _as_it_is(model: torch.nn.Module) -> torch.nn.Module:
    return model


def _pickled(model: torch.nn.Module) -> torch.nn.Module:
    return pickle.loads(pickle.dumps(model))


CASES = [
    *product(NORMS, [_as_it_is]),
    *product(['batch', 'graph', 'another forward'], [copy.deepcopy, _pickled]),
]  # torch itself cannot copy lazy norms


@pytest.mark.parametrize(('name', 'copied'), CASES)
def test_a_subclass_is_of_all_ranks(name: str, copied: Any, tmp_path: Path) -> None:
    graph = small_graph()
    want = _run(name, graph, copied, False)
    root = cut(graph, 3, tmp_path / 'parts')
    for found in run_as_threads(_of_rank, 3, root, name, copied):
        for ours, whole in zip(found, want, strict=True):
            assert_close(ours, whole)
