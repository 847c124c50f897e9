"""Folders with tables: which files are read, and what is told of those beside them."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest
from graph_files import content, write_table

from pyg_sar.partition.sources import load_source
from pyg_sar.partition.sources.node_tables import NodeTableOptions

pytest.importorskip('pyarrow')

NODES = 'id,y\n0,1\n1,0\n2,1\n'


def _folder_of(root: Path, files: dict[str, Any]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, dict):
            write_table(root / name, text)
        else:
            (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


@pytest.mark.parametrize(
    'edges',
    [
        *({'edges.txt': '0 1\n1 2\n'}, {'edges.tsv': 'src\tdst\n0\t1\n1\t2\n'}),
        *({'edges.csv.gz': gzip.compress(b'0,1\n1,2\n')}, {'edges.edgelist': '0 1\n1 2\n'}),
    ],
)
def test_edges_of_any_form_beside_nodes(tmp_path, edges):
    data = load_source(_folder_of(tmp_path, {**edges, 'nodes.csv': NODES}))
    assert content(data) == {'edge_index': [[0, 1], [1, 2]], 'num_nodes': 3, 'y': [1, 0, 1]}


ENDS = {'src': [0, 1], 'dst': [1, 0]}
BESIDE: list[tuple[dict[str, Any], str]] = [
    ({'edges.parquet': ENDS, 'people.parquet': {'id': [0, 1]}}, 'people.parquet beside edges.parq'),
    ({'edges.csv': '0,1\n', 'nodes.tsv': NODES}, 'nodes.tsv beside edges.csv'),
    ({'edges.csv': '0,1\n', 'nodes.csv': NODES, 'x.txt': '0 1\n'}, 'x.txt beside edges.csv, nod'),
    ({'edges.csv': '0,1\n', 'people/part-0.csv': NODES}, 'got people beside'),
    (
        {'part-0.csv': '0,1\n', 'part-1.csv.gz': gzip.compress(b'1,2\n')},
        'part-1.csv.gz beside part',
    ),
    ({'edges.csv/0.csv': '0,1\n', 'edges.csv/1.tsv': '1\t2\n'}, r'edges.csv/1.tsv beside'),
    (
        {'graph.txt': '0 1\n', 'nodes.csv': NODES},
        r"edges.csv, .* beside \['nodes.csv'\].*graph.txt",
    ),
    ({'_delta_log/0.json': '', 'part-0.parquet': ENDS}, 'a folder of parts .*a table of Delta'),
    ({'nodes.csv': NODES}, r"edges.csv, .* beside \['nodes.csv'\] .*got \[\]"),
    ({'graph.csv': '0,1\n', 'node-feat.csv': '0,5\n'}, r"beside \['node-feat.csv'\].*'graph.csv'"),
    (
        {'nodes/a.csv': 'id\n0\n', 'edges/a__to__a.csv': 'src,dst\n0,0\n', 'labels.csv': NODES},
        'labels.csv beside edges/a__to__a.csv',
    ),
]


@pytest.mark.parametrize(('files', 'told'), BESIDE)
def test_tables_that_nobody_reads_are_refused(tmp_path, files, told):
    with pytest.raises(ValueError, match=told) as raised:
        load_source(_folder_of(tmp_path, files))
    assert '\n' not in str(raised.value)


def test_links_in_a_folder(tmp_path):
    """To a table elsewhere, and to a folder above."""
    parts = _folder_of(tmp_path / 'far', {'0.csv': '0,1\n', '1.csv': '1,2\n'})
    root = _folder_of(tmp_path / 'near', {'nodes.csv': NODES})
    (root / 'edges.csv').symlink_to(parts)
    assert load_source(root).edge_index.tolist() == [[0, 1], [1, 2]]
    (root / 'up').symlink_to('..')
    with pytest.warns(UserWarning, match='not read in .*: up$'):
        load_source(root)


def test_parts_of_several_names_are_noted(tmp_path):
    root = _folder_of(tmp_path, {'test.csv': '0,1\n', 'train.csv': '1,2\n'})
    with pytest.warns(UserWarning, match='one table of 2 parts: test.csv, train.csv$'):
        assert load_source(root).edge_index.tolist() == [[0, 1], [1, 2]]


def test_other_files_that_nobody_reads_are_noted(tmp_path):
    files = {'edges.csv': '0,1\n', 'people.csv': NODES, 'README.txt': 'a b', 'a.pdf': '', '.x': ''}
    root = _folder_of(tmp_path, files)
    with pytest.warns(UserWarning, match=rf"not read in '{root}': README.txt, a.pdf$"):
        load_source(root, tables=NodeTableOptions(nodes=os.path.relpath(root / 'people.csv')))
