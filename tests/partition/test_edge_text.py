"""Lists of edges as text, as SNAP, KONECT and Network Repository publish them."""

from __future__ import annotations

import bz2
import gzip
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_files import content, refuses, write_table
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.partition.__main__ import main
from pyg_sar.partition.memmap import MEMORY, Scratch
from pyg_sar.partition.sources import load_source, text_lines
from pyg_sar.partition.sources.node_tables import NodeTableOptions

pyarrow = pytest.importorskip('pyarrow')

EDGES = [[3, 1, 0], [1, 2, 0]]

LISTS: dict[str, tuple[str, dict[str, list[float]]]] = {
    'comments of SNAP': ('# Directed graph\n# FromNodeId\tToNodeId\n3\t1\n1\t2\n0\t0\n', {}),
    'comments between': ('3 1\n% a comment\n1 2\n  # 1 2\n0 0\n', {}),
    'commas': ('3,1\n1,2\n0,0\n', {}),
    'a comma in a comment': ('# nodes, edges\n3\t1\n1\t2\n0\t0\n', {}),
    'spaces': ('  3   1 \n1\t 2\n\n0 0', {}),
    'lines of Windows': ('3 1\r\n1 2\r\n0 0\r\n', {}),
    'a byte order mark': ('\ufeff3,1\n1,2\n0,0\n', {}),
    'weights': ('3 1 2\n1 2 1\n0 0 0.25\n', {'edge_weight': [2, 1, 0.25]}),
    'times': (
        '3 1 1082040961\n1 2 1082040962\n0 0 1217567877\n',
        {'time': [1082040961, 1082040962, 1217567877]},
    ),
    'ratings and times': (
        '3,1,-4,1289241911.72836\n1,2,2,1289241941.53378\n0,0,1,5.5\n',
        {'edge_weight': [-4, 2, 1], 'time': [1289241911.72836, 1289241941.53378, 5.5]},
    ),
    'a header': ('src\tdst\tw\n3\t1\t3\n1\t2\t4\n0\t0\t5\n', {'w': [3, 4, 5]}),
    'a header and semicolons': ('w;Source;Target\n3;3;1\n4;1;2\n5;0;0\n', {'w': [3, 4, 5]}),
    'numbered ends': ('node_1,node_2,w\n3,1,3\n1,2,4\n0,0,5\n', {'w': [3, 4, 5]}),
    'quotes': ('"FromNodeId","ToNodeId"\n"3","1"\n"1","2"\n"0","0"\n', {}),
    'quotes behind blanks': (
        '"source", "target", "w"\n"3", "1", 3\n  "1", "2", 4\n0,0,5\n',
        {'w': [3, 4, 5]},
    ),
    'quotes of R': ('"from" "to" "w"\n"3" "1" 3\n1 "2" 4\n0 0 5\n', {'w': [3, 4, 5]}),
    'a header of one name': ('node_id\tnode_id\n3\t1\n1\t2\n0\t0\n', {}),
    'numbers in a header': ('id_1,id_2,2019\n3,1,3\n1,2,4\n0,0,5\n', {'2019': [3, 4, 5]}),
    'a zero in front of a weight': ('3 1 03\n1 2 4\n0 0 05\n', {'edge_weight': [3, 4, 5]}),
    'a number in a header': ('src,dst,7\n3,1,3\n1,2,4\n0,0,5\n', {'7': [3, 4, 5]}),
    'a header, dst first': ('dst,w,src\n1,3,3\n2,4,1\n0,5,0\n', {'w': [3, 4, 5]}),
    **{
        f'a header {header}': (
            f'{header}\n5,3,1\n6,1,2\n7,0,0\n',
            {header.split(',')[0]: [5, 6, 7]},
        )
        for header in (
            *('edge_id,source,target', 'time,from,to', 'w,SRC,DST'),
            *('i,Source,Destination', 'x, src, dst', 'kind,FromNode,ToNode'),
            *('from_year,u,v', 'time,person1,person2', 'label1,id1,id2'),
        )
    },
    **{
        f'a header in a comment {sign!r}': (
            f'# by hand\n#{sign.join(["dst", "src", "w"])}\n' + rows.replace(' ', sign),
            {'w': [3, 4, 5]},
        )
        for sign in (' ', '\t', ',', '; ')
        for rows in ['1 3 3\n2 1 4\n0 0 5\n']
    },
    'a header in a comment by another sign': ('# target, source\n1 3\n2 1\n0 0\n', {}),
    'a comment of other words': ('# target found\n3 1\n1 2\n0 0\n', {}),
    'a header under comments': ('# dst src\n# of 2020\n3 1\n1 2\n0 0\n', {}),
    'infinite weights': ('3 1 inf\n1 2 -inf\n0 0 1\n', {'edge_weight': [math.inf, -math.inf, 1]}),
    'five columns': (
        '3 1 1 5 7\n1 2 1 5 8\n0 0 1 5 9\n',
        {'edge_weight': [1] * 3, 'time': [5] * 3, 'column_5': [7, 8, 9]},
    ),
}


