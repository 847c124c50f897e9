"""Small graphs of every awkward kind, and an oracle that reads their shards back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from partition_files import load_shard_files
from torch import Tensor
from torch_geometric.data import Data

from pyg_sar.partition import memmap

CheckPartition = Callable[..., list[int]]


def _random_edges(num_nodes: int, num_edges: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(num_nodes, (2, num_edges), generator=generator)


def _with_attributes(edge_index: Tensor, num_nodes: int) -> Data:
    num_edges = edge_index.size(1)
    generator = torch.Generator().manual_seed(num_nodes)
    return Data(
        x=torch.randn(num_nodes, 3, generator=generator),
        edge_index=edge_index,
        y=torch.randint(4, (num_nodes,), generator=generator),
        train_mask=torch.rand(num_nodes, generator=generator) < 0.5,
        pos=torch.rand(num_nodes, 2, generator=generator, dtype=torch.float64),
        edge_attr=torch.randn(num_edges, 2, generator=generator),
        edge_weight=torch.rand(num_edges, generator=generator),
        edge_type=torch.randint(5, (num_edges,), generator=generator, dtype=torch.uint8),
    )


def _loops_and_duplicates() -> Data:
    edges = _random_edges(30, 80, seed=1)
    loops = torch.arange(0, 30, 3).repeat(2, 1)
    return _with_attributes(torch.cat([edges, loops, edges[:, ::2], loops], dim=1), 30)


def _communities() -> Data:
    clique = torch.cartesian_prod(torch.arange(10), torch.arange(10)).t()
    clique = clique[:, clique[0] != clique[1]]
    bridges = torch.tensor([[9, 19, 10, 20], [10, 20, 9, 19]])
    edges = torch.cat([clique, clique + 10, clique + 20, bridges], dim=1)
    return _with_attributes(edges, 30)


def _star() -> Data:
    return _with_attributes(torch.stack([torch.arange(1, 20), torch.zeros(19).long()]), 20)


GRAPHS: dict[str, Callable[[], Data]] = {
    'directed': lambda: _with_attributes(_random_edges(50, 300, seed=0), 50),
    'loops_and_duplicates': _loops_and_duplicates,
    'isolated': lambda: _with_attributes(_random_edges(12, 30, seed=2) * 2, 40),
    'communities': _communities,
    'star': _star,
    'no_edges': lambda: _with_attributes(torch.empty(2, 0, dtype=torch.int64), 9),
    'as_many_edges_as_nodes': lambda: _with_attributes(_random_edges(25, 25, seed=3), 25),
    'bare': lambda: Data(edge_index=_random_edges(20, 60, seed=4), num_nodes=23),
}

NODE_ATTRS = ('x', 'y', 'train_mask', 'pos')
EDGE_ATTRS = ('edge_attr', 'edge_weight', 'edge_type')


@pytest.fixture(params=sorted(GRAPHS))
def any_graph(request: pytest.FixtureRequest) -> Data:
    return GRAPHS[request.param]()


@pytest.fixture
def graph() -> Data:
    return GRAPHS['directed']()


@pytest.fixture
def make_graph() -> Callable[[str], Data]:
    return lambda name: GRAPHS[name]()


@pytest.fixture(scope='session')
def power_law() -> Data:
    """24,000 directed edges, uneven degrees, six classes of five communities."""
    rng = np.random.default_rng(0)
    community = rng.integers(0, 30, 3000)
    weight = (1 - rng.random(3000)) ** (-1 / 1.7)

    def draw(nodes: np.ndarray, count: int) -> np.ndarray:
        return rng.choice(nodes, count, p=weight[nodes] / weight[nodes].sum())

    everywhere = np.arange(3000)
    src, scope = draw(everywhere, 20_000), rng.random(20_000)
    dst = draw(everywhere, 20_000)
    for size, share in ((5, 0.7), (1, 0.45)):  # in the class, in the community
        for group in range(30 // size):
            is_near = (scope < share) & (community[src] // size == group)
            dst[is_near] = draw(np.flatnonzero(community // size == group), is_near.sum())
    low, high = np.minimum(src, dst), np.maximum(src, dst)
    pairs = rng.permutation(np.unique(np.stack([low, high])[:, low < high], axis=1), axis=1)
    edges = torch.from_numpy(pairs[:, :12_000])
    assert edges.size(1) == 12_000
    return Data(
        edge_index=torch.cat([edges, edges.flip(0)], dim=1).unique(dim=1),
        x=torch.from_numpy(rng.standard_normal((3000, 4), dtype=np.float32)),
        y=torch.from_numpy(community // 5),
    )


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few edges and rows, and no scratch space in memory."""
    monkeypatch.setattr(memmap, 'CHUNK_ROWS', 5)
    monkeypatch.setattr(memmap, 'CHUNK_BYTES', 48)
    monkeypatch.setattr(memmap, 'IN_MEMORY', 0)


