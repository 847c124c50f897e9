"""No program of users is silently wrong: it is right on ranks, or refused with an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from small_graphs import cut, small_graph
from torch import Tensor
from torch_geometric.data import Data
from user_programs import PROGRAMS, Net

import pyg_sar
from pyg_sar.comm.threads import run_threads

NUM_RANKS = 3


@pytest.fixture(scope='module')
def graph() -> Data:
    return small_graph(90, 400)


@pytest.fixture(scope='module')
def root(graph: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut(graph, NUM_RANKS, tmp_path_factory.mktemp('programs') / 'parts')


def _model(name: str) -> Net:
    torch.manual_seed(0)
    return Net(PROGRAMS[name]()).double()


def _gradients(model: torch.nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def _on_ranks(name: str, root: Path, weights: Tensor) -> Any:
    data = pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(_model(name))
    out = model(data.x, data.edge_index)
    (out * weights).sum().backward()
    return [pyg_sar.gather(out).detach(), *_gradients(model)]


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', few(PROGRAMS))
def test_right_or_refused(name: str, graph: Data, root: Path) -> None:
    model = _model(name)
    expected = model(graph.x, graph.edge_index)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    (expected * weights).sum().backward()
    try:
        found = run_threads(_on_ranks, NUM_RANKS, name, root, weights)
    except (ValueError, RuntimeError):
        return
    want = [expected.detach(), *_gradients(model)]
    for got in found:
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9, equal_nan=True)
