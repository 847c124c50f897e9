"""Files that are no graphs: what is wrong with them is told in one line, and nothing is written."""

from __future__ import annotations

import bz2
import gzip
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_files import IDS, write_edges
from hetero_graphs import hetero_graph
from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.memmap import Scratch
from pyg_sar.partition.partition_graph import partition_graph
from pyg_sar.partition.sources import load_source

pa = pytest.importorskip('pyarrow')
pytest.importorskip('scipy')

EDGES = np.array([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
TEXTS = list('ababab')
ONE_GRAPH = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1], [1, 2]]))


class _Forged:
    """Pickles as an array of NumPy, with a state of choice."""

    def __init__(self, *state: Any) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        reconstruct, arguments, _ = np.ones(1).__reduce__()
        return reconstruct, arguments, (1, *self.state)


def _with(extra: Any) -> Data:
    data = ONE_GRAPH.clone()
    data.extra = extra
    return data


def _of_type(other: Any) -> HeteroData:
    data = hetero_graph()
    data['paper'].other, data['author'].other = torch.ones(2), other
    return data


def _bytes(save: Callable[..., Any], *content: Any) -> bytes:
    file = io.BytesIO()
    save(file, *content)
    return file.getvalue()


def _zip(file: io.BytesIO, name: str, content: bytes) -> None:
    with zipfile.ZipFile(file, 'w') as archive:
        archive.writestr(name, content)


def csr(**changes: Any) -> dict[str, Any]:
    """The arrays of a sparse matrix, as SciPy saves them."""
    arrays = {
        'format': np.array(b'csr'),
        'shape': np.array([3, 3]),
        'indices': np.array([1, 0, 2], np.int32),
        'indptr': np.array([0, 1, 3, 3], np.int32),
        'data': np.array([1.0, 2, 3]),
    }
    return {k: v for k, v in {**arrays, **changes}.items() if v is not None}


BANNER = '%%MatrixMarket matrix coordinate'
MATRIX_MARKET = {
    'real general\n3 3 2\n1 2 1\n': '1 of the 2 entries announced, up to line 3',
    'real general\n3 3 9000000000\n1 2 1': '1 of the 9000000000 entries announced, up to li',
    'real general\n3 3 1\n\n1 2 1\n\n3 1 1\n': 'more than the 1 entries announced, in line 6',
    'real general\n3 3 1\n1 2 1 7\n': "no two ids and a number, real, in line 3: '1 2 1 7'",
    'pattern general\n3 3 1\n\n1 2 5\n': "no two ids in line 4: '1 2 5'",
    'real general\n3 3 2\n1 2 1\n3 1\n': "no two ids and a number, real, in line 4: '3 1'",
    'real general\n3 3 1\na 1 1\n': 'no two ids and a number, real, in line 3',
    'real general\n3 3 1\n1 1 1d5\n': 'no two ids and a number, real, in line 3',
    'real general\n3 3 1\n1 1 1.5.5\n': 'no two ids and a number, real, in line 3',
    'real general\n3 3 1\n1 1 1-5': 'no two ids and a number, real, in line 3',
    'real general\n3 3 1\n1 1 1 \0': 'no two ids and a number, real, in line 3',
    'pattern general\n3 3 1\n1 1\x13': 'no two ids in line 3',
    'integer general\n3 3 2\n1 2 1\n1 2 1.5\n': 'no two ids and a number, integer, in line 4',
    'real general\n3 3 2\n1 2 1\n% or\n1 2 1\n': 'no two ids and a number, real, in line 4',
    'integer general\n3 3 1\n1 2 99999999999999999999\n': 'Line 3: Integer out of range',
    'real general\n3 3 1\n1 4 1\n': 'Line 3: Column index out of bounds',
    'real general\n3 3 1\n0 1 1\n': 'Line 3: Row index out of bounds',
    'complex general\n3 3 1\n1 2 1 1\n': 'complex numbers, which are no weights',
    'real symmetric\n3 4 1\n2 1 1\n': 'a symmetric matrix of 3 rows and 4 columns',
    'real general\n3 3\n': 'Invalid integer value',
    'real general\n': 'Line 2: Invalid MatrixMarket header: Premature EOF',
}
WHOLE_MTX = f'{BANNER} pattern general\n3 3 2\n1 2\n3 1\n'.encode()

