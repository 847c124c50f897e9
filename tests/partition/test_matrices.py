"""Matrix Market files, graphs of METIS, and sparse matrices in .npz files."""

from __future__ import annotations

import bz2
import gzip
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_files import command, content
from partition_files import meta_of
from test_refused_files import BANNER, csr

import pyg_sar
from pyg_sar.partition.__main__ import main
from pyg_sar.partition.memmap import Scratch
from pyg_sar.partition.sources import load_source, metis_files, pieces


def _mtx(folder: Path, text: str) -> Path:
    pytest.importorskip('scipy')
    (folder / 'a.mtx').write_text(text)
    return folder / 'a.mtx'


# Matrix Market


@pytest.mark.parametrize(
    ('kind', 'body', 'edges', 'weights', 'dtype'),
    [
        ('integer general', '1 2 5\n3 1 -7', [[0, 2], [1, 0]], [5, -7], torch.int64),
        ('real general', '1 2 5\n3 1 .5', [[0, 2], [1, 0]], [5.0, 0.5], torch.float64),
        ('pattern general', '1 2\n3 1', [[0, 2], [1, 0]], None, None),
        ('pattern general', '1 2\n1 2', [[0, 0], [1, 1]], None, None),  # twice, and stays so
        (
            'integer symmetric',
            '1 1 5\n2 1 7\n3 2 9',
            [[0, 1, 2, 0, 1], [0, 0, 1, 1, 2]],
            [5, 7, 9, 7, 9],
            torch.int64,
        ),
        ('pattern symmetric', '2 1\n3 3', [[1, 2, 0], [0, 2, 1]], None, None),
        ('real skew-symmetric', '2 1 7', [[1, 0], [0, 1]], [7.0, -7.0], torch.float64),
        ('unsigned-integer general', '1 2 5', [[0], [1]], [5], torch.int64),
        ('real general', '', [[], []], [], torch.float64),
    ],
)
def test_matrix_market(tmp_path, kind, body, edges, weights, dtype, scratch):
    count = len(body.splitlines())
    path = _mtx(tmp_path, f'{BANNER} {kind}\n% made by hand\n\n3 3 {count}\n{body}\n')
    data = load_source(path, scratch=scratch)
    want = {'edge_index': edges, 'num_nodes': 3}
    assert content(data) == want | ({} if weights is None else {'edge_weight': weights})
    assert data.edge_index.dtype == (torch.int32 if scratch else torch.int64)
    assert weights is None or data.edge_weight.dtype == dtype


def test_matrix_market_that_is_not_square(tmp_path):
    data = load_source(_mtx(tmp_path, f'{BANNER} real general\n2 5 2\n1 5 .5\n2 1 2\n'))
    assert content(data) == {
        'row': {'num_nodes': 2},
        'col': {'num_nodes': 5},
        ('row', 'to', 'col'): {'edge_index': [[0, 1], [4, 0]], 'edge_weight': [0.5, 2]},
    }


@pytest.mark.parametrize(('suffix', 'pack'), [('.gz', gzip.compress), ('.bz2', bz2.compress)])
def test_compressed_matrix_market(tmp_path, suffix, pack):
    pytest.importorskip('scipy')
    path = tmp_path / f'a.mtx{suffix}'
    path.write_bytes(pack(f'{BANNER} pattern general\n3 3 2\n1 2\n3 1\n'.encode()))
    assert load_source(path).edge_index.tolist() == [[0, 2], [1, 0]]


@pytest.mark.parametrize('size', [1, 7, 1 << 20])
def test_matrix_market_in_pieces(tmp_path, monkeypatch, size):
    """However the file is cut, with spaces at any place and no end of the last line."""
    monkeypatch.setattr(pieces, 'PIECE', size)
    lines = ['  1 2\t.5e1  ', '', ' \t', '3 1 -7.', '2 2 nan\r', '2 3 -INF', '1 1 1E-2 ']
    path = _mtx(tmp_path, f'{BANNER} real general\n3 3 5\n' + '\n'.join(lines))
    data = load_source(path)
    assert data.edge_index.tolist() == [[0, 2, 1, 1, 0], [1, 0, 1, 2, 0]]
    assert str(data.edge_weight.tolist()) == '[5.0, -7.0, nan, -inf, 0.01]'
    text = f'{BANNER} pattern general\n3 3 2\n1 2\n3 1\n' + ' ' * 60_000 + '\n'
    if size == 1:
        return  # pieces of 7 bytes show the rest sooner
    assert load_source(_mtx(tmp_path, text)).edge_index.tolist() == [[0, 2], [1, 0]]
    with pytest.raises(ValueError, match='more text than 2 entries take, up to line 2'):
        load_source(_mtx(tmp_path, text + (' ' * 60_000 + '\n') * 20))
    with pytest.raises(ValueError, match=r'at most 65536 bytes in line 4 .*got more'):
        load_source(_mtx(tmp_path, text.rstrip() + ' ' * 80_000))


