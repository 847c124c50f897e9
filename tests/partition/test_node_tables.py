"""Tables of nodes beside tables of edges, and folders with tables by type."""

from __future__ import annotations

import datetime
import gzip
import os
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_files import command, content, refuses, save_frame, whole, write_table

import pyg_sar
from pyg_sar.partition.__main__ import main
from pyg_sar.partition.memmap import Scratch
from pyg_sar.partition.sources import load_source
from pyg_sar.partition.sources.node_tables import NodeTableOptions
from pyg_sar.partition.sources.reverse import add_reverse_edges

pa = pytest.importorskip('pyarrow')
pandas = pytest.importorskip('pandas')

NAMES = ['zoe', 'ann', 'bob', 'eve', 'lone']
EDGES = [('ann', 'bob'), ('zoe', 'eve'), ('bob', 'zoe'), ('eve', 'ann'), ('ann', 'zoe')]
COLUMNS = {
    'name': NAMES,
    'age': [30, 40, 50, 60, 70],
    'height': [1.5, 1.625, 1.75, 1.875, 2.0],
    'emb': [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 10.0]],
    'label': ['cat', 'dog', None, 'cat', 'owl'],
    'split': ['train', 'valid', 'test', None, 'train'],
    'is_old': [False, None, True, True, True],
}


def _ends(path: Path, pairs: Any = EDGES, **columns: Any) -> Path:
    src, dst = zip(*pairs, strict=True)
    return write_table(path, {'src': pa.array(src), 'dst': pa.array(dst), **columns})


def _load(
    edges: Path, nodes: Path | None, *, scratch: Scratch | None = None, **options: Any
) -> Any:
    given = NodeTableOptions(nodes=os.fspath(nodes), **options)
    return load_source(edges, tables=given, scratch=scratch)


def _without(*names: str) -> dict[str, Any]:
    return {name: column for name, column in COLUMNS.items() if name not in names}


def _refuses(edges: Path, nodes: Path, *words: str, **options: Any) -> None:
    refuses(lambda: _load(edges, nodes, **options), *words)


OPTIONS = {
    'y': 'label',
    'x': ('age', 'emb', 'height'),
    'train': 'split=train',
    'val': 'split=valid',
    'test': 'is_old',
}


def test_a_table_of_nodes(tmp_path, scratch, tiny):
    edges = _ends(tmp_path / 'edges.parquet', w=pa.array(np.arange(5.0)))
    nodes = write_table(tmp_path / 'people.parquet', COLUMNS)
    data = _load(edges, nodes, scratch=scratch, **OPTIONS)
    index = pandas.Index(NAMES)
    assert content(data) == {
        'edge_index': [index.get_indexer(ends).tolist() for ends in zip(*EDGES, strict=True)],
        'node_names': NAMES,
        'x': np.c_[COLUMNS['age'], np.array(COLUMNS['emb']), COLUMNS['height']].tolist(),
        'y': [0, 1, -1, 0, 2],
        'y_names': ['cat', 'dog', 'owl'],
        'num_classes': 3,
        'train_mask': [True, False, False, False, True],
        'val_mask': [False, True, False, False, False],
        'test_mask': [False, False, True, True, True],
        'w': [0, 1, 2, 3, 4],
    }
    assert data.x.dtype == torch.float32


def test_by_the_command(tmp_path, capsys):
    edges, out = _ends(tmp_path / 'edges.parquet'), tmp_path / 'out'
    nodes = write_table(tmp_path / 'n.parquet', COLUMNS)
    words = ['--method', 'range', '--nodes', nodes, '--id', 'name', '--y', 'label']
    words += ['--x', 'age,height', '--train', 'split=train', '--val', 'split=valid']
    words += ['--test', 'split=test']
    assert command(edges, out, *words, '--transform', 'ToUndirected') == 2
    assert "numbers in 'is_old'" not in (told := capsys.readouterr().err)
    assert "no empty cell in 'is_old'" in told
    write_table(nodes, _without('is_old'))
    assert command(edges, out, *words) == 0
    assert capsys.readouterr().err == ''
    assert whole(out, 'n_id') == [0, 1, 2, 3, 4]
    assert whole(out, 'y') == [0, 1, -1, 0, 2]
    assert [age for age, _ in whole(out, 'x')] == COLUMNS['age']
    assert whole(out, 'val_mask') == [False, True, False, False, False]
    assert whole(out, 'emb') == COLUMNS['emb']
    data = pyg_sar.load_shard(out)
    assert (data.y_names, data.num_classes) == (['cat', 'dog', 'owl'], 3)
    assert command(edges, tmp_path / 'b', '--y', 'label') == 2
    assert 'expected --nodes TABLE with --y label' in capsys.readouterr().err