@pytest.fixture
def check_partition() -> CheckPartition:
    return _check_partition


@pytest.fixture
def assert_same_content() -> Callable[[Any, Any], None]:
    return _assert_same_content


def _load(path: Path) -> Any:
    return torch.load(path, weights_only=True, mmap=True)


def _check_partition(
    root: Path,
    data: Data,
    num_parts: int,
    *,
    node_attrs: tuple[str, ...] | None = None,
    edge_attrs: tuple[str, ...] | None = None,
) -> list[int]:
    """Checks every invariant of the format in plain Python; returns the part of every node.

    Args:
        root: The partition folder.
        data: The graph it was made from.
        num_parts: The number of parts asked for.
        node_attrs: The node attributes it must hold; by default those of the graphs above.
        edge_attrs: The same for the edges.
    """
    node_attrs = tuple(n for n in NODE_ATTRS if n in data) if node_attrs is None else node_attrs
    edge_attrs = tuple(n for n in EDGE_ATTRS if n in data) if edge_attrs is None else edge_attrs
    edges = list(zip(*data.edge_index.tolist(), strict=True)) if data.edge_index.numel() else []
    num_nodes, num_edges = data.num_nodes, len(edges)
    assert num_nodes is not None
    meta = json.loads((root / 'META.json').read_text())
    ours = meta['pyg_sar']
    part_of: list[int] = _load(root / 'node_map.pt').tolist()
    assert len(part_of) == num_nodes
    assert all(0 <= part < num_parts for part in part_of)
    assert _load(root / 'edge_map.pt').tolist() == [part_of[dst] for _, dst in edges]
    assert sorted(path.name for path in root.iterdir()) == sorted(
        ['META.json', 'node_map.pt', 'edge_map.pt', *(f'part_{p}' for p in range(num_parts))]
    )

    shards = [load_shard_files(root, part) for part in range(num_parts)]
    halo_rows = [[0] * num_parts for _ in range(num_parts)]
    block_edges = [[0] * num_parts for _ in range(num_parts)]
    seen: list[int] = []
    for part, sar in enumerate(shards):
        folder = root / f'part_{part}'
        _check_storage(_load(folder / 'sar.pt'))
        assert {name: str(value.dtype) for name, value in sar.items()} == {
            **dict.fromkeys(
                ('n_id', 'halo_ptr', 'boundary_ptr', 'block_ptr', 'e_id'), 'torch.int64'
            ),
            **dict.fromkeys(('halo_pos', 'boundary_pos', 'src', 'dst'), 'torch.int32'),
        }
        own = [node for node in range(num_nodes) if part_of[node] == part]
        n_id, e_id = sar['n_id'].tolist(), sar['e_id'].tolist()
        assert sorted(n_id) == own
        own = n_id

        # The halo, from the edges alone.
        remote = {s for s, d in edges if part_of[d] == part and part_of[s] != part}
        sources = list(own)  # The global id of every local source id.
        assert len(sar['halo_ptr']) == len(sar['boundary_ptr']) == num_parts + 1
        for owner in range(num_parts):
            positions = _group(sar, 'halo', owner)
            owner_ids = shards[owner]['n_id'].tolist()
            expected = [owner_ids[position] for position in positions]
            assert sorted(expected) == sorted(n for n in remote if part_of[n] == owner)
            assert positions == sorted(set(positions))
            assert _group(shards[owner], 'boundary', part) == positions
            halo_rows[part][owner] = len(positions)
            sources += expected
        assert len(sar['halo_pos']) == int(sar['halo_ptr'][-1])
        assert len(sar['boundary_pos']) == int(sar['boundary_ptr'][-1])

        # Every edge into an own node, once, in the order of the format.
        src, dst = sar['src'].tolist(), sar['dst'].tolist()
        assert len(src) == len(dst) == len(e_id) == int(sar['block_ptr'][-1])
        for s, d, e in zip(src, dst, e_id, strict=True):
            assert 0 <= d < len(own)
            assert 0 <= s < len(sources)
            assert (sources[s], own[d]) == edges[e]
        keys = [(part_of[edges[e][0]], d, edges[e][0], e) for d, e in zip(dst, e_id, strict=True)]
        assert keys == sorted(keys)
        for owner in range(num_parts):
            start, end = sar['block_ptr'][owner : owner + 2].tolist()
            assert all(key[0] == owner for key in keys[start:end])
            block_edges[part][owner] = end - start
        seen += e_id

        _check_graph(folder, data, e_id, edges)
        _check_feats(folder / 'node_feats.pt', data, node_attrs, own)
        if edge_attrs:
            _check_feats(folder / 'edge_feats.pt', data, edge_attrs, e_id)
        else:
            assert _load(folder / 'edge_feats.pt') == {}
        assert sorted(path.name for path in folder.iterdir()) == [
            'edge_feats.pt',
            'graph.pt',
            'node_feats.pt',
            'sar.pt',
        ]
    assert sorted(seen) == list(range(num_edges))

    assert {key: meta[key] for key in meta if key != 'pyg_sar'} == {
        'num_parts': num_parts,
        'node_types': None,
        'edge_types': None,
        'node_offset': None,
        'is_hetero': False,
        'is_sorted': False,
    }
    assert ours['format_version'] == 2
    assert (ours['num_nodes'], ours['num_edges']) == (num_nodes, num_edges)
    assert ours['part_num_nodes'] == [len(sar['n_id']) for sar in shards]
    assert ours['part_num_edges'] == [len(sar['e_id']) for sar in shards]
    assert ours['halo_rows'] == halo_rows
    assert ours['block_edges'] == block_edges
    for kind, names in (('node_attrs', node_attrs), ('edge_attrs', edge_attrs)):
        assert ours[kind] == {
            name: {
                'dtype': str(data[name].dtype).removeprefix('torch.'),
                'shape': list(data[name].shape[1:]),
            }
            for name in names
        }
    cut = sum(part_of[s] != part_of[d] for s, d in edges)
    assert ours['partition']['edge_cut'] == cut
    assert ours['partition']['communication_volume'] == sum(map(sum, halo_rows))
    return part_of