CATEGORY = r"astype\('category'\)"
COLUMNS: list[tuple[Any, str, str]] = [
    (pa.array([[1, 2]] * 4 + [[1], [1]]), 'lists of one length', '2 numbers in row 0 and 1 in row'),
    (pa.array([[1, 2]] * 4 + [None, [1, 2]]), 'no empty cell', 'got 1, the first in row 4.*fill'),
    (pa.array([[1, 2]] * 4 + [[1, None]] * 2), 'no empty place in the lists', 'got 2.*fill them'),
    (pa.array([1, 2, None, 4, 5, None]), 'no empty cell', 'got 2, the first in row 2.*fill them'),
    (pa.array(list('bab') + [None] * 3).dictionary_encode(), 'no empty cell', 'first in row 3'),
    (pa.array([[[1]]] * 6), 'numbers', 'got list<.*not lists or text'),
    (pa.array([['a']] * 6), 'numbers', 'got list<.*not lists or text'),
    (pa.array(TEXTS), 'numbers', rf"got string.*table\['z'\]\.{CATEGORY} of pandas makes"),
    (pa.array(TEXTS, pa.large_string()), 'numbers', rf"got large_string.*\['z'\]\.{CATEGORY}"),
    (pa.array([b'a'] * 6), 'numbers', rf"got binary.*\.str\.decode\('utf-8'\)\.{CATEGORY}"),
    (pa.array([{'a': 1}] * 6), 'numbers', 'got struct<.*leave the column out'),
    (pa.array([[('a', 1)]] * 6, pa.map_(pa.string(), pa.int64())), 'numbers', 'leave the column'),
    (pa.nulls(6), 'numbers', 'got null.*no row has a value'),
]
"""A column, and what is told before and after its name."""

NO_IDS = [
    *(column for column, what, told in COLUMNS if what == 'numbers' and 'list<' not in told),
    pa.array(TEXTS).dictionary_encode(),
    pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12.0)), 2),
    pa.array([[1, 2]] * 6),
    pa.array([[1.0]] * 6, pa.large_list(pa.float64())),
    pa.array(IDS, pa.time64('us')),
    pa.array(IDS, pa.timestamp('us', 'UTC')),
    pa.array(IDS.astype(np.int32), pa.date32()),
    pa.array(IDS, pa.duration('s')),
    pa.array(IDS).cast(pa.decimal128(22, 2)),
]
WITH_NONE = pa.array(['a', None, 'b', 'c', 'd', None])
LARGE = pa.array([1, 2**63 + 1] * 3, pa.uint64())
LISTS = pa.array([[1]] * 6)
TWO_KINDS = 'of .*got string.*both numbers, or both names'
NAMED_OTHERWISE = ('edge_index', 'num_nodes', 'node_names', 'train_idx', 'face')