def test_without_options(tmp_path):
    """Lists called x or features, labels called y, and every other column by its name."""
    edges = _ends(tmp_path / 'edges.parquet')
    columns = _without('label', 'split', 'is_old', 'emb')
    lists = {'features': COLUMNS['emb'], 'y': [1, None, 0, 2, 1]}

    def load(**more: Any) -> dict[str, Any]:
        return content(_load(edges, write_table(tmp_path / 'n.parquet', {**columns, **more})))

    want = {'age': COLUMNS['age'], 'height': COLUMNS['height'], 'x': COLUMNS['emb']}
    found, y = load(**lists), [1, -1, 0, 2, 1]
    assert want.items() <= found.items()
    assert str(found['y']) == str(y)  # integers
    assert found.keys().isdisjoint({'y_names', 'features'})
    assert {**want, 'features': COLUMNS['emb']}.items() <= load(**lists, x=COLUMNS['emb']).items()
    kinds = pa.array(list('abcab')).dictionary_encode()
    want = {'x': COLUMNS['height'], 'kind': [0, 1, 2, 0, 1], 'kind_names': ['a', 'b', 'c']}
    assert want.items() <= load(x=COLUMNS['height'], kind=kinds).items()


@pytest.mark.parametrize(
    ('labels', 'want', 'dtype'),
    [
        (pa.array([3, None, 1, 0, 0], pa.int8()), [3, -1, 1, 0, 0], torch.int64),
        (pa.array(['b', 'c', None, 'a', 'b'], pa.string_view()), [0, 1, -1, 2, 0], torch.int64),
        (pa.array([3, 2, 1, 0, 0], pa.uint16()), [3, 2, 1, 0, 0], torch.int64),
        (pa.array([0.5, None, 1, 0, 0]), [0.5, float('nan'), 1, 0, 0], torch.float64),
        (pa.array([True, False, None, True, True]), [1, 0, -1, 1, 1], torch.int64),
        (pa.array(['b', '', None, 'a', 'b']), [0, -1, -1, 1, 0], torch.int64),
        (pa.array(['b', 'c', None, 'a', 'b']).dictionary_encode(), [0, 1, -1, 2, 0], torch.int64),
        (pa.array([[0, 1], [1, 1], [0, 0], [1, 0], [1, 1]], pa.list_(pa.int8())),
         [[0, 1], [1, 1], [0, 0], [1, 0], [1, 1]], torch.int64),
    ],
)  # fmt: skip
def test_labels(tmp_path, labels, want, dtype):
    edges = _ends(tmp_path / 'edges.parquet')
    nodes = write_table(tmp_path / 'n.parquet', {'name': NAMES, 'label': labels})
    y = _load(edges, nodes, y='label').y
    assert y.dtype == dtype
    assert torch.equal(y.nan_to_num(-7), torch.tensor(want, dtype=dtype).nan_to_num(-7))


def test_ids(tmp_path):
    """Of 0 to N-1 no names; others, and those in another order, are looked up."""
    path, edges = tmp_path / 'n.parquet', [(0, 3), (2, 1)]
    for ids, ends, want in (
        (np.arange(4), edges, [[0, 2], [3, 1]]),
        (np.array([3, 0, 2, 1], np.int16), edges, [[1, 2], [0, 3]]),
        (np.array([2**40, 0, -2, 3]), [(2**40, 3), (-2, 0)], [[0, 2], [3, 1]]),
    ):
        nodes = write_table(path, {'id': ids, 'age': np.arange(4) * 10})
        found = content(_load(_ends(tmp_path / 'edges.parquet', ends), nodes))
        assert found['edge_index'] == want
        names = None if ids.tolist() == [0, 1, 2, 3] else ids.tolist()
        assert found.get('node_names') == names
    # Categories of either table, text of the other.
    column = pa.array(NAMES).dictionary_encode()
    nodes = write_table(path, {'name': column, 'age': np.arange(5)})
    want = [[1, 0, 2, 3, 1], [2, 3, 0, 1, 0]]
    assert _load(_ends(tmp_path / 'e.parquet'), nodes).edge_index.tolist() == want