def _read(path: Path, scratch: Scratch | None = None, **options: Any) -> tuple[Any, list[str]]:
    """The graph, and the notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        data = load_source(path, scratch=scratch, **options)
    return data, [str(warning.message) for warning in caught]


def _of_text(folder: Path, text: str, name: str = 'a.txt', **options: Any) -> Any:
    """The graph of a file with this text."""
    (folder / name).write_text(text, encoding='utf-8', newline='')
    return _read(folder / name, **options)[0]


@pytest.mark.parametrize('kind', LISTS)
def test_as_published(tmp_path: Path, kind: str, scratch: Any, monkeypatch: Any) -> None:
    """Pieces of a few bytes give the same as one."""
    text, columns = LISTS[kind]
    # These are told from the first lines, of which a small piece has one.
    told_late = any(word in kind for word in ('header', 'ends', 'quotes', 'times'))
    for size in (text_lines.PIECE,) if told_late else (text_lines.PIECE, 11):
        monkeypatch.setattr(text_lines.pieces, '__defaults__', (size,))
        data = _of_text(tmp_path, text, scratch=scratch)
        assert content(data) == {'edge_index': EDGES, 'num_nodes': 4, **columns}


@pytest.mark.parametrize(
    'name',
    [
        *('a.csv', 'a.CSV', 'a.tsv', 'a.edges', 'a.el', 'a.edgelist'),
        *('a.txt.gz', 'a.tsv.bz2', 'a.csv.zst'),
    ],
)
def test_names_of_files(tmp_path: Path, name: str) -> None:
    text = b'# a comment\n3 1\n1 2\n0 0\n'
    packed = {'.gz': gzip.compress, '.bz2': bz2.compress}
    packed['.zst'] = lambda content: pyarrow.compress(content, codec='zstd', asbytes=True)
    (tmp_path / name).write_bytes(packed.get(Path(name).suffix, bytes)(text))
    data, notes = _read(tmp_path / name)
    assert data.edge_index.tolist() == EDGES
    assert notes == [f"'{tmp_path / name}' has 1 comment lines"]


def test_members_of_a_compressed_file_are_one_text(tmp_path: Path) -> None:
    path = tmp_path / 'a.txt.gz'
    path.write_bytes(gzip.compress(b'3 1\n1') + gzip.compress(b' 2\n0 0\n'))
    assert _read(path)[0].edge_index.tolist() == EDGES


def test_the_line_of_an_error_in_a_later_piece(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(text_lines.pieces, '__defaults__', (64,))
    lines = [f'{i} {i + 1}' for i in range(500)]
    lines[400] = '400 four'
    path = tmp_path / 'a.txt.gz'
    path.write_bytes(gzip.compress('\n'.join(['# a comment', *lines]).encode()))
    with pytest.raises(ValueError, match=r"of line 402 of .* .got 'four'"):
        load_source(path)


def test_wide_numbers_come_late(tmp_path: Path, monkeypatch: Any, scratch: Any) -> None:
    monkeypatch.setattr(text_lines.pieces, '__defaults__', (16,))
    text = '0 1 1\n1 2 2\n2 3000000000 3\n0 1 0.5\n'
    data = _of_text(tmp_path, text, scratch=scratch)
    assert data.edge_index.tolist() == [[0, 1, 2, 0], [1, 2, 3_000_000_000, 1]]
    assert data.edge_weight.tolist() == [1, 2, 3, 0.5]
    for text in (f'0 1 {2**53 + 1}\n1 2 2\n0 1 0.5\n', f'0 1 0.5\n1 2 2\n0 1 {2**53 + 1}\n'):
        with pytest.raises(ValueError, match='numbers that float64 holds'):
            _of_text(tmp_path, text)


STEAM = 76561198000000000
NAMED: dict[str, tuple[str, list[Any]]] = {
    'text': ('alice\tbob\nbob\tcarol\ncarol\tNew York\n', ['alice', 'bob', 'carol', 'New York']),
    'text with a header': ('src,dst\nb,a\na,c\nc,d\n', ['b', 'a', 'c', 'd']),
    'zeros in front': ('src,dst\n01001,1001\n1001,01\n01,1\n', ['01001', '1001', '01', '1']),
    'identifiers': (
        'source,target\nf81d-1,f81d-2\nf81d-2,f81d-9\nf81d-9,f81d-a\n',
        ['f81d-1', 'f81d-2', 'f81d-9', 'f81d-a'],
    ),
    'large numbers': (
        f'{STEAM + 7} {STEAM}\n{STEAM} {STEAM + 9}\n{STEAM + 9} {STEAM + 8}\n',
        [STEAM, STEAM + 7, STEAM + 8, STEAM + 9],
    ),
}


@pytest.mark.parametrize('kind', NAMED)
def test_names_become_numbers(tmp_path: Path, kind: str, scratch: Any) -> None:
    """Text in the order in which it comes, numbers in ascending order."""
    text, names = NAMED[kind]
    (tmp_path / 'a.tsv').write_text(text)
    data, notes = _read(tmp_path / 'a.tsv', scratch)
    found = data.node_names.to_pylist()
    assert found == names
    assert data.num_nodes == 4
    pairs = [re.split('[ ,\t]', line, maxsplit=1) for line in text.splitlines()][-3:]
    assert [[str(found[i]) for i in edge] for edge in data.edge_index.t().tolist()] == pairs
    assert any('names' in note for note in notes)


@pytest.mark.parametrize('names', [['n1', 'n2', 'n7'], ['u', 'v', 'w'], ['#a', 'b', 'c']])
def test_a_first_edge_is_no_header(tmp_path: Path, names: list[str]) -> None:
    """Comments have a blank behind the sign, or stand in front of the edges."""
    one, two, three = names
    lines = [f'{one} {two}', f'{two} {three}', f'{three} {two}', '# an end']
    if one == '#a':
        lines[0] = '# user\n#user user\nb d'
        names = ['b', 'd', 'c']
    (tmp_path / 'a.txt').write_text('\n'.join(lines))
    data, _ = _read(tmp_path / 'a.txt')
    assert data.node_names.to_pylist() == names
    assert data.edge_index.size(1) == 3


def _alike(ids: str) -> str:
    return '\n'.join(['n1 n2', *(f'{ids}{i} {ids}{i + 100}' for i in range(3, 23))])


@pytest.mark.parametrize(
    ('text', 'num_edges'),
    [
        *(('a a\na 07\nb a\n', 3), ('a\t12:30\nb\t13:45\na\t9\n', 3), ('a c\ne a\nc e\n', 3)),
        *(('5 #a\n6 b\n5 b\n', 3), ('7 a,5\n7 b,5\n5,6\n', 3)),
        # A name of a column is none of nodes that are called alike.
        *((_alike('a'), 20), (_alike('n'), 21)),
        ('paper paper\n1 2\n2 3\n', 2),  # two columns of one name, which numbers follow
    ],
)
def test_names_that_are_no_other_form(tmp_path: Path, text: str, num_edges: int) -> None:
    assert _of_text(tmp_path, text).num_edges == num_edges


@pytest.mark.parametrize(
    ('text', 'names'),
    [
        ('"b", "a, ""a"""\n"a, ""a""", "b"\n', ['b', 'a, "a"']),
        ('"from" "to" "w"\n"b" "New  York" 5\n"New  York" "b" -6\n', ['b', 'New  York']),
        ('from to\n"b" b\nb "b"\n', ['"b"', 'b']),  # of which quotes are letters
        ('Smith, J\tDoe\nDoe\tSmith, J\n', ['Smith, J', 'Doe']),
    ],
)
def test_names_with_quotes_and_commas(tmp_path: Path, text: str, names: list[str]) -> None:
    data = _of_text(tmp_path, text)
    assert data.node_names.to_pylist() == names
    assert data.edge_index.tolist() == [[0, 1], [1, 0]]
    assert data.get('w', torch.tensor([5, -6])).tolist() == [5, -6]


