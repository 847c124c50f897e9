"""Blocks: every edge of any edge_index lies in exactly one, at the part that owns its source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from few import few
from on_ranks import parts_of
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import add_remaining_self_loops, add_self_loops, remove_self_loops

import pyg_sar
from pyg_sar import partition_graph
from pyg_sar.shard import csr as segments
from pyg_sar.shard.blocks import PLANS, Block, Plan, plan_of
from pyg_sar.shard.csr import Segments
from pyg_sar.shard.edges import ShardEdges
from pyg_sar.shard.read_shard import read_shard
from pyg_sar.shard.vertex_cover import vertex_cover

LAYOUTS = [(1, 1), (1, 3), (2, 2), (3, 3), (2, 4), (2, 6), (4, 4)]
"""World sizes and numbers of parts."""


@pytest.fixture(params=LAYOUTS, ids=lambda p: f'{p[0]} ranks {p[1]} parts')
def handles(request: pytest.FixtureRequest) -> list[ShardEdges]:
    """The edges of every rank, read in one process without torch.distributed."""
    world_size, num_parts = request.param
    shards = (read_shard(parts_of(num_parts), rank, world_size) for rank in range(world_size))
    return [data.edge_index.handle for data in shards]


def _derived(kind: str, handle: ShardEdges) -> tuple[Tensor, Plan]:
    ids = DERIVED[kind](handle.ids, handle.shard.num_own)
    return ids, plan_of(ShardEdges(ids, handle.shard, is_whole=kind in ('whole', 'clone')))


# From the handle and the number of own nodes.
DERIVED: dict[str, Callable[[Tensor, int], Tensor]] = {
    'whole': lambda e, n: e,
    'clone': lambda e, n: e.clone(),
    'not known to be whole': lambda e, n: e,
    'loops removed': lambda e, n: remove_self_loops(e)[0],
    'loops added': lambda e, n: add_self_loops(e, num_nodes=n)[0],
    'loops replaced': lambda e, n: add_remaining_self_loops(e, num_nodes=n)[0],
    'selected': lambda e, n: e[:, torch.arange(e.size(1)) % 3 == 1],
    'sliced': lambda e, n: e[:, e.size(1) // 4 : e.size(1) // 2],
    'permuted': lambda e, n: e[:, torch.randperm(e.size(1))],
    'repeated': lambda e, n: torch.cat([e, e], dim=1),
    'one edge': lambda e, n: e[:, -1:],
    'no edges': lambda e, n: e[:, :0],
}


def _positions(block: Block, num_edges: int) -> list[int]:
    return block.take(torch.arange(num_edges)).tolist()


def _check_plan(plan: Plan, edge_index: Tensor) -> None:
    shard = plan.shard
    num_edges = edge_index.size(1)
    assert plan.num_edges == num_edges
    assert type(plan.edge_index) is Tensor
    assert torch.equal(plan.edge_index, edge_index)
    order = [*shard.parts, *(step.part for step in shard.steps)]
    assert [block.part for block in plan.blocks] == order
    assert sorted(order) == list(range(shard.num_parts))
    seen = []
    for block in plan.blocks:
        places = _positions(block, num_edges)
        seen += places
        assert block.num_edges == len(places)
        start, end = shard.source_range(block.part)
        assert (block.num_rows, block.num_dst) == (end - start, shard.num_own)
        src, dst = edge_index[:, places]
        assert bool(((start <= src) & (src < end)).all())
        assert torch.equal(block.edge_index, torch.stack([src - start, dst]))
        assert bool((dst.diff() >= 0).all())
        found = block.span(torch.arange(num_edges))
        _check_segments(block.by_dst, found, places, edge_index[1], edge_index[0] - start)
        _check_segments(block.by_src, found, places, edge_index[0] - start, edge_index[1])
        assert (block.by_dst.num_rows, block.by_src.num_rows) == (shard.num_own, block.num_rows)
    assert sorted(seen) == list(range(num_edges))
    degree = [edge_index[1].tolist().count(node) for node in range(shard.num_own)]
    assert plan.in_degree.tolist() == degree


def _check_segments(
    segments: Segments, found: Tensor, places: list[int], rows: Tensor, cols: Tensor
) -> None:
    """Every entry is an edge of the block, with the edge's row and column."""
    keys = torch.arange(segments.num_rows) if segments.keys is None else segments.keys
    edges = found if segments.perm is None else found[segments.perm]
    assert edges.sort().values.tolist() == sorted(places)
    row = torch.repeat_interleave(keys, segments.ptr.diff().long())
    assert torch.equal(row, rows[edges])
    assert torch.equal(segments.columns.long(), cols[edges])