def test_as_many_nodes_as_edges(tmp_path, check_partition):
    nodes = {**_without('label', 'split', 'is_old'), 'edge_count': np.arange(5)}
    write_table(tmp_path / 'g' / 'nodes.parquet', nodes)
    _ends(tmp_path / 'g' / 'edges.parquet', w=np.arange(5), since=np.arange(5))
    data = load_source(tmp_path / 'g')  # of which both are read
    pyg_sar.partition_graph(tmp_path / 'g', 2, tmp_path / 'out', method='random')
    of_nodes, of_edges = ('age', 'height', 'emb', 'edge_count'), ('w', 'since')
    check_partition(tmp_path / 'out', data, 2, node_attrs=of_nodes, edge_attrs=of_edges)


def test_text_tables_and_folders(tmp_path):
    frame = pandas.DataFrame(_without('emb'))
    frame.to_csv(tmp_path / 'n.csv', index=False)
    pandas.DataFrame(EDGES, columns=['src', 'dst']).to_csv(tmp_path / 'e.csv', index=False)
    options = {**OPTIONS, 'x': ('age', 'height'), 'test': 'is_old=True'}
    data = _load(tmp_path / 'e.csv', tmp_path / 'n.csv', **options)
    assert data.y.tolist() == [0, 1, -1, 0, 2]
    assert data.x[:, 1].tolist() == COLUMNS['height']
    assert data.test_mask.tolist() == [False, False, True, True, True]
    (tmp_path / 'parts').mkdir()
    for i, rows in enumerate((frame[:2], frame[2:])):
        rows.to_parquet(tmp_path / 'parts' / f'part-{i}.parquet')
    # The second part has no row 1: pandas writes its numbers of rows, and bools without null.
    data = _load(tmp_path / 'e.csv', tmp_path / 'parts', **options)
    assert data.y.tolist() == [0, 1, -1, 0, 2]
    (tmp_path / 'n.csv').write_text('0,1\n1,2\n')
    _refuses(tmp_path / 'e.csv', tmp_path / 'n.csv', "first line of '", 'such as id,age,label')


def test_masks_of_numbers_and_categories(tmp_path):
    edges = _ends(tmp_path / 'edges.parquet')
    columns = {
        'name': NAMES,
        'fold': pa.array([0, 1, 2, None, 0]),
        'year': [2019.0, 2020.0, 2021.0, 2019.0, 2019.5],
        'kind': pa.array(['a', 'b', None, 'a', 'c']).dictionary_encode(),
    }
    nodes = write_table(tmp_path / 'n.parquet', columns)
    data = _load(edges, nodes, train='fold=0', val='year=2019', test='kind=a')
    assert data.train_mask.tolist() == [True, False, False, False, True]
    assert data.val_mask.tolist() == [True, False, False, True, False]
    assert data.test_mask.tolist() == [True, False, False, True, False]
    for text, words in {
        'fold=9': "a row with '9' in 'fold'",
        'kind=A': "a row with 'A' in 'kind'",
        'fold=a': "'fold' of",
        'fold': 'COLUMN=VALUE for a mask',
        'kind': 'COLUMN=VALUE for a mask',
        'nope=1': "a column 'nope' in",
    }.items():
        _refuses(edges, nodes, words, train='fold=0', val='kind=a', test=text)


def test_columns_that_are_called_as_masks(tmp_path):
    edges = _ends(tmp_path / 'edges.parquet')
    columns = {'name': NAMES, 'train_mask': [1, 0, 1, 0, 0], 'val_mask': [0.0, 1, 0, 0, 0]}
    nodes = write_table(tmp_path / 'n.parquet', columns)
    data = _load(edges, nodes)
    assert data.train_mask.tolist() == [True, False, True, False, False]
    assert data.val_mask.tolist() == [False, True, False, False, False]
    for values, told in (
        ([1, 2, 0, 0, 0], "in 'train_mask' of"),
        (pa.array([*'ababa']).dictionary_encode(), "got 'a'"),
    ):
        nodes = write_table(tmp_path / 'n.parquet', {**columns, 'train_mask': values})
        _refuses(edges, nodes, 'bools, or 0 and 1', told, '--train train_mask=VALUE')


