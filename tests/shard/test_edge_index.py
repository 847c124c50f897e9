"""The handle: a tensor for PyG, a shard for a SARConv."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from few import few
from small_graphs import assert_close, cut, small_graph
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    coalesce,
    degree,
    dropout_edge,
    remove_self_loops,
    sort_edge_index,
)

import pyg_sar
from pyg_sar import SARConv
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.plan import plan_of
from pyg_sar.shard.read.read_shard import read_shard


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """Rank 1 of 3, with a halo."""
    return read_shard(cut(small_graph(), 3, tmp_path / 'parts'), 1, 3)


@pytest.fixture
def single(tmp_path: Path) -> Data:
    """All three parts in one process, so that a conv can run."""
    return pyg_sar.load_shard(cut(small_graph(), 3, tmp_path / 'single'))


def _plain(edge_index: Tensor) -> Tensor:
    return edge_index.as_subclass(Tensor).clone()


KEEPS_ALL = {
    'to': lambda e: e.to('cpu'),
    'to with copy': lambda e: e.to('cpu', copy=True),
    'to dtype': lambda e: e.to(torch.int64),
    'cpu': lambda e: e.cpu(),
    'clone': lambda e: e.clone(),
    'torch.clone': torch.clone,
    'detach': lambda e: e.detach(),
    'contiguous': lambda e: e.contiguous(),
    'deepcopy': copy.deepcopy,
}


@pytest.mark.parametrize('operation', KEEPS_ALL)
def test_keeps_the_shard_and_is_whole(data, operation):
    edge_index = data.edge_index
    before = _plain(edge_index)
    out = KEEPS_ALL[operation](edge_index)
    assert isinstance(out, ShardEdgeIndex)
    assert out.shard is edge_index.shard
    assert out.is_whole
    assert torch.equal(_plain(out), before)
    if operation in ('clone', 'torch.clone', 'deepcopy', 'to with copy'):
        assert out.data_ptr() != edge_index.data_ptr()


SELECTS = {
    'slice': lambda e: e[:, 5:20],
    'mask': lambda e: e[:, torch.arange(e.size(1)) % 2 == 0],
    'index': lambda e: e[:, torch.tensor([4, 0, 2])],
    'index_select': lambda e: e.index_select(1, torch.tensor([4, 0, 2])),
    'index_select by name': lambda e: torch.index_select(
        input=e, dim=1, index=torch.tensor([4, 0, 2])
    ),
    'narrow': lambda e: e.narrow(1, 3, 4),
    'chunk': lambda e: e.chunk(2, dim=1)[1],
    'split': lambda e: e.split([7, e.size(1) - 7], dim=1)[0],
    'cat': lambda e: torch.cat([e, torch.zeros(2, 3, dtype=torch.int64)], dim=1),
    'cat of plain and handle': lambda e: torch.cat([torch.zeros(2, 3).long(), e], dim=1),
    'cat by name': lambda e: torch.cat(tensors=[e, e], dim=1),
    'all in another order': lambda e: e[:, torch.arange(e.size(1) - 1, -1, -1)],
    'all in their order': lambda e: e[:, :],
    'selection of a selection': lambda e: e[:, 3:].clone().to('cpu')[:, 2:],
}


@pytest.mark.parametrize('operation', SELECTS)
def test_selections_keep_the_shard_but_are_not_whole(data, operation):
    edge_index = data.edge_index
    out = SELECTS[operation](edge_index)
    assert isinstance(out, ShardEdgeIndex)
    assert out.shard is edge_index.shard
    assert not out.is_whole
    assert torch.equal(_plain(out), SELECTS[operation](_plain(edge_index)))


PLAIN = {
    'destinations': lambda e: e[1],
    'unpacked destinations': lambda e: list(e)[1],
    'unbind': lambda e: e.unbind(0)[1],
    'one destination': lambda e: e[1, 2],
    'equality of rows': lambda e: e[0] == e[1],
    'inequality, the other way round': lambda e: torch.ne(e[1], e[0]),
    'zeros': lambda e: torch.zeros_like(e),
    'ones for sources': lambda e: e[0].new_ones(3),
    'look-up of destinations': lambda e: torch.arange(100)[e[1]],
    'degree of destinations': lambda e: degree(e[1], 40),
}


@pytest.mark.parametrize('operation', PLAIN)
def test_what_holds_no_source_is_plain(data, operation):
    out = PLAIN[operation](data.edge_index)
    assert type(out) is Tensor
    assert torch.equal(out, PLAIN[operation](_plain(data.edge_index)))


def test_rows_are_plain(data):
    for row, ids in enumerate(data.edge_index):
        assert type(ids) is Tensor
        assert torch.equal(ids, _plain(data.edge_index)[row])


REFUSED = {
    'one column': lambda e: e[:, 0],
    'one row of two dimensions': lambda e: e[:1],
    'sum': lambda e: e.sum(),
    'max': lambda e: e.max(),
    'unique': lambda e: e.unique(),
    'comparison': lambda e: e == 0,
    'float': lambda e: e.double(),
    'int': lambda e: e.int(),
    'to int32': lambda e: e.to(torch.int32),
    't': lambda e: e.t(),
    'T': lambda e: e.T,
    'view': lambda e: e.view(-1),
    'add': lambda e: e + 1,
    'add, number first': lambda e: 1 + e,
    'mul': lambda e: e * 2,
    'sub': lambda e: e - e,
    'neg': lambda e: -e,
    'remainder': lambda e: e % 7,
    'clamp': lambda e: e.clamp(max=3),
    'indexing': lambda e: torch.arange(1000)[e],
    'cat of both directions': lambda e: torch.cat([e, e.flip(0)], dim=1),
    'setitem': lambda e: e.__setitem__((0, 0), 1),
    'numpy': lambda e: e.numpy(),
    'coalesce': coalesce,
    'sort_edge_index': sort_edge_index,
    'matmul': lambda e: e @ e,
    'add_self_loops': add_self_loops,
    'dropout of both directions': lambda e: dropout_edge(e, force_undirected=True),
}


@pytest.mark.parametrize('operation', REFUSED)
def test_what_is_not_known_is_refused_by_name(data, operation):
    with pytest.raises(ValueError, match=r"^'\w+' of a rank's edge_index means nothing"):
        REFUSED[operation](data.edge_index)


def test_an_edge_index_of_pyg_in_a_layer(single):
    conv = SARConv(SAGEConv(6, 4)).double()
    out = conv(single.x, EdgeIndex(single.edge_index))
    assert_close(out, conv(single.x, single.edge_index))


@pytest.mark.parametrize('row', [0, 1])
def test_loops_are_edges_of_own_nodes(data, row):
    """What is stored by the source of a self loop is stored by an own node."""
    edge_index = data.edge_index
    found = torch.zeros(data.num_nodes)
    found[edge_index[row][edge_index[0] == edge_index[1]]] = 1
    src, dst = _plain(edge_index)
    want = torch.zeros(data.num_nodes)
    want[dst[src == dst]] = 1
    assert torch.equal(found, want)


def _shuffle(edge_index: ShardEdgeIndex) -> None:
    edge_index.copy_(_plain(edge_index)[:, torch.randperm(edge_index.size(1))])


def _swap_within_a_block(edge_index: ShardEdgeIndex) -> None:
    last = edge_index.shard.block_ptr[1] - 1
    edge_index[:, [0, last]] = _plain(edge_index)[:, [last, 0]]


def _overwrite_a_row(edge_index: ShardEdgeIndex) -> None:
    edge_index[1].copy_(_plain(edge_index)[1].flip(0))


def _add_in_place(edge_index: ShardEdgeIndex) -> None:
    edge_index[1:] %= 2


@pytest.mark.parametrize(
    'change', [_shuffle, _swap_within_a_block, _overwrite_a_row, _add_in_place]
)
@pytest.mark.parametrize('has_plan', few([True, False]))
def test_written_to_in_place(data, change, has_plan):
    """Never silently wrong: other edges have a plan of their own, or are refused."""
    edge_index, shard = data.edge_index, data.edge_index.shard
    if has_plan:
        plan_of(edge_index, shard)
    try:
        change(edge_index)
        found = plan_of(edge_index, shard).edge_index
    except ValueError:
        return
    codes = [(e[0] * 1000 + e[1]).sort().values for e in map(_plain, (found, edge_index))]
    assert torch.equal(*codes)


def test_data_to_and_copies_keep_it(data):
    for other in (
        data.to('cpu'),
        copy.copy(data),
        data.clone(),
        copy.deepcopy(data),
        data.detach(),
        data.contiguous(),
        Data(x=data.x, edge_index=data.edge_index),
        Data.from_dict(data.to_dict()),
    ):
        assert isinstance(other.edge_index, ShardEdgeIndex)
        assert other.edge_index.shard is data.edge_index.shard
        assert other.edge_index.is_whole
        assert torch.equal(_plain(other.edge_index), _plain(data.edge_index))


def test_data_sees_an_edge_index(data):
    assert data.num_edges == data.edge_index.size(1)
    assert data.num_nodes == data.edge_index.shard.num_own
    assert data.is_edge_attr('edge_index')
    assert not data.is_node_attr('edge_index')
    assert f'edge_index=[2, {data.num_edges}]' in str(data)
    assert 'ShardEdgeIndex' in repr(data.edge_index)


def test_only_what_is_plain_can_be_saved(data, tmp_path):
    for value in (data.edge_index, data.edge_index[:, :3], data, [data.edge_index]):
        for protocol in (0, 2, 4, 5):
            with pytest.raises(TypeError, match='belongs to this rank'):
                pickle.dumps(value, protocol)
        with pytest.raises(TypeError, match='load it again'):
            torch.save(value, tmp_path / 'out.pt')
    plain = _plain(data.edge_index)
    torch.save([data.edge_index[0], data.edge_index[1], plain], tmp_path / 'out.pt')
    for loaded, want in zip(torch.load(tmp_path / 'out.pt'), [*plain, plain], strict=True):
        assert type(loaded) is Tensor
        assert torch.equal(loaded, want)


def _utilities(edge_index: Tensor, num_nodes: int) -> dict[str, Tensor]:
    generator_state = torch.get_rng_state()
    torch.manual_seed(5)
    out = {
        'remove_self_loops': remove_self_loops(edge_index)[0],
        'add_self_loops': add_self_loops(edge_index, num_nodes=num_nodes)[0],
        'add_remaining_self_loops': add_remaining_self_loops(edge_index, num_nodes=num_nodes)[0],
        'dropout_edge': dropout_edge(edge_index, p=0.5)[0],
        'dropout_edge in evaluation': dropout_edge(edge_index, p=0.5, training=False)[0],
    }
    torch.set_rng_state(generator_state)
    return out


def test_utilities_keep_it_usable(data):
    shard = data.edge_index.shard
    found = _utilities(data.edge_index, shard.num_own)
    want = _utilities(_plain(data.edge_index), shard.num_own)
    for name, edge_index in found.items():
        assert isinstance(edge_index, ShardEdgeIndex), name
        assert edge_index.shard is shard
        assert torch.equal(_plain(edge_index), want[name]), name
        assert plan_of(edge_index, shard).num_edges == want[name].size(1)


def test_utilities_in_a_layer(single):
    plain = SAGEConv(6, 4).double()
    conv = SARConv(copy.deepcopy(plain))
    for edge_index in _utilities(single.edge_index, single.num_nodes).values():
        want = plain(single.x, pyg_sar.gather(edge_index) + 0)
        assert_close(conv(single.x, edge_index), want)
