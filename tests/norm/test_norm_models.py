"""Models with every norm on a partitioned graph, and norms of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from few import few
from ranks import run_as_threads, run_ranks
from small_graphs import assert_close, cut, small_graph
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import GINConv, MessagePassing, SAGEConv
from torch_geometric.nn.models import GIN

import pyg_sar
from pyg_sar import DistributedDataParallel, gather, wrap

NORMS: dict[str, Callable[[], torch.nn.Module]] = {
    'BatchNorm1d': lambda: torch.nn.BatchNorm1d(6),
    'BatchNorm': lambda: pyg.BatchNorm(6, allow_single_element=True),
    'HeteroBatchNorm': lambda: pyg.HeteroBatchNorm(6, 3),
    'InstanceNorm': lambda: pyg.InstanceNorm(6, affine=True, track_running_stats=True),
    'LayerNorm': lambda: pyg.LayerNorm(6),
    'HeteroLayerNorm': lambda: pyg.HeteroLayerNorm(6, 3),
    'GraphNorm': lambda: pyg.GraphNorm(6),
    'GraphSizeNorm': pyg.GraphSizeNorm,
    'PairNorm': pyg.PairNorm,
    'MessageNorm': lambda: pyg.MessageNorm(learn_scale=True),
    'DiffGroupNorm': lambda: pyg.DiffGroupNorm(6, 2, lamda=0.5),
    'MeanSubtractionNorm': pyg.MeanSubtractionNorm,
}
GIVEN = {'HeteroBatchNorm': 'y', 'HeteroLayerNorm': 'y', 'MessageNorm': 'x'}
OF_GRAPHS = ('InstanceNorm', 'LayerNorm', 'GraphNorm', 'GraphSizeNorm', 'PairNorm')


class Net(torch.nn.Module):
    """A norm between two convs and, if it takes nothing else, one inside the second."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.first, self.norm, self.given = SAGEConv(6, 6), NORMS[name](), GIVEN.get(name)
        inner = torch.nn.Identity() if self.given else NORMS[name]()
        self.second = GINConv(torch.nn.Sequential(torch.nn.Linear(6, 6), inner, torch.nn.Tanh()))

    def forward(self, data: Data) -> Tensor:
        x = self.first(data.x, data.edge_index).tanh()
        x = self.norm(x, data[self.given]) if self.given else self.norm(x)
        return self.second(x, data.edge_index)


class WithGraphs(torch.nn.Module):
    """One of PyG's models, given a batch vector."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.model = GIN(6, 6, 2, norm=NORMS[name]())

    def forward(self, data: Data) -> Tensor:
        return self.model(data.x, data.edge_index, batch=data.y, batch_size=4)


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    **{name: lambda name=name: Net(name) for name in NORMS},
    **{f'{name} of graphs': lambda name=name: WithGraphs(name) for name in OF_GRAPHS},
}


def _model(name: str) -> torch.nn.Module:
    torch.manual_seed(3)
    return MODELS[name]().double()


def _train(model: torch.nn.Module, data: Data) -> tuple[list[Tensor], dict]:
    """Outputs of two training steps and an evaluation, and the state at the end."""
    weight = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    outs = []
    for _ in range(2):
        outs.append(model(data))
        optimizer.zero_grad()
        (outs[-1] * weight).sum().backward()
        optimizer.step()
    model.eval()
    outs.append(model(data))
    state = getattr(model, 'module', model).state_dict()
    return [gather(out.detach()) for out in outs], {k: v.detach() for k, v in state.items()}


def _train_ranks(root: str) -> dict[str, Any]:
    data = pyg_sar.load_shard(root)
    return {name: _train(DistributedDataParallel(_model(name)), data) for name in MODELS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('world_size', 'kind'),
    [*few([(3, 'uneven'), (1, 'uneven'), (2, 'uneven')]), (2, 'empty part'), (4, 'empty part')],
)
def test_models(tmp_path, world_size, kind):
    """Two steps of training and an evaluation: outputs, parameters and buffers."""
    graph = small_graph()
    on_ranks = run_ranks if world_size == 2 else run_as_threads
    results = on_ranks(_train_ranks, world_size, str(cut(graph, world_size, tmp_path / 'p', kind)))
    for name in MODELS:
        want, state = _train(_model(name), graph)
        for found in results:
            outs, found_state = found[name]
            for out, expected in zip(outs, want, strict=True):
                assert_close(out, expected, tolerance=1e-10)
            assert list(found_state) == list(state)
            for key, value in state.items():
                assert_close(found_state[key], value, tolerance=1e-10)


# Norms of messages.


class NormInMessage(MessagePassing):
    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        # Random numbers: nothing could be compared.
        return torch.nn.functional.dropout(self.norm(x_j), 1e-9).tanh()


IN_MESSAGE = sorted(set(NORMS) - set(GIVEN))


def _conv(name: str) -> NormInMessage:
    torch.manual_seed(0)
    return NormInMessage(NORMS[name]()).double()


def _in_message(root: str) -> dict[str, Tensor]:
    data = pyg_sar.load_shard(root)
    return {n: gather(wrap(_conv(n))(data.x, data.edge_index).detach()) for n in IN_MESSAGE}


def test_norms_in_messages(tmp_path):
    """Their statistics are of the messages of all edges."""
    graph = small_graph()
    results = run_ranks(_in_message, 3, str(cut(graph, 3, tmp_path / 'parts')))
    for name in IN_MESSAGE:
        want = _conv(name)(graph.x, graph.edge_index).detach()
        for found in results:
            assert_close(found[name], want)


@pytest.mark.parametrize('name', ['BatchNorm', 'DiffGroupNorm', 'InstanceNorm'])
def test_running_statistics_in_messages(tmp_path, name):
    graph = small_graph()
    torch.manual_seed(0)
    plain = NormInMessage(NORMS[name]()).double().eval()
    want = plain(graph.x, graph.edge_index)
    data = pyg_sar.load_shard(cut(graph, 3, tmp_path / 'parts'))
    assert_close(gather(wrap(plain)(data.x, data.edge_index)), want)