def test_what_is_refused(tmp_path):
    edges, nodes = _ends(tmp_path / 'edges.parquet'), tmp_path / 'n.parquet'
    plain = _without('label', 'split', 'is_old')

    def refused(*words: str, change: Any = None, edges: Path = edges, **options: Any) -> None:
        _refuses(edges, write_table(nodes, {**plain, **(change or {})}), *words, **options)

    _load(edges, write_table(nodes, plain))
    refused("an id in every row of '", 'name', change={'name': [*NAMES[:4], None]})
    refused("an id in every row of '", 'of row 4', change={'name': [*NAMES[:4], '']})
    twice = {'name': [*NAMES[:4], 'ann']}
    refused("every id once in 'name' of", "'ann' again in row 4", change=twice)
    refused('one column of', 'called id, node_id, name or index, or --id', change={'id': range(5)})
    refused("ids in 'height' of", 'got double', id='height')
    ints = _ends(tmp_path / 'ints.parquet', [(0, 1), (2, 3)])
    refused("ids of one type in 'src'", 'got int64 and string', edges=ints)
    refused("a column 'kind' in", 'as --y says', 'height', y='kind')
    refused("a column 'size' in", 'as --x says', x=('size',))
    text = {'city': list('abcde')}
    refused("numbers in 'city' of", 'got string', 'name it by --id, --y', change=text)
    struct = {'city': [{'a': 1}] * 5}
    refused("numbers in 'city' of", 'got struct', '): leave the column out', change=struct)
    refused("numbers in 'city' of", 'out of --x', change=text, x=('city',))
    refused("no empty cell in 'age'", change={'age': [1, 2, None, 4, 5]})
    refused("no empty cell in 'age'", change={'age': [1, 2, None, 4, 5]}, x=('age',))
    refused("name for the column 'x'", 'an option makes', change={'x': range(5)}, x=('age',))
    refused("name for the column 'y'", 'an option makes', change={'y': range(5)}, y='age')
    large = {'label': np.full(5, 2**64 - 1, np.uint64)}
    refused('a table of numbers in', 'not in range', change=large, y='label')
    lists = {'tags': [['a']] * 5}
    refused('COLUMN=VALUE for a mask', 'list<', change=lists, train='tags=a')
    both = _ends(tmp_path / 'both.parquet', age=np.arange(5))
    refused("different names in '", "got 'age' in both", edges=both)
    unknown = _ends(tmp_path / 'unknown.parquet', [*EDGES, ('ann', 'max')])
    refused("ids of 'name' of", "in 'dst' of", "got 'max' in row 5", 'add the node', edges=unknown)
    write_table(nodes, {'id': np.arange(3)})
    far = _ends(tmp_path / 'far.parquet', [(0, 1), (3, 1)])
    _refuses(far, nodes, "ids of 'id' of", "in 'src' of", 'got 3 in row 1')
    near = _ends(tmp_path / 'far.parquet', [(0, 1), (2, -1)])
    _refuses(near, nodes, "ids of 'id' of", "in 'dst' of", 'got -1 in row 1')
    _refuses(near, tmp_path / 'none.parquet', 'none.parquet', 'no such file')
    write_table(nodes, {'id': np.arange(3), 'w': np.arange(3)})
    pairs = _ends(tmp_path / 'pairs.parquet', [(0, 1), (2, 1)], w_index=np.arange(2))
    _refuses(pairs, nodes, "name for the column 'w_index' beside 'w'")
    torch.save({'edge_index': torch.zeros(2, 1, dtype=torch.int64)}, tmp_path / 'a.pt')
    _refuses(tmp_path / 'a.pt', nodes, 'a table of edges beside a table of nodes')
    given = NodeTableOptions(nodes=os.fspath(nodes))
    with pytest.raises(ValueError, match="no 'relabel' beside a table of nodes"):
        load_source(near, tables=given, relabel=True)


