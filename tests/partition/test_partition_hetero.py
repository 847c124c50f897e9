"""Heterogeneous graphs on disk: all there once, and ids that lead back."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from graph_files import whole
from hetero_graphs import CITES, HAS, NUM_NODES, WRITES, assignment, hetero_graph
from partition_files import meta_of
from torch_geometric.data import HeteroData

import pyg_sar
from pyg_sar import partition_graph

PARTS = 3


@pytest.mark.parametrize('method', ['metis', 'random', assignment(PARTS)], ids=str)
def test_meta_and_files(tmp_path, method):
    data, root = hetero_graph(), tmp_path / 'out'
    partition_graph(data, PARTS, root, method=method)
    meta = json.loads((root / 'META.json').read_text())
    ours = meta['pyg_sar']
    told = {'is_hetero': True, 'is_sorted': False, 'num_parts': PARTS}
    told |= {'node_types': data.node_types, 'node_offset': [0, 34, 59, 66]}
    assert told.items() <= meta.items()
    assert [tuple(e) for e in meta['edge_types']] == data.edge_types
    assert ours['graph_attrs'] == {'name': 'toy', 'sizes': [1, 2]}
    assert ours['num_nodes'] == sum(NUM_NODES.values())
    assert ours['num_edges'] == data.num_edges
    for folder, names in (
        ('node_map', data.node_types),
        ('edge_map', ['__'.join(each) for each in data.edge_types]),
    ):
        assert {path.name for path in (root / folder).iterdir()} == {f'{n}.pt' for n in names}


def test_metis_cuts_few_edges_of_all_relations(tmp_path):
    """Two worlds of papers and authors, joined by one edge."""
    papers, authors = torch.arange(20), torch.arange(16)
    data = HeteroData({'paper': {'num_nodes': 20}, 'author': {'num_nodes': 16}})
    same = torch.cartesian_prod(papers, papers).t()
    cites = same[:, same[0] // 10 == same[1] // 10]
    data[CITES].edge_index = torch.cat([cites, torch.tensor([[0], [10]])], dim=1)
    both = torch.cartesian_prod(authors, papers).t()
    data[WRITES].edge_index = both[:, both[0] // 8 == both[1] // 10]
    summary = partition_graph(data, 2, tmp_path / 'out')
    assert summary.edge_cut == 1
    assert summary.type_num_nodes == {'author': (8, 8), 'paper': (10, 10)}
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
    relation = ('a', 'to', 'b')
    none = {'edge_index': torch.empty(2, 0, dtype=torch.int64)}
    data = HeteroData({'a': {'num_nodes': 7}, 'b': {'num_nodes': 2}, relation: none})
    summary = partition_graph(data, 3, tmp_path / 'out')
    assert {key: max(sizes) for key, sizes in summary.type_num_nodes.items()} == {'a': 3, 'b': 1}
    loaded = pyg_sar.local(pyg_sar.load_shard(tmp_path / 'out'))
    assert loaded[relation].edge_index.shape == (2, 0)


def test_parts_given_as_one_tensor_or_file(tmp_path):
    given = assignment(PARTS)
    flat = torch.cat(list(given.values()))
    np.save(tmp_path / 'parts.npy', flat.numpy())
    for i, method in enumerate((given, flat, f'file:{tmp_path / "parts.npy"}')):
        partition_graph(hetero_graph(), PARTS, tmp_path / f'{i}', method=method)
        for name, parts in given.items():
            assert torch.equal(torch.load(tmp_path / f'{i}/node_map/{name}.pt'), parts)


def test_split_of_the_types_with_labels(tmp_path):
    data, out = hetero_graph(), tmp_path / 'out'
    del data['paper'].train_mask, data['author'].train_mask
    partition_graph(data, 2, out, split='0.5/0.25/0.25')
    masks = [whole(out, f'{name}_mask', 'paper') for name in ('train', 'val', 'test')]
    assert [sum(mask) for mask in masks] == [17, 8, 9]
    assert [*map(sum, zip(*masks, strict=True))] == [1] * 34
    assert 'train_mask' not in pyg_sar.load_shard(out)['author']


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
