"""What is wrong on some ranks is an error on all of them, and leaves them able to go on."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from few import few
from on_ranks import on_ranks, parts_of
from small_graphs import assert_all_raise, assert_close, attempt
from sum_conv import SumConv
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data

import pyg_sar
from pyg_sar import SARConv
from pyg_sar.comm.vote import agree
from pyg_sar.nn import intercept

CONVS: dict[str, Callable[[], pyg.MessagePassing]] = {
    'SAGE': lambda: pyg.SAGEConv(6, 4),
    'GCN': lambda: pyg.GCNConv(6, 4),
    'GIN': lambda: pyg.GINConv(torch.nn.Linear(6, 4)),
    'GAT': lambda: pyg.GATConv(6, 4),
    'Transformer': lambda: pyg.TransformerConv(6, 4),
    'Graph': lambda: pyg.GraphConv(6, 4),
    'GINE': lambda: pyg.GINEConv(torch.nn.Linear(6, 4), edge_dim=4),
    'GAT edges': lambda: pyg.GATConv(6, 3, edge_dim=4),
    'GATv2 edges': lambda: pyg.GATv2Conv(6, 3, edge_dim=4),
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


def _given(name: str, data: Data, what: str, how: str) -> tuple[pyg.MessagePassing, list[Any]]:
    """A conv and what it is called with, one of which is changed; nothing without a `how`."""
    conv, x = CONVS[name]().double(), data.x
    edges = EDGES.get(name, 'edge_attr')
    values, whole = data[edges], [pyg_sar.gather(each) for each in (data.x, data[edges])]
    if what == 'conv':
        num_in = 4 if how == 'width' else 6
        x, conv = x[:, :num_in], type(conv)(num_in, 3 if how == 'output width' else 4).double()
    elif how == 'dtype':
        x, conv = x.float(), conv.float()
    elif what == 'x' and how:
        x = ROWS[how](whole[0])
    elif how:
        values = ROWS[how](whole[1])
    takes_edges = what == edges or name in ('GINE', *EARLY)
    return conv, [x, data.edge_index, *([values] if takes_edges else [])]


WRONG = [
    *((name, 'x', how) for name in ROW_CONVS for how in ('short', 'long')),
    *((name, EDGES[name], how) for name in EDGES for how in ROWS),
    *(('GINE', 'edge_attr', how) for how in ROWS),
    # These fill in self loops before they propagate: the other ranks must not wait.
    *((name, what, 'short') for name in EARLY for what in ('x', 'edge_attr')),
    # Ranks that exchange rows of different sizes would wait, crash or read garbage.
    ('SAGE', 'conv', 'width'),
    ('SAGE', 'x', 'dtype'),
    ('GCN', 'conv', 'output width'),
    ('Transformer', 'x', 'dtype'),
]


@pytest.mark.parametrize('mode', few(['sequential', 'one_shot']))
@pytest.mark.parametrize(('name', 'what', 'how'), WRONG)
@on_ranks()
def test_wrong_on_one_rank(data, name, what, how, mode):
    conv, args = _given(name, data, what, how if dist.get_rank() == 1 else '')
    with pytest.raises(ValueError, match=r'expected.*\(got ') as error:
        SARConv(conv, mode=mode)(*args)
    text = str(error.value)
    if what != 'conv' and how != 'dtype':  # a plain tensor, where the others have rows or another
        assert 'expected the same layer on all ranks' in text
        assert re.search(r'shape \[.*\] on rank 1 \(got ', text)


@pytest.mark.parametrize('name', ['SAGE', 'Transformer'])
@on_ranks()
def test_a_gradient_wanted_on_one_rank(data, name):
    """Only one rank would enter the exchange of backward: refused, or computed."""
    conv = SARConv(CONVS[name]().double())
    x = data.x.clone().requires_grad_(dist.get_rank() == 1)
    found = agree(attempt(lambda: conv(x, data.edge_index).sum().backward()))
    if found != ['no error'] * 3:
        assert_all_raise(found, 'ValueError', 'expected', '(got')


class WithSize(SumConv):
    """Passes on the size it is given; None stands for no argument."""

    def forward(self, x: Tensor, edge_index: Tensor, size: Any) -> Tensor:  # type: ignore[override]
        return self.propagate(edge_index, x=x, size=size)


@pytest.mark.parametrize('change', [-1, 0, 1])
@pytest.mark.parametrize('on_ranks_', [[0, 1, 2], [2]], ids=['all ranks', 'one rank'])
@on_ranks()
def test_sizes(data, change, on_ranks_):
    n = data.num_nodes
    size = n, n + (change if dist.get_rank() in on_ranks_ else 0)
    if not change:
        SARConv(WithSize())(data.x, data.edge_index, size)
        return
    said = r"'size' .*nodes of this rank" if len(on_ranks_) > 1 else 'one value on all ranks'
    with pytest.raises(ValueError, match=said):
        SARConv(WithSize())(data.x, data.edge_index, size)


@on_ranks(1, 3)
def test_right_sizes(data):
    conv = SARConv(WithSize())
    want = conv(data.x, data.edge_index, None)
    for size in ((40, 40), [40, None], (None, 40), (None, None)):
        assert torch.equal(conv(data.x, data.edge_index, size), want)


@on_ranks()
def test_edges_of_one_rank(data):
    """What `local` gives, of this rank or of another, is no graph for a conv."""
    root = data.edge_index.handle.shard.root
    for other in (pyg_sar.local(data), pyg_sar.load_shard(root, (dist.get_rank() + 1) % 3)):
        with pytest.raises(ValueError, match=r'edge_index and rows of load_shard.*pyg_sar\.local'):
            SARConv(pyg.SAGEConv(6, 4).double())(other.x, other.edge_index)


class EdgesTwice(SumConv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, edges=edge_index)

    def message(self, x_j: Tensor, edges: Tensor) -> Tensor:
        return x_j * edges.max() + (edges[0] - edges[1]).view(-1, 1)


class EndsOfEdges(EdgesTwice):
    def message(self, x_j: Tensor, edges_j: Tensor) -> Tensor:
        return x_j * edges_j


@on_ranks(1, 3)
def test_edges_as_another_argument(data):
    edges, x = (pyg_sar.gather(each) for each in (data.edge_index, data.x))
    got = pyg_sar.gather(SARConv(EdgesTwice())(data.x, data.edge_index))
    assert_close(got, EdgesTwice()(x, edges))


@on_ranks(3)
def test_edges_as_rows_of_nodes(data):
    with pytest.raises(ValueError, match=r"'edge_index' of EndsOfEdges alone .*as 'edges', too"):
        SARConv(EndsOfEdges())(data.x, data.edge_index)


class TwoGraphs(SumConv):
    def forward(self, x: Tensor, edge_index: Tensor, other: Any = None) -> Tensor:
        other = other[0] if isinstance(other, (list, tuple)) else other
        return self.propagate(edge_index, x=x) + self.propagate(other, x=x)


@pytest.fixture
def other_root() -> str:
    return str(parts_of(3, 'one reader'))


@on_ranks()
def test_two_shards_in_one_call(data, other_root):
    other = pyg_sar.load_shard(other_root).edge_index
    own, conv = data.edge_index, SARConv(TwoGraphs())
    for call in (lambda: conv(data.x, own, other), lambda: conv(data.x, own, other=[other])):
        with pytest.raises(ValueError, match='edge indices of one partition') as error:
            call()
        assert other_root in str(error.value)
    conv(data.x, own, other=(own[:, ::2],))
    conv(data.x, own, torch.empty(2, 0, dtype=torch.int64))


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
@on_ranks()
def test_other_layers_or_modes_on_one_rank(data, names, modes):
    rank = dist.get_rank()
    with pytest.raises(ValueError, match='expected the same layer on all ranks'):
        SARConv(CONVS[names[rank]]().double(), mode=modes[rank])(data.x, data.edge_index)


@pytest.mark.parametrize('name', ['SAGE', 'GCN', 'GAT'])
@on_ranks()
def test_ranks_go_on_after_a_refusal(data, name):
    """Which leaves nothing behind: the next layer runs."""
    conv = SARConv(CONVS[name]().double())
    whole = pyg_sar.gather(data.x)
    with pytest.raises(ValueError, match='expected the same layer on all ranks'):
        conv(whole[1:] if dist.get_rank() == 1 else data.x, data.edge_index)
    conv(data.x, data.edge_index)
    assert intercept.forms.value == {}


@on_ranks()
def test_copies_of_one_partition_are_one_partition(data):
    with tempfile.TemporaryDirectory() as folder:
        root = data.edge_index.handle.shard.root
        if dist.get_rank() == 1:
            root = shutil.copytree(root, f'{folder}/copy')
        data = pyg_sar.load_shard(root)
        SARConv(pyg.SAGEConv(6, 4).double())(data.x, data.edge_index)


@pytest.mark.parametrize('world_size', [1, 3])
@on_ranks(by='threads')
def test_a_node_that_the_graph_lacks(data, world_size):
    """As a padding node that a forward makes; GCNConv would have normalised it."""
    x = pyg_sar.gather(data.x)
    for rows in (torch.cat([x, x[:1]]), torch.cat([x, x[:2]]), x[:-1]):
        words = r'one row per node|a plain tensor has all'
        for conv in (pyg.GCNConv(6, 4), pyg.SGConv(6, 4), pyg.APPNP(2, 0.1), pyg.SAGEConv(6, 4)):
            with pytest.raises(ValueError, match=words) as error:
                SARConv(conv.double())(rows, data.edge_index)
        assert re.search(rf': 40 rows.*\(got shape \({len(rows)}, ', str(error.value))
