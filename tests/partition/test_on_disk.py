"""Passes over graphs on disk give what all in memory gives, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import re
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from few import few
from graph_files import assert_same, command
from graphs import awkward_graph
from hypothesis import given
from hypothesis import strategies as st
from partition_files import is_in_file, tree
from ranks import context
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToSparseTensor, ToUndirected
from torch_geometric.typing import WITH_TORCH_SPARSE
from torch_geometric.utils import coalesce, to_edge_index, to_torch_csc_tensor

from pyg_sar import load_shard
from pyg_sar.partition.external_sort import neighbours, stable_order
from pyg_sar.partition.memmap import MEMORY, RowStream, Scratch, save_rows
from pyg_sar.partition.partition_graph import partition_graph
from pyg_sar.partition.sources import load_source
from pyg_sar.partition.sources.files import map_array
from pyg_sar.partition.sources.reverse import add_reverse_edges
from pyg_sar.partition.writer import replace_folder

# Arrays


def _own_memory() -> int:
    """Without what the page cache has of files, in MiB."""
    status = Path('/proc/self/status').read_text()
    return int(re.search(r'RssAnon:\s+(\d+)', status)[1]) // 1024


def test_files_are_no_memory(tmp_path):
    """64 MiB of a map that is read, by chunks too, and 64 of scratch space that is written."""
    np.save(tmp_path / 'a.npy', np.ones((1 << 20, 8)))
    gc.collect()
    values = torch.from_numpy(map_array(tmp_path / 'a.npy'))
    space = Scratch(tmp_path).empty((8 << 20,), torch.int64)
    before = _own_memory()
    assert float(values.sum()) == 8 << 20
    space.fill_(3)
    assert sum(float(part.sum()) for part in RowStream(values).chunks()) == 8 << 20
    assert _own_memory() - before < 30
    assert int(space[::4096].sum()) == 3 * 2048
    assert [path.name for path in tmp_path.iterdir()] == ['a.npy']


def test_scratch_says_at_once_that_the_disk_is_full(tmp_path, monkeypatch):
    full = mock.Mock(side_effect=OSError(28, 'No space left on device'))
    monkeypatch.setattr(os, 'posix_fallocate', full)
    with pytest.raises(OSError, match='No space left'):
        Scratch(tmp_path).empty((1 << 20,), torch.int64)
    assert list(tmp_path.iterdir()) == []


CONTENT = {
    'a': torch.randn(5, 3),
    'types': {dtype: torch.ones(2, 1).to(dtype) for dtype in (torch.bfloat16, torch.complex64)},
    'young type': torch.ones(3, dtype=torch.int32).to(torch.uint16),
    'no rows': torch.empty(0, 4),
    'mask': torch.tensor([True, False]),
    'view': torch.arange(12).view(3, 4).t(),
    'plain': (3, 4),
    ('a', 'b'): None,
}


def test_file_is_read_by_torch_and_has_no_dates(tmp_path):
    by_chunk = RowStream(torch.eye(4)[:, :2], torch.arange(3, dtype=torch.int32), torch.float64)
    save_rows({**CONTENT, 'rows': by_chunk}, tmp_path / 'a.pt')
    for is_mapped_file in (False, True):
        found = torch.load(tmp_path / 'a.pt', weights_only=True, mmap=is_mapped_file)
        assert torch.equal(found.pop('rows'), torch.eye(3, 2, dtype=torch.float64))
        assert found.keys() == CONTENT.keys()
        for key, value in CONTENT.items():
            if isinstance(value, torch.Tensor):
                assert found[key].dtype == value.dtype
                assert torch.equal(found[key], value)
                assert found[key].data_ptr() % 64 == 0 or not is_mapped_file or not value.numel()
            elif isinstance(value, dict):
                assert all(torch.equal(found[key][k], v) for k, v in value.items())
            else:
                assert found[key] == value
    save_rows({**CONTENT, 'rows': by_chunk}, tmp_path / 'b.pt')
    assert (tmp_path / 'a.pt').read_bytes() == (tmp_path / 'b.pt').read_bytes()


@given(
    keys=st.lists(st.integers(0, 9), max_size=40),
    bound=st.sampled_from([10, 1 << 40, (1 << 62) + 10]),
)
def test_stable_order(keys, bound):
    keys = [key + bound - 10 for key in keys]
    order = stable_order(torch.tensor(keys, dtype=torch.int64), bound)
    assert order.tolist() == sorted(range(len(keys)), key=keys.__getitem__)


# Graphs


@pytest.mark.usefixtures('tiny')
def test_neighbours_both_ways(any_graph, scratch):
    both: list[list[int]] = [[] for _ in range(any_graph.num_nodes)]
    for src, dst in any_graph.edge_index.t().tolist():
        both[src].append(dst)
        both[dst].append(src)
    once = [sorted({*near} - {node}) for node, near in enumerate(both)]
    edges = any_graph.edge_index, any_graph.num_nodes, scratch or MEMORY
    for keep, want, dtype in ((False, once, np.int64), (True, both, np.int32)):
        indptr, index = neighbours(*edges, keep_duplicates=keep).csr(dtype=dtype)
        assert (indptr.dtype, index.dtype) == (np.int64, dtype)
        found = [index[a:b].tolist() for a, b in pairwise(indptr)]
        assert found == [sorted(near) for near in want]


def _homogeneous() -> Data:
    data = awkward_graph(60, 500)
    del data.edge_type  # which files of arrays have before the weights
    return data


def _heterogeneous() -> HeteroData:
    generator = torch.Generator().manual_seed(2)
    data = HeteroData()
    data['a'].x = torch.randn(40, 5, generator=generator)
    data['b'].num_nodes = 15
    data['a', 'to', 'b'].edge_index = torch.stack(
        [torch.randint(n, (300,), generator=generator) for n in (40, 15)]
    )
    data['a', 'to', 'b'].edge_attr = torch.rand(300, 2, generator=generator)
    data['a', 'has', 'a'].edge_index = torch.randint(40, (2, 200), generator=generator)
    data['b', 'no', 'a'].edge_index = torch.empty(2, 0, dtype=torch.int64)
    return data


def _arrays(data: Any) -> dict[str, Any]:
    if isinstance(data, Data):
        return {key: np.asarray(value) for key, value in data.items()}
    arrays = {}
    for store in [*data.node_stores, *data.edge_stores]:
        of = store._key if isinstance(store._key, str) else '|'.join(store._key)
        for key, value in store.items():
            arrays[f'{"edge" if key == "edge_index" else key}|{of}'] = np.asarray(value)
    return arrays


def _save(data: Any, kind: str, folder: Path) -> Path:
    """The graph as a source of a kind."""
    if kind == 'pt':
        torch.save(data, folder / 'graph.pt')
        return folder / 'graph.pt'
    arrays = _arrays(data)
    if kind in ('npz', 'compressed'):
        save = np.savez if kind == 'npz' else np.savez_compressed
        save(folder / 'graph.npz', **arrays)
        return folder / 'graph.npz'
    (folder / 'graph').mkdir()
    for key, array in arrays.items():
        if kind == 'fortran' and array.ndim == 2:  # as OGB stores edges
            array = np.asfortranarray(array, np.int32 if 'edge' in key and 'x' in key else None)
        np.save(folder / 'graph' / f'{key}.npy', array)
    return folder / 'graph'


@pytest.mark.parametrize('method', few(['metis', 'random']))
@pytest.mark.parametrize('make', [_homogeneous, _heterogeneous])
@pytest.mark.parametrize('kind', ['npz', 'compressed', 'folder', 'fortran', 'pt'])
def test_shards_of_files_are_those_of_memory(tmp_path, request, kind, make, method):
    data = make()
    source = _save(data, kind, tmp_path)
    if kind in ('folder', 'fortran') and make is _heterogeneous:
        data = load_source(source)  # the types in the order of the files' names
    partition_graph(data, 3, tmp_path / 'memory', method=method, seed=3)
    request.getfixturevalue('tiny')
    partition_graph(source, 3, tmp_path / 'disk', method=method, seed=3)
    assert tree(tmp_path / 'disk') == tree(tmp_path / 'memory')
    assert {path.name for path in tmp_path.iterdir()} == {source.name, 'memory', 'disk'}


def test_disk_full_leaves_nothing(tmp_path, graph):
    """A limit on the size of files, and so an error of the system in the middle of one."""
    import resource

    graph.x = torch.randn(graph.num_nodes, 3000)
    old_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_action = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, old_limit[1]))
    try:
        with pytest.raises(OSError, match=r'File too large: .*\.pt'):
            partition_graph(graph, 2, tmp_path / 'out')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old_limit)
        signal.signal(signal.SIGXFSZ, old_action)
    assert list(tmp_path.iterdir()) == []


def _half_written(root: Path, pipe: Any) -> None:
    with replace_folder(root) as folder:
        (folder / 'half').write_text('a')
        pipe.send('ready')
        time.sleep(600)


@pytest.mark.slow
def test_what_a_killed_run_left_is_removed(tmp_path, graph):
    ours, theirs = context.Pipe()
    process = context.Process(target=_half_written, args=(tmp_path / 'out', theirs), daemon=True)
    process.start()
    assert ours.recv() == 'ready'
    partition_graph(graph, 2, tmp_path / 'other')
    (left,) = tmp_path.glob('.out.*.tmp')
    partition_graph(graph, 2, tmp_path / 'out')  # does not touch that of a living process
    assert (left / 'new.tmp' / 'half').exists()
    process.kill()
    process.join()
    partition_graph(graph, 3, tmp_path / 'out', force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['other', 'out']


# Reverse edges


def _edges(num_src: int, num_dst: int, num_edges: int, seed: int) -> dict[str, Any]:
    """Among few nodes, so with loops and edges of three and more copies."""
    generator = torch.Generator().manual_seed(seed)
    ends = [torch.randint(n, (num_edges,), generator=generator) for n in (num_src, num_dst)]
    return {
        'edge_index': torch.stack(ends),
        'edge_attr': torch.randint(-9, 9, (num_edges, 2, 3), generator=generator) / 4,
        'edge_weight': torch.randint(9, (num_edges,), generator=generator).double() / 2,
        'edge_type': torch.randint(5, (num_edges,), generator=generator),
    }


DIRECTED = {
    'few nodes': lambda: Data(x=torch.randn(9, 2), **_edges(9, 9, 70, 0)),
    'no attributes': lambda: Data(edge_index=_edges(30, 30, 90, 1)['edge_index'], num_nodes=31),
    'no duplicates': lambda: Data(
        edge_index=torch.tensor([[0, 3, 1], [1, 2, 3]]), edge_weight=torch.rand(3), num_nodes=5
    ),
    'no edges': lambda: Data(
        edge_index=torch.empty(2, 0, dtype=torch.int64), edge_attr=torch.empty(0, 3), num_nodes=4
    ),
    'relations': lambda: HeteroData(
        {
            'a': {'num_nodes': 12},
            'b': {'x': torch.randn(5, 3)},
            ('a', 'to', 'b'): _edges(12, 5, 40, 2),
            ('a', 'has', 'a'): _edges(12, 12, 60, 3),
        }
    ),
}


@pytest.mark.usefixtures('tiny')
@pytest.mark.parametrize('kind', DIRECTED)
def test_reverse_edges_as_to_undirected(tmp_path, kind, scratch):
    """Elementwise: quarters are added without rounding, in whatever order."""
    data = DIRECTED[kind]()
    before = {key: value.clone() for key, value in data.edge_stores[0].items() if 'edge' in key}
    found = add_reverse_edges(data, scratch or MEMORY)
    wanted = ToUndirected()(data)
    is_in_scratch = bool(scratch and data.num_edges and kind in ('no attributes', 'relations'))
    assert is_in_file(found.edge_stores[-1].edge_index) == is_in_scratch
    assert_same(found, wanted)
    assert [[*store] for store in found.stores] == [[*store] for store in wanted.stores]
    assert all(torch.equal(data.edge_stores[0][key], value) for key, value in before.items())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings('ignore:.*(CSR|CSC) tensor support|.*invariant checks')
@pytest.mark.parametrize('attr', [None, 'edge_weight'])
@pytest.mark.parametrize('keeps_edges', [False, True])
@pytest.mark.parametrize('layout', ['sparse_csr', 'sparse_coo', 'sparse_csc', 'SparseTensor'])
def test_adj_t_both_ways(tmp_path, layout, keeps_edges, attr):
    """The matrix of what ToUndirected makes of its edges; without weights it stays one of ones."""
    if layout == 'SparseTensor' and not WITH_TORCH_SPARSE:
        pytest.skip('no torch_sparse')
    data = Data(num_nodes=9, **_edges(9, 9, 30, 0))
    edges, data.edge_index, data.edge_attr = data.edge_index, None, None
    data.edge_index, (data.edge_weight, data.edge_type) = coalesce(
        edges, [data.edge_weight, data.edge_type]
    )
    if attr is None:
        del data.edge_weight
    wanted = ToUndirected()(data.clone())
    if layout == 'sparse_csc':  # of which PyG has no transform: by source, as edges are here
        data.adj_t = to_torch_csc_tensor(data.edge_index.flip(0), attr and data[attr], 9)
        for name in {attr, None if keeps_edges else 'edge_index'} - {None}:
            del data[name]
    else:
        data = ToSparseTensor(attr, not keeps_edges, layout=getattr(torch, layout, None))(data)
    partition_graph(add_reverse_edges(data), 1, tmp_path / 'parts')
    found = load_shard(tmp_path / 'parts')
    (row, col), value = to_edge_index(found.adj_t)
    order = (9 * col + row).argsort()
    assert torch.equal(torch.stack([col, row])[:, order], wanted.edge_index)
    assert torch.equal(found.edge_type[order], wanted.edge_type)
    assert torch.equal(value[order], wanted.get('edge_weight', torch.ones(order.numel())))
    assert ('edge_index' in found) == keeps_edges
    assert wanted.num_edges < 2 * data.num_edges


def test_sums_are_in_the_order_of_the_edges():
    """Five copies of an edge whose weights do not add up the same in any other order."""
    weight = torch.tensor([1e8, 3.0, -1e8, 7.0, 1e-3], dtype=torch.float32)
    edge_index = torch.tensor([[0], [1]]).repeat(1, 5)
    found = add_reverse_edges(Data(edge_index=edge_index, edge_weight=weight, num_nodes=2))
    total = torch.zeros(())
    for value in weight:
        total += value
    assert found.edge_weight.tolist() == [float(total)] * 2


@pytest.mark.usefixtures('tiny')
def test_undirected_of_the_command_line(tmp_path):
    source = _save(DIRECTED['few nodes'](), 'folder', tmp_path)
    partition_graph(ToUndirected()(load_source(source)), 2, tmp_path / 'memory')
    assert command(source, tmp_path / 'disk', '--undirected') == 0
    trees = [tree(tmp_path / name) for name in ('memory', 'disk')]
    for files in trees:
        del files['META.json']  # names the command
    assert trees[0] == trees[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ['disk', 'graph', 'memory']


TWICE = torch.tensor([[0, 1], [1, 0]])
RELATION, REVERSE = ('a', 'to', 'b'), ('b', 'rev_to', 'a')


@pytest.mark.parametrize(
    ('data', 'message'),
    [
        (Data(edge_index=torch.tensor([[0, -1], [1, 0]])), 'must hold ids >= 0'),
        (Data(edge_index=torch.rand(2, 3)), 'must hold integers'),
        (
            Data(edge_index=torch.tensor([[0, 1, 1], [1, 0, 1]]), edge_name=['a', 'b', 'c']),
            "expected a dense tensor in 'edge_name'",
        ),
        (
            Data(edge_index=TWICE, num_nodes=3, end_time=torch.rand(2)),
            "weights in 'end_time', as edges are merged and weights added up (got times)",
        ),
        (
            Data(edge_index=TWICE, num_nodes=3, seen=torch.tensor([10**9, 10**9 + 5])),
            "weights in 'seen', as edges are merged and weights added up (got times)",
        ),
        (
            Data(edge_index=TWICE, num_nodes=3, count=torch.tensor([127, 1], dtype=torch.int8)),
            "weights in 'count', as edges are merged and weights added up (got sums that",
        ),
        (
            HeteroData({key: {'edge_index': torch.eye(2).long()} for key in (RELATION, REVERSE)}),
            f'no relation {REVERSE}, as the reverse edges of {RELATION}',
        ),
        (
            HeteroData({RELATION: {'adj_t': torch.eye(3).to_sparse()}}),
            f'{RELATION} (got a sparse adjacency matrix; convert it',
        ),
    ],
)
def test_reverse_edges_refused(data, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        add_reverse_edges(data)
