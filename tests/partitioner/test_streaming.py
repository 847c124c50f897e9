"""Passes over graphs on disk give the shards that all in memory gives."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import in_memory_layout as old
import numpy as np
import pytest
import torch
from few import few
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from pyg_sar.partitioner import cut_graph, partition_graph, sub_parts
from pyg_sar.partitioner.on_disk import buckets, mapped, rows
from pyg_sar.partitioner.on_disk.mapped import Scratch
from pyg_sar.partitioner.on_disk.neighbours import undirected_csr
from pyg_sar.partitioner.sources.sources import load_source
from pyg_sar.partitioner.write import groups, layout


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few edges and rows, and no scratch space in memory."""
    monkeypatch.setattr(rows, 'CHUNK_ROWS', 7)
    monkeypatch.setattr(buckets, 'CHUNK_ROWS', 5)
    monkeypatch.setattr(rows, '_CHUNK_BYTES', 64)
    monkeypatch.setattr(mapped, '_IN_MEMORY', 0)


def _tree(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob('*') if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.usefixtures('tiny')
@pytest.mark.parametrize('order', ['cache', 'source'])
@pytest.mark.parametrize('num_parts', [1, 2, 5])
@pytest.mark.parametrize('sizes', [(30, 30, 400), (40, 9, 200), (5, 60, 90), (3, 4, 0)])
def test_layout_is_that_of_the_whole_graph_in_memory(
    tmp_path, monkeypatch, num_parts, sizes, order
):
    if num_parts == 2:  # as beyond 2^31 nodes
        for module in (groups, layout):
            monkeypatch.setattr(module, 'smallest_dtype', lambda _: torch.int64)
    num_src, num_dst, num_edges = sizes
    is_bipartite = num_src != num_dst
    generator = torch.Generator().manual_seed(num_edges + num_parts)
    draw = lambda n, count: torch.randint(n, (count,), generator=generator)  # noqa: E731
    edge_index = torch.stack([draw(num_src, num_edges), draw(num_dst, num_edges)])
    assignments = [draw(num_parts, num_src), draw(num_parts, num_dst)]
    runs = assignments
    if order == 'cache':
        runs = [of * 3 + draw(3, of.numel()) for of in assignments]
    both = list(zip(assignments, runs, strict=True))
    found, wanted = (
        [module.group_nodes(of, num_parts, sub) for of, sub in both] for module in (groups, old)
    )
    if not is_bipartite:
        found[1], wanted[1] = found[0], wanted[0]
    scratch = Scratch(tmp_path)
    narrow = edge_index.to(torch.int32)
    edges = groups.group_edges(narrow, *found, scratch)
    old_edges = old.group_edges(edge_index, *wanted)
    exchange, old_exchange = layout.find_halos(edges), old.find_halos(old_edges)
    assert exchange.halo_rows.tolist() == old_exchange.halo_rows.tolist()
    assert edges.edgeptr.tolist() == old_edges.edgeptr.tolist()
    if num_edges >= 200:
        assert edges.bounds.numel() > num_parts + 1  # otherwise buckets were not tried
    for part in range(num_parts):
        a = layout.part_layout(edges, exchange, part, scratch)
        b = old.part_layout(old_edges, old_exchange, part)
        assert a.graph['size'] == b.graph['size']
        for ours, theirs in ((a.sar, b.sar), (a.graph, b.graph)):
            assert ours.keys() == theirs.keys()
            for key in ours.keys() - {'size'}:
                assert ours[key].dtype == theirs[key].dtype, key
                assert torch.equal(ours[key], theirs[key]), key
        block_edges = a.sar['block_ptr'].diff()
        assert torch.equal(exchange.block_edges[part], block_edges)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures('tiny')
@pytest.mark.parametrize('seed', range(4))
def test_undirected_graph(tmp_path, seed):
    random.seed(seed)
    num_nodes, num_edges = random.choice([(1, 4), (9, 0), (12, 100), (50, 300)])
    edge_index = torch.randint(num_nodes, (2, num_edges))
    pairs = {(a, b) for a, b in edge_index.t().tolist() if a != b}
    pairs |= {(b, a) for a, b in pairs}
    indptr, index = undirected_csr(edge_index, num_nodes, scratch=Scratch(tmp_path))
    assert indptr.dtype == index.dtype == np.int64
    assert indptr.tolist() == [sum(a < n for a, _ in pairs) for n in range(num_nodes + 1)]
    assert index.tolist() == [b for _, b in sorted(pairs)]


@given(
    keys=st.lists(st.integers(0, 9), max_size=40),
    bound=st.sampled_from([10, 1 << 40, (1 << 62) + 10]),
)
def test_stable_order(keys, bound):
    keys = [key + bound - 10 for key in keys]
    order = buckets.stable_order(torch.tensor(keys, dtype=torch.int64), bound)
    assert order.tolist() == sorted(range(len(keys)), key=keys.__getitem__)


def _homogeneous() -> Data:
    generator = torch.Generator().manual_seed(1)
    return Data(
        x=torch.randn(60, 5, generator=generator),
        edge_index=torch.randint(60, (2, 500), generator=generator),
        y=torch.randint(4, (60,), generator=generator),
        train_mask=torch.rand(60, generator=generator) < 0.5,
        edge_attr=torch.randn(500, 3, generator=generator),
        edge_weight=torch.rand(500, generator=generator, dtype=torch.float64),
    )


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
        return {key: value.numpy() for key, value in data.items()}
    arrays = {}
    for store in [*data.node_stores, *data.edge_stores]:
        of = store._key if isinstance(store._key, str) else '|'.join(store._key)
        for key, value in store.items():
            arrays[f'{"edge" if key == "edge_index" else key}|{of}'] = np.asarray(value)
    return arrays


@pytest.mark.parametrize('method', few(['metis', 'random']))
@pytest.mark.parametrize('make', [_homogeneous, _heterogeneous])
@pytest.mark.parametrize('kind', ['npz', 'compressed', 'folder', 'pt'])
def test_shards_of_files_are_those_of_memory(tmp_path, monkeypatch, request, kind, make, method):
    monkeypatch.setattr(sub_parts, 'ROWS', 4)
    data = make()
    source = tmp_path / 'graph.npz'
    if kind == 'npz':
        np.savez(source, **_arrays(data))
    elif kind == 'compressed':
        np.savez_compressed(source, **_arrays(data))
    elif kind == 'folder':
        source = tmp_path / 'graph'
        source.mkdir()
        for key, array in _arrays(data).items():
            np.save(source / f'{key}.npy', array)
    else:
        source = tmp_path / 'graph.pt'
        torch.save(data, source)
    if kind == 'folder' and make is _heterogeneous:
        data = load_source(source)  # the types in the order of the files' names
    partition_graph(data, 3, tmp_path / 'memory', method=method, seed=3)
    request.getfixturevalue('tiny')
    maps: list[int] = []
    typed_graph = cut_graph.typed_graph

    def count_maps(found, scratch):
        values = [value for store in found.stores for value in store.values()]
        maps.append(sum(mapped.is_mapped(v) for v in values if isinstance(v, torch.Tensor)))
        return typed_graph(found, scratch)

    monkeypatch.setattr(cut_graph, 'typed_graph', count_maps)
    partition_graph(source, 3, tmp_path / 'disk', method=method, seed=3)
    num_tensors = sum(isinstance(v, torch.Tensor) for s in data.stores for v in s.values())
    num_empty = 0 if isinstance(data, Data) else 1
    assert maps == [0 if kind == 'compressed' else num_tensors - num_empty]
    assert _tree(tmp_path / 'disk') == _tree(tmp_path / 'memory')


def test_note_of_compressed_arrays(tmp_path, monkeypatch):
    from pyg_sar.partitioner.sources import npz

    monkeypatch.setattr(npz, '_WORTH_MAPPING', 100)
    np.savez_compressed(tmp_path / 'g.npz', **_arrays(_homogeneous()))
    with pytest.warns(UserWarning, match='compressed in .*: x, edge_index'):
        partition_graph(tmp_path / 'g.npz', 2, tmp_path / 'out', method='random')


def test_integer_types_and_memory_orders(tmp_path, monkeypatch, request):
    """int32 edges stored [E, 2], as OGB does, and features in Fortran's order."""
    data = _homogeneous()
    partition_graph(data, 3, tmp_path / 'memory')
    source = tmp_path / 'graph'
    source.mkdir()
    arrays = _arrays(data)
    np.save(source / 'edge_index.npy', np.asfortranarray(arrays.pop('edge_index'), np.int32))
    np.save(source / 'x.npy', np.asfortranarray(arrays.pop('x')))
    for key, array in arrays.items():
        np.save(source / f'{key}.npy', array)
    request.getfixturevalue('tiny')
    partition_graph(source, 3, tmp_path / 'disk')
    assert _tree(tmp_path / 'disk') == _tree(tmp_path / 'memory')