def test_names_that_come_late(tmp_path: Path) -> None:
    """With a space, and an integer of more than 64 bits."""
    lines = ''.join(f'n{i}\tn{i + 1}\n' for i in range(1500))
    for text, last in ((f'{lines}New York\tn0', 'New York'), (f'0,1\n1,{"9" * 20}\n', '9' * 20)):
        assert _of_text(tmp_path, text).node_names.to_pylist()[-1] == last


def test_sizes_in_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / 'a.edges'
    for text in ('5 4\n0 1\n1 2\n2 3\n3 4\n', '5 5 4\n' + '1 2 1\n' * 4):
        for more, is_told in (('', 1), (text.splitlines()[-1], 0)):
            path.write_text(text + more)
            notes = _read(path)[1]
            assert sum('may hold numbers of nodes' in note for note in notes) == is_told


def test_gaps(tmp_path: Path) -> None:
    path = tmp_path / 'a.txt'
    path.write_text('2300000 2300005\n2300005 2300009\n')
    data, notes = _read(path)
    assert (data.num_nodes, len(notes)) == (2_300_010, 1)
    assert 'has 2,300,010 nodes' in notes[0]
    assert '--relabel' in notes[0]
    data, notes = _read(path, relabel=True)
    assert data.edge_index.tolist() == [[0, 1], [1, 2]]
    assert data.node_names.to_pylist() == [2300000, 2300005, 2300009]
    path.write_text('1 2\n2 3\n')
    assert 'begin at 1' in _read(path)[1][0]
    path.write_text('0 1\n1 2\n')
    assert _read(path)[1] == []
    path.write_text('5 x\nx 7\n')
    data, _ = _read(path, relabel=True)
    assert data.node_names.to_pylist() == ['5', 'x', '7']
    torch.save(Data(x=torch.ones(9, 1), edge_index=torch.tensor([[7], [8]])), tmp_path / 'a.pt')
    with pytest.raises(ValueError, match=r"edges without attributes of nodes .* .got .*\['x'\]"):
        load_source(tmp_path / 'a.pt', relabel=True)


