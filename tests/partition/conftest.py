"""Small graphs of every awkward kind, and an oracle that reads their shards back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import awkward_graph, with_values
from partition_files import load_shard_files
from torch import Tensor
from torch_geometric.data import Data
from whole_partition import verify_partition

from pyg_sar.partition import memmap

CheckPartition = Callable[..., list[int]]


def _random_edges(num_nodes: int, num_edges: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(num_nodes, (2, num_edges), generator=generator)


def _communities() -> Data:
    clique = torch.cartesian_prod(torch.arange(10), torch.arange(10)).t()
    clique = clique[:, clique[0] != clique[1]]
    bridges = torch.tensor([[9, 19, 10, 20], [10, 20, 9, 19]])
    return with_values(torch.cat([clique, clique + 10, clique + 20, bridges], dim=1), 30)


def _star() -> Data:
    return with_values(torch.stack([torch.arange(1, 20), torch.zeros(19).long()]), 20)


GRAPHS: dict[str, Callable[[], Data]] = {
    'directed': lambda: with_values(_random_edges(50, 300, seed=0), 50),
    'loops_and_duplicates': lambda: awkward_graph(30, 80),
    'isolated': lambda: with_values(_random_edges(12, 30, seed=2) * 2, 40),
    'communities': _communities,
    'star': _star,
    'no_edges': lambda: with_values(torch.empty(2, 0, dtype=torch.int64), 9),
    'as_many_edges_as_nodes': lambda: with_values(_random_edges(25, 25, seed=3), 25),
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


@pytest.fixture(params=[False, True], ids=['in memory', 'on disk'])
def scratch(request: pytest.FixtureRequest, tmp_path: Path) -> memmap.Scratch | None:
    return memmap.Scratch(tmp_path) if request.param else None


@pytest.fixture
def check_partition() -> CheckPartition:
    return _check_partition


def _load(path: Path) -> Any:
    return torch.load(path, weights_only=True, mmap=True)


def _check_partition(
    root: Path,
    data: Data,
    num_parts: int,
    *,
    node_attrs: tuple[str, ...] = NODE_ATTRS,
    edge_attrs: tuple[str, ...] = EDGE_ATTRS,
) -> list[int]:
    """Checks that a folder is whole, and holds this graph and these attributes of those above.

    Returns the part of every node.
    """
    assert verify_partition(root) == []
    given = {'node': node_attrs, 'edge': edge_attrs}
    names = {kind: [n for n in of_kind if n in data] for kind, of_kind in given.items()}
    src, dst = data.edge_index
    num_nodes, num_edges = data.num_nodes, src.numel()
    assert num_nodes is not None
    part_of = _load(root / 'node_map.pt')
    assert len(part_of) == num_nodes
    assert torch.equal(_load(root / 'edge_map.pt'), part_of[dst])
    assert {path.name for path in root.iterdir()} == {
        *('META.json', 'node_map.pt', 'edge_map.pt'),
        *(['node_names.arrow'] if 'node_names' in data else []),
        *(f'part_{part}' for part in range(num_parts)),
    }
    halo_rows = [[0] * num_parts for _ in range(num_parts)]
    block_edges = [[0] * num_parts for _ in range(num_parts)]
    for part in range(num_parts):
        folder, sar = root / f'part_{part}', load_shard_files(root, part)
        _check_storage(_load(folder / 'sar.pt'))
        assert {path.name for path in folder.iterdir()} == {
            *('edge_feats.pt', 'graph.pt', 'node_feats.pt', 'sar.pt')
        }
        narrow = {name for name, value in sar.items() if value.dtype == torch.int32}
        assert narrow == {'halo_pos', 'boundary_pos', 'src', 'dst'}
        assert {sar[name].dtype for name in {*sar} - narrow} == {torch.int64}
        # Own nodes; edges into them, as they are in the graph, in the order of the format.
        own, e_id = sar['n_id'].tolist(), sar['e_id']
        assert sorted(own) == (part_of == part).nonzero().view(-1).tolist()
        graph = _load(folder / 'graph.pt')
        assert graph['size'] == (num_nodes, num_nodes)
        assert torch.equal(graph['row'], src[e_id].long())
        assert torch.equal(graph['col'], dst[e_id].long())
        _check_storage(graph)
        owner = part_of[src[e_id]].tolist()
        keys = [*zip(owner, sar['dst'].tolist(), src[e_id].tolist(), e_id.tolist(), strict=True)]
        assert keys == sorted(keys)
        for other in range(num_parts):
            remote = {s for _, _, s, _ in keys if other != part and part_of[s] == other}
            halo_rows[part][other] = len(remote)
            block_edges[part][other] = owner.count(other)
        assert sar['halo_ptr'].diff().tolist() == halo_rows[part]
        assert sar['block_ptr'].diff().tolist() == block_edges[part]
        for kind, ids in (('node', own), ('edge', e_id.tolist())):
            if names[kind] or kind == 'node':
                _check_feats(folder / f'{kind}_feats.pt', data, names[kind], ids)
            else:
                assert _load(folder / f'{kind}_feats.pt') == {}

    meta = json.loads((root / 'META.json').read_text())
    ours = meta.pop('pyg_sar')
    plain = {'is_hetero': False, 'is_sorted': False, 'num_parts': num_parts}
    assert meta == {**plain, 'node_types': None, 'edge_types': None, 'node_offset': None}
    said = {
        'format_version': 3,
        'num_nodes': num_nodes,
        'num_edges': num_edges,
        'part_num_nodes': part_of.bincount(minlength=num_parts).tolist(),
        'part_num_edges': [sum(row) for row in block_edges],
        'halo_rows': halo_rows,
        'block_edges': block_edges,
    }
    for kind in ('node', 'edge'):
        rows = {name: data[name] for name in names[kind]}
        said[f'{kind}_attrs'] = {
            name: {'dtype': str(of.dtype).removeprefix('torch.'), 'shape': list(of.shape[1:])}
            for name, of in rows.items()
        }
    assert said.items() <= ours.items()
    assert ours['partition']['edge_cut'] == int((part_of[src] != part_of[dst]).sum())
    assert ours['partition']['communication_volume'] == sum(map(sum, halo_rows))
    return part_of.tolist()


def _check_feats(path: Path, data: Data, names: list[str], ids: list[int]) -> None:
    content = _load(path)
    times = {*names} & {'time', 'edge_time'}
    assert set(content) == {'global_id', 'feats', *(['times'] if times else [])}
    assert content['global_id'].tolist() == ids
    assert {*content['feats']} == {*names} - times
    assert {*content.get('times', {})} == times
    rows = {**content['feats'], **content.get('times', {})}
    for name, values in rows.items():
        assert values.dtype == data[name].dtype
        assert torch.equal(values, data[name][ids])
    for values in (content, rows):
        _check_storage(values)


def _check_storage(content: dict[str, Any]) -> None:
    """No saved tensor drags along the memory of a larger one."""
    for value in content.values():
        if isinstance(value, Tensor):
            assert value.untyped_storage().nbytes() == value.numel() * value.element_size()
