"""Loading: all ranks together hold exactly the graph, and what is broken is refused everywhere."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_as_threads, run_ranks
from small_graphs import ASSIGNMENTS, assemble, assert_all_raise, attempt, cut, small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import SimpleConv

import pyg_sar
from pyg_sar import SARConv, load_shard
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.read.read_shard import read_shard

NODE_ATTRS = ('x', 'y', 'train_mask', 'pos')


EDGE_ATTRS = ('edge_weight', 'edge_attr', 'edge_type')


LAYOUTS = [(1, 1), (1, 3), (2, 2), (2, 4), (2, 6), (3, 3), (3, 6), (4, 4)]
"""World sizes and numbers of parts."""


def _owner_of(part: int, shards: list[Data]) -> Tensor:
    """Global ids of the own nodes of a part, from the rank that owns it."""
    for data in shards:
        shard = data.edge_index.shard
        if part in shard.parts:
            i = part - shard.parts.start
            return data.n_id[shard.own_ptr[i] : shard.own_ptr[i + 1]]
    raise AssertionError(f'nobody owns part {part}')


def _global_ids(data: Data, shards: list[Data], root: Path) -> Tensor:
    """The global id of every local one, through the owner's ids and the files' boundary lists."""
    shard = data.edge_index.shard
    ids = [data.n_id]
    for part in range(shard.num_parts):
        if part in shard.parts:
            continue
        sar = torch.load(root / f'part_{part}' / 'sar.pt', weights_only=True)
        groups = [
            sar['boundary_pos'][sar['boundary_ptr'][own] : sar['boundary_ptr'][own + 1]]
            for own in shard.parts
        ]
        rows = torch.cat(groups).long().unique()
        start, end = shard.source_range(part)
        assert end - start == rows.numel()
        ids.append(_owner_of(part, shards)[rows])
    return torch.cat(ids)


def _check_together(shards: list[Data], graph: Data, root: Path) -> None:
    num_nodes, num_edges = graph.num_nodes, graph.num_edges
    for name in NODE_ATTRS:
        rows = assemble([(data.n_id, data[name]) for data in shards], num_nodes)
        assert rows.dtype == graph[name].dtype
        assert torch.equal(rows, graph[name]), name
    for name in EDGE_ATTRS:
        rows = assemble([(data.e_id, data[name]) for data in shards], num_edges)
        assert rows.dtype == graph[name].dtype
        assert torch.equal(rows, graph[name]), name
    edges = []
    for data in shards:
        ids = _global_ids(data, shards, root)
        assert bool((data.edge_index[1] < data.num_nodes).all())
        edges.append((data.e_id, ids[data.edge_index.as_subclass(Tensor)].t()))
    assert torch.equal(assemble(edges, num_edges).t(), graph.edge_index)


def _check_one(data: Data, graph: Data, rank: int, world_size: int) -> None:
    assert isinstance(data.edge_index, ShardEdgeIndex)
    assert data.edge_index.is_whole
    shard = data.edge_index.shard
    assert (shard.rank, shard.world_size) == (rank, world_size)
    assert shard.num_nodes == graph.num_nodes
    assert data.num_nodes == shard.num_own == data.n_id.numel()
    assert data.edge_index.shape == (2, shard.num_edges)
    assert data.edge_index.dtype == data.n_id.dtype == data.e_id.dtype == torch.int64
    assert data.num_classes == 3
    assert set(data.keys()) == {
        *NODE_ATTRS,
        *EDGE_ATTRS,
        *('edge_index', 'n_id', 'e_id', 'num_nodes', 'num_nodes_total'),
        *('num_classes', 'label_range'),
    }
    # Every halo row is read by some edge.
    read = set(data.edge_index.as_subclass(Tensor)[0].tolist())
    halo = set(range(shard.num_own, shard.num_own + shard.num_halo))
    assert halo <= read


@pytest.mark.parametrize('kind', ASSIGNMENTS)
@pytest.mark.parametrize(('world_size', 'num_parts'), LAYOUTS)
def test_ranks_together_hold_the_graph(tmp_path, world_size, num_parts, kind):
    graph = small_graph()
    root = cut(graph, num_parts, tmp_path / 'parts', kind)
    shards = [read_shard(root, rank, world_size) for rank in range(world_size)]
    for rank, data in enumerate(shards):
        _check_one(data, graph, rank, world_size)
    _check_together(shards, graph, root)


@pytest.mark.parametrize('num_parts', [1, 4])
def test_one_process_owns_all_parts(tmp_path, num_parts):
    graph = small_graph()
    root = cut(graph, num_parts, tmp_path / 'parts')
    data = pyg_sar.local(pyg_sar.load_shard(str(root)))
    _check_one(data, graph, 0, 1)
    _check_together([data], graph, root)
    assert data.edge_index.shard.num_halo == 0
    assert data.edge_index.shard.steps == ()


def test_one_part_for_inspection(tmp_path):
    graph = small_graph()
    root = cut(graph, 3, tmp_path / 'parts')
    shards = [load_shard(root, rank) for rank in range(3)]
    for rank, data in enumerate(shards):
        _check_one(data, graph, rank, 3)
    _check_together(shards, graph, root)


def _tensors(root: str, rank: int | None = None) -> tuple[int, dict[str, Any]]:
    data = pyg_sar.local(pyg_sar.load_shard(root, rank))
    out = {key: value for key, value in data.to_dict().items() if key != 'edge_index'}
    out['edges'] = data.edge_index.as_subclass(Tensor)
    return data.edge_index.shard.rank, out


@pytest.mark.parametrize(('world_size', 'num_parts'), [(1, 3), (2, 2), (2, 6), (3, 3), (4, 4)])
def test_on_several_ranks(tmp_path, world_size, num_parts):
    """load_shard on a rank reads what read_shard reads for it."""
    root = cut(small_graph(), num_parts, tmp_path / 'parts')
    results = run_ranks(_tensors, world_size, str(root))
    for rank, (loaded_rank, found) in enumerate(results):
        assert loaded_rank == rank
        want = read_shard(root, rank, world_size)
        assert set(found) == {*want.keys(), 'edges'} - {'edge_index'}
        assert torch.equal(found.pop('edges'), want.edge_index.as_subclass(Tensor))
        for name, value in found.items():
            assert (
                torch.equal(value, want[name])
                if isinstance(value, Tensor)
                else (value == want[name])
            )


def test_only_the_own_parts_are_read(tmp_path):
    graph = small_graph()
    root = cut(graph, 4, tmp_path / 'parts')
    want = read_shard(root, 1, 2)
    for name in ('part_0', 'part_1'):
        shutil.rmtree(root / name)
    for name in ('node_map.pt', 'edge_map.pt', 'part_2/graph.pt', 'part_3/graph.pt'):
        (root / name).unlink()
    data = read_shard(root, 1, 2)
    assert torch.equal(data.x, want.x)
    assert torch.equal(data.e_id, want.e_id)


def test_a_graph_without_attributes(tmp_path):
    graph = Data(edge_index=small_graph().edge_index, num_nodes=40)
    root = cut(graph, 3, tmp_path / 'parts')
    data = pyg_sar.local(pyg_sar.load_shard(root))
    assert set(data.keys()) == {'edge_index', 'n_id', 'e_id', 'num_nodes', 'num_nodes_total'}


def test_a_graph_without_edges(tmp_path):
    graph = Data(x=torch.randn(9, 2), edge_index=torch.empty(2, 0, dtype=torch.int64))
    root = cut(graph, 3, tmp_path / 'parts')
    for world_size in (1, 3):
        shards = [read_shard(root, rank, world_size) for rank in range(world_size)]
        assert torch.equal(assemble([(d.n_id, d.x) for d in shards], 9), graph.x)
        assert all(d.edge_index.shape == (2, 0) for d in shards)


def test_writing_to_what_was_loaded_leaves_the_files(tmp_path):
    """Files are memory-mapped: copy on write."""
    root = cut(small_graph(), 1, tmp_path / 'parts')
    data = pyg_sar.local(pyg_sar.load_shard(root))
    before = data.x.clone()
    data.x.zero_()
    data.n_id.zero_()
    again = pyg_sar.local(pyg_sar.load_shard(root))
    assert torch.equal(again.x, before)
    assert again.n_id.tolist() == list(range(40))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return cut(small_graph(), 3, tmp_path / 'parts')


@pytest.mark.parametrize('world_size', [2, 4, 6])
def test_parts_must_be_a_multiple_of_ranks(root, world_size):
    message = f"'num_parts' must be a multiple of the world size.*got 3 parts.*{world_size} ranks"
    with pytest.raises(ValueError, match=message):
        read_shard(root, 0, world_size)


@pytest.mark.parametrize('rank', [-1, 3, 100])
def test_rank_out_of_range(root, rank):
    with pytest.raises(ValueError, match=rf"'rank' must lie in \[0, 3\) \(got {rank}\)"):
        load_shard(root, rank)


_ONE_OF_THREE = [
    {'RANK': '0', 'WORLD_SIZE': '3', 'MASTER_ADDR': 'a', 'MASTER_PORT': '1'},
    {'OMPI_COMM_WORLD_RANK': '0', 'OMPI_COMM_WORLD_SIZE': '3', 'MASTER_ADDR': 'a'},
    {'PMI_RANK': '2', 'PMI_SIZE': '3', 'MPI_LOCALNRANKS': '3'},
    {'SLURM_PROCID': '1', 'SLURM_STEP_NUM_TASKS': '3', 'SLURM_STEP_NODELIST': 'n[1-3]'},
]


@pytest.mark.parametrize('variables', _ONE_OF_THREE, ids=lambda variables: next(iter(variables)))
def test_launched_but_not_initialised(root, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    message = 'this is one of 3 processes started by .*call pyg_sar.init.. first'
    with pytest.raises(ValueError, match=message):
        pyg_sar.local(pyg_sar.load_shard(root))
    assert load_shard(root, 1).edge_index.shard.rank == 1
    for name in variables:
        monkeypatch.delenv(name)
    assert pyg_sar.local(pyg_sar.load_shard(root)).num_nodes == 40


def _load(root_of_rank: list[str], rank: int | None = None) -> str:
    own = torch.distributed.get_rank()
    return attempt(load_shard, root_of_rank[own], rank)


def test_another_partition_on_one_rank_raises_on_all(root, tmp_path):
    other = cut(small_graph(), 3, tmp_path / 'other', 'one reader')
    outcomes = run_ranks(_load, 3, [str(root), str(root), str(other)])
    assert_all_raise(outcomes, 'ValueError', 'expected the same partition on all ranks', 'other')


def test_a_copy_of_the_partition_is_the_same(root, tmp_path):
    shutil.copytree(root, tmp_path / 'copy')
    roots = [str(root), str(tmp_path / 'copy'), str(root)]
    assert run_ranks(_load, 3, roots) == ['no error'] * 3


def _machines(root: Path, world_size: int, to: Path) -> list[str]:
    """A folder for every rank, with META.json and its own parts alone."""
    per_rank = 6 // world_size
    for rank in range(world_size):
        folder = to / f'machine{rank}' / 'parts'
        folder.mkdir(parents=True)
        shutil.copy(root / 'META.json', folder)
        for part in range(rank * per_rank, (rank + 1) * per_rank):
            shutil.copytree(root / f'part_{part}', folder / f'part_{part}')
    return [str(to / f'machine{rank}' / 'parts') for rank in range(world_size)]


def _load_own(root_of_rank: list[str]) -> tuple[Tensor, Tensor]:
    data = pyg_sar.local(pyg_sar.load_shard(root_of_rank[pyg_sar.comm.rank()]))
    return data.n_id, SARConv(SimpleConv())(data.x, data.edge_index)


@pytest.mark.parametrize('world_size', [2, 3])
def test_a_machine_holds_the_parts_of_its_rank_alone(tmp_path, world_size):
    graph = small_graph()
    root = cut(graph, 6, tmp_path / 'parts')
    roots = _machines(root, world_size, tmp_path)
    found = run_as_threads(_load_own, world_size, roots)
    want = SimpleConv()(graph.x, graph.edge_index)
    torch.testing.assert_close(assemble(found, 40), want)


def _attempt_own(root_of_rank: list[str]) -> str:
    return attempt(load_shard, root_of_rank[pyg_sar.comm.rank()])


def test_a_missing_part_is_named_on_all_ranks(tmp_path):
    roots = _machines(cut(small_graph(), 6, tmp_path / 'parts'), 3, tmp_path)
    shutil.rmtree(Path(roots[1]) / 'part_3')
    words = f"the folders of parts 2 to 3 in '{roots[1]}', which rank 1 of 3 owns (got no"
    outcomes = run_as_threads(_attempt_own, 3, roots)
    assert_all_raise(outcomes, 'FileNotFoundError', words, f"'{roots[1]}/part_3'")


def test_a_part_that_was_copied_badly_raises_on_all(tmp_path):
    roots = _machines(cut(small_graph(), 6, tmp_path / 'parts'), 3, tmp_path)
    file = Path(roots[2]) / 'part_4' / 'node_attrs.pt'
    content = bytearray(file.read_bytes())
    pos = torch.load(file, weights_only=True)['pos'].numpy().tobytes()
    content[content.index(pos)] ^= 1
    file.write_bytes(content)
    outcomes = run_as_threads(_attempt_own, 3, roots)
    assert_all_raise(outcomes, 'ValueError', f"expected '{file}' as it was written")


def test_wrong_world_size_raises_on_all(root):
    for world_size in (2, 4):
        outcomes = run_ranks(_load, world_size, [str(root)] * world_size)
        words = "'num_parts' must be a multiple", f"got 3 parts in '{root}' and {world_size} ranks"
        assert_all_raise(outcomes, 'ValueError', *words)


def test_rank_out_of_range_raises_on_all(root):
    assert_all_raise(run_ranks(_load, 3, [str(root)] * 3, 3), 'ValueError', '(got 3)')


def _load_after_a_failure(bad: str, good: str) -> tuple[str, int]:
    return attempt(load_shard, bad), pyg_sar.local(pyg_sar.load_shard(good)).edge_index.shard.rank


def test_ranks_go_on_after_a_failure(root, tmp_path):
    results = run_ranks(_load_after_a_failure, 3, str(tmp_path / 'none'), str(root))
    assert_all_raise([outcome for outcome, _ in results], 'FileNotFoundError', 'none')
    assert [rank for _, rank in results] == [0, 1, 2]
