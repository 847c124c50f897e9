"""The order of nodes within a part: what it changes, and all that it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hetero_graphs import hetero_graph
from partition_files import load_part, load_shard_files, meta_of
from ranks import run_as_threads
from torch import Tensor
from torch.optim import SGD
from torch_geometric.data import Data
from whole_partition import verify_partition

import pyg_sar
from pyg_sar.partition import layout, memmap, metis
from pyg_sar.partition.options import CutOptions
from pyg_sar.partition.partition_graph import cut_graph, partition_graph


@pytest.fixture
def small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parts have an order, too."""
    monkeypatch.setattr(metis, 'ROWS', 5)


def _grid(side: int) -> Data:
    """Neighbours in a square, both ways, ids at random."""
    node = torch.arange(side * side).view(side, side)
    one_way = [(node[1:], node[:-1]), (node[:, 1:], node[:, :-1])]
    edges = torch.cat([torch.stack([a.flatten(), b.flatten()]) for a, b in one_way], dim=1)
    ids = torch.randperm(side * side)
    x = torch.randn(side * side, 4, dtype=torch.float64)
    return Data(x=x, edge_index=ids[torch.cat([edges, edges.flip(0)], dim=1)])


def _cut_both(data: Any, num_parts: int, folder: Path) -> tuple[Path, Path]:
    """In both orders."""
    for order in ('cache', 'source'):
        cut_graph(data, num_parts, folder / order, CutOptions(), in_cache_order=order == 'cache')
    return folder / 'cache', folder / 'source'


