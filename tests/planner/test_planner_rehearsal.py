"""One rank trains on a made-up shard, and what is alive is counted."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from planner_models import USER_MODELS, job_of, sizes_of_rank
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.nn.models import GAT, GraphSAGE

import pyg_sar
from pyg_sar.plan import MODES
from pyg_sar.planner.made_up import made_up_shard
from pyg_sar.planner.rehearsal import equal_ranks, rehearse
from pyg_sar.rows.from_data import as_rows_of_graph

SIZES = sizes_of_rank(7, 20, (3, 2, 4), (9, 5, 11))


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('name', ['gat', 'gcn', 'median'])
def test_rehearsal_is_what_a_rank_of_equal_ranks_does(name: str, mode: Any) -> None:
    model = USER_MODELS[name]().double()
    job = job_of(model, 6, 'float64', mode=mode)
    wrapped = pyg_sar.DistributedDataParallel(copy.deepcopy(model), mode=mode)
    wrapped.eval(), model.eval()  # no dropout; running statistics
    with equal_ranks(4) as traffic:
        data = made_up_shard(SIZES, job.meta)
        x, edge_index = _whole_graph(data, 4)
        as_rows_of_graph(data)
        out = wrapped(data.x, data.edge_index)
        out.square().sum().backward()
        out = pyg_sar.local(out)

    expected = model(x, edge_index)
    expected.square().sum().backward()
    assert (out - expected[: len(out)]).abs().max() < 1e-10
    for own, whole in zip(wrapped.parameters(), model.parameters(), strict=True):
        assert (own.grad - whole.grad).abs().max() < 1e-10
    assert traffic.rows_received > 0


def _whole_graph(data: Data, world_size: int) -> tuple[Tensor, Tensor]:
    """All ranks beside each other: each reads of the others what others read of it."""
    shard, n = data.edge_index.handle.shard, data.num_nodes
    src, dst = data.edge_index.as_subclass(Tensor)
    edges = []
    for rank in range(world_size):
        local = torch.arange(n + shard.num_halo) + rank * n
        for step in shard.steps:
            start, end = shard.source_range(step.part)
            owner = (rank + step.recv_rank) % world_size
            local[start:end] = owner * n + step.send_index
        edges.append(torch.stack([local[src], dst + rank * n]))
    return data.x.repeat(world_size, 1), torch.cat(edges, dim=1)


@pytest.mark.parametrize(('name', 'share'), [('sage', 0.4), ('sage', 0.8), ('gat', 0.4)])
def test_sums_travel_in_the_place_of_rows(name: str, share: float) -> None:
    """As large a part of the rows as in the graph, where a model sums over edges."""
    model = GraphSAGE(6, 8, 2, 3) if name == 'sage' else GAT(6, 8, 2, 3, heads=2)
    of = 400, 3000, (100, 60, 80), (300, 200, 250)
    rows = rehearse(job_of(model, 6), sizes_of_rank(*of)).rows_received
    fewer = rehearse(job_of(model, 6), sizes_of_rank(*of, share)).rows_received
    assert fewer == pytest.approx(share * rows if name == 'sage' else rows, rel=0.02)


def test_model_and_random_numbers_stay_as_they_are() -> None:
    model = USER_MODELS['gcn']()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    rehearse(job_of(model, 6), SIZES)
    assert torch.equal(torch.get_rng_state(), state)
    assert type(model.first) is GCNConv
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_bytes_grow_with_what_training_keeps() -> None:
    def peak(layers: int, dtype: str = 'float32') -> int:
        model = GraphSAGE(6, 16, layers).to(getattr(torch, dtype))
        return rehearse(job_of(model, 6, dtype), SIZES.scaled(100)).peak_bytes

    two, three, four = (peak(layers) for layers in (2, 3, 4))
    assert two < three < four
    assert four - three == pytest.approx(three - two, rel=0.05)
    assert peak(3, 'float64') == pytest.approx(2 * three, rel=0.25)
