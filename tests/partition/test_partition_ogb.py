"""The datasets of OGB from small folders in their layout."""

from __future__ import annotations

import gzip
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_files import command, whole
from partition_files import is_in_file

import pyg_sar
from pyg_sar.partition.memmap import Scratch
from pyg_sar.partition.sources import load_source
from pyg_sar.partition.sources.datasets import OGB

# Not pytest.importorskip: ogb's import asks the internet for a newer version.
needs_ogb = pytest.mark.skipif(find_spec('ogb') is None, reason='the package ogb is not installed')

RNG = np.random.default_rng(0)
N, E = 9, 20
EDGES = RNG.integers(N, size=(E, 2))
X = RNG.standard_normal((N, 3)).astype(np.float32)
SPLIT = {'train': [0, 3, 4, 8], 'valid': [1, 2], 'test': [5, 7]}


def _csv(path: Path, rows: Any, header: str = '') -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, 'wt') as file:
        file.write(header)
        for row in np.asarray(rows).reshape(len(rows), -1):
            file.write(','.join(str(value) for value in row) + '\n')


def _split(folder: Path, name: str) -> None:
    for key, ids in SPLIT.items():
        _csv(folder / 'split' / name / f'{key}.csv.gz', ids)


def _homogeneous(folder: Path, split: str, **more: Any) -> None:
    files = {'edge': EDGES, 'num-node-list': [N], 'num-edge-list': [E], **more}
    for name, rows in files.items():
        _csv(folder / 'raw' / f'{name}.csv.gz', rows)
    _split(folder, split)


def _check_split(data: Any) -> None:
    for key, name in (('train', 'train_mask'), ('valid', 'val_mask'), ('test', 'test_mask')):
        assert data[name].nonzero().view(-1).tolist() == SPLIT[key]


@pytest.mark.parametrize('name', OGB)
def test_says_what_to_fetch(name, tmp_path):
    """Without a question, with or without the package."""
    folder = re.escape(str(tmp_path / name.replace('-', '_')))
    with pytest.raises(ValueError, match=rf"files of {name} in '{folder}' .*Fetch http.*\.zip"):
        load_source(name, root=tmp_path)
    (tmp_path / name.replace('-', '_')).mkdir()
    with pytest.raises(ValueError, match=r'\d+ [GM]B\), unzip it in'):
        load_source(name, root=tmp_path)


@pytest.mark.usefixtures('tiny')
@pytest.mark.parametrize('save', [np.savez, np.savez_compressed])
def test_papers100m_stays_on_disk(save, tmp_path):
    """Needs no ogb; what is compressed is unpacked into scratch space."""
    raw = tmp_path / 'ogbn_papers100M' / 'raw'
    raw.mkdir(parents=True)
    arrays = {'edge_index': EDGES.T, 'node_feat': X, 'node_year': np.arange(N).reshape(N, 1)}
    arrays |= {'num_nodes_list': np.array([N]), 'num_edges_list': np.array([E])}
    save(raw / 'data.npz', **arrays)
    label = np.array([[3.0], [np.nan], [1], [0], [0], [2], [np.nan], [171], [5]])
    save(raw / 'node-label.npz', node_label=label)
    _split(raw.parent, 'time')
    for scratch in (None, Scratch(tmp_path)):
        data = load_source('ogbn-papers100M', root=tmp_path, scratch=scratch)
        assert np.array_equal(data.edge_index.numpy(), EDGES.T)
        assert np.array_equal(data.x.numpy(), X)
        assert np.array_equal(data.node_year.numpy(), arrays['node_year'])
        is_on_disk = save is np.savez or scratch is not None
        assert is_in_file(data.edge_index) == is_in_file(data.x) == is_on_disk
        assert data.y.tolist() == [3, -1, 1, 0, 0, 2, -1, 171, 5]
        assert (data.y.dtype, data.num_classes) == (torch.int64, 172)
        _check_split(data)
    assert {path.name for path in raw.iterdir()} == {'data.npz', 'node-label.npz'}
    out = tmp_path / 'out'
    assert command('ogbn-papers100M', out, '--datasets', tmp_path) == 0
    assert whole(out, 'x') == X.tolist()
    (raw.parent / 'split' / 'time' / 'valid.csv.gz').unlink()
    with pytest.raises(ValueError, match=r"the split of the dataset in '.*valid\.csv\.gz'"):
        load_source('ogbn-papers100M', root=tmp_path)


def test_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr('pyg_sar.partition.sources.datasets.find_spec', lambda name: None)
    _homogeneous(tmp_path / 'ogbn_arxiv', 'time')
    message = r"read by the package ogb .*: pip install 'pyg_sar\[ogb\]'"
    with pytest.raises(ValueError, match=message):
        load_source('ogbn-arxiv', root=tmp_path)


