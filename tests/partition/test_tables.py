"""Tables of edges as databases, Spark and pandas write them."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
from graph_files import IDS, command, content, refuses, save_frame, write_edges, write_table
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.partition.memmap import Scratch
from pyg_sar.partition.sources import columns as columns_module
from pyg_sar.partition.sources import load_source, names, parts
from pyg_sar.partition.sources.end_columns import ends_of
from pyg_sar.partition.sources.reverse import add_reverse_edges
from pyg_sar.partition.sources.tables import read_table

pa = pytest.importorskip('pyarrow')
parquet = pytest.importorskip('pyarrow.parquet')
pandas = pytest.importorskip('pandas')


def _refuses(path: Path, *words: str) -> None:
    refuses(lambda: load_source(path), *words)


@pytest.mark.parametrize('suffix', ['.csv', '.parquet'])
def test_a_table_beside_arrays(tmp_path, suffix):
    columns = {'w': [0.5, 1, 2, 4, 8], 'dst': [1, 2, 3, 0, 1], 'src': [0, 0, 2, 3, 3]}
    path = save_frame(pandas.DataFrame(columns), tmp_path / f'edges{suffix}')
    edges = [columns['src'], columns['dst']]
    np.save(tmp_path / 'x.npy', np.eye(6, dtype=np.float32))
    for found in (read_table(path, Scratch(), batch_rows=3), load_source(tmp_path)):
        assert found['edge_index'].tolist() == edges
        assert found['w'].tolist() == columns['w']
    assert (load_source(tmp_path).num_nodes, load_source(path).num_nodes) == (6, 4)
    np.save(tmp_path / 'edge_index.npy', np.array(edges))
    _refuses(tmp_path, 'one file')


# Columns


def test_numbers_of_every_type_and_odd_names(tmp_path):
    for dtype in ('bool', 'float16', 'uint8', 'uint16', 'uint32', 'uint64', 'int8', 'float32'):
        values = np.array([0, 1, 1, 0, 1, 0], dtype)
        found = load_source(write_edges(tmp_path / 'a.parquet', z=values)).z
        assert torch.equal(found, torch.from_numpy(values)), dtype
    odd = {'a.b': IDS, '.c': IDS, 'index': IDS, 'd e': pa.array([[1, 2]] * 6)}
    assert {*odd} <= {*load_source(write_edges(tmp_path / 'a.parquet', **odd)).keys()}


@pytest.mark.parametrize('batch_rows', [2, 100])
def test_lists_are_features(tmp_path, batch_rows):
    lists = np.arange(12.0).reshape(6, 2)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(lists.ravel()), 2)
    kinds = {
        'float64': fixed,
        'float32': pa.array(lists.tolist(), pa.large_list(pa.float32())),
        'int16': pa.array(lists.astype(int).tolist(), pa.list_(pa.int16())),
        'bool': pa.array((lists > 3).tolist()),
    }
    path = write_edges(tmp_path / 'a.parquet', **kinds)
    found = read_table(path, Scratch(), batch_rows=batch_rows)
    for name in kinds:
        want = lists > 3 if name == 'bool' else lists
        assert torch.equal(found[name], torch.from_numpy(want.astype(name))), name
    frame = pandas.DataFrame({'src': IDS, 'dst': IDS, 'emb': list(lists)})
    frame.to_parquet(path)
    assert torch.equal(load_source(path).emb, torch.from_numpy(lists))
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float64(), (2,)), fixed)
    assert torch.equal(load_source(write_edges(path, z=tensors)).z, torch.from_numpy(lists))
    none = np.empty(0, np.int64)
    write_edges(path, src=none, dst=none, z=pa.array([], pa.list_(pa.float32())))
    assert load_source(path).z.shape == (0, 0)


def test_categories_are_numbers_with_names(tmp_path):
    kinds = pandas.Categorical(list('babcab'), categories=['z', 'c', 'b', 'a'])
    years = pandas.Categorical([2021, 2019] * 3)
    frame = pandas.DataFrame({'src': IDS, 'dst': IDS[::-1], 'kind': kinds, 'year': years})
    frame.to_parquet(tmp_path / 'a.parquet')
    data = load_source(tmp_path / 'a.parquet')
    assert data.kind.dtype == torch.int64
    found = content(data)
    assert (found['kind'], found['kind_names']) == (kinds.codes.tolist(), ['z', 'c', 'b', 'a'])
    assert found['year'] == [2021, 2019] * 3
    assert 'year_names' not in found


def test_categories_of_parts_agree(tmp_path):
    values = []
    for i, order in enumerate((['a', 'b'], ['c', 'b', 'a'])):
        column = pandas.Categorical([*order, *order, *order][:6], categories=order)
        values += list(column)
        write_edges(tmp_path / 'edges' / f'part-{i}.parquet', kind=pa.Array.from_pandas(column))
    for rows in (2, 100):
        found = read_table(tmp_path / 'edges', Scratch(), batch_rows=rows)
        assert found['kind_names'] == ['a', 'b', 'c']
        assert [found['kind_names'][k] for k in found['kind']] == values


def test_too_many_categories(tmp_path, monkeypatch):
    monkeypatch.setattr(columns_module, 'MOST_NAMES', 3)
    three, four = (pa.array(list(text)).dictionary_encode() for text in ('abcabc', 'abcdab'))
    assert load_source(write_edges(tmp_path / 'a.parquet', z=three)).z_names == ['a', 'b', 'c']
    _refuses(write_edges(tmp_path / 'a.parquet', z=four), "at most 3 names in 'z' of", 'factorize')


@pytest.mark.parametrize(
    ('type_', 'told'),
    [
        (pa.timestamp('us', 'UTC'), 'microseconds since 1970 in UTC'),
        # Parquet has no seconds.
        (pa.timestamp('s', 'Europe/Berlin'), 'milliseconds since 1970 in UTC'),
        (pa.timestamp('ns'), 'nanoseconds since 1970'),
        (pa.date32(), 'days since 1970'),
        (pa.date64(), 'days since 1970'),
        (pa.time32('ms'), 'milliseconds since midnight'),
        (pa.time64('us'), 'microseconds since midnight'),
        (pa.duration('ms'), 'milliseconds'),
    ],
)
def test_times_are_numbers_in_their_unit(tmp_path, type_, told):
    step = 86_400_000 if type_ == pa.date64() else 1
    narrow = pa.int32() if type_ in (pa.date32(), pa.time32('ms')) else pa.int64()
    path = write_edges(tmp_path / 'f.parquet', when=pa.array(IDS * step, narrow).cast(type_))
    with pytest.warns(UserWarning, match='holds') as warned:
        data = load_source(path)
    assert [str(each.message) for each in warned] == [f"'when' of '{path}' holds {told}"]
    assert data.when.dtype == torch.int64
    assert data.when.tolist() == (IDS * (1000 if 'Berlin' in str(type_) else 1)).tolist()


def test_decimals_and_a_date_in_text(tmp_path):
    path = write_edges(tmp_path / 'f.parquet', price=pa.array(IDS).cast(pa.decimal128(22, 2)))
    with pytest.warns(UserWarning, match=r"'price' of .* holds decimal128\(22, 2\), .*float64"):
        data = load_source(path)
    assert torch.equal(data.price, torch.arange(6.0, dtype=torch.float64))
    (tmp_path / 'a.csv').write_text('src,dst,z\n0,1,2024-01-02\n')
    with pytest.warns(UserWarning, match='days since 1970'):
        assert load_source(tmp_path / 'a.csv').z.tolist() == [19724]


def test_as_many_edges_as_nodes(tmp_path, check_partition):
    """Columns stay those of the edges, whatever their names are."""
    weights = pa.array([5.0, 6, 7, 8, 9, 10])
    kinds = pa.array(list('abcdef')).dictionary_encode()
    src = np.array([3, 1, 4, 0, 0, 3])
    path = write_edges(tmp_path / 'a.parquet', src=src, w=weights, pos=IDS, kind=kinds)
    data = load_source(path)
    assert data.num_nodes == data.num_edges == 6
    pyg_sar.partition_graph(path, 2, tmp_path / 'out', method='random')
    names_of_edges = ('w', 'pos', 'kind')
    check_partition(tmp_path / 'out', data, 2, node_attrs=(), edge_attrs=names_of_edges)
    assert pyg_sar.load_shard(tmp_path / 'out').kind_names == list('abcdef')
    both = add_reverse_edges(data)
    assert both.num_edges > 6
    assert all(both[name].size(0) == both.num_edges for name in names_of_edges)
    assert both.kind_names == list('abcdef')
    data.edge_index[0, 5] = 2  # now the way back of an edge is another
    refuses(lambda: add_reverse_edges(data), "weights in 'kind'", 'categories', '--undirected out')


# Folders


def test_a_folder_of_spark(tmp_path):
    folder = tmp_path / 'edges'
    for i, year in enumerate((2020, 2021)):
        for land in ('de', 'fr'):
            part = folder / f'year={year}' / f'land={land}'
            name = f'part-0000{i}-0e6b.c000.snappy.parquet'
            write_table(part / name, {'src': IDS[:4], 'dst': [i] * 4, 'w': [i + 0.5] * 4})
            (part / f'.{name}.crc').touch()
    (folder / '_SUCCESS').touch()
    (folder / '._SUCCESS.crc').touch()
    want = pandas.read_parquet(folder)
    assert content(load_source(folder)) == {
        'edge_index': [want.src.tolist(), want.dst.tolist()],
        'num_nodes': 4,
        'w': want.w.tolist(),
        'year': [2020] * 8 + [2021] * 8,
        'land': ([0] * 4 + [1] * 4) * 2,
        'land_names': ['de', 'fr'],
    }
    # Above the folder such a name is none of a column.
    path = write_edges(tmp_path / 'run=3' / 'a.parquet')
    assert 'run' not in load_source(path)
    assert 'run' not in load_source(path.parent)


def test_parts_come_by_their_numbers(tmp_path):
    for i in (10, 9, 2):
        write_edges(tmp_path / f'part.{i}.parquet', w=np.full(6, i))
    assert load_source(tmp_path).w.tolist() == [2] * 6 + [9] * 6 + [10] * 6


def test_parts_that_differ(tmp_path):
    first = {'src': IDS, 'dst': IDS, 'w': IDS.astype(np.float32), 'n': IDS.astype(np.int16)}
    second = {'n': IDS + 2**40, 'w': IDS + 0.1}
    second |= {'dst': IDS.astype(np.uint8), 'src': IDS.astype(np.int32)}
    for i, columns in enumerate((first, second)):
        write_table(tmp_path / f'part-{i}.parquet', columns)
    data = load_source(tmp_path)
    assert data.n.tolist() == [*IDS, *(IDS + 2**40)]
    assert data.w.tolist() == [*IDS, *(IDS + 0.1)]
    assert data.w.dtype == torch.float64
    assert data.edge_index.tolist() == [[*IDS, *IDS]] * 2
    for column in (IDS + 0.5, pa.array(list('ababab')), pa.nulls(6), IDS > 2):
        last = write_edges(tmp_path / 'part-2.parquet', w=second['w'], n=column)
        _refuses(tmp_path, 'the same columns in all of', str(last), "'n' is ", 'write both')
    last = write_edges(tmp_path / 'part-2.parquet', w=second['w'])
    _refuses(tmp_path, 'the same columns in all of', str(last), "['n'] is not in all")
    last.write_bytes(b'PAR1 is what it begins with')
    _refuses(tmp_path, 'a table of numbers in', 'part-2.parquet')


def test_lists_of_parts(tmp_path):
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12.0, dtype=np.float32)), 2)
    write_edges(tmp_path / 'part-0.parquet', z=fixed)
    write_edges(tmp_path / 'part-1.parquet', z=pa.array([[1.5, 2.5]] * 6))
    assert load_source(tmp_path).z.tolist() == [*fixed.to_pylist(), *[[1.5, 2.5]] * 6]
    write_edges(tmp_path / 'part-1.parquet', z=pa.array([[1.5]] * 6))
    _refuses(tmp_path, 'lists of one length', '2 numbers in row 0 and 1 in row 6')


# Names


TEXTS = [('ann', 'bob'), ('bob', 'zoe'), ('ann', 'eve'), ('eve', 'ann')]


@pytest.mark.filterwarnings('ignore:.*4 names of nodes')
@pytest.mark.parametrize('suffix', ['.parquet', '.csv'])
@pytest.mark.parametrize('batch_rows', [1, 3, 100])
def test_names_become_numbers(tmp_path, suffix, batch_rows):
    path = save_frame(pandas.DataFrame(TEXTS, columns=['src', 'dst']), tmp_path / f'a{suffix}')
    ids, names_ = pandas.factorize(np.ravel(TEXTS))
    found = read_table(path, Scratch(), batch_rows=batch_rows)
    assert found['edge_index'].tolist() == ids.reshape(-1, 2).T.tolist()
    assert found['node_names'].to_pylist() == names_.tolist()
    data = load_source(path)
    assert data.edge_index.dtype == torch.int64
    assert data.num_nodes == 4
    pyg_sar.partition_graph(path, 2, tmp_path / 'out', method='range')
    assert pyg_sar.load_shard(tmp_path / 'out').num_nodes == 4


def test_categories_and_uuids_are_ids(tmp_path):
    order = ['nobody', 'zoe', 'bob', 'ann', 'eve']  # one that no edge has, which is no node
    frame = pandas.DataFrame(TEXTS, columns=['src', 'dst']).astype(pandas.CategoricalDtype(order))
    path = save_frame(frame, tmp_path / 'a.parquet')
    assert load_source(path).node_names.to_pylist() == ['ann', 'bob', 'zoe', 'eve']
    ids = [uuid.UUID(int=i).bytes for i in (9, 4, 4, 1, 9, 1)]
    of_16 = pa.array(ids, pa.binary(16))
    for column in (of_16, pa.array(ids), pa.ExtensionArray.from_storage(pa.uuid(), of_16)):
        data = load_source(write_edges(path, src=column, dst=column))
        assert data.edge_index.tolist() == [[0, 1, 1, 2, 0, 2]] * 2
        assert data.node_names.to_pylist() == [ids[0], ids[1], ids[3]]
    pyg_sar.partition_graph(path, 2, tmp_path / 'out')
    assert pyg_sar.load_shard(tmp_path / 'out').node_names[:] == data.node_names.to_pylist()


def test_integers_are_numbered_if_so_told(tmp_path):
    path = write_table(tmp_path / 'a.parquet', {'src': [70, 5, -3], 'dst': [5, 70, 2**40]})
    for relabel in (True, False):  # more than 32 bits are numbered in any case
        with pytest.warns(UserWarning, match='ids from -3 to .* became 0 to 3'):
            data = load_source(path, relabel=relabel)
        names_ = [-3, 5, 70, 2**40]
        want = {'edge_index': [[2, 1, 0], [1, 2, 3]], 'num_nodes': 4, 'node_names': names_}
        assert content(data) == want
    write_table(path, {'src': [0, 2], 'dst': [2, 1]})
    assert content(load_source(path)) == {'edge_index': [[0, 2], [2, 1]], 'num_nodes': 3}


def test_rows_of_pandas_are_left_out(tmp_path):
    """A table filtered by pandas has a column of the numbers of its rows."""
    frame = pandas.DataFrame({'src': [0, 5, 3, 1], 'dst': [1, 0, 0, 2], 'w': [0.5, 2, 2, 1]})
    frame.sort_values('dst')[lambda rows: rows.w < 2].to_parquet(tmp_path / 'a.parquet')
    assert '__index_level_0__' in parquet.read_schema(tmp_path / 'a.parquet').names
    with pytest.warns(UserWarning, match='left out .* numbers of rows: __index_level_0__$'):
        pyg_sar.partition_graph(tmp_path / 'a.parquet', 1, tmp_path / 'out')
    data = pyg_sar.load_shard(tmp_path / 'out')
    edges = zip(*data.edge_index.tolist(), data.w.tolist(), strict=True)
    assert sorted(edges) == [(0, 1, 0.5), (1, 2, 1)]


def test_ends_by_other_names(tmp_path):
    for src, dst in (('id_1', 'id_2'), ('FromNodeId', 'ToNodeId'), ('from_address', 'to_address')):
        path = write_table(tmp_path / 'a.parquet', {'w': IDS, dst: IDS[::-1].copy(), src: IDS})
        data = load_source(path)
        assert data.edge_index.tolist() == [IDS.tolist(), IDS[::-1].tolist()]
        assert data.w.tolist() == IDS.tolist()


@pytest.mark.parametrize(
    ('names', 'ends'),
    [
        ('u,v,valid_from,valid_to', (0, 1)),
        ('node1,node2,from_year,to_year', (0, 1)),
        ('label1,label2,id1,id2', (2, 3)),
        ('from_label,to_label,from_id,to_id', (2, 3)),
        ('source_kind,id,created,target_id,source_id', (4, 3)),
        ('protein1,protein2,score', (0, 1)),
        ('hash,nonce,block,from_address,to_address', (3, 4)),
        ('score1,score2,user,item', None),
        ('source_id,target_id,source_name,target_name', None),
        ('from_year,to_year', None),
    ],
)
def test_plain_names_win_over_words_in_names(names, ends):
    assert ends_of(names.split(',')) == ends


@pytest.mark.parametrize('batch_rows', [1, 4, 1000])
def test_numbers_do_not_depend_on_batches(monkeypatch, batch_rows):
    monkeypatch.setattr(names, 'WAITING', batch_rows)
    random = np.random.default_rng(0)
    ids = random.integers(50, size=(100, 2))
    texts = np.array([f'n{i}' for i in range(50)])[ids]
    for values, is_sorted in ((texts, False), (ids, False), (ids, True), (texts, True)):
        number, different = pandas.factorize(values.ravel(), sort=is_sorted)
        plain = [pa.chunked_array([list(column[:30]), list(column[30:])]) for column in values.T]
        for columns in (plain, [column.dictionary_encode() for column in plain]):
            numbering = names.Numbering()
            for start in range(0, 100, batch_rows):
                of_columns = (c.slice(start, batch_rows).combine_chunks() for c in columns)
                numbering.add(*of_columns)
            found, of = numbering.result(is_sorted=is_sorted)
            assert torch.equal(found.view(-1).long(), torch.from_numpy(number))
            assert of.to_pylist() == different.tolist()


def test_places():
    column = pa.chunked_array([['d'], ['a', 'z']])
    assert names.places(pa.array(list('abcd')), column).tolist() == [3, 0, -1]


def test_the_command_tells_of_units(tmp_path, capsys):
    kinds = pa.array(list('ababab')).dictionary_encode()
    when, emb = pa.array(IDS, pa.timestamp('us', 'UTC')), pa.array([[1.0, 2]] * 6)
    path = write_edges(tmp_path / 'f.parquet', when=when, kind=kinds, emb=emb)
    assert command(path, tmp_path / 'out') == 0
    note = f"note: 'when' of '{path}' holds microseconds since 1970 in UTC\n"
    assert capsys.readouterr().err.count(note) == 1
    shard = pyg_sar.load_shard(tmp_path / 'out')
    assert shard.emb.shape[1] == 2
    assert shard.kind_names == ['a', 'b']


def test_batches_of_wide_lists_are_small(tmp_path):
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(64 * 6.0)), 64)
    table = parts.open_table(write_edges(tmp_path / 'a.parquet', z=wide))
    sizes = [len(batch) for batch in table.batches(['src', 'z'], batch_rows=16)]
    assert sizes == [2, 2, 2]
    assert isinstance(load_source(tmp_path / 'a.parquet'), Data)
