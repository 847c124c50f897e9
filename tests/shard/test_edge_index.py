"""The edges of a rank in its own ids: the record for convs, and what a program reads."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from expressions import expressions
from few import few
from on_ranks import parts_of
from small_graphs import assert_close
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import add_remaining_self_loops, add_self_loops, degree, dropout_edge

import pyg_sar
from pyg_sar import SARConv
from pyg_sar.shard.blocks import plan_of
from pyg_sar.shard.edges import LocalEdges, ShardEdges, kept_on
from pyg_sar.shard.read_shard import read_shard


@pytest.fixture
def data() -> Data:
    """Rank 1 of 3, with a halo, in its own ids."""
    return read_shard(parts_of(3), 1, 3)


@pytest.fixture
def handle(data: Data) -> ShardEdges:
    """The edges of that rank."""
    return data.edge_index.handle


@pytest.fixture
def single() -> Data:
    """All three parts in one process, so that a conv can run."""
    return pyg_sar.load_shard(parts_of(3))


def _plain(edge_index: Tensor) -> Tensor:
    return edge_index.as_subclass(Tensor).clone()


MOVES = """
e.to('cpu'); e.to('cpu', copy=True); e.to(torch.int64); e.cpu(); e.clone(); torch.clone(e)
e.detach(); e.contiguous(); e.type_as(e); copy.deepcopy(e)
"""


def _value(expression: str, edges: Any) -> Any:
    return eval(expression, NAMES | {'e': edges})


@pytest.mark.parametrize('operation', expressions(MOVES))
@pytest.mark.parametrize('is_flipped', [False, True])
def test_moved_edges_are_of_the_shard_as_before(single, operation, is_flipped):
    edges = single.edge_index.flip(0) if is_flipped else single.edge_index
    out = _value(operation, edges)
    before, after = edges.handle, out.handle
    assert after.shard is before.shard
    assert after.is_flipped == is_flipped
    assert after.is_whole == before.is_whole == (not is_flipped)
    assert type(after.ids) is Tensor
    assert torch.equal(after.ids, before.ids)
    if 'copy' in operation or 'clone' in operation:
        assert after.ids.data_ptr() != before.ids.data_ptr()


def test_other_edges_of_the_shard(handle):
    selected = handle.with_ids(handle.ids[:, 5:20])
    assert (selected.shard, selected.num_edges, selected.is_whole) == (handle.shard, 15, False)
    flipped = handle.flip()
    assert (flipped.shard, flipped.is_flipped, flipped.is_whole) == (handle.shard, True, False)
    assert flipped.with_ids(flipped.ids[:, :3]).is_flipped
    assert torch.equal(flipped.sources_first().ids, handle.ids)
    assert handle.sources_first() is handle
    assert handle.is_whole


def test_kept_until_written_to(handle):
    made = [kept_on(handle, 'key', object) for _ in range(2)]
    assert made[0] is made[1]
    assert kept_on(handle, 'key', object, sharding=1) is not made[0]
    kept = kept_on(handle, 'key', object, sharding=1)
    handle.ids[:, 0] = 0
    assert kept_on(handle, 'key', object, sharding=1) is not kept
    with torch.inference_mode():
        unseen = handle.with_ids(handle.ids.clone(), is_whole=True)
    assert unseen.is_whole
    assert kept_on(unseen, 'key', object) is not kept_on(unseen, 'key', object)


CHANGES = """
ids.copy_(ids[:, torch.randperm(ids.size(1))]); ids[:, [0, -1]] = ids[:, [-1, 0]]
ids[1].copy_(ids[1].flip(0)); ids[1:] %= 2
"""


@pytest.mark.parametrize('change', expressions(CHANGES))
@pytest.mark.parametrize('has_plan', few([True, False]))
@pytest.mark.parametrize('is_local', few([True, False]))
def test_written_to_in_place(data, handle, change, has_plan, is_local):
    """Never silently wrong: other edges have a plan of their own."""
    if has_plan:
        plan_of(handle)
    exec(change, {'ids': data.edge_index if is_local else handle.ids, 'torch': torch})
    assert not handle.is_whole
    found = plan_of(handle).edge_index
    codes = [(e[0] * 1000 + e[1]).sort().values for e in (found, handle.ids)]
    assert torch.equal(*codes)


EDGES = """
e[:, 5:20]; e[:, torch.arange(e.size(1)) % 2 == 0]
torch.index_select(e, 1, torch.tensor([4, 0, 2])); e.split([7, e.size(1) - 7], dim=1)[0]
list(e.chunk(2, dim=1))[1]; e.flip(0); e.clone(); 1 + e
torch.cat([torch.zeros(2, 3).long(), e], dim=1); e.to('cpu', copy=True); copy.deepcopy(e)
dropout_edge(e, p=0.5, training=False)[0]; add_self_loops(e, num_nodes=40)[0]
add_remaining_self_loops(e, num_nodes=40)[0]
"""
PLAIN = """
e[1]; list(e)[1]; e.unbind(0)[1]; e[:, 0]; e.t(); e[0] == e[1]; e == 0; e.double(); e.max()
e.max(dim=1).values; torch.arange(100.0)[e]; degree(e[1], 40)
"""
CALLED = (add_remaining_self_loops, add_self_loops, copy, degree, dropout_edge, torch, Data)
NAMES = {each.__name__: each for each in CALLED}


@pytest.mark.parametrize(('table', 'kind'), [(EDGES, LocalEdges), (PLAIN, Tensor)])
def test_operations_of_local_edges_are_those_of_torch(data, table, kind):
    for operation in expressions(table):
        out = _value(operation, data.edge_index)
        assert type(out) is kind, operation
        assert torch.equal(_plain(out), _value(operation, _plain(data.edge_index))), operation


def test_local_edges_and_what_is_selected_of_them_are_refused(single):
    conv, message = SARConv(SAGEConv(6, 4)).double(), 'got the own edges and rows of a rank'
    local = pyg_sar.local(single.edge_index)
    for edges in (local, local[:, ::2], torch.cat([local, local], 1), EdgeIndex(local.clone())):
        with pytest.raises(ValueError, match=message):
            conv(single.x, edges)
        with pytest.raises(ValueError, match=message):
            pyg_sar.negative_sampling(edges.as_tensor() if type(edges) is EdgeIndex else edges)
    with pytest.raises(ValueError, match=message):
        pyg_sar.LinkNeighborLoader(single, [2], edge_label_index=local[:, :4])


@pytest.mark.parametrize(
    'operation',
    expressions("""
        e.to('cpu'); copy.copy(e); e.clone(); copy.deepcopy(e); e.detach(); e.contiguous()
        Data(x=e.x, edge_index=e.edge_index); Data.from_dict(e.to_dict())
    """),
)
def test_data_to_and_copies_keep_them(data, operation):
    other = _value(operation, data)
    assert isinstance(other.edge_index, LocalEdges)
    assert torch.equal(_plain(other.edge_index), _plain(data.edge_index))


def test_data_sees_an_edge_index(data, handle):
    assert data.num_edges == data.edge_index.size(1) == handle.num_edges
    assert data.num_nodes == handle.shard.num_own
    assert data.is_edge_attr('edge_index')
    assert not data.is_node_attr('edge_index')
    assert f'edge_index=[2, {data.num_edges}]' in str(data)
    assert 'LocalEdges' in repr(data.edge_index)


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


def test_an_edge_index_of_pyg_in_a_layer(single):
    conv = SARConv(SAGEConv(6, 4)).double()
    out = conv(single.x, EdgeIndex(single.edge_index))
    assert_close(out, conv(single.x, single.edge_index))


UTILITIES = """
add_self_loops(e, num_nodes=40)[0]; add_remaining_self_loops(e, num_nodes=40)[0]
dropout_edge(e, p=0.5)[0]; dropout_edge(e, p=0.5, training=False)[0]
"""


@pytest.mark.parametrize('utility', expressions(UTILITIES))
def test_utilities_in_a_layer(single, utility):
    plain = SAGEConv(6, 4).double()
    conv, edge_index = SARConv(copy.deepcopy(plain)), _value(utility, single.edge_index)
    want = plain(single.x, pyg_sar.gather(edge_index) + 0)
    assert_close(conv(single.x, edge_index), want)
