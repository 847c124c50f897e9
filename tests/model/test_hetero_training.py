"""Wrapping and training heterogeneous models: losses and weights equal those of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from few import few
from hetero_graphs import REVIEWS, WRITES, assignment, hetero_graph
from hetero_models import BOTH, METADATA, MODELS, OwnToHetero, inputs_of, with_shapes
from ranks import run_ranks
from small_graphs import assert_all_raise, attempt
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.nn.models import GraphSAGE

import pyg_sar
from pyg_sar import DistributedDataParallel, SARConv
from pyg_sar.over_all_nodes import global_mean

# HeteroConv says so of a last layer that has only the relations which are read.
pytestmark = pytest.mark.filterwarnings('ignore:There exist node types')

STEPS = 4


class Classifier(torch.nn.Module):
    """The last layer has only the relations into papers, as nothing reads the others."""

    def __init__(self) -> None:
        super().__init__()
        into = [rel for rel in METADATA[1] if rel[2] == 'paper']
        self.first = HeteroConv({rel: SAGEConv(BOTH, 8) for rel in METADATA[1]})
        self.second = HeteroConv({rel: SAGEConv(8, 3) for rel in into})

    def forward(self, x: dict[str, Tensor], edge_index: dict, edge: dict) -> dict[str, Tensor]:
        h = {key: value.relu() for key, value in self.first(x, edge_index).items()}
        return self.second(h, edge_index)


def _model(name: str) -> torch.nn.Module:
    if name == 'to_hetero':
        model: torch.nn.Module = OwnToHetero(GraphSAGE(BOTH, 8, 2, 3, norm='batch_norm'), 'sum')
    else:
        model = Classifier()
    torch.manual_seed(3)
    return with_shapes(model)


def _train(name: str, data: HeteroData, *, plain: bool) -> tuple[list[float], list[Tensor]]:
    model = _model(name)
    if not plain:
        model = DistributedDataParallel(model)
    # Adam divides by the gradient's size: with torch's eps, rounding would decide where it is 0.
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, eps=1e-4)
    x, edge = inputs_of(data)
    losses = []
    y, mask = data['paper'].y, data['paper'].train_mask
    for _ in range(STEPS):
        values = F.cross_entropy(model(x, data.edge_index_dict, edge)['paper'], y, reduction='none')
        loss = values[mask].mean() if plain else global_mean(values, mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach() for p in model.parameters()]


def _train_on_shard(name: str, root: str) -> tuple[list[float], list[Tensor]]:
    data = pyg_sar.load_shard(root)  # norms of plain rows would be those of a batch
    return _train(name, data if name == 'to_hetero' else pyg_sar.local(data), plain=False)


@pytest.mark.parametrize('name', few(['HeteroConv', 'to_hetero']))
@pytest.mark.parametrize('world_size', few([3, 1, 2]))
def test_training_equals_one_process(tmp_path: Path, name: str, world_size: int) -> None:
    losses, parameters = _train(name, hetero_graph(), plain=True)
    assert losses[-1] < losses[0]
    method = assignment(world_size)
    pyg_sar.partition_graph(hetero_graph(), world_size, tmp_path / 'parts', method=method)
    results = run_ranks(_train_on_shard, world_size, name, str(tmp_path / 'parts'))
    for found, weights in results:
        assert found == pytest.approx(losses, abs=1e-10, rel=0)
        for a, b in zip(parameters, weights, strict=True):
            assert (a - b).abs().max() <= 1e-10


def test_wrap_takes_every_conv_and_keeps_the_keys() -> None:
    for name in ('SAGE', 'mixed', 'to_hetero', 'HeteroDictLinear'):
        plain, model = (with_shapes(MODELS[name]()) for _ in range(2))
        pyg_sar.wrap(model)
        num_convs = sum(hasattr(m, 'propagate') for m in plain.modules())
        assert sum(isinstance(m, SARConv) for m in model.modules()) == num_convs
        assert list(model.state_dict()) == list(plain.state_dict())
        model.load_state_dict(plain.state_dict())


def _other_relation(root: str) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    rel = WRITES if dist.get_rank() == 0 else REVIEWS
    conv = SARConv(SAGEConv((4, 6), 5).double())
    return attempt(conv, (data['author'].x, data['paper'].x), data[rel].edge_index)


def test_ranks_that_walk_different_relations_raise(tmp_path: Path) -> None:
    pyg_sar.partition_graph(hetero_graph(), 2, tmp_path / 'parts')
    outcomes = run_ranks(_other_relation, 2, str(tmp_path / 'parts'))
    assert_all_raise(outcomes, 'ValueError', 'author__writes__paper', 'author__reviews__paper')