ODD_FORMS = {
    'decimal commas, or lists of ids.: write decimal points': (
        *('0;1;0,5\n1;2;0,7\n', '0\t1\t0,5\n', '0 1 0,5\n', '0 1 2\n1 2 0,5 7\n'),
        *('src dst w\n0 1 0,5\n', '0\t1,2\n1\t0\n', '1,000 2,000\n'),
    ),
    'a comment behind an edge.: write comments on': (
        *('0,1 # first\n1,2\n', '0 1\n1 2 # second\n', '0 1 0.5 % c\n', 'src,dst\n0,1 # c\n'),
    ),
    'a list of neighbours.: write an edge': ('0: 1 2\n1: 2 0\n', '0:\n1: 2, 0\n', '0 1:0.5 2:1\n'),
    'an arrow between ids.: write an edge': ('0 -> 1\n1 -> 2\n', 'a -- 1\n', '0--1 5\n1--2 6\n'),
    'a semicolon behind an edge.: leave': ('0,1;\n1,2;\n',),
    'an edge in brackets.: write an edge': ('(0, 1)\n(1, 2)\n', '[[0, 1], [1, 2]]\n'),
    'lines of DIMACS.: leave out c and p lines': (
        *('e 1 2\ne 2 3\n', 'c by hand\np sp 3 2\na 1 2 5\na 2 3 7\n', 't # 0\nv 0 1\ne 0 1 2\n'),
    ),
}

