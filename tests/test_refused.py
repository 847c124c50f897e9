"""Never silently wrong: what block by block or rank by rank would be wrong raises, on all ranks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import run_ranks
from small_graphs import assemble, assert_all_raise, assert_close, attempt, cut, small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GINEConv,
    GraphConv,
    MessagePassing,
    SAGEConv,
    TransformerConv,
)
from torch_geometric.utils import degree, scatter, softmax

from pyg_sar import SARConv, load_shard, wrap

IMPATIENT = 6
"""Seconds after which ranks that wait for one another are given up."""


@pytest.fixture
def graph() -> Data:
    return small_graph()


@pytest.fixture
def root(graph: Data, tmp_path: Path) -> str:
    return str(cut(graph, 3, tmp_path / 'parts'))


class _Sum(MessagePassing):
    """Sums messages of 6 features."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{'aggr': 'add', **kwargs})

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)


# Messages that look at other edges of their destination.


class DividesByDegree(_Sum):
    def message(self, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return x_j / degree(index, size_i)[index].view(-1, 1)


class TakesMaximum(_Sum):
    def message(self, x_j: Tensor, index: Tensor, dim_size: int) -> Tensor:
        return x_j - scatter(x_j, index, 0, dim_size, reduce='max')[index]


class OwnSoftmax(_Sum):
    def message(self, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        weight = x_j.exp()
        total = weight.new_zeros(size_i, x_j.size(1)).index_add(0, index, weight)
        return weight / total[index]


class CountsEdges(_Sum):
    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        return x_j / torch.bincount(index)[index].view(-1, 1)


class ReadsIdsAsNumbers(_Sum):
    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        return x_j * index.view(-1, 1)


class ReadsIdsAsList(_Sum):
    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        return x_j * (1 + len(set(index.tolist())))


class ReadsLargestId(_Sum):
    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        return x_j * float(index.max())


class ReadsDestinationsByTheirOtherName(_Sum):
    def message(self, x_j: Tensor, edge_index_i: Tensor) -> Tensor:
        return x_j / degree(edge_index_i)[edge_index_i].view(-1, 1)


class SoftmaxOfTheLastDimension(_Sum):
    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        return softmax(x_j.t(), index, dim=1).t()


class SoftmaxOverOtherGroups(_Sum):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        group = torch.arange(edge_index.size(1)) % 3
        return self.propagate(edge_index, x=x, group=group)

    def message(self, x_j: Tensor, group: Tensor) -> Tensor:
        return softmax(x_j, group, num_nodes=3)


class CountsMessages(_Sum):
    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        return x_j / index.numel()


class SubtractsMean(_Sum):
    def message(self, x_j: Tensor) -> Tensor:
        return x_j - x_j.mean(0)


class SoftmaxOfAllEdges(_Sum):
    def message(self, x_j: Tensor) -> Tensor:
        return x_j.softmax(dim=0)


class FunctionalBatchNorm(_Sum):
    def message(self, x_j: Tensor) -> Tensor:
        return F.batch_norm(x_j, None, None, training=True)


class NumbersEdges(_Sum):
    def message(self, x_j: Tensor) -> Tensor:
        return x_j * torch.arange(x_j.size(0)).view(-1, 1)


class KeepsTensor(_Sum):
    """Its gradient would never reach the linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(6, 6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.scale = self.lin.weight.sum(0).tanh()
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j * self.scale


class KeepsEdgeTensor(_Sum):
    """One row per edge of the whole, where a message sees one block."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.weight = torch.arange(edge_index.size(1)).view(-1, 1)
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j * self.weight


class ReadsSources(_Sum):
    def message(self, x_j: Tensor, edge_index_j: Tensor) -> Tensor:
        return x_j * edge_index_j.view(-1, 1)


EXACT: dict[str, type[MessagePassing]] = {
    cls.__name__: cls
    for cls in (
        DividesByDegree,
        TakesMaximum,
        OwnSoftmax,
        CountsEdges,
        ReadsDestinationsByTheirOtherName,
        SoftmaxOfTheLastDimension,
    )
}
MESSAGES: dict[str, type[MessagePassing]] = {
    cls.__name__: cls
    for cls in (
        ReadsIdsAsNumbers,
        ReadsIdsAsList,
        ReadsLargestId,
        SoftmaxOverOtherGroups,
        KeepsTensor,
        CountsMessages,
        ReadsSources,
    )
}
ROW_STATISTICS: dict[str, type[MessagePassing]] = {
    cls.__name__: cls
    for cls in (SubtractsMean, SoftmaxOfAllEdges, FunctionalBatchNorm, NumbersEdges)
}


def _conv(name: str) -> MessagePassing:
    torch.manual_seed(0)
    classes = {**EXACT, **MESSAGES, **ROW_STATISTICS, 'KeepsEdgeTensor': KeepsEdgeTensor}
    return classes[name]().double()


def _forward(name: str, root: str, mode: str) -> str:
    data = load_shard(root)
    return attempt(SARConv(_conv(name), mode=mode), data.x, data.edge_index)


@pytest.mark.parametrize('mode', ['sequential', 'sequential_no_remat'])
@pytest.mark.parametrize('name', MESSAGES)
def test_messages_that_see_other_edges(root, name, mode):
    outcomes = run_ranks(_forward, 3, name, root, mode, timeout=IMPATIENT)
    words = f"{name}'s 'message' cannot be computed on a cut graph"
    assert_all_raise(outcomes, 'ValueError', words)
    assert_all_raise([_forward(name, root, mode)], 'ValueError', words)


@pytest.mark.parametrize('name', ROW_STATISTICS)
def test_messages_that_take_statistics_over_edges(root, name):
    """No index is looked at, yet a message depends on the edges beside it."""
    outcomes = run_ranks(_forward, 3, name, root, 'sequential', timeout=IMPATIENT)
    assert_all_raise(outcomes, 'ValueError', name)


def test_a_kept_edge_tensor(root):
    outcomes = run_ranks(_forward, 3, 'KeepsEdgeTensor', root, 'sequential', timeout=IMPATIENT)
    assert all('Error: ' in outcome for outcome in outcomes), outcomes


def _values(name: str, root: str, mode: str) -> tuple[Tensor, Tensor]:
    data = load_shard(root)
    with torch.no_grad():
        return data.n_id, SARConv(_conv(name), mode=mode)(data.x, data.edge_index)


@pytest.mark.parametrize('mode', ['sequential', 'sequential_no_remat', 'one_shot'])
@pytest.mark.parametrize('name', EXACT)
def test_messages_that_see_all_in_edges(graph, root, name, mode):
    """With all in-edges of a node at hand they are exact."""
    want = _conv(name)(graph.x, graph.edge_index).detach()
    assert_close(assemble(run_ranks(_values, 3, name, root, mode), 40), want)


def test_one_shot_takes_a_kept_tensor(graph, root):
    want = _conv('KeepsTensor')(graph.x, graph.edge_index).detach()
    assert_close(assemble(run_ranks(_values, 3, 'KeepsTensor', root, 'one_shot'), 40), want)


@pytest.mark.parametrize('name', [*ROW_STATISTICS, *sorted(set(MESSAGES) - {'KeepsTensor'})])
def test_one_shot_is_not_silently_wrong(graph, root, name):
    """All edges of a rank are not all edges of the graph: right, or refused."""
    outcomes = run_ranks(_forward, 3, name, root, 'one_shot', timeout=IMPATIENT)
    if all(outcome == 'no error' for outcome in outcomes):
        want = _conv(name)(graph.x, graph.edge_index)
        assert_close(assemble(run_ranks(_values, 3, name, root, 'one_shot'), 40), want)
    else:
        assert_all_raise(outcomes, 'ValueError', name)


# A batch norm inside a message.


class NormInMessage(_Sum):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(6)

    def message(self, x_j: Tensor) -> Tensor:
        return self.norm(x_j).tanh()


def _norm_model() -> torch.nn.ModuleList:
    model = torch.nn.ModuleList([NormInMessage()]).double()
    model[0].norm.running_mean.fill_(0.3)
    model[0].norm.running_var.fill_(2.0)
    return model


def _norm_in_message(
    root: str, training: list[bool], mode: str
) -> tuple[list[str], Tensor, Tensor | None]:
    data = load_shard(root)
    model = wrap(_norm_model(), mode=mode)
    outcomes = []
    out = None

    def forward() -> None:
        nonlocal out
        out = model[0](data.x, data.edge_index).detach()

    for is_training in training:
        model.train(is_training)
        out = None
        outcomes.append(attempt(forward))
    return outcomes, data.n_id, out


@pytest.mark.parametrize('before', [[], [False]], ids=['at once', 'after evaluation'])
@pytest.mark.parametrize('world_size', [1, 3])
@pytest.mark.parametrize('mode', ['sequential', 'one_shot'])
@pytest.mark.parametrize('training', [False, True])
def test_batch_norm_inside_a_message(graph, tmp_path, before, world_size, mode, training):
    root = str(cut(graph, 3, tmp_path / 'parts'))
    plain = _norm_model()[0]
    for is_training in (*before, training):
        want = plain.train(is_training)(graph.x, graph.edge_index).detach()
    modes = [*before, training]
    results = run_ranks(_norm_in_message, world_size, root, modes, mode, timeout=IMPATIENT)
    assert [outcomes for outcomes, _, _ in results] == [['no error'] * len(modes)] * world_size
    assert_close(assemble([(ids, out) for _, ids, out in results], 40), want)


# What is refused at construction.


class ReadsEdges(_Sum):
    def message(self, x_j: Tensor, edge_index: Tensor) -> Tensor:
        return x_j * edge_index[0].view(-1, 1)


class ReadsSize(_Sum):
    def message(self, x_j: Tensor, size_j: int) -> Tensor:
        return x_j / size_j


class UpdatesFromEdges(_Sum):
    def update(self, inputs: Tensor, x_j: Tensor) -> Tensor:
        return inputs + x_j.sum()


class OwnPropagate(_Sum):
    def propagate(self, edge_index: Tensor, x: Tensor) -> Tensor:  # type: ignore[override]
        return x[edge_index[0]].sum(0)


class OwnEdgeUpdater(_Sum):
    def edge_updater(self, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        return edge_index


class OwnAggregate(_Sum):
    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int) -> Tensor:
        return scatter(inputs, index, self.node_dim, dim_size, reduce='max')


class Inherits(OwnPropagate):
    pass


REFUSED: dict[str, tuple[Callable[[], MessagePassing], str]] = {
    'edges': (ReadsEdges, "its 'message' reads 'edge_index'"),
    'size': (ReadsSize, "its 'message' reads 'size_j'"),
    'update': (UpdatesFromEdges, "its 'update' reads 'x_j'"),
    'propagate': (OwnPropagate, "it overrides 'propagate'"),
    'inherited propagate': (Inherits, "it overrides 'propagate'"),
    'edge_updater': (OwnEdgeUpdater, "it overrides 'edge_updater'"),
}


@pytest.mark.parametrize('mode', ['sequential', 'one_shot'])
@pytest.mark.parametrize('name', REFUSED)
def test_refused_at_construction(name, mode):
    make, words = REFUSED[name]
    with pytest.raises(ValueError, match=f'cannot be wrapped: {words}'):
        SARConv(make(), mode=mode)
    with pytest.raises(ValueError, match=f"at '0' cannot run on a partitioned graph: {words}"):
        wrap(torch.nn.ModuleList([make()]), mode=mode)


@pytest.mark.parametrize('mode', ['sequential', 'one_shot'])
def test_own_aggregate(graph, tmp_path, mode):
    data = load_shard(cut(graph, 3, tmp_path / 'parts'))
    found = SARConv(OwnAggregate(), mode=mode)(data.x, data.edge_index)
    assert_close(found, OwnAggregate()(graph.x, graph.edge_index)[data.n_id])


# Hooks.


def _hook(kind: str) -> Callable[..., Any]:
    """Changes what it is given; a hook of the message works edge by edge."""
    if kind == 'propagate_forward_pre_hook':
        return lambda _, args: (*args[:2], {**args[2], 'x': (args[2]['x'][0].sin(), None)})
    if kind == 'message_forward_pre_hook':
        return lambda _, args: ({'x_j': args[0]['x_j'].cos()},)
    return lambda _, args, out: out * 2 + 1


def _hooked(root: str, kind: str, on_wrapper: bool) -> tuple[Tensor, Tensor]:
    data = load_shard(root)
    torch.manual_seed(0)
    plain = SAGEConv(6, 4).double()
    conv = SARConv(plain)
    getattr(conv if on_wrapper else plain, f'register_{kind}')(_hook(kind))
    return data.n_id, conv(data.x, data.edge_index).detach()


@pytest.mark.parametrize('on_wrapper', [False, True])
@pytest.mark.parametrize(
    'kind',
    [
        'propagate_forward_pre_hook',
        'propagate_forward_hook',
        'message_forward_pre_hook',
        'message_forward_hook',
        'aggregate_forward_hook',
    ],
)
def test_hooks(graph, root, kind, on_wrapper):
    torch.manual_seed(0)
    plain = SAGEConv(6, 4).double()
    getattr(plain, f'register_{kind}')(_hook(kind))
    want = plain(graph.x, graph.edge_index).detach()
    assert not torch.allclose(want, SAGEConv(6, 4).double()(graph.x, graph.edge_index))
    assert_close(assemble(run_ranks(_hooked, 3, root, kind, on_wrapper), 40), want)


def test_hooks_of_edge_updates(graph, root):
    """They see the arguments and the result of all edges."""
    data = load_shard(root)
    called = []
    conv = SARConv(GATConv(6, 4, add_self_loops=False).double())
    conv.register_edge_update_forward_pre_hook(lambda _, args: called.append(len(args)))
    conv.register_edge_update_forward_hook(lambda _, args, out: called.append(out.size(0)))
    conv(data.x, data.edge_index)
    assert called == [3, graph.num_edges]


def test_explaining(root):
    data = load_shard(root)
    plain = SAGEConv(6, 4).double()
    conv = SARConv(plain)
    plain.explain = True
    with pytest.raises(ValueError, match='SAGEConv cannot be explained'):
        conv(data.x, data.edge_index)


# Tensors that do not fit, on one rank only.

CONVS: dict[str, Callable[[], MessagePassing]] = {
    'SAGE': lambda: SAGEConv(6, 4),
    'GCN': lambda: GCNConv(6, 4),
    'GIN': lambda: GINConv(torch.nn.Linear(6, 4)),
    'GAT': lambda: GATConv(6, 4),
    'Transformer': lambda: TransformerConv(6, 4),
    'Graph': lambda: GraphConv(6, 4),
    'GINE': lambda: GINEConv(torch.nn.Linear(6, 4), edge_dim=4),
}


def _with_rows(root: str, name: str, mode: str, change: int, on_ranks: list[int]) -> str:
    data = load_shard(root)
    conv = SARConv(CONVS[name]().double(), mode=mode)
    x = data.x
    if dist.get_rank() in on_ranks:
        x = x[:change] if change < 0 else torch.cat([x, x[:change]])
    return attempt(conv, x, data.edge_index)


@pytest.mark.parametrize('mode', ['sequential', 'one_shot'])
@pytest.mark.parametrize('change', [-1, 2])
@pytest.mark.parametrize('name', ['SAGE', 'GCN', 'GIN', 'GAT', 'Transformer'])
def test_wrong_rows_on_one_rank(root, name, change, mode):
    outcomes = run_ranks(_with_rows, 3, root, name, mode, change, [1], timeout=IMPATIENT)
    assert_all_raise(outcomes, 'ValueError', 'expected one row per own node', '(got ')
    assert not outcomes[1].startswith('ValueError: rank ')
    assert outcomes[0].startswith('ValueError: rank 1: ')
    assert outcomes[2].startswith('ValueError: rank 1: ')


@pytest.mark.parametrize('change', [-1, 2])
def test_wrong_rows_on_all_ranks(root, change):
    outcomes = run_ranks(
        _with_rows, 3, root, 'SAGE', 'sequential', change, [0, 1, 2], timeout=IMPATIENT
    )
    for rank, outcome in enumerate(outcomes):
        num_own = load_shard(root, rank).num_nodes
        words = f': {num_own} rows', f'(got shape ({num_own + change}, '
        assert_all_raise([outcome], 'ValueError', *words)


def _with_edge_rows(root: str, name: str, attribute: str, change: str) -> str:
    data = load_shard(root)
    conv = SARConv(CONVS[name]().double())
    values = data[attribute]
    if dist.get_rank() == 1:
        values = {'short': values[:-1], 'long': torch.cat([values, values]), 'none': values[:0]}[
            change
        ]
    return attempt(conv, data.x, data.edge_index, values)


@pytest.mark.parametrize('change', ['short', 'long', 'none'])
@pytest.mark.parametrize(
    ('name', 'attribute'), [('Graph', 'edge_weight'), ('GINE', 'edge_attr'), ('GCN', 'edge_weight')]
)
def test_wrong_edge_rows_on_one_rank(root, name, attribute, change):
    outcomes = run_ranks(_with_edge_rows, 3, root, name, attribute, change, timeout=IMPATIENT)
    assert_all_raise(outcomes, 'ValueError', 'expected', '(got')


def _with_odd_input(root: str, name: str, odd: str) -> str:
    data = load_shard(root)
    x, conv = data.x, CONVS[name]().double()
    if dist.get_rank() == 1:
        if odd == 'width':
            x, conv = x[:, :4], type(conv)(4, 4).double()
        elif odd == 'output width':
            conv = type(conv)(6, 3).double()
        elif odd == 'dtype':
            x, conv = x.float(), conv.float()
    return attempt(SARConv(conv), x, data.edge_index)


@pytest.mark.parametrize(
    ('name', 'odd'),
    [('SAGE', 'width'), ('SAGE', 'dtype'), ('GCN', 'output width'), ('Transformer', 'dtype')],
)
def test_other_shapes_or_types_on_one_rank(root, name, odd):
    """Ranks that exchange rows of different sizes would wait, crash or read garbage."""
    outcomes = run_ranks(_with_odd_input, 3, root, name, odd, timeout=IMPATIENT)
    assert_all_raise(outcomes, 'ValueError', 'expected', '(got')


def _with_grad_on_one(root: str, name: str) -> str:
    data = load_shard(root)
    conv = SARConv(CONVS[name]().double())
    x = data.x.clone().requires_grad_(dist.get_rank() == 1)
    return attempt(lambda: conv(x, data.edge_index).sum().backward())


@pytest.mark.parametrize('name', ['SAGE', 'Transformer'])
def test_a_gradient_wanted_on_one_rank(root, name):
    """Only one rank would enter the exchange of backward: refused, or computed."""
    outcomes = run_ranks(_with_grad_on_one, 3, root, name, timeout=IMPATIENT)
    if any(outcome != 'no error' for outcome in outcomes):
        assert_all_raise(outcomes, 'ValueError', 'expected', '(got')


class WithSize(_Sum):
    """Passes on the size it is given; None stands for no argument."""

    def forward(self, x: Tensor, edge_index: Tensor, size: Any) -> Tensor:  # type: ignore[override]
        return self.propagate(edge_index, x=x, size=size)


def _with_size(root: str, change: int, on_ranks: list[int]) -> str:
    data = load_shard(root)
    n = data.num_nodes
    size = (n, n + change) if dist.get_rank() in on_ranks else (n, n)
    return attempt(SARConv(WithSize()), data.x, data.edge_index, size)


@pytest.mark.parametrize('change', [-1, 1])
@pytest.mark.parametrize('on_ranks', [[0, 1, 2], [2]], ids=['all ranks', 'one rank'])
def test_wrong_size(root, change, on_ranks):
    outcomes = run_ranks(_with_size, 3, root, change, on_ranks, timeout=IMPATIENT)
    assert_all_raise(outcomes, 'ValueError', "expected 'size' to be (", 'the own nodes (got (')


def test_right_sizes(root):
    assert run_ranks(_with_size, 3, root, 0, []) == ['no error'] * 3
    data = load_shard(root)
    conv = SARConv(WithSize())
    want = conv(data.x, data.edge_index, None)
    for size in ((40, 40), [40, None], (None, 40), (None, None)):
        assert torch.equal(conv(data.x, data.edge_index, size), want)
    with pytest.raises(ValueError, match=r"expected 'size' to be \(40, 40\).*got \(41, 40\)"):
        conv(data.x, data.edge_index, (41, 40))


# Handles that do not belong here.


def _neighbours_shard(root: str) -> str:
    data = load_shard(root, (dist.get_rank() + 1) % dist.get_world_size())
    return attempt(SARConv(SAGEConv(6, 4).double()), data.x, data.edge_index)


def test_another_ranks_handle(root):
    for rank, outcome in enumerate(run_ranks(_neighbours_shard, 3, root, timeout=IMPATIENT)):
        words = (
            f'expected a shard of rank {rank} of 3',
            f'got the shard of rank {(rank + 1) % 3} of 3',
        )
        assert_all_raise([outcome], 'ValueError', *words)


def test_a_ranks_handle_in_one_process(root):
    data = load_shard(root, 1)
    with pytest.raises(ValueError, match=r'expected a shard of rank 0 of 1.*got.*rank 1 of 3'):
        SARConv(SAGEConv(6, 4).double())(data.x, data.edge_index)


class TwoGraphs(_Sum):
    def forward(  # type: ignore[override]
        self, x: Tensor, edge_index: Tensor, other: Any = None
    ) -> Tensor:
        other = other[0] if isinstance(other, (list, tuple)) else other
        return self.propagate(edge_index, x=x) + self.propagate(other, x=x)


def _two_shards(root: str, other: str) -> list[str]:
    a, b = load_shard(root), load_shard(other)
    conv = SARConv(TwoGraphs())
    return [
        attempt(conv, a.x, a.edge_index, b.edge_index),
        attempt(conv, a.x, a.edge_index, other=[b.edge_index]),
        attempt(conv, a.x, a.edge_index, other=(a.edge_index[:, ::2],)),
        attempt(conv, a.x, a.edge_index, b.edge_index.as_subclass(Tensor)[:, :0]),
    ]


def test_two_shards_in_one_call(graph, root, tmp_path):
    other = str(cut(graph, 3, tmp_path / 'other', 'one reader'))
    for outcomes in run_ranks(_two_shards, 3, root, other, timeout=IMPATIENT):
        words = 'expected edge indices of one partition', root, other
        assert_all_raise(outcomes[:2], 'ValueError', *words)
        assert outcomes[2:] == ['no error'] * 2


# Ranks that do not do the same.


def _layer_of_rank(root: str, names: list[str], modes: list[str]) -> str:
    data = load_shard(root)
    rank = dist.get_rank()
    conv = SARConv(CONVS[names[rank]]().double(), mode=modes[rank])
    return attempt(conv, data.x, data.edge_index)


SEQUENTIAL = ['sequential'] * 3


@pytest.mark.parametrize(
    ('names', 'modes'),
    [
        (['SAGE'] * 3, ['sequential', 'one_shot', 'sequential']),
        (['SAGE'] * 3, ['sequential', 'sequential', 'sequential_no_remat']),
        (['GCN'] * 3, ['one_shot', 'one_shot', 'sequential']),
        (['GAT'] * 3, ['one_shot', 'sequential', 'sequential']),
        (['SAGE', 'GIN', 'SAGE'], SEQUENTIAL),
        (['SAGE', 'SAGE', 'Transformer'], SEQUENTIAL),
        (['GAT', 'SAGE', 'SAGE'], SEQUENTIAL),
        (['SAGE', 'SAGE', 'GCN'], SEQUENTIAL),
    ],
    ids=str,
)
def test_other_layers_or_modes_on_one_rank(root, names, modes):
    outcomes = run_ranks(_layer_of_rank, 3, root, names, modes, timeout=IMPATIENT)
    assert_all_raise(outcomes, 'ValueError', 'expected the same layer on all ranks', '(got')


def _after_a_refusal(root: str) -> tuple[str, str]:
    """A refusal leaves nothing behind: the next layer runs."""
    data = load_shard(root)
    x = data.x[:-1] if dist.get_rank() == 1 else data.x
    conv = SARConv(SAGEConv(6, 4).double())
    return attempt(conv, x, data.edge_index), attempt(conv, data.x, data.edge_index)


def test_ranks_go_on_after_a_refusal(root):
    results = run_ranks(_after_a_refusal, 3, root, timeout=IMPATIENT)
    assert_all_raise([first for first, _ in results], 'ValueError', 'one row per own node')
    assert [second for _, second in results] == ['no error'] * 3


def test_functions_are_put_back_after_a_refusal(root):
    """gcn_norm and softmax of PyG are replaced for the time of a forward only."""
    from torch_geometric.nn.conv import gat_conv, gcn_conv

    before = gcn_conv.gcn_norm, gat_conv.softmax
    data = load_shard(root)
    for plain in (GCNConv(6, 4).double(), GATConv(6, 4).double()):
        with pytest.raises(ValueError, match='one row per own node'):
            SARConv(plain)(data.x[:-1], data.edge_index)
        assert 'propagate' not in vars(plain)
        assert 'edge_updater' not in vars(plain)
    assert (gcn_conv.gcn_norm, gat_conv.softmax) == before


def _of_copies(roots: list[str]) -> str:
    data = load_shard(roots[dist.get_rank()])
    return attempt(SARConv(SAGEConv(6, 4).double()), data.x, data.edge_index)


def test_copies_of_one_partition_are_one_partition(root, tmp_path):
    shutil.copytree(root, tmp_path / 'copy')
    roots = [root, str(tmp_path / 'copy'), root]
    assert run_ranks(_of_copies, 3, roots) == ['no error'] * 3


def _with_short_input(root: str, name: str, what: str) -> str:
    data = load_shard(root)
    conv = SARConv(EARLY[name]().double())
    x, edge_attr = data.x, data.edge_attr
    if dist.get_rank() == 1:
        x, edge_attr = (x[:-1], edge_attr) if what == 'x' else (x, edge_attr[:-1])
    return attempt(conv, x, data.edge_index, edge_attr)


EARLY = {
    'GAT': lambda: GATConv(6, 3, edge_dim=4),
    'GATv2': lambda: GATv2Conv(6, 3, edge_dim=4),
}


@pytest.mark.parametrize('what', ['x', 'edge_attr'])
@pytest.mark.parametrize('name', EARLY)
def test_convs_that_fail_before_they_propagate(root, name, what):
    """GAT fills in self loops with x and edge_attr first: the other ranks must not wait."""
    outcomes = run_ranks(_with_short_input, 3, root, name, what, timeout=IMPATIENT)
    assert_all_raise(outcomes, 'ValueError', 'expected one row per', f"'{what}'", '(got shape')