def test_a_comment_names_columns_of_names(tmp_path: Path) -> None:
    data = _of_text(tmp_path, '# to from\nbob ann\ndan cy\n')
    assert data.node_names.to_pylist() == ['ann', 'bob', 'cy', 'dan']
    assert data.edge_index.tolist() == [[0, 2], [1, 3]]
    for at, header in enumerate(('src,dst', 'dst,src')):
        (tmp_path / 'parts').mkdir(exist_ok=True)
        (tmp_path / 'parts' / f'{at}.csv').write_text(f'# {header}\n0,1\n')
    refuses(lambda: load_source(tmp_path / 'parts'), 'the columns of the other files in', '1.csv')


def test_whole_floats_are_ids_to_relabel(tmp_path: Path, scratch: Any) -> None:
    path = tmp_path / 'a.csv'
    for text in ('src,dst\n1.0,2\n2.0,3\n', '1.0,2.\n2,3.0\n', '1,2\n2,3e0\n'):
        path.write_text(text)
        data = _read(path, scratch, relabel=True)[0]
        assert data.node_names.to_pylist() == [1, 2, 3]
        assert data.edge_index.tolist() == [[0, 1], [1, 2]]
    path.write_text('1.5,2\n2,3\n')  # no numbers of nodes, but names
    assert _read(path, relabel=True)[0].node_names.to_pylist() == ['1.5', '2', '3']