def test_matrix_market_tells_of_zeros_and_of_both_sides(tmp_path):
    path = _mtx(tmp_path, f'{BANNER} real general\n3 3 2\n1 2 0\n3 1 4\n')
    with pytest.warns(UserWarning, match=r'entries that are 0 .1.: .* an edge_weight of 0'):
        assert load_source(path).edge_weight.tolist() == [0, 4]
    path = _mtx(tmp_path, f'{BANNER} pattern symmetric\n3 3 3\n1 2\n2 1\n3 2\n')
    with pytest.warns(UserWarning, match=r'both sides of the diagonal .2 below, 1 above.'):
        assert load_source(path).num_edges == 6


def test_matrix_market_without_scipy(tmp_path, monkeypatch):
    path = tmp_path / 'a.mtx'
    path.write_text(f'{BANNER} pattern general\n3 3 1\n1 2\n')
    monkeypatch.setitem(sys.modules, 'scipy.io', None)
    with pytest.raises(ValueError, match=r"expected SciPy .* pip install 'pyg_sar\[fast\]'"):
        load_source(path)


# METIS

PATH_OF_3 = [[0, 1, 1, 2], [1, 0, 2, 1]]


@pytest.mark.parametrize('size', [1, 3, 1 << 20])
@pytest.mark.parametrize(
    ('text', 'more'),
    [
        ('3 2\n2\n1 3\n2\n', {}),
        ('% c\n3 2 0\n% 9 9\n2\n1 3\n%\n2\n\n', {}),
        ('3 2\r\n2\r\n1  3\r\n2', {}),
        ('3 2 1\n2 7\n1 7 3 5\n2 5\n', {'edge_weight': [7, 7, 5, 5]}),
        ('3 2 10\n4 2\n5 1 3\n6 2\n', {'node_weight': [4, 5, 6]}),
        ('3 2 010 2\n4 0 2\n5 1 1 3\n6 2 2\n', {'node_weight': [[4, 0], [5, 1], [6, 2]]}),
        ('3 2 100\n4 2\n5 1 3\n6 2\n', {'node_size': [4, 5, 6]}),
        (
            '3 2 111 1\n9 4 2 7\n8 5 1 7 3 5\n7 6 2 5\n',
            {'node_size': [9, 8, 7], 'node_weight': [4, 5, 6], 'edge_weight': [7, 7, 5, 5]},
        ),
    ],
)
def test_metis(tmp_path, monkeypatch, text, more, size):
    """However the file is cut into pieces."""
    monkeypatch.setattr(pieces, 'PIECE', size)
    for name in ('a.graph', 'a.metis'):
        (tmp_path / name).write_text(text, newline='')
        data = load_source(tmp_path / name)
        assert content(data) == {'edge_index': PATH_OF_3, 'num_nodes': 3, **more}
        assert all(data[name].dtype == torch.int64 for name in ('edge_index', *more))
    assert load_source(tmp_path / name, scratch=Scratch(tmp_path)).edge_index.tolist() == PATH_OF_3


def test_metis_nodes_without_neighbours(tmp_path):
    """An empty line is a node; a line of a comment is none."""
    for text, edges, count in (
        ('5 1\n\n5\n\n%\n\n2\n', [[1, 4], [4, 1]], 5),
        ('2 0\n\n\n', [[], []], 2),
    ):
        (tmp_path / 'a.graph').write_text(text)
        found = content(load_source(tmp_path / 'a.graph'))
        assert found == {'edge_index': edges, 'num_nodes': count}


