"""Loading: all ranks together hold exactly the graph, and what is broken is refused everywhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cut_graphs import check_ranks, drawn_of
from few import few
from hetero_graphs import HAS, REVIEWS, assignment, hetero_graph
from layouts import LAYOUTS, layouts
from on_ranks import on_ranks
from partition_files import load_part
from ranks import run_as_threads, run_ranks
from small_graphs import assemble, assert_all_raise, attempt, cut, small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import SimpleConv

import pyg_sar
from pyg_sar import SARConv, load_shard, partition_graph
from pyg_sar.comm.vote import raise_on_all
from pyg_sar.rows import load
from pyg_sar.shard.edges import LocalEdges
from pyg_sar.shard.read_shard import read_shard


@layouts()
def test_ranks_together_hold_the_graph(tmp_path, world_size, num_parts, kind):
    graph = small_graph()
    check_ranks(drawn_of(graph), cut(graph, num_parts, tmp_path / 'parts', kind), world_size)


METHODS = 'uneven', 'metis', 'random'


@pytest.mark.parametrize(
    ('world_size', 'num_parts', 'method'),
    [(*layout, METHODS[i % 3]) for i, layout in enumerate([*LAYOUTS, (2, 4), (1, 3)])],
)
def test_ranks_together_hold_all_types(tmp_path, world_size, num_parts, method):
    graph = hetero_graph()
    method = assignment(num_parts) if method == 'uneven' else method
    partition_graph(graph, num_parts, tmp_path / 'parts', method=method)
    check_ranks(drawn_of(graph), tmp_path / 'parts', world_size)


def test_pyg_idioms(tmp_path):
    graph = hetero_graph()
    partition_graph(graph, 2, tmp_path / 'parts')
    data = load_shard(tmp_path / 'parts', 1)
    assert data.x_dict.keys() == {'paper', 'author', 'lonely'}
    assert {rel: e.handle.shard.num_edges for rel, e in data.edge_index_dict.items()} == {
        rel: data[rel].e_id.numel() for rel in graph.edge_types
    }
    assert all(isinstance(e, LocalEdges) for e in data.edge_index_dict.values())
    assert ['label_range' in data[name] for name in ('paper', 'author')] == [True, False]
    assert data.edge_attr_dict.keys() == graph.edge_attr_dict.keys()
    assert data.num_nodes_dict == {name: data[name].n_id.numel() for name in graph.node_types}
    moved = data.to('cpu')
    assert moved[HAS].edge_index.handle.shard.is_bipartite
    assert data[REVIEWS].edge_index.shape == (2, 0)


def _check_own(root: str) -> None:
    """What this rank loads is what read_shard reads for it."""
    own, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    data = pyg_sar.local(pyg_sar.load_shard(root))
    want = read_shard(Path(root), own, size, whole_graph=size == 1)
    assert data.edge_stores[0].edge_index.handle.shard.rank == own
    assert len(data.stores) == len(want.stores)
    for found, store in zip(data.stores, want.stores, strict=True):
        tensors = {name: value for name, value in store.items() if isinstance(value, Tensor)}
        assert {name for name, value in found.items() if isinstance(value, Tensor)} == {*tensors}
        for name, value in tensors.items():
            assert torch.equal(*(each.as_subclass(Tensor) for each in (found[name], value))), name


@pytest.mark.parametrize('is_hetero', [False, True])
@pytest.mark.parametrize(('world_size', 'num_parts'), few([(2, 6), (1, 3), (3, 3), (4, 4), (2, 2)]))
def test_on_several_ranks(tmp_path, world_size, num_parts, is_hetero):
    graph = hetero_graph() if is_hetero else small_graph()
    partition_graph(graph, num_parts, tmp_path / 'parts')
    run_ranks(_check_own, world_size, str(tmp_path / 'parts'))


@pytest.mark.parametrize('is_hetero', [False, True])
def test_only_the_own_parts_are_read(tmp_path, is_hetero):
    root = tmp_path / 'parts'
    partition_graph(hetero_graph() if is_hetero else small_graph(), 4, root)
    want = read_shard(root, 1, 2)
    for path in (*root.glob('*_map*'), root / 'part_0', root / 'part_1'):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    data = read_shard(root, 1, 2)
    for store, wanted in zip(data.edge_stores, want.edge_stores, strict=True):
        assert torch.equal(store.e_id, wanted.e_id)


def test_a_graph_without_attributes(tmp_path):
    graph = Data(edge_index=small_graph().edge_index, num_nodes=40)
    root = cut(graph, 3, tmp_path / 'parts')
    data = pyg_sar.local(pyg_sar.load_shard(root))
    assert set(data.keys()) == {'edge_index', 'n_id', 'e_id', 'num_nodes', 'num_nodes_total'}


def test_writing_to_what_was_loaded_leaves_the_files(tmp_path):
    """Files are memory-mapped: copy on write."""
    root = cut(small_graph(), 1, tmp_path / 'parts')
    data = pyg_sar.local(pyg_sar.load_shard(root))
    data.x.zero_()
    data.n_id.zero_()
    again = pyg_sar.local(pyg_sar.load_shard(root))
    assert torch.equal(again.x, small_graph().x)
    assert again.n_id.tolist() == list(range(40))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return cut(small_graph(), 3, tmp_path / 'parts')


@pytest.mark.parametrize('rank', [-1, 3, 100])
def test_rank_out_of_range(root, rank):
    with pytest.raises(ValueError, match=rf"'rank' .*{rank}"):
        load_shard(root, rank)


def test_launched_but_not_initialised(root, monkeypatch):
    variables = {'RANK': '0', 'WORLD_SIZE': '3', 'MASTER_ADDR': 'a', 'MASTER_PORT': '1'}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    message = 'this is one of 3 processes started by .*call pyg_sar.init.. first'
    with pytest.raises(ValueError, match=message):
        pyg_sar.local(pyg_sar.load_shard(root))
    assert load_shard(root, 1).edge_index.handle.shard.rank == 1
    for name in variables:
        monkeypatch.delenv(name)
    assert pyg_sar.local(pyg_sar.load_shard(root)).num_nodes == 40


def _load(root_of_rank: list[str], rank: int | None = None) -> str:
    return attempt(load_shard, root_of_rank[pyg_sar.comm.ranks.rank()], rank)


def _changed(make: Callable[[], Any]) -> Any:
    data = make()
    store = data.node_stores[0]
    store.x = store.x + 1
    return data


OTHERS: dict[str, tuple[Any, str, Any, str]] = {
    'another cut': (hetero_graph(), 'metis', hetero_graph(), 'random'),
    'another kind': (hetero_graph(), 'metis', small_graph(), 'metis'),
    'other features': (small_graph(), 'range', _changed(small_graph), 'range'),
    'other features of a type': (hetero_graph(), 'metis', _changed(hetero_graph), 'metis'),
}


@pytest.mark.parametrize('kind', OTHERS)
def test_another_partition_on_one_rank_raises_on_all(tmp_path, kind):
    graph, method, other_graph, other_method = OTHERS[kind]
    root, other = tmp_path / 'parts', tmp_path / 'other'
    partition_graph(graph, 3, root, method=method)
    partition_graph(other_graph, 3, other, method=other_method)
    outcomes = run_ranks(_load, 3, [str(root), str(root), str(other)])
    assert_all_raise(outcomes, 'ValueError', 'same partition', 'other')
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
    data = pyg_sar.load_shard(root_of_rank[pyg_sar.comm.ranks.rank()])
    return pyg_sar.local((data.n_id, SARConv(SimpleConv())(data.x, data.edge_index)))


@pytest.mark.parametrize('world_size', [2, 3])
def test_a_machine_holds_the_parts_of_its_rank_alone(tmp_path, world_size):
    graph = small_graph()
    root = cut(graph, 6, tmp_path / 'parts')
    roots = _machines(root, world_size, tmp_path)
    found = run_as_threads(_load_own, world_size, roots)
    want = SimpleConv()(graph.x, graph.edge_index)
    torch.testing.assert_close(assemble(found, 40), want)


def test_a_missing_part_is_named_on_all_ranks(tmp_path):
    roots = _machines(cut(small_graph(), 6, tmp_path / 'parts'), 3, tmp_path)
    shutil.rmtree(Path(roots[1]) / 'part_3')
    words = f"the folders of parts 2 to 3 in '{roots[1]}', which rank 1 of 3 owns (got no"
    outcomes = run_as_threads(_load, 3, roots)
    assert_all_raise(outcomes, 'FileNotFoundError', words, f"'{roots[1]}/part_3'")


def test_a_part_that_was_copied_badly_raises_on_all(tmp_path):
    roots = _machines(cut(small_graph(), 6, tmp_path / 'parts'), 3, tmp_path)
    file = Path(roots[2]) / 'part_4' / 'node_feats.pt'
    content = bytearray(file.read_bytes())
    pos = load_part(Path(roots[2]), 4, 'node_feats.pt')['feats']['pos'].numpy().tobytes()
    content[content.index(pos)] ^= 1
    file.write_bytes(content)
    outcomes = run_as_threads(_load, 3, roots)
    assert_all_raise(outcomes, 'ValueError', f"expected '{file}' as it was written")


@pytest.mark.parametrize('world_size', [2, 4])
def test_wrong_world_size_raises_on_all(root, world_size):
    outcomes = run_ranks(_load, world_size, [str(root)] * world_size)
    assert_all_raise(outcomes, 'ValueError', '3 parts', '3, 1', f'(got {world_size})')


def test_rank_out_of_range_raises_on_all(root):
    assert_all_raise(run_ranks(_load, 3, [str(root)] * 3, 3), 'ValueError', '(got 3)')


@on_ranks(3)
def test_ranks_go_on_after_a_failure(data, tmp_path):
    with pytest.raises(FileNotFoundError, match='none'):
        load_shard(tmp_path / 'none')
    again = load_shard(data.edge_index.handle.shard.root)
    assert again.edge_index.handle.shard.rank == torch.distributed.get_rank()


def _load_in_turn(root: str, verify: bool) -> str:
    """Before the second rank reads, a user cuts the graph again."""
    if torch.distributed.get_rank() == 1:
        while not Path(f'{root}.read').exists():
            time.sleep(0.01)
        partition_graph(_changed(small_graph), 2, root, method='range', force=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, 'raise_on_all', lambda read: _noted(read, root))
        return attempt(load_shard, root, verify=verify)


def _noted(read: Callable[[], Any], root: str) -> Any:
    found = read()
    Path(f'{root}.read').touch()
    return raise_on_all(lambda: found)


@pytest.mark.parametrize('verify', [False, True])
def test_another_partition_by_the_time_of_another_rank_raises_on_all(tmp_path, verify):
    root = tmp_path / 'parts'
    partition_graph(small_graph(), 2, root, method='range')
    outcomes = run_ranks(_load_in_turn, 2, str(root), verify)
    assert_all_raise(outcomes, 'ValueError', 'expected the same partition on all ranks')


@pytest.mark.parametrize('rank', [None, 1])
def test_another_partition_while_the_files_are_read(tmp_path, monkeypatch, rank):
    def read_slowly(*args: Any, **kwargs: Any) -> Any:
        partition_graph(_changed(small_graph), 2, args[0], method='range', force=True)
        return read_shard(*args, **kwargs)

    root = tmp_path / 'parts'
    partition_graph(small_graph(), 2, root, method='range')
    with monkeypatch.context() as patch:
        patch.setattr(load, 'read_shard', read_slowly)
        with pytest.raises(ValueError, match=f"same partition in '{root}' until it is read"):
            load_shard(root, rank, verify=False)
    assert torch.equal(load_shard(root).x, _changed(small_graph).x)