REFUSED: dict[str, list[tuple[Any, str]]] = {
    'a.txt': [
        ('0 1\n1 2\n2 x\n', "an integer in column 2, 'dst', of line 3 of .* .got 'x'"),
        ('# c\n\n0 1\n1 2 3\n', "2 columns in line 4 of .*, as in the first .got 3: '1 2 3'"),
        ('0 1\n1\n', 'expected 2 columns in line 2 .* .got 1'),
        ('0 1 2\n1 2 x\n', "a number in column 3, 'edge_weight', of line 2 .* .got 'x'"),
        ('0,1\n1,2.5\n', "an integer in column 2, 'dst', of line 2 .* .got '2.5'"),
        ('a b\nc d\n', 'a header such as src,dst, or ids'),
        ('\0\0\0', 'lines of text .* .got other bytes'),
        ('# nothing\n', 'lines of edges .* .got none'),
        ('0 1 18446744073709551616\n', 'a number in column 3|more than 64 bits'),
        ('-1 2\n', "of '.*a.txt' must hold ids >= 0"),
        ('+1 2\n', "an integer in column 1, 'src', of line 1 .* .got '.1'"),
        ('1 2 {}\n', r'numbers beside the ids .* .got .1 2 {}.*networkx.write_edgelist'),
        ("1 2 {'a': 1, 'b': 2}\n", 'networkx.write_edgelist'),
        (f'{BANNER} real general\n2 2 1\n2 1 5\n', 'name the file .mtx'),
        *(
            (text, rf'ids and numbers alone in .*, {told}')
            for told, texts in ODD_FORMS.items()
            for text in texts
        ),
        ('a a\nb 07\n', 'which may be either'),  # a header or an edge
        ('# from to\nciting,cited\n1,2\n', r"got \['citing', 'cited'\]"),
        ('1,2\n2,3e0\n', 'an integer in column 2'),
        ('source,target\n#a,#b\nb,c\n', 'an edge or a comment in line 2'),
        ('source,target\nb,c\n\n#a,b\n', 'an edge or a comment in line 4'),
        (
            '# c\n\n%C3%85\tc\nb c\tb\nb\tb c\n',
            'an edge or a comment in line 3.*write % as another',
        ),
        ('#love,#hate\n#love,peace\npeace,love\nlove,peace\n', 'an edge or a comment in line 1'),
        (
            '0 1\n' * 1500 + '07 1\n',
            "column 1, .* line 1501 .*'07'., of a zero in front: --relabel",
        ),
        ('0 1 0\n1 0 1\n0 1 0\n', "edges of 3 columns, .*'0 1 0', which may be of a matrix"),
        ('0 2 0\n2 0.5 3\n0 3 1\n', "edges of 3 columns, .*'0 2 0', which may be of a matrix"),
        ('0 1 1 0 0 1 1\n' * 4, 'src,dst,a,b above edges of 7 columns'),
        ('0 1\n' * 1500 + '9' * 21 + ' 1\n', 'line 1501 .* more than 64 bits: --relabel'),
    ],
    'a.csv': [
        ('src,dst\r3,4\r5,6\r', r"end in \\n or \\r\\n in '.*a.csv' .got \\r alone"),
        (f'src,dst\n0,{"a" * 140_000}\n', "fields by ',' in '0,aaa.*field larger"),
        ('src\n0\n', 'expected an edge, two ids by a comma'),
        ('src,dst\n0,1\n1,\n', "an integer in column 2, 'dst', of line 3 .* .got ''"),
        ('src,dst\n0,\n', "expected a name in column 2, 'dst', of line 2"),
        ('src,dst\n0,1\n0,a\n', "an integer in column 2, 'dst', of line 3 .* .got 'a'"),
        ('src,dst\n0,0.5\n', "an integer in column 2, 'dst', of line 2 .* .got '0.5'"),
        ('src,dst\n0,1,2\n', 'expected 2 columns in line 2 .* .got 3'),
        (',source,target\n0,7,1\n', r'to_csv\(index=False\)'),
        ('edge_id,a,b\n0,7,1\n', "expected columns 'src' and 'dst'"),
        ('source,weight\n7,1\n', "expected columns 'src' and 'dst'"),
        ('source,item\n1,2\n', 'rename the columns of the ids'),
        ('user_id,item_id\n0,0\n1,2\n', r"got \['user_id', 'item_id'\].*nodes of two kinds"),
        ('user,item,score1,score2\n1,2,5,6\n', r"got \['user', 'item', 'score1', 'score2'\]"),
        ('person,company,from,to\n1,7,2019,2020\n', 'rename the columns of the ids'),
        ('user,item,valid_from,valid_to\n1,2,5,6\n', 'rename the columns of the ids'),
        ('user,item,page_from,page_to\n1,2,5,6\n', 'rename the columns of the ids'),
        ('from,to,u,v\n1,2,5,6\n', "got 'from' and 'to', or 'u' and 'v'.: rename those"),
        ('one1,one2,two1,two2\n1,2,5,6\n', "got 'one1' and 'one2', or 'two1' and 'two2'"),
        ('source,from,target\n7,1,2\n', "got 'source' and 'target', or 'from' and 'target'"),
        ('', "lines of edges in .*a.csv' .got none"),
        ('src,dst\n', "lines of edges in .*a.csv' .got none"),
        ('src,dst,z\n0,1,\n', "a number in column 3, 'z', of line 2 .* .got ''"),
        ('src,dst,z\n0,1,2024-01-02\n0,1,one\n', "a number in column 3, 'z', of line 2"),
        ('src,dst,kind\n0,1,good\n', "'kind', of line 2 .* .got 'good'.: leave the column out"),
        ('src,dst,num_nodes\n0,1,2\n', "another name for the column 'num_nodes'"),
        ('a1;a2;w\n0;1;5\n1;2;0,5\n', 'got .1;2;0,5., decimal commas,'),
        ('src,dst,_x\n0,1,2\n', "begin with a letter .* .got '_x'"),
        ('src,dst\na,b\nB\xe2le,b\n'.encode('latin-1'), 'text in UTF-8 in line 3 of'),
    ],
    'a.txt.gz': [(gzip.compress(bytes(str([*range(999)]), 'ascii'))[:-9], 'expected the whole of')],
    'out.a': [
        ('1 2\n', r"expected '% sym', '% asym' or '% bip'"),
        ('% sym weighted\n% 3 2 2\n1 2 1\n', 'expected 3 edges .* .got 1'),
        ('% sym weighted\n% 1 2 2\n1 3 1\n', 'ids up to 2 .* .got 3'),
        ('% asym weighted\n0 1 1\n', 'ids from 1 on .* .got 0'),
        ('% asym weighted\n1 1 1 1\n1 2 1\n', 'expected 4 columns in line 3'),
    ],
    'a.mtx': [
        *(
            (f'{BANNER} {text}', rf"of a sparse matrix in '.*a\.mtx' .got: {told}")
            for text, told in MATRIX_MARKET.items()
        ),
        (
            '%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n',
            r'a dense matrix, .*: scipy\.sparse makes it sparse',
        ),
        ('2 2 1\n1 2\n', 'Missing banner'),
        (
            f'{BANNER} unsigned-integer general\n2 2 1\n1 2 {2**64 - 1}\n',
            r'weights below 2\^63 .*got 18446744073709551615',
        ),
    ],
    **{
        f'a.mtx{suffix}': [
            (pack(WHOLE_MTX)[:-9], r"Matrix Market .*'.*a\.mtx.*' .got: Compressed file ended"),
            (pack(WHOLE_MTX + b'0 ' * 30_000 + b'\n'), r'no two ids in line 5: .0 0 0 '),
        ]
        for suffix, pack in (('.gz', gzip.compress), ('.bz2', bz2.compress))
    },
    'a.graph': [
        ('3 2\n2\n1 3\n', '3 lines with 4 neig.*got 2 lines with 3 neighbours up to line 3'),
        ('3 3\n2\n1 3\n2\n', '3 lines with 6 neighbours .*got 3 lines with 4 neighbours'),
        ('3 2\n2\n1 3\n2\n\n1\n', 'expected 3 lines of nodes .*got more: line 6'),
        ('3 1\n2\n1 3\n2\n', 'expected 2 neighbours .*twice its 1 edges .got more, in line 3'),
        ('3 2\n2\n% c\n1 4\n2\n', 'neighbours from 1 to 3 in line 4 .*got 4'),
        ('3 2\n2\n1 0\n2\n', 'neighbours from 1 to 3 in line 3 .*got 0'),
        ('3 2\n2\n1 -3\n2\n', "whole numbers .* in line 3 .*got '-3'"),
        ('3 2\n2\n1 3.0\n2\n', "whole numbers .* in line 3 .*got '.0'"),
        ('3 2\n2\n1 3\n1234567890123456789\n', 'at most 18 digits in line 4'),
        ('3 2 1\n2 7\n1 7 3\n2 5\n', '2 of every neighbour in line 3 .*got 3 numbers'),
        ('3 2 10 2\n1 1 2\n1 1 1 3\n1\n', '2 numbers of the node .* in line 4 .*got 1 n'),
        ('3 2\n2\n1 3\n1\n', 'node 3 in the line of node 2, but not node 2 in the line of'),
        ('3 2 1\n2 7\n1 7 3 5\n2 6\n', 'node 3 with the weight 5 in the line of node 2, but not'),
        ('3 2 2\n', "fmt of the digits 0 and 1, in line 1 .*got '3 2 2'"),
        ('3\n', r"'nodes edges \[fmt \[ncon\]\]', .* in line 1 .*got '3'"),
        ('% c\n3 x\n', "'nodes edges .* in line 2 .*got '3 x'"),
        ('', "'nodes edges .* in line 1 .*got ''"),
        ('3 2 1 2\n', 'weights of nodes in fmt .*got fmt 001 and ncon 2'),
        ('3 2 11 0\n', 'got fmt 011 and ncon 0'),
        ('3 9000000\n2\n1 3\n2\n', '18000000 neighbours .* at least 35999999 bytes .got 8.'),
    ],
    'a.graph.gz': [(gzip.compress(b'2 1\n2\n1\n')[:-4], 'expected a whole file in')],
    'a.npz': [
        ({'x': np.eye(4)}, "expected the array 'edge_index'"),
        ({'edge_index': np.int64(3)}, "expected a tensor 'edge_index'"),
        ({'edge_index': EDGES.T}, r'shape \[2, E\]'),
        ({'edge_index': EDGES, 'train_idx': np.array([4])}, "'train_idx'"),
        ({'edge_index': EDGES, 'y': np.array(TEXTS[:4])}, "expected numbers in 'y'"),
        ({'edge_index': EDGES, 'y': np.ones(4, np.longdouble)}, "expected numbers in 'y'"),
        ({'edge_index': EDGES, 'y': np.array([{}] * 4)}, 'an .npz file of plain arrays'),
        (csr(format=np.array('bsr')), r"of format csr, csc or coo .*got 'bsr'.*matrix\.tocsr\(\)"),
        (csr(format=np.array('dia')), "got 'dia'"),
        (csr(format=np.array([{}])), "format csr, csc or coo .*got ''"),
        (csr(shape=np.array([3])), r"two sizes in 'shape' .*got \[3\]"),
        (csr(shape=np.array([-3, 3])), "two sizes in 'shape'"),
        (csr(shape=np.array([2, 3])), "3 numbers that rise from 0 to 3 in 'indptr' .*got 4 n"),
        (csr(indptr=np.array([0, 2, 1, 3])), "rise from 0 to 3 in 'indptr'"),
        (csr(indptr=np.array([1, 1, 3, 3])), 'got 4 numbers from 1 to 3'),
        (csr(indptr=None), "integers in 'indptr' .*no such array"),
        (csr(indices=np.array([1, 0, 3])), r'columns in \[0, 3\) .*got 3'),
        (csr(indices=np.array([1, -1, 2])), r'columns in \[0, 3\) .*got -1'),
        (csr(indices=np.array([1.0, 0, 2])), r"integers in 'indices' .*got float64 \[3\]"),
        (csr(data=np.ones(2)), r"3 real numbers in 'data' .*got float64 \[2\]"),
        (csr(data=np.ones(3, complex)), "3 real numbers in 'data' .*got complex128"),
        (csr(format=np.array('coo')), "integers in 'row' .*no such array"),
        *(
            (content, r'a\.npz')
            for content in (
                *(b'', b'other', pickle.dumps({'edge_index': 1})),
                _bytes(np.save, EDGES),
                _bytes(_zip, 'edge_index.npy', b'no array'),
            )
        ),
    ],
    'a.pt': [
        (torch.ones(3), 'got a Tensor'),
        ([1, 2], 'got a list'),
        ({'x': torch.ones(2)}, r"without a tensor 'edge_index': \['x'\]"),
        ({'edge_index': [[0], [1]]}, "without a tensor 'edge_index'"),
        (({'edge_index': torch.ones(2, 1)}, {'x': torch.ones(2)}, Data), 'several graphs'),
        ([_with(torch.ones(3)), ONE_GRAPH], 'several graphs that make no batch of PyG: KeyError'),
        ([ONE_GRAPH, 1], 'a list'),
        ((ONE_GRAPH, {'x': torch.tensor([0, 1, 3])}), r"do not fit: ValueError: no slices of \['"),
        ((ONE_GRAPH, 1.0), 'do not fit: TypeError'),
        (
            (ONE_GRAPH, {name: torch.arange(2 + (name == 'x')) for name in ONE_GRAPH.to_dict()}),
            r'do not fit: ValueError: slices of \[2, 3\] graphs',
        ),
        *((content, r'a\.pt') for content in (b'', b'other', pickle.dumps({'edge_index': 1}))),
        *(
            (_with(_Forged(*state)), f"{told}.* in 'extra'")
            for state, told in (
                (((3,), np.dtype('f8'), False, b'short'), r'shape \(3,\), which 5 bytes are not'),
                (((1 << 60,), np.dtype('f8'), False, b'12345678'), 'which 8 bytes are not'),
                (((-1, -1), np.dtype('f8'), False, b'12345678'), 'other things than numbers'),
                (((1,), np.dtype('O'), False, b'12345678'), 'objects of Python'),
                (((1,), np.dtype('f8'), False, [1]), 'other things than numbers'),
                (((1,), 'f8', False, b'12345678'), 'an array without a type'),
                ((), 'an array without numbers'),
            )
        ),
        *(
            (content, f"(?=.*in '{name}').*{told}")
            for value, told in (
                (np.array([{}]), 'objects of Python in'),
                (np.array(['a', None]), 'objects of Python in'),
                (np.datetime64('2020-01-01'), "an array of type 'M8' in"),
                (np.zeros(3, [('a', 'i4')]), "an array of type 'V4' in"),
                (np.ma.masked_array([1, 2]), r"numpy\S+' in '\w+': save a tensor in its place"),
                (np.random.default_rng(0), r"numpy\S+' in '\w+': save a tensor in its place"),
            )
            for name, content in (
                ('extra', _with(value)),
                ('extra', {**ONE_GRAPH.to_dict(), 'extra': value}),
                ('other', _of_type(value)),
                ('other', _of_type(value).to_dict()),
            )
        ),
    ],
    'folder/x.npy': [  # as np.memmap writes it, empty, and of bfloat16
        (b'\0' * 48, r"header of a .npy file in '.*x\.npy' .got the magic .* np\.save\("),
        (b'', r"header of a .npy file in '.*x\.npy' .got EOF"),
        (np.zeros((4, 3), 'V2'), r"numbers in 'x' of '.*' .got \|V2, as of bfloat16: save it as"),
    ],
    'a.parquet': [
        *(
            ({'z': z}, rf"expected {what}.*'z' of '.*a\.parquet'.*{told}")
            for z, what, told in COLUMNS
        ),
        *(({'dst': column}, r"numbers in 'dst' of '.*a\.parquet'") for column in NO_IDS),
        *(({name: IDS}, f"name for the column '{name}'") for name in NAMED_OTHERWISE),
        ({'z': IDS, 'z_index': IDS}, "the column 'z_index'"),
        ({'my_index': LISTS}, "column 'my_index'"),
        ({'index': LISTS}, "column 'index'"),
        ({'z': pa.array(TEXTS).dictionary_encode(), 'z_names': IDS}, "'z_names'.*names of 'z'"),
        ({'_w': IDS}, "begin with a letter.*got '_w'"),
        ({'dst': pa.array(TEXTS)}, f"numbers in 'dst' {TWO_KINDS}"),
        ({'src': pa.array(TEXTS)}, f"numbers in 'src' {TWO_KINDS}"),
        ({'dst': WITH_NONE}, "numbers in 'dst'"),
        ({'src': WITH_NONE, 'dst': WITH_NONE}, "no empty cell in 'src'"),
        ({'src': TEXTS, 'dst': [*'ab', None, *'abc']}, "no empty cell in 'dst'.*first in row 2"),
        ({'src': TEXTS, 'dst': [*'ab', '', *'abc']}, "no empty cell in 'dst'.*first in row 2"),
        (
            {'src': LARGE, 'dst': LARGE},
            r"ids below 2\^63 in 'src'.*got 9223372036854775809 in row 1.*as text",
        ),
    ],
}


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, newline='')
    elif path.suffix == '.npz':
        np.savez(path, **content)
    elif path.suffix == '.npy':
        np.save(path, content)
    elif path.suffix == '.parquet':
        write_edges(path, **content)
    else:
        torch.save(content, path)


CASES = {
    f'{name} {i}': (name, *row) for name, rows in REFUSED.items() for i, row in enumerate(rows)
}


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('case', CASES)
def test_refused(tmp_path, case):
    name, content, message = CASES[case]
    path, out = tmp_path / name, tmp_path / 'out'
    _write(path, content)
    if 'folder' in name:
        np.save(path.parent / 'edge_index.npy', EDGES)
        path = path.parent
    for load in (lambda: load_source(path), lambda: load_source(path, scratch=Scratch(tmp_path))):
        with pytest.raises(ValueError, match=message) as told:
            partition_graph(load(), 1, out)
        assert '\n' not in str(told.value)
    with pytest.raises(ValueError, match=message):
        partition_graph(path, 1, out)
    assert not out.exists()