@pytest.mark.parametrize('derived', few(DERIVED))
def test_blocks_partition_the_edges(handles, derived):
    for handle in handles:
        edge_index, plan = _derived(derived, handle)
        _check_plan(plan, edge_index)


@pytest.mark.parametrize('derived', few(['permuted', 'whole', 'loops added', 'no edges'], every=4))
@pytest.mark.parametrize('shape', [(), (3,), (2, 2)], ids=str)
def test_take_and_put_are_inverse(handles, derived, shape):
    for handle in handles:
        edge_index, plan = _derived(derived, handle)
        values = torch.randn(edge_index.size(1), *shape)
        copy = torch.full_like(values, float('nan'))
        for block in plan.blocks:
            rows = block.take(values)
            assert torch.equal(rows, values[_positions(block, plan.num_edges)])
            block.put(copy, rows)
            if shape:
                assert torch.equal(block.take(values.movedim(0, 1), dim=1), rows.movedim(0, 1))
        assert torch.equal(copy, values)


def test_edges_of_the_whole_are_views(handles):
    """A block of the shard's own edges is a range: taking it copies nothing."""
    for handle in handles:
        values = torch.randn(handle.num_edges, 2)
        for block in plan_of(handle).blocks:
            if block.num_edges:
                storage = block.take(values).untyped_storage()
                assert storage.data_ptr() == values.untyped_storage().data_ptr()


def test_remembered_by_content(handles):
    for handle in handles:
        plan = plan_of(handle)
        for is_whole in (False, True):
            assert plan_of(handle.with_ids(handle.ids.clone(), is_whole=is_whole)) is plan
        loops = DERIVED['loops added'](handle.ids, handle.shard.num_own)
        with_loops = plan_of(handle.with_ids(loops))
        assert with_loops is not plan
        assert plan_of(handle.with_ids(loops.clone())) is with_loops
        assert plan_of(handle) is plan


def test_views_of_the_same_memory(handles):
    """The other way round, every second edge, the first half: the same size, other edges."""
    for handle in handles:
        edge_index, half = handle.ids, handle.num_edges // 2
        plan_of(handle)
        flipped = edge_index[:, torch.arange(edge_index.size(1) - 1, -1, -1)]
        for view in (flipped, edge_index[:, :half], edge_index[:, ::2][:, :half]):
            _check_plan(plan_of(handle.with_ids(view)), view)


def test_plans_do_not_pile_up(handles):
    handle = handles[-1]
    shard, whole = handle.shard, plan_of(handle)
    for i in range(100):
        plan_of(handle.with_ids(handle.ids[:, : i % handle.num_edges]))
        assert plan_of(handle) is whole
    of_plans = sum(plan.num_edges for plan in PLANS.get(shard))
    assert of_plans <= 5 * max(shard.num_edges, shard.num_own)


def _with_id(handle: ShardEdges, row: int, value: int) -> ShardEdges:
    ids = handle.ids.clone()
    ids[row, -1] = value
    return handle.with_ids(ids)


def test_ids_out_of_range(handles):
    for handle in handles:
        num_local = handle.shard.num_own + handle.shard.num_halo
        for row, value in ((0, -1), (1, -1), (0, num_local), (1, num_local), (0, 10**12)):
            message = rf'expected local ids in \[0, {num_local}\).*got.*{value}'
            wrong = _with_id(handle, row, value)
            for _ in range(2):  # nor is it remembered
                with pytest.raises(ValueError, match=message):
                    plan_of(wrong)
        if handle.shard.num_halo:  # whose nodes are no destinations
            for wrong in (_with_id(handle, 1, handle.shard.num_own), handle.flip()):
                with pytest.raises(ValueError, match='own nodes as destinations'):
                    plan_of(wrong)