def test_arrays_beside_names(tmp_path):
    _ends(tmp_path / 'edges.parquet')
    np.save(tmp_path / 'x.npy', np.eye(4))
    with pytest.raises(ValueError, match='ids 0 to N-1 in'):
        load_source(tmp_path)
    _ends(tmp_path / 'edges.parquet', [(0, 1)], kind=pa.array(['a']).dictionary_encode())
    assert load_source(tmp_path).kind_names == ['a']
    write_table(tmp_path / 'nodes.parquet', COLUMNS)
    with pytest.raises(ValueError, match=r'nodes\.parquet'):
        load_source(tmp_path)


def test_what_the_page_says(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / 'docs' / 'partitioning.md').read_text()
    said = re.search(r'^pyg-sar (partition edges\.parquet (.*\\\n)*.*)$', page, re.MULTILINE)[1]
    monkeypatch.chdir(tmp_path)
    days = pa.array([datetime.date(2020, 1, 1 + i) for i in range(5)])
    _ends(Path('edges.parquet'), since=days)
    columns = _without('label', 'is_old', 'emb') | {'job': COLUMNS['label']}
    write_table(Path('people.parquet'), columns)
    assert main(shlex.split(said.replace('\\\n', ' '))[1:]) == 0
    assert "note: 'since' of 'edges.parquet' holds days since 1970" in capsys.readouterr().err
    x = [list(row) for row in zip(COLUMNS['age'], COLUMNS['height'], strict=True)]
    assert whole(Path('parts'), 'x') == x
    assert pyg_sar.load_shard('parts').y_names == ['cat', 'dog', 'owl']


def _of_text(folder: Path, nodes: str, edges: str = 'src,dst\n0,1\n') -> Any:
    (folder / 'nodes.csv').write_text(nodes)
    (folder / 'edges.csv').write_text(edges)
    return load_source(folder)


@pytest.mark.parametrize('num_edges', [3, 4])
def test_columns_called_as_those_of_others(tmp_path, check_partition, num_edges):
    """A column belongs to the table that has it."""
    rows = ['0,1,5,6', '1,2,6,7', '2,0,7,8', '1,0,8,9'][:num_edges]
    nodes = 'id,edge_attr\n0,5\n1,6\n2,7\n'
    data = _of_text(tmp_path, nodes, '\n'.join(['src,dst,x,batch', *rows]))
    pyg_sar.partition_graph(tmp_path, 2, tmp_path / 'out', method='random')
    names = ('x', 'batch')
    check_partition(tmp_path / 'out', data, 2, node_attrs=('edge_attr',), edge_attrs=names)
    both = add_reverse_edges(data)
    assert (both.num_nodes, both.x.size(0)) == (3, both.num_edges)


def test_text_with_blanks_behind_commas(tmp_path):
    data = _of_text(tmp_path, 'id, y, f\nann, x, 5\n bob,x, 6\n', 'ann, bob\nbob, ann\n')
    assert content(data) == {
        **{'edge_index': [[0, 1], [1, 0]], 'num_nodes': 2, 'node_names': ['ann', 'bob']},
        **{'y': [0, 0], 'y_names': ['x'], 'num_classes': 1, 'f': [5, 6]},
    }
    for nodes in ('id,y\n0, "x"\n1, "z"\n', 'id, "y"\n0,1\n1,2\n'):
        refuses(lambda nodes=nodes: _of_text(tmp_path, nodes), 'no blank in front of a quote')


def test_ids_of_text_with_zeros_in_front(tmp_path):
    for header in ('id,y', ' id, y'):
        data = _of_text(tmp_path, f'{header}\n01,3\n1,2\n', 'src,dst\n1,01\n1,1\n')
        assert data.edge_index.tolist() == [[1, 1], [0, 1]]
        assert (data.node_names.to_pylist(), data.y.tolist()) == (['01', '1'], [3, 2])


def test_types_of_text_are_those_of_all_rows(tmp_path):
    """Of more bytes than pyarrow looks at by itself."""
    rows = [f'{i},,{i}' for i in range(200_000)]
    data = _of_text(tmp_path, '\n'.join(['id,y,f', *rows, '200000,3,2.5']))
    assert (data.y.sum(), data.y[-1], data.f[-1]) == (3 - len(rows), 3, 2.5)
    wide = f'id,f\n0,{12345678901234567890}\n1,{12345678901234567891}\n'
    refuses(lambda: _of_text(tmp_path, wide), 'at most 64 bits in', "'f' of", 'leave the column')