# KONECT


def test_konect(tmp_path: Path) -> None:
    path = tmp_path / 'out.moreno'
    path.write_text('% asym weighted\n% 3 4 4\n1 2 3 1082040961\n2 3\t2 1082040962\n4 4 1 5\n')
    for source in (path, tmp_path):
        data, notes = _read(source)
        assert content(data) == {
            'edge_index': [[0, 1, 3], [1, 2, 3]],
            'num_nodes': 4,
            'edge_weight': [3, 2, 1],
            'time': [1082040961, 1082040962, 5],
        }
        assert notes == []


def test_names_as_those_of_konect(tmp_path: Path) -> None:
    """A file out.csv is a table, unless it begins as KONECT's do."""
    edges = [[0, 1], [1, 2]]
    for name, text in (
        ('out.csv', 'src,dst\n0,1\n1,2\n'),
        ('out.txt', '% asym unweighted\n1 2\n2 3\n'),
    ):
        assert _of_text(tmp_path, text, name).edge_index.tolist() == edges
    folder = tmp_path / 'arrays'
    folder.mkdir()
    np.save(folder / 'edge_index.npy', np.array(edges))
    (folder / 'out.log').write_text('done')
    assert _read(folder)[0].edge_index.tolist() == edges


def test_konect_both_ways(tmp_path: Path, scratch: Any) -> None:
    path = tmp_path / 'a.edges'
    path.write_text('% sym unweighted\n1 2\n2 3 5\n3 3\n')
    data, (note,) = _read(path, scratch or MEMORY)
    assert data.edge_index.tolist() == [[0, 1, 2, 1, 2], [1, 2, 2, 0, 1]]
    assert data.edge_weight.tolist() == [1, 5, 1, 1, 5]  # a line may leave its weight out
    assert 'both directions' in note
    nodes = write_table(tmp_path / 'n.parquet', {'id': [1, 2, 3]})
    table = NodeTableOptions(nodes=str(nodes))
    refuses(lambda: load_source(path, tables=table), 'KONECT alone', "begins with '% sym unw")
    path.write_text('% symmetric edges\n1 2\n')  # which are other words
    assert _read(path)[0].edge_index.tolist() == [[1], [2]]


@pytest.mark.parametrize('name', ['out.a', 'rec-a.edges', 'a.txt.zst'])
def test_konect_bipartite(tmp_path: Path, name: str) -> None:
    """The header tells the same in any list of edges."""
    text = '% bip posweighted\n% 2 5 3\n1 1 4\n2 3 5\n'
    if name.endswith('.zst'):
        packed = pyarrow.compress(text.encode(), codec='zstd', asbytes=True)
        (tmp_path / name).write_bytes(packed)
        data = _read(tmp_path / name)[0]
    else:
        data = _of_text(tmp_path, text, name)
    assert content(data) == {
        'left': {'num_nodes': 5},
        'right': {'num_nodes': 3},
        ('left', 'to', 'right'): {'edge_index': [[0, 1], [0, 2]], 'edge_weight': [4, 5]},
    }


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Notes tell what was read; the summary tells duplicates and self loops."""
    path, out = tmp_path / 'web.txt', tmp_path / 'parts'
    path.write_text('# a comment\n5 9\n9 5\n5 9\n7 7\n')
    assert main([str(path), str(out), '--num-parts', '1', '--relabel']) == 0
    told = capsys.readouterr()
    assert f"note: '{path}' has 1 comment lines" in told.err
    assert 'ids from 5 to 9 became 0 to 2' in told.err
    assert '1 self loops, 1 duplicates' in told.out
    data = pyg_sar.load_shard(out)
    assert data.node_names[:] == [5, 7, 9]
    assert data.edge_index.tolist() == [[0, 2, 0, 1], [2, 0, 2, 1]]