def test_more_destinations_than_sources(tmp_path):
    """Selected edges of such a relation were refused: destinations were taken for source ids."""
    graph = HeteroData()
    graph['few'].num_nodes, graph['many'].num_nodes = 3, 40
    graph['few', 'to', 'many'].edge_index = torch.stack([torch.arange(40) % 3, torch.arange(40)])
    partition_graph(graph, 2, tmp_path / 'parts', method='random')
    for rank in range(2):
        handle = read_shard(tmp_path / 'parts', rank, 2)['few', 'to', 'many'].edge_index.handle
        shard, derived = handle.shard, handle.ids[:, ::2]
        assert int(derived[1].max()) >= shard.num_own + shard.num_halo
        found = torch.full(derived.shape, -1)
        for block in plan_of(handle.with_ids(derived)).blocks:
            src, dst = block.edge_index
            found[:, block.edges] = torch.stack([src + block.start, dst])
        assert torch.equal(found, derived)


# Which rows and sums of a block travel


@pytest.mark.parametrize('num_edges', [20, 60, 200, 600])
def test_drawn_graphs(num_edges: int) -> None:
    """At most 10 % larger than a largest matching, which no cover is smaller than."""
    generator = torch.Generator().manual_seed(num_edges)
    src, dst = (torch.rand(2, num_edges, generator=generator).square() * 60).long()
    is_src, is_dst = vertex_cover(src, dst, 60, 60)
    assert bool((is_src[src] | is_dst[dst]).all())
    matching = _matching(src.tolist(), dst.tolist())
    assert matching <= int(is_src.sum() + is_dst.sum()) <= 1.1 * matching


def _matching(src: list[int], dst: list[int]) -> int:
    """The size of a largest matching, by augmenting paths."""
    ends: dict[int, list[int]] = {}
    for s, d in zip(src, dst, strict=True):
        ends.setdefault(s, []).append(d)
    source_of: dict[int, int] = {}

    def matched(s: int, seen: set[int]) -> bool:
        for d in ends[s]:
            if d not in seen:
                seen.add(d)
                if d not in source_of or matched(source_of[d], seen):
                    source_of[d] = s
                    return True
        return False

    return sum(matched(s, set()) for s in ends)


# Blocks of more edges than 32 bits count

LIMIT = 12
HALVES = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, 'MAX_EDGES', LIMIT)


def _graph(more: Any = ((), ())) -> Data:
    """Two cliques of 12 edges each, and more edges."""
    ends = torch.cartesian_prod(torch.arange(4), torch.arange(4)).t()
    clique = ends[:, ends[0] != ends[1]]
    edges = torch.cat([clique, clique + 4, torch.tensor(more, dtype=torch.int64)], dim=1)
    return Data(edge_index=edges, num_nodes=8)


@pytest.mark.usefixtures('small_limit')
def test_a_block_that_is_cut(tmp_path):
    message = r'expected at most 12 edges .*\(got 24\); use more parts'
    with pytest.raises(ValueError, match=message):
        partition_graph(_graph(), 1, tmp_path / 'one')
    assert list(tmp_path.iterdir()) == []
    partition_graph(_graph(), 2, tmp_path / 'two', method=HALVES)
    with pytest.raises(ValueError, match=r'\(got 13\); use more parts'):
        partition_graph(_graph([[5], [5]]), 2, tmp_path / 'more', method=HALVES)
    assert [path.name for path in tmp_path.iterdir()] == ['two']


def test_a_block_that_is_loaded(tmp_path, request):
    """One process that holds both parts has the blocks of both."""
    partition_graph(_graph([[0], [4]]), 2, tmp_path / 'two', method=HALVES)
    request.getfixturevalue('small_limit')
    with pytest.raises(ValueError, match=r'\(got 13\); use more parts'):
        pyg_sar.local(pyg_sar.load_shard(tmp_path / 'two'))


@pytest.mark.usefixtures('small_limit')
def test_a_block_with_self_loops():
    """Of an edge_index that a conv has added self loops to."""
    ids = torch.zeros(LIMIT + 1, dtype=torch.int64)
    assert segments.make_segments(ids[1:], ids[1:], 1).ptr.tolist() == [0, LIMIT]
    with pytest.raises(ValueError, match=r'\(got 13\); use more parts'):
        segments.make_segments(ids, ids, 1)