@needs_ogb
def test_arxiv(tmp_path, capsys):
    """Directed, as the archive names its folder."""
    more = {'node-feat': X, 'node_year': range(N), 'node-label': range(N)}
    _homogeneous(tmp_path / 'arxiv', 'time', **more)
    data = load_source('ogbn-arxiv', root=tmp_path)
    assert np.array_equal(data.edge_index.numpy(), EDGES.T)
    assert np.array_equal(data.x.numpy(), X)
    assert data.y.tolist() == data.node_year.view(-1).tolist() == list(range(N))
    assert data.num_classes == 40
    _check_split(data)
    assert capsys.readouterr().out == ''
    out = tmp_path / 'out'
    assert command('ogbn-arxiv', out, '--datasets', tmp_path, '--undirected') == 0
    src, dst = (ends.tolist() for ends in pyg_sar.load_shard(out).edge_index)
    assert {*zip(src, dst, strict=True)} == {*zip(dst, src, strict=True)}


@needs_ogb
def test_products_and_proteins(tmp_path):
    """The files hold one direction of every edge."""
    both = np.repeat(EDGES.T, 2, axis=1)
    both[:, 1::2] = both[::-1, 1::2]
    more = {'node-feat': X, 'node-label': range(N)}
    _homogeneous(tmp_path / 'ogbn_products', 'sales_ranking', **more)
    data = load_source('ogbn-products', root=tmp_path)
    assert np.array_equal(data.edge_index.numpy(), both)
    assert data.num_classes == 47
    _check_split(data)

    edge_feat = RNG.random((E, 8)).astype(np.float32)
    labels = RNG.integers(2, size=(N, 112))
    more = {'edge-feat': edge_feat, 'species': range(N), 'node-label': labels}
    _homogeneous(tmp_path / 'ogbn_proteins', 'species', **more)
    data = load_source('ogbn-proteins', root=tmp_path)
    assert 'x' not in data
    assert np.array_equal(data.edge_index.numpy(), both)
    assert np.array_equal(data.edge_attr.numpy(), np.repeat(edge_feat, 2, axis=0))
    assert np.array_equal(data.y.numpy(), labels)
    assert data.node_species.view(-1).tolist() == list(range(N))
    _check_split(data)


@needs_ogb
def test_mag(tmp_path):
    raw = tmp_path / 'ogbn_mag' / 'raw'
    counts = {'author': 4, 'field_of_study': 3, 'institution': 2, 'paper': N}
    relations = {
        ('author', 'affiliated_with', 'institution'): 5,
        ('author', 'writes', 'paper'): 7,
        ('paper', 'cites', 'paper'): 11,
        ('paper', 'has_topic', 'field_of_study'): 6,
    }
    _csv(raw / 'num-node-dict.csv.gz', [[*counts.values()]], ','.join(counts) + '\n')
    _csv(raw / 'triplet-type-list.csv.gz', [list(key) for key in relations])
    edges = {}
    for key, count in relations.items():
        ends = [RNG.integers(counts[key[i]], size=count) for i in (0, 2)]
        edges[key] = np.stack(ends)
        _csv(raw / 'relations' / '___'.join(key) / 'edge.csv.gz', edges[key].T)
        _csv(raw / 'relations' / '___'.join(key) / 'num-edge-list.csv.gz', [count])
    has_label = [[str(key == 'paper') for key in counts]]
    _csv(raw / 'nodetype-has-label.csv.gz', has_label, ','.join(counts) + '\n')
    _csv(raw / 'node-feat' / 'paper' / 'node-feat.csv.gz', X)
    _csv(raw / 'node-feat' / 'paper' / 'node_year.csv.gz', range(N))
    _csv(raw / 'node-label' / 'paper' / 'node-label.csv.gz', range(N))
    split = tmp_path / 'ogbn_mag' / 'split' / 'time'
    _csv(split / 'nodetype-has-split.csv.gz', has_label, ','.join(counts) + '\n')
    for key, ids in SPLIT.items():
        _csv(split / 'paper' / f'{key}.csv.gz', ids)

    data = load_source('ogbn-mag', root=tmp_path)
    assert {key: data[key].num_nodes for key in data.node_types} == counts
    assert {*data.edge_types} == {*relations}
    for key, expected in edges.items():
        assert np.array_equal(data[key].edge_index.numpy(), expected)
    paper = data['paper']
    assert np.array_equal(paper.x.numpy(), X)
    assert paper.y.tolist() == paper.node_year.view(-1).tolist() == list(range(N))
    assert paper.num_classes == 349
    _check_split(paper)
    assert 'y' not in data['author']
    out = tmp_path / 'out'
    assert command('ogbn-mag', out, '--datasets', tmp_path, '--undirected') == 0
    loaded = pyg_sar.load_shard(out)
    assert ('paper', 'rev_writes', 'author') in loaded.edge_types
    assert len(loaded.edge_types) == 7