# A folder by types


def _typed(root: Path) -> Path:
    papers = {'id': ['p2', 'p0', 'p1'], 'features': COLUMNS['emb'][:3], 'label': [1, None, 0]}
    write_table(root / 'nodes' / 'paper.parquet', {**papers, 'split': ['train', 'test', 'train']})
    write_table(root / 'nodes' / 'author' / 'part-0.parquet', {'id': [7, 8], 'age': [30, 40]})
    write_table(root / 'nodes' / 'author' / 'part-1.parquet', {'id': [9], 'age': [50]})
    kinds = pa.array(['first', 'last', 'first']).dictionary_encode()
    _ends(root / 'edges' / 'paper__cites__paper.parquet', [('p0', 'p1'), ('p2', 'p0')])
    src, dst = pa.array([9, 7, 7]), pa.array(['p1', 'p1', 'p2'])
    writes = {'src': src, 'dst': dst, 'kind': kinds}
    write_table(root / 'edges' / 'author__writes__paper.parquet' / 'part-0.parquet', writes)
    (root / 'edges' / '_SUCCESS').touch()
    return root


def test_a_folder_by_types(tmp_path):
    root, writes = _typed(tmp_path / 'g'), ('author', 'writes', 'paper')
    options = NodeTableOptions(y='label', train='split=train', test='split=test')
    data: Any = load_source(root, tables=options)
    assert data.node_types == ['author', 'paper']
    found = content(data)
    assert found['paper', 'cites', 'paper'] == {'edge_index': [[1, 0], [2, 1]]}
    ends, kinds = [[2, 0, 0], [2, 2, 0]], [0, 1, 0]
    want = {'edge_index': ends, 'kind': kinds, 'kind_names': ['first', 'last']}
    assert found[writes] == want
    want = {'age': [30, 40, 50], 'num_nodes': 3, 'node_names': [7, 8, 9]}
    assert found['author'] == want
    want = {'y': [1, -1, 0], 'x': COLUMNS['emb'][:3], 'train_mask': [True, False, True]}
    assert {**want, 'node_names': ['p2', 'p0', 'p1']}.items() <= found['paper'].items()
    assert len(found) == 4
    words = ['--y', 'label', '--train', 'split=train', '--test', 'split=test', '--undirected']
    assert command(root, tmp_path / 'out', *words) == 0
    assert whole(tmp_path / 'out', 'y', 'paper') == [1, -1, 0]
    shard = pyg_sar.load_shard(tmp_path / 'out')
    for relation in (writes, ('paper', 'rev_writes', 'author')):
        assert shard[relation].kind_names == ['first', 'last']


def _of_users(root: Path, columns: str, suffix: str = 'parquet', relation: str = 'rates') -> Any:
    """The edges of a folder with users and items, of two columns: 2, 0 and 0, 1."""
    for type_ in ('user', 'items'):
        write_table(root / 'nodes' / f'{type_}.parquet', {'id': [0, 1, 2]})
    ends = ('items', 'user') if relation == 'rated_by' else ('user', 'items')
    path = root / 'edges' / f'{ends[0]}__{relation}__{ends[1]}.{suffix}'
    rows = np.array([[2, 0], [0, 1], [7, 8]][: columns.count(',') + 1])
    if suffix == 'csv':
        path.parent.mkdir(parents=True)
        np.savetxt(path, rows.T, '%d', ',', header=columns, comments='')
    else:
        write_table(path, dict(zip(columns.split(','), rows, strict=True)))
    data: Any = load_source(root)
    return data[ends[0], relation, ends[1]].edge_index.tolist()


@pytest.mark.parametrize('suffix', ['parquet', 'csv'])
@pytest.mark.parametrize(
    ('columns', 'relation', 'is_turned'),
    [
        ('item_id,user_id', 'rates', True),
        ('item_id,user_id', 'rated_by', False),
        ('ItemId,UserId,rating', 'rates', True),
        ('from_item,to_user', 'rates', True),
        ('users,items', 'rates', False),
        ('users,other', 'rates', False),
        ('one,other', 'rates', False),
    ],
)
def test_columns_named_by_types(tmp_path, columns, relation, is_turned, suffix):
    rows = [[2, 0], [0, 1]]
    found = _of_users(tmp_path, columns, suffix, relation)
    assert found == (rows[::-1] if is_turned else rows)