def test_metis_lines_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, 'PIECE', 1 << 12)
    path = tmp_path / 'a.graph.gz'
    path.write_bytes(gzip.compress(b'2 1\n2\n1' + b' ' * 200_000))
    with pytest.raises(ValueError, match=r'expected at most 65600 bytes in line 3 .*got more'):
        load_source(path)
    path.write_bytes(gzip.compress(b'2 1\n2\n1\n'))
    assert load_source(path).edge_index.tolist() == [[0, 1], [1, 0]]


def test_what_metis_reads_is_found_by_any_missing_way_back(tmp_path):
    """One neighbour of a graph of 60 edges is another, and the counts stay right."""
    rng = np.random.default_rng(0)
    pairs = np.argwhere(np.triu(rng.random((20, 20)) < 0.3, 1))
    lines: list[list[int]] = [[] for _ in range(20)]
    for u, v in pairs.tolist():
        lines[u].append(v + 1)
        lines[v].append(u + 1)
    for node in range(20):
        for at in range(len(lines[node])):
            changed = [[*line] for line in lines]
            changed[node][at] = 1 + changed[node][at] % 20
            text = '\n'.join(' '.join(map(str, line)) for line in changed)
            (tmp_path / 'a.graph').write_text(f'20 {len(pairs)}\n{text}\n')
            with pytest.raises(ValueError, match='expected each edge in two lines'):
                load_source(tmp_path / 'a.graph')
    assert metis_files.is_metis(tmp_path / 'a.graph')


# SciPy's matrices, of which plain arrays suffice


def _dense(data: Any, shape: tuple[int, int]) -> np.ndarray:
    out = np.zeros(shape)
    np.add.at(out, tuple(data.edge_index.numpy()), data.get('edge_weight', torch.ones(1)).numpy())
    return out


@pytest.mark.parametrize('layout', ['csr', 'csc', 'coo'])
@pytest.mark.parametrize('compressed', [False, True])
def test_matrices_of_scipy(tmp_path, layout, compressed, scratch):
    sparse = pytest.importorskip('scipy.sparse')
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((300, 300)) < 0.2, rng.random((300, 300)) + 0.5, 0)
    dense[17:40] = 0

    def load(matrix: Any) -> Any:
        sparse.save_npz(tmp_path / 'a.npz', matrix.asformat(layout), compressed=compressed)
        return load_source(tmp_path / 'a.npz', scratch=scratch)

    for of in (sparse.coo_matrix, sparse.coo_array):
        data = load(of(dense))
        assert sorted(data.keys()) == ['edge_index', 'edge_weight', 'num_nodes']
        assert np.array_equal(_dense(data, (300, 300)), dense)
        order = of(dense).asformat(layout).tocoo()
        assert layout == 'csc' or data.edge_index.tolist() == [
            order.row.tolist(),
            order.col.tolist(),
        ]
    for dtype in (bool, np.float32, np.int8):
        data = load(sparse.coo_matrix((dense > 0).astype(dtype)))
        assert sorted(data.keys()) == ['edge_index', 'num_nodes']
        assert np.array_equal(_dense(data, (300, 300)), dense > 0)
    data = load(sparse.coo_matrix(dense[:7]))
    assert data.num_nodes_dict == {'row': 7, 'col': 300}
    assert np.array_equal(_dense(data['row', 'to', 'col'], (7, 300)), dense[:7])


def test_more_in_a_file_of_a_matrix(tmp_path):
    """Nothing is left out in silence."""
    np.savez(tmp_path / 'a.npz', **csr())
    data = load_source(tmp_path / 'a.npz')
    assert data.edge_index.tolist() == [[0, 1, 1], [1, 0, 2]]
    assert data.edge_weight.tolist() == [1, 2, 3]
    np.savez(tmp_path / 'a.npz', **csr(x=np.eye(3)), names=np.array([None] * 3))
    with pytest.warns(UserWarning, match=r"left out of '.*', as they hold objects .*: names$"):
        data = load_source(tmp_path / 'a.npz')
    assert data.x.tolist() == np.eye(3).tolist()
    np.savez(tmp_path / 'a.npz', **csr(data=np.array([1.0, 0, 3])))
    with pytest.warns(UserWarning, match=r'entries that are 0 .1.'):
        assert load_source(tmp_path / 'a.npz').edge_weight.tolist() == [1, 0, 3]
    np.savez(tmp_path / 'a.npz', **csr(edge_index=np.array([[0], [2]])))
    assert load_source(tmp_path / 'a.npz').edge_index.tolist() == [[0], [2]]  # plain arrays