@pytest.mark.usefixtures('tiny', 'small_rows')
@pytest.mark.parametrize('num_parts', [1, 2, 3])
@pytest.mark.parametrize('kind', ['directed', 'grid'])
def test_parts_hold_the_same_in_both_orders(
    tmp_path, monkeypatch, graph, check_partition, num_parts, kind
):
    """With two parts as beyond 2^31 nodes; the directed graph has several buckets a part."""
    if num_parts == 2:
        monkeypatch.setattr(layout, 'smallest_dtype', lambda _: torch.int64)
    assert 4 * num_parts * 4 * memmap.CHUNK_ROWS < graph.num_edges
    data = graph if kind == 'directed' else _grid(8)
    cache, source = _cut_both(data, num_parts, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['cache', 'source']
    for root in (cache, source):
        check_partition(root, data, num_parts)
    for part in range(num_parts):
        a, b = load_shard_files(cache, part), load_shard_files(source, part)
        assert a['n_id'].tolist() != b['n_id'].tolist() == sorted(a['n_id'].tolist())
        for name in ('halo_ptr', 'boundary_ptr', 'block_ptr'):
            assert torch.equal(a[name], b[name])
        assert a['e_id'].sort().values.equal(b['e_id'].sort().values)
    # Parts of one order beside parts of the other would be read wrongly.
    assert meta_of(cache)['fingerprint'] != meta_of(source)['fingerprint']


@pytest.mark.parametrize('num_parts', [1, 3])
def test_neighbours_are_near_each_other(tmp_path, monkeypatch, num_parts):
    monkeypatch.setattr(metis, 'ROWS', 16)
    far = {}
    for root in _cut_both(_grid(24), num_parts, tmp_path):
        sar = load_part(root, 0)
        own = slice(*sar['block_ptr'][:2].tolist())
        far[root.name] = ((sar['src'] - sar['dst'])[own].abs() > 32).double().mean()
    assert far['cache'] < 0.35
    assert far['source'] > 0.6


@pytest.mark.usefixtures('tiny', 'small_rows')
@pytest.mark.parametrize('num_parts', [1, 2, 3])
def test_types_have_orders_of_their_own(tmp_path, monkeypatch, num_parts):
    monkeypatch.setattr(memmap, 'CHUNK_ROWS', 1)  # several buckets a part
    if num_parts == 2:
        monkeypatch.setattr(layout, 'smallest_dtype', lambda _: torch.int64)
    roots = _cut_both(hetero_graph(), num_parts, tmp_path)
    assert [verify_partition(root) for root in roots] == [[], []]
    for part in range(num_parts):
        cache = load_part(tmp_path / 'cache', part, 'node_feats.pt')
        for name, feats in load_part(tmp_path / 'source', part, 'node_feats.pt').items():
            found, want = cache[name]['global_id'].tolist(), feats['global_id'].tolist()
            assert sorted(found) == want
            if name in ('paper', 'author'):
                assert found != want


@pytest.mark.usefixtures('small_rows')
def test_the_same_seed_gives_the_same_order(tmp_path, graph):
    n_ids = []
    for number, seed in enumerate((7, 7, 8)):
        root = tmp_path / str(number)
        cut_graph(graph, 2, root, CutOptions('range', seed), in_cache_order=True)
        n_ids.append([load_shard_files(root, part)['n_id'].tolist() for part in range(2)])
    assert n_ids[0] == n_ids[1] != n_ids[2]


def test_small_parts_keep_the_order_of_ids(tmp_path, graph):
    roots = _cut_both(graph, 2, tmp_path)
    for part in range(2):
        a, b = (root / f'part_{part}' / 'sar.pt' for root in roots)
        assert a.read_bytes() == b.read_bytes()


ODD = {
    'no edges': torch.empty(2, 0, dtype=torch.int64),
    'loops': torch.zeros(2, 9, dtype=torch.int64),
    'star': torch.stack([torch.zeros(39).long(), torch.arange(1, 40)]),
}


@pytest.mark.usefixtures('small_rows')
@pytest.mark.parametrize('kind', ODD)
@pytest.mark.parametrize('method', ['metis', 'empty parts'])
def test_odd_graphs(tmp_path, kind, method):
    parts = torch.full((40,), 2) if method == 'empty parts' else method
    data = Data(x=torch.ones(40, 1), edge_index=ODD[kind])
    cut_graph(data, 4, tmp_path / 'out', CutOptions(parts), in_cache_order=True)
    assert verify_partition(tmp_path / 'out') == []


@pytest.mark.usefixtures('small_rows')
@pytest.mark.parametrize(
    ('method', 'order'), [('metis', 'cache'), ('ldg', 'source'), ('random', 'source')]
)
def test_default(tmp_path, graph, method, order):
    partition_graph(graph, 2, tmp_path / 'out', method=method)
    n_id = load_shard_files(tmp_path / 'out', 0)['n_id'].tolist()
    assert (n_id == sorted(n_id)) is (order == 'source')


def _save(root: str, folder: str) -> None:
    data = pyg_sar.load_shard(root)
    pyg_sar.save_rows(f'{folder}/rows.npy', data.x, data)
    model = pyg_sar.NodeEmbedding(data, 4).double()
    with torch.no_grad():
        model.weight.copy_(data.x)
    pyg_sar.save_checkpoint(f'{folder}/runs', model, SGD(model.parameters(), 0.1), epoch=1)


def _read(root: str, folder: str) -> list[Tensor]:
    """What is read, less what belongs there."""
    data = pyg_sar.load_shard(root)
    rows = pyg_sar.load_rows(f'{folder}/rows.npy', data)
    model = pyg_sar.NodeEmbedding(data, 4).double()
    pyg_sar.load_checkpoint(f'{folder}/runs', model, SGD(model.parameters(), 0.1))
    return pyg_sar.local([found - data.x for found in (rows, model().detach())])


@pytest.mark.usefixtures('small_rows')
@pytest.mark.parametrize(('writes', 'reads'), [('source', 'cache'), ('cache', 'source')])
def test_rows_and_checkpoints_go_from_one_order_to_the_other(tmp_path, writes, reads):
    _cut_both(_grid(6), 2, tmp_path)
    run_as_threads(_save, 2, str(tmp_path / writes), str(tmp_path))
    for differences in run_as_threads(_read, 2, str(tmp_path / reads), str(tmp_path)):
        assert all(not difference.any() for difference in differences)