def _check_graph(folder: Path, data: Data, e_id: list[int], edges: list[tuple[int, int]]) -> None:
    graph = _load(folder / 'graph.pt')
    assert set(graph) == {'edge_id', 'row', 'col', 'size'}
    assert graph['size'] == (data.num_nodes, data.num_nodes)
    assert graph['row'].tolist() == [edges[e][0] for e in e_id]
    assert graph['col'].tolist() == [edges[e][1] for e in e_id]
    assert {graph[name].dtype for name in ('edge_id', 'row', 'col')} == {torch.int64}
    _check_storage(graph)


def _check_feats(path: Path, data: Data, names: tuple[str, ...], ids: list[int]) -> None:
    content = _load(path)
    times = {*names} & {'time', 'edge_time'}
    assert set(content) == {'global_id', 'feats', *(['times'] if times else [])}
    assert content['global_id'].tolist() == ids
    assert {*content['feats']} == {*names} - times
    assert {*content.get('times', {})} == times
    rows = {**content['feats'], **content.get('times', {})}
    for name, values in rows.items():
        _assert_rows(values, data[name], ids)
    for values in (content, rows):
        _check_storage(values)


def _assert_rows(rows: Tensor, source: Tensor, ids: list[int]) -> None:
    assert rows.dtype == source.dtype
    assert rows.shape == (len(ids), *source.shape[1:])
    for row, id_ in zip(rows, ids, strict=True):
        assert torch.equal(row, source[id_])


def _check_storage(content: dict[str, Any]) -> None:
    """No saved tensor drags along the memory of a larger one."""
    for value in content.values():
        if isinstance(value, Tensor):
            assert value.untyped_storage().nbytes() == value.numel() * value.element_size()


def _group(sar: dict[str, Tensor], name: str, part: int) -> list[int]:
    start, end = sar[f'{name}_ptr'][part : part + 2].tolist()
    return sar[f'{name}_pos'][start:end].tolist()


def _assert_same_content(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            _assert_same_content(a[key], b[key])
    elif isinstance(a, Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    else:
        assert a == b
