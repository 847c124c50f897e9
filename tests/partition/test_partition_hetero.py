"""Heterogeneous graphs on disk: all there once, and ids that lead back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hetero_graphs import CITES, HAS, NUM_NODES, WRITES, assignment, hetero_graph
from partition_files import meta_of
from torch_geometric.data import HeteroData

import pyg_sar
from pyg_sar import partition_graph

PARTS = 3


@pytest.fixture(params=['metis', 'random', 'uneven'])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    method = assignment(PARTS) if request.param == 'uneven' else request.param
    partition_graph(hetero_graph(), PARTS, tmp_path / 'out', method=method)
    return tmp_path / 'out'


def test_meta_and_files(root):
    data = hetero_graph()
    meta = json.loads((root / 'META.json').read_text())
    assert meta['is_hetero'] is True
    assert meta['is_sorted'] is False
    assert meta['num_parts'] == PARTS
    assert meta['node_types'] == data.node_types
    assert [tuple(e) for e in meta['edge_types']] == data.edge_types
    assert meta['node_offset'] == [0, 34, 59, 66]
    ours = meta['pyg_sar']
    assert ours['graph_attrs'] == {'name': 'toy', 'sizes': [1, 2]}
    assert ours['num_nodes'] == sum(NUM_NODES.values())
    assert ours['num_edges'] == sum(data[e].edge_index.size(1) for e in data.edge_types)
    assert sorted(p.name for p in (root / 'node_map').iterdir()) == sorted(
        f'{name}.pt' for name in data.node_types
    )
    assert sorted(p.name for p in (root / 'edge_map').iterdir()) == sorted(
        f'{"__".join(name)}.pt' for name in data.edge_types
    )


def test_metis_cuts_few_edges_of_all_relations(tmp_path):
    """Two worlds of papers and authors, joined by one edge."""
    papers, authors = torch.arange(20), torch.arange(16)
    data = HeteroData()
    data['paper'].num_nodes, data['author'].num_nodes = 20, 16
    same = torch.cartesian_prod(papers, papers).t()
    cites = same[:, same[0] // 10 == same[1] // 10]
    data[CITES].edge_index = torch.cat([cites, torch.tensor([[0], [10]])], dim=1)
    both = torch.cartesian_prod(authors, papers).t()
    data[WRITES].edge_index = both[:, both[0] // 8 == both[1] // 10]
    summary = partition_graph(data, 2, tmp_path / 'out')
    assert summary.edge_cut == 1
    assert sorted(summary.type_num_nodes.items()) == [('author', (8, 8)), ('paper', (10, 10))]
    assert sum(summary.type_num_edges[WRITES]) == 160
    lines = [' '.join(line.split()) for line in str(summary).splitlines()]
    assert lines[-2] == 'node types paper 1.000, author 1.000'
    assert lines[-1].startswith('relations paper__cites__paper 1.005, author__writes__paper 1.000')


@pytest.mark.parametrize('method', ['metis', 'random'])
@pytest.mark.parametrize('num_parts', [1, 2, 5])
def test_types_without_edges_are_dealt_out_evenly(tmp_path, method, num_parts):
    summary = partition_graph(hetero_graph(), num_parts, tmp_path / 'out', method=method)
    sizes = summary.type_num_nodes['lonely']
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == 9
    assert min(summary.part_num_nodes) > 0


def test_no_edges_at_all(tmp_path):
    data = HeteroData()
    data['a'].num_nodes, data['b'].num_nodes = 7, 2
    data['a', 'to', 'b'].edge_index = torch.empty(2, 0, dtype=torch.int64)
    summary = partition_graph(data, 3, tmp_path / 'out')
    assert max(summary.type_num_nodes['a']) == 3
    assert max(summary.type_num_nodes['b']) == 1
    loaded = pyg_sar.local(pyg_sar.load_shard(tmp_path / 'out'))
    assert loaded['a', 'to', 'b'].edge_index.shape == (2, 0)


def test_parts_given_as_one_tensor_or_file(tmp_path):
    given = assignment(PARTS)
    flat = torch.cat(list(given.values()))
    np.save(tmp_path / 'parts.npy', flat.numpy())
    for i, method in enumerate((given, flat, f'file:{tmp_path / "parts.npy"}')):
        partition_graph(hetero_graph(), PARTS, tmp_path / f'{i}', method=method)
        for name, parts in given.items():
            assert torch.equal(torch.load(tmp_path / f'{i}/node_map/{name}.pt'), parts)


def test_split_of_the_types_with_labels(tmp_path):
    data = hetero_graph()
    del data['paper'].train_mask
    del data['author'].train_mask
    partition_graph(data, 2, tmp_path / 'out', split='0.5/0.25/0.25')
    loaded = pyg_sar.local(pyg_sar.load_shard(tmp_path / 'out'))
    masks = torch.stack([loaded['paper'][f'{name}_mask'] for name in ('train', 'val', 'test')])
    assert masks.sum(dim=1).tolist() == [17, 8, 9]
    assert masks.sum(dim=0).tolist() == [1] * 34
    assert 'train_mask' not in loaded['author']


def test_fingerprints_tell_graphs_apart(tmp_path):
    data, other, renamed = hetero_graph(), hetero_graph(), hetero_graph()
    edge_index = other[HAS].edge_index
    edge_index[1, 0] = (edge_index[1, 0] + 1) % 7
    renamed['paper', 'holds', 'term'].edge_index = renamed[HAS].edge_index
    del renamed[HAS]
    found = set()
    for i, graph in enumerate((data, other, renamed)):
        partition_graph(graph, 2, tmp_path / f'{i}', method='random')
        found.add(meta_of(tmp_path / f'{i}')['fingerprint'])
    assert len(found) == 3