@pytest.mark.parametrize('suffix', ['parquet', 'csv'])
@pytest.mark.parametrize('columns', ['item,other', 'other,user_id'])
def test_columns_named_against_types(tmp_path, columns, suffix):
    told = "ids of 'user' and of 'items', in this order"
    refuses(lambda: _of_users(tmp_path, columns, suffix), told, 'rename the columns')


@pytest.mark.parametrize('suffix', ['parquet', 'csv'])
def test_columns_of_one_type_are_not_told_by_their_place(tmp_path, suffix):
    write_table(tmp_path / 'nodes' / 'paper.parquet', {'id': [0, 1, 2]})
    path = tmp_path / 'edges' / f'paper__cites__paper.{suffix}'
    path.parent.mkdir()
    save_frame(pandas.DataFrame({'cited': [2, 0], 'citing': [1, 0]}), path)
    refuses(lambda: load_source(tmp_path), "columns 'src' and 'dst'", "['cited', 'citing']")


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('edges/paper_cites_paper.parquet', r"SRC__REL__DST of .* .got 'paper_cites_paper'"),
        ('edges/paper____paper.parquet', 'SRC__REL__DST'),
        ('edges/paper__in__venue.parquet', "nodes of type 'venue' in .*paper__in__venue"),
        ('nodes/readme.txt', "tables in .*nodes' .got 'readme.txt'"),
        ('nodes/paper.csv', "one table 'paper' in"),
    ],
)
def test_folders_by_types_that_are_refused(tmp_path, name, message):
    root = _typed(tmp_path)
    if name.endswith('.parquet'):
        _ends(root / name)
    else:
        (root / name).write_text('id\n0\n')
    with pytest.raises(ValueError, match=message):
        load_source(root, tables=NodeTableOptions(y='label', train='split=train'))


def test_options_of_a_folder_by_types(tmp_path):
    root = _typed(tmp_path)
    for given, message in (
        ({'y': 'nope'}, "column 'nope' in .*author' or .*paper.parquet', as --y says"),
        ({'nodes': 'n.parquet'}, 'no --nodes beside a folder'),
        ({}, "numbers in 'split' of .*paper.parquet.*name it by --id, --y"),
    ):
        with pytest.raises(ValueError, match=message):
            load_source(root, tables=NodeTableOptions(**given))
    with pytest.raises(ValueError, match="no 'relabel' beside a table of nodes"):
        load_source(root, relabel=True)


@pytest.mark.filterwarnings('ignore:.*no header')
def test_lists_of_edges_beside_tables(tmp_path, scratch):
    """As text edges may have any form; ids of a table that are text are never numbers."""

    def load(ids: Any, text: str, **columns: Any) -> Any:
        nodes = tmp_path / 'n.parquet'
        pandas.DataFrame({'id': ids, **columns}).to_parquet(nodes)
        (tmp_path / 'e.tsv.gz').write_bytes(gzip.compress(text.encode()))
        return _load(tmp_path / 'e.tsv.gz', nodes, scratch=scratch)

    ids = ['007', '7', 'x']
    data = load(ids, '7\t007\n007\tx\n', age=[1, 2, 3])
    assert (data.edge_index.tolist(), data.age.tolist()) == ([[1, 0], [0, 2]], [1, 2, 3])
    assert data.node_names.to_pylist() == ids
    data = load([10, 30, 20], '# a comment\n20 10 0.5\n30 20 1\n')
    assert (data.edge_index.tolist(), data.edge_weight.tolist()) == ([[2, 1], [0, 2]], [0.5, 1])
    data = load([0, 1, 2], '2 1\n0 0\n')
    assert (data.edge_index.tolist(), data.num_nodes) == ([[2, 0], [1, 0]], 3)
    for of_table, text, message in (
        (ids, '7\t007\n007\t8\n', "got '8' as destination of edge 1"),
        ([10, 30, 20], '20 10\n21 10\n', 'got 21 as source of edge 1'),
        ([0, 1], '0 1\n1 2\n', 'got 2 as destination of edge 1'),
    ):
        with pytest.raises(ValueError, match=message):
            load(of_table, text)
