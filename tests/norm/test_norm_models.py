"""Models with every norm on a partitioned graph, and what norms refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from few import few
from pyg_sar.norm.row_groups import groups_of
from ranks import run_as_threads, run_ranks
from small_graphs import assemble, assert_all_raise, assert_close, attempt, cut, small_graph
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import GINConv, MessagePassing, SAGEConv
from torch_geometric.nn.models import GIN

import pyg_sar
from pyg_sar import DistributedDataParallel, SARConv, wrap
from pyg_sar.norm import (
    GlobalBatchNorm,
    GlobalDiffGroupNorm,
    GlobalGraphNorm,
    GlobalInstanceNorm,
    GlobalLayerNorm,
    GlobalPyGBatchNorm,
)
from pyg_sar.over_all_nodes import global_sum

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


def _train(model: torch.nn.Module, data: Data, nodes: Tensor) -> tuple[list[Tensor], dict]:
    """Outputs of two training steps and an evaluation, and the state at the end."""
    weight = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    outs = []
    for _ in range(2):
        outs.append(model(data))
        optimizer.zero_grad()
        global_sum((outs[-1] * weight[nodes]).sum()).backward()
        optimizer.step()
    model.eval()
    outs.append(model(data))
    return [out.detach() for out in outs], {k: v.detach() for k, v in model.state_dict().items()}


def _train_ranks(root: str) -> tuple[Tensor, dict[str, Any]]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    results = {}
    for name in MODELS:
        model = DistributedDataParallel(_model(name))
        outs, _ = _train(model, data, data.n_id)
        results[name] = outs, model.module.state_dict()
    return data.n_id, results


@pytest.mark.slow
@pytest.mark.parametrize(
    ('world_size', 'kind'),
    [
        *few([(3, 'uneven'), (1, 'uneven'), (2, 'uneven')]),
        *(pytest.param(n, 'empty part', marks=pytest.mark.slow) for n in (2, 4)),
    ],
)
def test_models(tmp_path, world_size, kind):
    """Two steps of training and an evaluation: outputs, parameters and buffers."""
    graph = small_graph()
    on_ranks = run_ranks if world_size == 2 else run_as_threads
    results = on_ranks(_train_ranks, world_size, str(cut(graph, world_size, tmp_path / 'p', kind)))
    for name in MODELS:
        want, state = _train(_model(name), graph, torch.arange(40))
        for i, out in enumerate(want):
            found = assemble([(ids, result[name][0][i]) for ids, result in results], 40)
            assert_close(found, out, tolerance=1e-10)
        for _, result in results:
            assert list(result[name][1]) == list(state)
            for key, value in state.items():
                assert_close(result[name][1][key], value, tolerance=1e-10)


# Errors, on all ranks.

BAD: dict[str, tuple[Tensor, Tensor, int | None, int | None, str]] = {
    'no group for a row': (torch.tensor([0, 1]), torch.tensor([0]), None, None, 'for every row'),
    'of one column': (torch.tensor([0, 1]), torch.zeros(2, 1).long(), None, None, 'for every row'),
    'float': (torch.tensor([0, 1]), torch.tensor([0.0, 1.0]), None, None, 'for every row'),
    'negative': (torch.tensor([0, 1]), torch.tensor([0, -1]), None, None, 'from 0 (got -1 to 0)'),
    'large': (torch.tensor([0, 1]), torch.tensor([0, 5]), 3, 3, 'and below 3 (got 0 to 5)'),
    'sizes': (torch.tensor([0, 1]), torch.tensor([0, 1]), 3, 4, 'the same number of groups'),
    'size of one': (torch.tensor([0, 1]), torch.tensor([0, 1]), 3, None, 'the same number'),
}


def _bad_batches() -> dict[str, str]:
    norm, rank = GlobalGraphNorm(4), dist.get_rank()
    x = torch.randn(2, 4)
    outcomes = {}
    for name, (*values, _) in BAD.items():
        outcomes[name] = attempt(norm, x, values[rank], values[2 + rank])
        norm(x, torch.tensor([0, 2]))  # The ranks go on together.
    return outcomes


def test_batch_vectors_that_do_not_fit():
    results = run_ranks(_bad_batches, 2)
    for name, (*_, words) in BAD.items():
        assert_all_raise([outcomes[name] for outcomes in results], 'ValueError', words, '(got')


def _other_errors() -> list[str]:
    rows = torch.randn(dist.get_rank(), 4)
    return [
        attempt(GlobalInstanceNorm(4), rows),
        attempt(GlobalGraphNorm(4), torch.randn(3)),
        attempt(GlobalPyGBatchNorm(4), rows),
        attempt(GlobalPyGBatchNorm(4, allow_single_element=True), rows),
    ]


def test_too_few_rows_or_dimensions():
    for outcomes in run_ranks(_other_errors, 2):
        few = 'more than 1 row on all ranks together'
        assert_all_raise(outcomes[:1] + outcomes[2:3], 'ValueError', few, '(got 1)')
        assert_all_raise(outcomes[1:2], 'ValueError', '[num_own, num_features] (got (3,))')
        assert outcomes[3] == 'no error'


def _largest_group() -> list[tuple[int, list[int]]]:
    """The last graphs lie on one rank only; int32 will do."""
    found = []
    index = torch.tensor([[0, 1, 1], [4, 0, 1]][dist.get_rank()])
    for batch in (index, index.int(), index[: 3 * dist.get_rank()]):
        groups = groups_of(torch.randn(len(batch), 2), batch)
        found.append(groups.count.tolist())
    return found


def test_the_number_of_graphs_is_that_of_all_ranks():
    expected = [[2, 3, 0, 0, 1], [2, 3, 0, 0, 1], [1, 1, 0, 0, 1]]
    assert run_ranks(_largest_group, 2) == [expected, expected]


def _second_derivative() -> Tensor:
    x = torch.tensor([[1.0 + 2 * dist.get_rank()]], dtype=torch.float64, requires_grad=True)
    total = groups_of(x).sum(x)
    (grad,) = torch.autograd.grad((total**3).sum(), x, create_graph=True)
    return torch.autograd.grad(grad.sum(), x)[0]


def test_sums_have_second_derivatives():
    """Each of two ranks has a loss of s^3: 2 x 3 s^2 per row, then 4 x 6 s of all their sums."""
    assert [float(grad) for grad in run_ranks(_second_derivative, 2)] == [96.0, 96.0]


# What is not converted.

BASES = [
    pyg.GraphNorm,
    pyg.InstanceNorm,
    pyg.LayerNorm,
    pyg.PairNorm,
    pyg.MeanSubtractionNorm,
    pyg.GraphSizeNorm,
    pyg.DiffGroupNorm,
    pyg.HeteroBatchNorm,
]


@pytest.mark.parametrize('base', BASES)
def test_a_users_subclass_is_refused(base):
    """It may do anything in its forward."""
    own = type('OwnNorm', (base,), {'forward': base.forward})
    arguments = {
        pyg.PairNorm: (),
        pyg.MeanSubtractionNorm: (),
        pyg.GraphSizeNorm: (),
        pyg.DiffGroupNorm: (6, 2),
        pyg.HeteroBatchNorm: (6, 2),
    }.get(base, (6,))
    model = torch.nn.ModuleList([SAGEConv(6, 6), own(*arguments), pyg.GraphNorm(6)])
    before = list(model)
    with pytest.raises(ValueError, match=r"^OwnNorm at '1' cannot run .* rows of one rank"):
        wrap(model)
    assert list(model) == before


def test_a_users_subclass_inside_pygs_batch_norm():
    model = torch.nn.ModuleList([SAGEConv(6, 6), pyg.BatchNorm(6)])
    base = torch.nn.BatchNorm1d
    model[1].module = type('OwnNorm', (base,), {'forward': base.forward})(6)
    with pytest.raises(ValueError, match=r"^OwnNorm at '1\.module' cannot run"):
        wrap(model)


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


def _in_message(root: str) -> tuple[Tensor, dict[str, Tensor]]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    outs = {name: wrap(_conv(name))(data.x, data.edge_index).detach() for name in IN_MESSAGE}
    return data.n_id, outs


def test_norms_in_messages(tmp_path):
    """Their statistics are of the messages of all edges."""
    graph = small_graph()
    results = run_ranks(_in_message, 3, str(cut(graph, 3, tmp_path / 'parts')))
    for name in IN_MESSAGE:
        want = _conv(name)(graph.x, graph.edge_index).detach()
        assert_close(assemble([(n_id, outs[name]) for n_id, outs in results], 40), want)


@pytest.mark.parametrize('name', ['BatchNorm', 'DiffGroupNorm', 'InstanceNorm'])
def test_running_statistics_in_messages(tmp_path, name):
    graph = small_graph()
    torch.manual_seed(0)
    plain = NormInMessage(NORMS[name]()).double().eval()
    want = plain(graph.x, graph.edge_index)
    data = pyg_sar.local(pyg_sar.load_shard(cut(graph, 3, tmp_path / 'parts')))
    assert_close(wrap(plain)(data.x, data.edge_index), want[data.n_id])


def test_a_global_norm_by_hand():
    mlp = torch.nn.Sequential(torch.nn.Linear(6, 6), GlobalGraphNorm(6))
    assert isinstance(SARConv(GINConv(mlp)), SARConv)


def test_batch_norms_inside_are_global_from_the_start():
    assert type(GlobalPyGBatchNorm(6).module) is GlobalBatchNorm
    assert type(GlobalDiffGroupNorm(6, 2).norm) is GlobalBatchNorm
    model = wrap(torch.nn.ModuleList([SAGEConv(6, 6), pyg.BatchNorm(6), pyg.DiffGroupNorm(6, 2)]))
    assert type(model[1].module) is GlobalBatchNorm
    assert type(model[2].norm) is GlobalBatchNorm


def test_layer_norm_of_nodes_by_hand():
    x = torch.randn(5, 6)
    want = pyg.LayerNorm(6, mode='node')(x)
    assert torch.equal(GlobalLayerNorm(6, mode='node')(x), want)