def _of_attributes(**changes: Any) -> dict[str, Any]:
    parts = ('data', 'indices', 'indptr', 'shape')
    adjacency, features = csr(data=np.ones(3)), csr(shape=np.array([3, 4]))
    arrays = {f'adj_{part}': adjacency[part] for part in parts}
    arrays |= {f'attr_{part}': features[part] for part in parts}
    arrays |= {'labels': np.array([2, 0, 1]), 'node_names': np.array(['a', 'b', 'c'])}
    return {k: v for k, v in {**arrays, **changes}.items() if v is not None}


def test_matrices_with_attributes(tmp_path, scratch):
    def load(**changes: Any) -> Any:
        np.savez_compressed(tmp_path / 'a.npz', **_of_attributes(**changes))
        return load_source(tmp_path / 'a.npz', scratch=scratch)

    data, x = load(), [[0, 1, 0, 0], [2, 0, 3, 0], [0, 0, 0, 0]]
    assert data.x.dtype == torch.float32
    edges, names = [[0, 1, 1], [1, 0, 2]], ['a', 'b', 'c']
    want = {'x': x, 'num_nodes': 3, 'y': [2, 0, 1], 'edge_index': edges, 'node_names': names}
    assert content(data) == want
    sparse = {f'attr_{part}': None for part in ('data', 'indices', 'indptr', 'shape')}
    assert load(**sparse, attr_matrix=np.array(x, np.float32)).x.tolist() == x
    with pytest.raises(ValueError, match=r'columns in \[0, 4\) .*got 4'):
        load(attr_indices=np.array([1, 0, 4]))
    with pytest.raises(ValueError, match=r'a square matrix .* as it has features or classes'):
        load(adj_shape=np.array([3, 5]))


def test_an_archive_is_read_up_to_what_it_announces(tmp_path, scratch):
    """Arrays longer than their member, and a member that no archive of this size can hold."""
    path, name = tmp_path / 'a.npz', 'edge_index.npy'
    np.savez_compressed(path, edge_index=np.zeros((2, 1000), np.int64))
    good = path.read_bytes()
    size = zipfile.ZipFile(path).getinfo(name).file_size.to_bytes(4, 'little')
    for announced, message in ((10_000, 'expected 16000 bytes'), (1 << 30, 'as it announces')):
        path.write_bytes(good.replace(size, announced.to_bytes(4, 'little')))
        with pytest.raises(ValueError, match=message):
            load_source(path, scratch=scratch)
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
        header = "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 1000000000), }"
        archive.writestr(name, b'\x93NUMPY\x01\x00v\x00' + header.ljust(117).encode() + b'\n')
    with pytest.raises(ValueError, match='expected 16000000000 bytes'):
        load_source(path, scratch=scratch)


# The command line


def test_command_line(tmp_path, capsys):
    (tmp_path / 'a.graph').write_text('3 2\n2\n1 3\n2\n')
    mtx = _mtx(tmp_path, f'{BANNER} integer symmetric\n3 3 2\n2 1 1\n3 2 0\n')
    np.savez(tmp_path / 'a.npz', **csr())
    options = ['--num-parts', '2', '--method', 'range']
    for path in (tmp_path / 'a.graph', mtx, tmp_path / 'a.npz'):
        assert main([str(path), str(tmp_path / path.suffix[1:]), *options]) == 0
    told = capsys.readouterr()
    assert told.out.count('3 nodes and 4 edges in 2 parts') == 2
    assert told.err.count('note: ') == 1
    assert 'entries that are 0 (2)' in told.err
    assert pyg_sar.load_shard(tmp_path / 'npz').edge_weight.dtype == torch.float64
    assert meta_of(tmp_path / 'mtx')['num_edges'] == 4
    mtx.write_text(f'{BANNER} real general\n3 3 1\n1 4 1\n')
    assert command(mtx, tmp_path / 'no') == 2
    assert 'Line 3: Column index out of bounds' in capsys.readouterr().err
