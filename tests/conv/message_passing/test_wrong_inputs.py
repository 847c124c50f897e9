"""What is wrong on some ranks is an error on all of them, and leaves them able to go on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from few import few
from ranks import run_ranks
from small_graphs import assert_all_raise, attempt, cut
from sum_conv import SumConv
from torch import Tensor
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

import pyg_sar
from pyg_sar import SARConv
from pyg_sar.conv.around import patching

CONVS: dict[str, Callable[[], MessagePassing]] = {
    'SAGE': lambda: SAGEConv(6, 4),
    'GCN': lambda: GCNConv(6, 4),
    'GIN': lambda: GINConv(torch.nn.Linear(6, 4)),
    'GAT': lambda: GATConv(6, 4),
    'Transformer': lambda: TransformerConv(6, 4),
    'Graph': lambda: GraphConv(6, 4),
    'GINE': lambda: GINEConv(torch.nn.Linear(6, 4), edge_dim=4),
    'GAT edges': lambda: GATConv(6, 3, edge_dim=4),
    'GATv2 edges': lambda: GATv2Conv(6, 3, edge_dim=4),
}
ROW_CONVS = ('SAGE', 'GCN', 'GIN', 'GAT', 'Transformer')
EARLY = ('GAT edges', 'GATv2 edges')


ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    'short': lambda values: values[:-1],
    'long': lambda values: torch.cat([values, values[:2]]),
    'none': lambda values: values[:0],
}
EDGES = {'GCN': 'edge_weight', 'Graph': 'edge_weight'}
"""What a conv takes beside x; all others that have an edge_dim take edge_attr."""


def _changed(root: str, name: str, what: str, how: str, on_ranks: list[int], mode: str) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    conv = CONVS[name]().double()
    edges = EDGES.get(name, 'edge_attr')
    given = {'x': data.x, edges: data[edges]}
    if dist.get_rank() in on_ranks:
        if what == 'conv':
            num_in = 4 if how == 'width' else 6
            given['x'] = data.x[:, :num_in]
            conv = type(conv)(num_in, 3 if how == 'output width' else 4).double()
        elif how == 'dtype':
            given['x'], conv = data.x.float(), conv.float()
        else:
            given[what] = ROWS[how](given[what])
    takes_edges = what == edges or name in ('GINE', 'GAT edges', 'GATv2 edges')
    args = [given[edges]] if takes_edges else []
    return attempt(SARConv(conv, mode=mode), given['x'], data.edge_index, *args)


@pytest.mark.parametrize('mode', few(['sequential', 'one_shot']))
@pytest.mark.parametrize(
    ('name', 'what', 'how'),
    [
        *((name, 'x', how) for name in ROW_CONVS for how in ('short', 'long')),
        *(
            (name, attribute, how)
            for name, attribute in (('Graph', 'edge_weight'), ('GCN', 'edge_weight'))
            for how in ROWS
        ),
        *(('GINE', 'edge_attr', how) for how in ROWS),
        # These fill in self loops before they propagate: the other ranks must not wait.
        *((name, what, 'short') for name in EARLY for what in ('x', 'edge_attr')),
        # Ranks that exchange rows of different sizes would wait, crash or read garbage.
        ('SAGE', 'conv', 'width'),
        ('SAGE', 'x', 'dtype'),
        ('GCN', 'conv', 'output width'),
        ('Transformer', 'x', 'dtype'),
    ],
)
def test_wrong_on_one_rank(root, name, what, how, mode):
    outcomes = run_ranks(_changed, 3, root, name, what, how, [1], mode)
    words = ['expected', '(got ']
    if what == 'x' and how != 'dtype':
        words.append(f"'{what}'" if name in EARLY else 'expected one row per own node')
        assert not outcomes[1].startswith('ValueError: rank ')
        assert all(outcomes[rank].startswith('ValueError: rank 1: ') for rank in (0, 2))
    assert_all_raise(outcomes, 'ValueError', *words)


@pytest.mark.parametrize(('how', 'change'), [('short', -1), ('long', 2)])
def test_wrong_rows_on_all_ranks(root, how, change):
    outcomes = run_ranks(_changed, 3, root, 'SAGE', 'x', how, [0, 1, 2], 'sequential')
    for rank, outcome in enumerate(outcomes):
        num_own = pyg_sar.load_shard(root, rank).num_nodes
        words = f': {num_own} rows', f'(got shape ({num_own + change}, '
        assert_all_raise([outcome], 'ValueError', *words)


def _with_grad_on_one(root: str, name: str) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    conv = SARConv(CONVS[name]().double())
    x = data.x.clone().requires_grad_(dist.get_rank() == 1)
    return attempt(lambda: conv(x, data.edge_index).sum().backward())


@pytest.mark.parametrize('name', ['SAGE', 'Transformer'])
def test_a_gradient_wanted_on_one_rank(root, name):
    """Only one rank would enter the exchange of backward: refused, or computed."""
    outcomes = run_ranks(_with_grad_on_one, 3, root, name)
    if any(outcome != 'no error' for outcome in outcomes):
        assert_all_raise(outcomes, 'ValueError', 'expected', '(got')


class WithSize(SumConv):
    """Passes on the size it is given; None stands for no argument."""

    def forward(self, x: Tensor, edge_index: Tensor, size: Any) -> Tensor:  # type: ignore[override]
        return self.propagate(edge_index, x=x, size=size)


def _with_size(root: str, change: int, on_ranks: list[int]) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    n = data.num_nodes
    size = (n, n + change) if dist.get_rank() in on_ranks else (n, n)
    return attempt(SARConv(WithSize()), data.x, data.edge_index, size)


@pytest.mark.parametrize('change', [-1, 1])
@pytest.mark.parametrize('on_ranks', [[0, 1, 2], [2]], ids=['all ranks', 'one rank'])
def test_wrong_size(root, change, on_ranks):
    outcomes = run_ranks(_with_size, 3, root, change, on_ranks)
    assert_all_raise(outcomes, 'ValueError', "expected 'size' to be (", 'the own nodes (got (')


def test_right_sizes(root):
    assert run_ranks(_with_size, 3, root, 0, []) == ['no error'] * 3
    data = pyg_sar.local(pyg_sar.load_shard(root))
    conv = SARConv(WithSize())
    want = conv(data.x, data.edge_index, None)
    for size in ((40, 40), [40, None], (None, 40), (None, None)):
        assert torch.equal(conv(data.x, data.edge_index, size), want)
    with pytest.raises(ValueError, match=r"expected 'size' to be \(40, 40\).*got \(41, 40\)"):
        conv(data.x, data.edge_index, (41, 40))


def _neighbours_shard(root: str) -> str:
    data = pyg_sar.load_shard(root, (dist.get_rank() + 1) % dist.get_world_size())
    return attempt(SARConv(SAGEConv(6, 4).double()), data.x, data.edge_index)


def test_another_ranks_handle(root):
    for rank, outcome in enumerate(run_ranks(_neighbours_shard, 3, root)):
        words = (
            f'expected a shard of rank {rank} of 3',
            f'got the shard of rank {(rank + 1) % 3} of 3',
        )
        assert_all_raise([outcome], 'ValueError', *words)


def test_a_ranks_handle_in_one_process(root):
    data = pyg_sar.load_shard(root, 1)
    with pytest.raises(ValueError, match=r'expected a shard of rank 0 of 1.*got.*rank 1 of 3'):
        SARConv(SAGEConv(6, 4).double())(data.x, data.edge_index)


class TwoGraphs(SumConv):
    def forward(  # type: ignore[override]
        self, x: Tensor, edge_index: Tensor, other: Any = None
    ) -> Tensor:
        other = other[0] if isinstance(other, (list, tuple)) else other
        return self.propagate(edge_index, x=x) + self.propagate(other, x=x)


def _two_shards(root: str, other: str) -> list[str]:
    a, b = pyg_sar.local(pyg_sar.load_shard(root)), pyg_sar.local(pyg_sar.load_shard(other))
    conv = SARConv(TwoGraphs())
    return [
        attempt(conv, a.x, a.edge_index, b.edge_index),
        attempt(conv, a.x, a.edge_index, other=[b.edge_index]),
        attempt(conv, a.x, a.edge_index, other=(a.edge_index[:, ::2],)),
        attempt(conv, a.x, a.edge_index, b.edge_index.as_subclass(Tensor)[:, :0]),
    ]


def test_two_shards_in_one_call(graph, root, tmp_path):
    other = str(cut(graph, 3, tmp_path / 'other', 'one reader'))
    for outcomes in run_ranks(_two_shards, 3, root, other):
        words = 'expected edge indices of one partition', root, other
        assert_all_raise(outcomes[:2], 'ValueError', *words)
        assert outcomes[2:] == ['no error'] * 2


def _layer_of_rank(root: str, names: list[str], modes: list[str]) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
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
    outcomes = run_ranks(_layer_of_rank, 3, root, names, modes)
    assert_all_raise(outcomes, 'ValueError', 'expected the same layer on all ranks', '(got')


def _after_a_refusal(root: str) -> tuple[str, str]:
    """A refusal leaves nothing behind: the next layer runs."""
    data = pyg_sar.local(pyg_sar.load_shard(root))
    x = data.x[:-1] if dist.get_rank() == 1 else data.x
    conv = SARConv(SAGEConv(6, 4).double())
    return attempt(conv, x, data.edge_index), attempt(conv, data.x, data.edge_index)


def test_ranks_go_on_after_a_refusal(root):
    results = run_ranks(_after_a_refusal, 3, root)
    assert_all_raise([first for first, _ in results], 'ValueError', 'one row per own node')
    assert [second for _, second in results] == ['no error'] * 3


def test_functions_have_no_other_form_after_a_refusal(root):
    data = pyg_sar.local(pyg_sar.load_shard(root))
    for plain in (GCNConv(6, 4).double(), GATConv(6, 4).double()):
        with pytest.raises(ValueError, match='one row per own node'):
            SARConv(plain)(data.x[:-1], data.edge_index)
        assert 'propagate' not in vars(plain)
        assert 'edge_updater' not in vars(plain)
    assert patching.forms.value == {}


def _of_copies(roots: list[str]) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(roots[dist.get_rank()]))
    return attempt(SARConv(SAGEConv(6, 4).double()), data.x, data.edge_index)


def test_copies_of_one_partition_are_one_partition(root, tmp_path):
    shutil.copytree(root, tmp_path / 'copy')
    roots = [root, str(tmp_path / 'copy'), root]
    assert run_ranks(_of_copies, 3, roots) == ['no error'] * 3
