"""No program of users is silently wrong: it is right on ranks, or refused before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_graphs import assemble, cut, small_graph
from torch import Tensor
from torch_geometric.data import Data
from user_programs import PROGRAMS, Net

import pyg_sar
from pyg_sar.checking.first_forward import check_model
from pyg_sar.checking.run import CannotRun
from pyg_sar.comm import rank
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
    data = pyg_sar.load_shard(root, rank())
    model = pyg_sar.DistributedDataParallel(_model(name), check=False)
    out = model(data.x, data.edge_index)
    (NUM_RANKS * (out * weights[data.n_id]).sum()).backward()
    return data.n_id, out.detach(), _gradients(model)


def _is_right(name: str, graph: Data, root: Path) -> bool:
    """Whether the outputs and gradients of ranks are those of plain PyG."""
    model = _model(name)
    expected = model(graph.x, graph.edge_index)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    (expected * weights).sum().backward()
    found = run_threads(_on_ranks, NUM_RANKS, name, root, weights)
    got = [assemble(((n_id, out) for n_id, out, _ in found), graph.num_nodes), *found[0][2]]
    pairs = zip(got, [expected.detach(), *_gradients(model)], strict=True)
    return all(torch.allclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True) for a, b in pairs)


def _refusal(name: str, root: Path) -> str | None:
    """What a user reads before anything is trained; None if the program is let through."""
    data = pyg_sar.load_shard(root, NUM_RANKS - 1)
    try:
        model = pyg_sar.wrap(_model(name))
    except ValueError as error:
        return str(error)
    return check_model(model, (data.x, data.edge_index), {})


@pytest.mark.slow
@pytest.mark.parametrize('name', PROGRAMS)
def test_right_or_refused(name: str, graph: Data, root: Path) -> None:
    try:
        refusal = _refusal(name, root)
    except CannotRun:  # neither does it run on ranks
        with pytest.raises((ValueError, RuntimeError)):
            _is_right(name, graph, root)
        return
    if refusal is None:
        assert _is_right(name, graph, root)
        return
    assert "'step" in refusal  # the module's path
    if 'cannot run on a partitioned graph' not in refusal:
        assert not _is_right(name, graph, root)  # nothing right is refused
