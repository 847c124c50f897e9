"""Graphs from files and by name."""

from __future__ import annotations

import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_files import assert_same, command, refuses, save_frame, whole, write_edges
from hetero_graphs import hetero_graph
from partition_files import load_part, load_shard_files
from torch_geometric import EdgeIndex
from torch_geometric import transforms as T
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.datasets import FakeDataset, FakeHeteroDataset, KarateClub

import pyg_sar
from pyg_sar.partition.memmap import Scratch
from pyg_sar.partition.partition_graph import partition_graph
from pyg_sar.partition.sources import load_source

EDGES = np.array([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
X = np.array([[1.0, 0, 0], [0, 0, 2], [0, 0, 0], [3, 4, 0]], dtype=np.float32)


# .pt


def test_saved(tmp_path, graph):
    """A Data, a HeteroData, a dict, and what an InMemoryDataset leaves in processed/data.pt."""
    graph.num_classes, graph.names = 4, ['a', 'b']
    hetero = hetero_graph()
    # Leaves a defaultdict in the graph, which torch's unpickler refuses to fill.
    assert graph.is_node_attr('x')
    assert hetero['paper'].is_node_attr('x')
    for data in (graph, hetero):
        for content in (data, data.to_dict(), (data.to_dict(), None, type(data))):
            torch.save(content, tmp_path / 'data.pt')
            assert_same(load_source(tmp_path / 'data.pt'), data)
    found = load_source(str(tmp_path / 'data.pt'))
    assert found['paper'].is_node_attr('x')


@pytest.mark.filterwarnings('ignore:Sparse CSR tensor support is in beta')
def test_saved_special_tensors(tmp_path, graph, check_partition):
    special = graph.clone()
    special.edge_index = EdgeIndex(graph.edge_index, sparse_size=(50, 50))
    special.x = graph.x.to_sparse_csr()
    torch.save(special, tmp_path / 'data.pt')
    partition_graph(load_source(tmp_path / 'data.pt'), 3, tmp_path / 'out')
    check_partition(tmp_path / 'out', graph, 3)


class _Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize('wrap', [lambda x: x, lambda x: {'edge_index': x}, lambda x: Data(a=x)])
def test_hostile_pickle_is_refused(tmp_path, graph, wrap):
    torch.save(wrap(_Hostile(tmp_path / 'ran')), tmp_path / 'data.pt')
    (tmp_path / 'plain.pt').write_bytes(pickle.dumps(wrap(_Hostile(tmp_path / 'ran'))))
    torch.save(graph, tmp_path / 'good.pt')
    with torch.serialization.safe_globals([_Hostile]):  # not by what the caller allows, either
        before = set(torch.serialization.get_safe_globals())
        load_source(tmp_path / 'good.pt')
        with pytest.raises(ValueError, match=r"got a pickle that needs '\w+\.mkdir'"):
            load_source(tmp_path / 'data.pt')
        with pytest.raises(ValueError, match=r'plain\.pt'):
            load_source(tmp_path / 'plain.pt')
        assert set(torch.serialization.get_safe_globals()) == before
    assert not (tmp_path / 'ran').exists()


# Arrays


def test_npz_dense(tmp_path):
    arrays = {
        'edge_index': EDGES,
        'x': X,
        'y': np.array([0, 1, -1, 0]),
        'train_mask': np.array([True, False, False, True]),
        'size': np.ones((4, 2)),
        'edge_weight': np.arange(5.0),
    }
    np.savez(tmp_path / 'a.npz', num_classes=np.int64(2), **arrays)
    tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
    assert_same(load_source(tmp_path / 'a.npz'), Data(**tensors, num_classes=2))


def test_npz_of_relations(tmp_path):
    arrays = {
        'edge|a|to|b': np.array([[0, 1], [1, 0]], dtype=np.int32),
        'edge_attr|a|to|b': np.ones((2, 3)),
        'x|a': X[:2],
        'y|b': np.array([1, 0, 2]),
        'num_nodes|a': np.int64(2),
        'names|a': np.array(['p', 'q']),
        'no_type': np.array([1.0, 2]),
    }
    np.savez(tmp_path / 'a.npz', **arrays)
    data, relation = load_source(tmp_path / 'a.npz'), ('a', 'to', 'b')
    assert data.edge_types == [relation]
    assert data[relation].edge_index.tolist() == [[0, 1], [1, 0]]
    assert data[relation].edge_index.dtype == torch.int64
    with pytest.warns(UserWarning, match=r'names') as warned:
        partition_graph(data, 2, tmp_path / 'out')
    assert len(warned) == 1
    found = pyg_sar.local(pyg_sar.load_shard(tmp_path / 'out'))
    assert found.no_type.tolist() == [1.0, 2]
    assert torch.equal(found['a'].x, torch.from_numpy(X[:2])[found['a'].n_id])
    assert torch.equal(found['b'].y, torch.tensor([1, 0, 2])[found['b'].n_id])
    assert found[relation].edge_attr.shape == (2, 3)


def test_npz_dropped_arrays_are_named(tmp_path):
    """[2, E'] has one row per node, if there are two."""
    edges, two, three = np.array([[0, 1], [1, 0]]), np.array(['a', 'b']), np.array([*'abc'])
    more = {'edge_index_directed': edges, 'class_names': three, 'names': two}
    np.savez(tmp_path / 'a.npz', edge_index=edges, num_nodes=2, **more)
    with pytest.warns(UserWarning, match=r'(?=.* class_names \().* names \('):
        partition_graph(tmp_path / 'a.npz', 2, tmp_path / 'out')
    data = pyg_sar.load_shard(tmp_path / 'out')
    assert torch.equal(data.edge_index_directed, torch.tensor(edges))


# Tables


def test_table_without_pyarrow(tmp_path, monkeypatch):
    (tmp_path / 'edges.csv').write_text('src,dst\n0,1\n')
    monkeypatch.setitem(sys.modules, 'pyarrow', None)
    with pytest.raises(ValueError, match=r'pyg_sar\[fast\]'):
        load_source(tmp_path / 'edges.csv')


@pytest.mark.parametrize('name', ['a.mat', 'a'])
def test_files_of_other_kinds(tmp_path, name):
    (tmp_path / name).write_text('%%MatrixMarket\n3 3 1\n2 1\n')
    with pytest.raises(ValueError, match=r', a file\): a \.pt, '):
        load_source(tmp_path / name)


@pytest.mark.parametrize('suffix', ['.parquet', '.csv'])
def test_a_folder_of_parts_is_one_table(tmp_path, suffix):
    pandas, folder = pytest.importorskip('pandas'), tmp_path / f'edges{suffix}'
    folder.mkdir()
    for other in ('_SUCCESS', f'.part-0{suffix}.crc', f'._part-0{suffix}'):
        (folder / other).touch()

    def write(number: int, **columns: Any) -> None:
        save_frame(pandas.DataFrame(columns), folder / f'part-{number}{suffix}')

    ids = np.arange(4)
    for i in range(3):
        write(i, src=ids, dst=i, w=i + 0.5)
    for path in (folder, tmp_path):  # as such, and as the edges of a folder of arrays
        data = load_source(path)
        assert data.edge_index.tolist() == [[0, 1, 2, 3] * 3, [0] * 4 + [1] * 4 + [2] * 4]
        assert data.w.tolist() == [0.5] * 4 + [1.5] * 4 + [2.5] * 4
        np.save(tmp_path / 'x.npy', np.ones((4, 2)))
    assert data.x.shape == (4, 2)
    wrong = [{'src': ids, 'dst': ids}]
    wrong += [{'dst': ids, 'src': ids, 'w': ids + 0.5}] if suffix == '.csv' else []
    for columns in wrong:
        write(3, **columns)
        message = f"(the same columns|the header of the other files) .*part-3{suffix}'"
        with pytest.raises(ValueError, match=message):
            load_source(folder)


# Numbers that torch or NumPy hardly have


@pytest.mark.parametrize(
    ('dtype', 'on_disk'), [('uint16', True), ('uint32', False), ('uint64', True)]
)
def test_ids_without_a_sign(tmp_path, request, dtype, on_disk):
    """In arrays, tables and tensors: the same parts as of ids of 64 bits."""
    if dtype != 'uint16':  # whose ids go up to 40,000
        request.getfixturevalue('tiny')
    edges = torch.randint(60, (2, 150), generator=torch.Generator().manual_seed(0))
    edges[0, 0] = 40_000 if dtype == 'uint16' else 59
    tensors = {'edge_index': edges, 'train_idx': torch.tensor([3, 1, 2])}
    partition_graph(Data(**tensors), 3, tmp_path / 'want', method='ldg')
    (tmp_path / 'folder').mkdir()
    narrow = {}
    for name, values in tensors.items():
        array = values.numpy().astype(dtype)
        np.save(tmp_path / 'folder' / f'{name}.npy', array)
        narrow[name] = torch.from_numpy(array)
    torch.save(narrow, tmp_path / 'a.pt')
    scratch = Scratch(tmp_path) if on_disk else None
    files = [load_source(tmp_path / name, scratch=scratch) for name in ('folder', 'a.pt')]
    for at, source in enumerate([Data(**narrow), *files]):
        partition_graph(source, 3, tmp_path / f'{at}', method='ldg')
        for part in range(3):
            found, wanted = (load_shard_files(tmp_path / name, part) for name in (f'{at}', 'want'))
            assert all(torch.equal(found[key], wanted[key]) for key in wanted)
            feats = load_part(tmp_path / f'{at}', part, 'node_feats.pt')
            is_seed = torch.isin(feats['global_id'], tensors['train_idx'])
            assert torch.equal(feats['feats']['train_mask'], is_seed)
    assert int(edges.max()) + 1 == pyg_sar.load_shard(tmp_path / '0').num_nodes


@pytest.mark.filterwarnings('ignore:.*is its largest id')
def test_ids_of_a_table_without_a_sign(tmp_path):
    pytest.importorskip('pyarrow')
    for dtype in ('uint8', 'uint16', 'uint32', 'uint64'):
        ids = np.array([0, 200, 7], dtype)
        path = write_edges(tmp_path / 'a.parquet', src=ids, dst=ids[::-1].astype('uint64'))
        partition_graph(path, 2, tmp_path / dtype, method='range')
        data = pyg_sar.load_shard(tmp_path / dtype)
        assert data.edge_index.tolist() == [[0, 200, 7], [7, 200, 0]]
    edges = np.array([[0, 1], [2**64 - 1, 0]], np.uint64)
    with pytest.raises(ValueError, match='must hold ids >= 0'):
        partition_graph(Data(edge_index=torch.from_numpy(edges)), 1, tmp_path / 'none')


@pytest.mark.parametrize('is_zip', [True, False])
def test_numpy_in_a_saved_graph(tmp_path, graph, is_zip):
    """Arrays become tensors, NumPy's numbers those of Python; an array of texts stays one."""
    arrays = {
        'floats': np.arange(3.0),
        'fortran': np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
        'big_endian': np.arange(3, dtype='>i4'),
        'bools': np.array([True, False]),
        'nothing': np.empty((0, 4), np.float32),
        'complex': np.array([1j], np.complex64),
        'single': np.array(3),
    }
    data, path = Data(**graph.to_dict(), **arrays), tmp_path / 'a.pt'
    data.update({'number': np.float32(2), 'flag': np.True_, 'twice': data.floats})
    data.texts, data.parts = np.array(['a', 'bc']), [np.ones(2), {'a': np.zeros(1)}]
    hetero = hetero_graph()
    hetero['paper'].other = hetero.whole = np.arange(3.0)
    for content in (data, data.to_dict(), (data.to_dict(), None, Data)):
        torch.save(content, path, _use_new_zipfile_serialization=is_zip)
        found = load_source(path, scratch=Scratch(tmp_path))
        for name, array in arrays.items():
            want = torch.from_numpy(array.astype(array.dtype.newbyteorder('=')))
            assert found[name].dtype == want.dtype, name
            assert torch.equal(found[name], want), name
        assert (type(found.number), found.number, found.flag) == (float, 2.0, True)
        assert found.texts.tolist() == ['a', 'bc']
        assert (found.parts[0].tolist(), found.parts[1]['a'].tolist()) == ([1, 1], [0])
        assert found.twice is found.floats
        assert torch.equal(found.edge_index, graph.edge_index)
    torch.save(hetero, path, _use_new_zipfile_serialization=is_zip)
    found = load_source(path)
    assert found['paper'].other.tolist() == found.whole.tolist() == [0, 1, 2]
    torch.save({'edge_index': EDGES, 'x': X}, path)
    assert torch.equal(load_source(path).x, torch.from_numpy(X))


@pytest.mark.parametrize('module', [b'numpy.core.', b'numpy._core.'])
def test_arrays_of_both_versions_of_numpy(tmp_path, module):
    """NumPy 1 and NumPy 2 name their functions differently."""
    content = {'edge_index': EDGES, 'number': np.float64(3)}
    torch.save(content, tmp_path / 'a.pt', _use_new_zipfile_serialization=False)
    pickled = re.sub(rb'numpy\._?core\.', module, (tmp_path / 'a.pt').read_bytes())
    assert pickled.count(module + b'multiarray\n') == 2
    (tmp_path / 'a.pt').write_bytes(pickled)
    data = load_source(tmp_path / 'a.pt')
    assert (data.edge_index.tolist(), data.number) == (EDGES.tolist(), 3.0)


# Several graphs in a file


def _batched(graphs: list[Any]) -> list[Any]:
    collated = InMemoryDataset.collate(graphs)
    data, slices = collated
    return [graphs, tuple(graphs), collated, (data.to_dict(), slices, type(graphs[0]))]


@pytest.mark.parametrize('is_zip', [True, False])
def test_several_graphs_are_one_batch(tmp_path, is_zip):
    graphs = [
        Data(
            x=torch.arange(2.0 * n).view(n, 2),
            edge_index=torch.tensor([[0, n - 1, 1], [1, 0, n - 1]]),
            y=torch.tensor([n]),
        )
        for n in (3, 2, 4)
    ]
    want, path = Batch.from_data_list(graphs), tmp_path / 'a.pt'
    assert want.batch.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
    assert want.edge_index.tolist() == [[0, 2, 1, 3, 4, 4, 5, 8, 6], [1, 0, 2, 4, 3, 4, 6, 5, 8]]
    for content in _batched(graphs):
        torch.save(content, path, _use_new_zipfile_serialization=is_zip)
        assert_same(load_source(path), want)
    partition_graph(path, 2, tmp_path / 'out', method='range')
    assert whole(tmp_path / 'out', 'batch') == want.batch.tolist()
    torch.save(graphs[:1], path)
    assert_same(load_source(path), graphs[0])
    for graph, count in zip(graphs, (3, 4, 5), strict=True):
        del graph.x
        graph.num_nodes = count
    for content in _batched(graphs):
        torch.save(content, path, _use_new_zipfile_serialization=is_zip)
        assert load_source(path).batch.tolist() == [0] * 3 + [1] * 4 + [2] * 5


def test_several_heterogeneous_graphs_are_one_batch(tmp_path):
    graphs = [*FakeHeteroDataset(num_graphs=3, avg_num_nodes=20)]
    for content in _batched(graphs):
        torch.save(content, tmp_path / 'a.pt')
        assert_same(load_source(tmp_path / 'a.pt'), Batch.from_data_list(graphs))


@pytest.mark.parametrize('is_hetero', [False, True])
def test_splits_of_one_graph_are_refused(tmp_path, graph, is_hetero):
    options: Any = {}
    if is_hetero:
        graph = FakeHeteroDataset(avg_num_nodes=60)[0]
        options = {'edge_types': graph.edge_types[:1]}
    splits = T.RandomLinkSplit(**options)(graph)
    torch.save(splits, tmp_path / 'a.pt')
    refuses(lambda: load_source(tmp_path / 'a.pt'), 'a tuple of 3 graphs', 'save the one to train')
    torch.save([*splits], tmp_path / 'a.pt')
    assert load_source(tmp_path / 'a.pt').num_nodes == 3 * graph.num_nodes
    torch.save(Batch.from_data_list([*splits]), tmp_path / 'a.pt')
    refuses(lambda: load_source(tmp_path / 'a.pt'), 'save batch.to_data_list()')


def test_a_graph_of_the_first_version_of_pyg(tmp_path):
    """The attributes lay in the object itself."""
    edges, path = torch.tensor([[0, 1], [1, 2]]), tmp_path / 'a.pt'
    old = Data.__new__(Data)
    old.__dict__.update(x=torch.ones(4, 2), edge_index=edges, y=None, __num_nodes__=4)
    torch.save(old, path, _use_new_zipfile_serialization=False)
    assert_same(load_source(path), Data(torch.ones(4, 2), edges, num_nodes=4))
    old.__dict__.update(x=None, edge_index=edges.repeat(1, 2), __num_nodes__=[4, 3])
    slices = {'edge_index': torch.tensor([0, 2, 4])}
    torch.save((old, slices), path, _use_new_zipfile_serialization=False)
    data = load_source(path)
    assert data.edge_index.tolist() == [[0, 1, 4, 5], [1, 2, 5, 6]]
    assert data.batch.tolist() == [0] * 4 + [1] * 3


# Numbers without a header


@pytest.mark.parametrize('dtype', ['int32', 'int64', 'uint16', '>i4'])
def test_raw_numbers(tmp_path, scratch, dtype):
    edges = EDGES.astype(dtype)
    square = np.array([[0, 1], [2, 0]], dtype)
    for name, array, want in (
        ('a.bin', edges, EDGES),
        ('a.npy', edges.T.copy(), EDGES),
        ('a', edges.T.copy(), EDGES),
        ('a', square, square),
    ):
        array.tofile(tmp_path / name)
        data = load_source(tmp_path / name, scratch=scratch, shape=array.shape, dtype=dtype)
        assert data.edge_index.tolist() == want.tolist()
        assert scratch is not None or data.edge_index.dtype == torch.int64
    (tmp_path / 'a').write_bytes(b'')
    assert load_source(tmp_path / 'a', shape=(2, 0), dtype=dtype).num_edges == 0


@pytest.mark.parametrize(
    ('shape', 'dtype', 'told'),
    [
        ((2, 6), 'int32', r'expected 48 bytes in .*2 times 6 numbers of int32 .got 40'),
        ((2, 5), 'int64', r'expected 80 bytes in .*got 40'),
        ((10,), 'int32', r"'shape' must be 2,E or E,2 for E edges .got .10,"),
        ((5, 3), 'int32', r"'shape' must be 2,E or E,2"),
        ((2, -5), 'int32', r"'shape' must be 2,E or E,2"),
        ((2, 5), 'float32', r"'dtype' must be a type of integers such as int32 .got 'float32'"),
        ((2, 5), 'number', r"'dtype' must be a type of integers"),
        ((2, 5), None, r"'shape' and 'dtype' must be given together .got .2, 5. and None"),
        (None, 'int32', r"'shape' and 'dtype' must be given together"),
    ],
)
def test_bad_raw_numbers(tmp_path, shape, dtype, told):
    EDGES.astype(np.int32).tofile(tmp_path / 'a.bin')
    with pytest.raises(ValueError, match=told):
        load_source(tmp_path / 'a.bin', shape=shape, dtype=dtype)


def test_raw_numbers_of_the_command_line(tmp_path, capsys):
    edges, options = EDGES.astype(np.int32), ['--dtype', 'int32', '--shape']
    for name, array, shape in (('a', edges, '2,5'), ('b', edges.T.copy(), '5,2')):
        array.tofile(tmp_path / f'{name}.bin')
        assert command(tmp_path / f'{name}.bin', tmp_path / name, *options, shape) == 0
    for part in range(2):
        first, second = (load_shard_files(tmp_path / name, part) for name in 'ab')
        assert all(torch.equal(first[key], second[key]) for key in first)
    for shape, told in (('2x5', 'whole numbers such as 2,1000'), ('2,6', 'expected 48 bytes')):
        assert command(tmp_path / 'a.bin', tmp_path / 'c', *options, shape) == 2
        assert told in capsys.readouterr().err


# Names

DATA = Path(__file__).parents[2] / 'examples' / 'data'


def test_wordnet_noun():
    data = load_source(DATA / 'wordnet_noun.npz')
    assert sorted(data.keys()) == ['edge_index', 'x', 'y']
    assert data.x.shape == (82_115, 512)
    assert data.x.dtype == torch.float32
    assert data.edge_index.shape == (2, 230_620)
    assert int((data.y >= 0).sum()) == 82_073
    assert data.y.max() == 24
    src, dst = data.edge_index
    assert torch.equal((src * 82_115 + dst).sort()[0], (dst * 82_115 + src).sort()[0])


@pytest.mark.slow
def test_wordnet_hetero():
    data = load_source(DATA / 'wordnet_hetero.npz')
    assert data.num_nodes_dict == {'synset': 117_659, 'word': 147_306}
    assert len(data.edge_types) == 19
    assert data.num_edges == 442_334
    assert data['synset'].x.shape == (117_659, 512)
    assert data['synset'].y.max() == 44
    assert data.validate()
    assert len(T.ToUndirected(merge=False)(data).edge_types) == 38


MODULE = 'torch_geometric.datasets'


class Rooted(FakeDataset):
    """A dataset with files."""

    seen = None

    def __init__(self, root: str, name: str, *, edge_dim: int = 0) -> None:
        Rooted.seen = (root, name)
        super().__init__(num_graphs=1, avg_num_nodes=20, edge_dim=edge_dim)


class Broken(FakeDataset):
    """A dataset that cannot be downloaded."""

    def __init__(self, root: str) -> None:
        raise OSError('no route to host')


def test_dataset_classes():
    data, expected = load_source(f'{MODULE}.KarateClub'), KarateClub()[0]
    assert data.num_classes == 4
    for name in ('x', 'edge_index', 'y', 'train_mask'):
        assert torch.equal(data[name], expected[name])
    data = load_source(f'{MODULE}.FakeDataset(num_channels=7, edge_dim=3, task="node")')
    assert (data.x.shape[1], data.edge_attr.shape[1]) == (7, 3)
    hetero = load_source(f'{MODULE}.FakeHeteroDataset(num_node_types=2, num_edge_types=3)')
    assert (len(hetero.node_types), len(hetero.edge_types)) == (2, 3)


def test_root(tmp_path):
    name = f'{__name__}.Rooted(name=Cora, edge_dim=2)'
    assert load_source(name, root=tmp_path).edge_attr is not None
    assert Rooted.seen == (str(tmp_path / 'Rooted'), 'Cora')
    load_source(name)
    assert Rooted.seen[0] == 'dataset/Rooted'
    load_source(f'{__name__}.Rooted(name="a b", root=here)', root=tmp_path)
    assert Rooted.seen == ('here', 'a b')


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('cora', 'or one of ogbn-arxiv'),
        ('cora', "(got 'cora', no such file)"),
        ('no/graph.csv', "(got 'no/graph.csv', no such file)"),
        ('.', "(got '.', a folder)"),
        ('a.txt', "expected lines of edges in 'a.txt' (got none)"),
        ('ogbn-arxiv.pt', "(got 'ogbn-arxiv.pt', no such file)"),
        ('no.such.Class', "a subclass of Dataset in 'no.such.Class' (got No module"),
        (f'{MODULE}.Nothing', 'got nothing of that name'),
        ('torch_geometric.data.Data', 'a subclass of Dataset'),
        ('os.PathLike(x=1)', 'a subclass of Dataset'),
        (f'{MODULE}.FakeDataset(3)', 'arguments without a name'),
        (f'{MODULE}.FakeDataset(**{{}})', 'arguments without a name'),
        (f'{MODULE}.FakeDataset(num_graphs=print(1))', 'arguments such as (name=Cora'),
        (f'{MODULE}.FakeDataset(num_graphs=)', 'arguments such as (name=Cora'),
        (f'{MODULE}.FakeDataset(num_graphs=2)', 'a dataset of one graph'),
        (f'{MODULE}.KarateClub(colour=red)', "unexpected keyword argument 'colour'"),
        (f'{__name__}.Broken', "belong in 'data/Broken' (got OSError: no route to host)"),
        ('ogbn-cora', 'expected one of ogbn-arxiv, ogbn-mag,'),
    ],
)
def test_refused(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'a.txt').touch()
    with pytest.raises(ValueError, match=re.escape(message)):
        load_source(name, root='data')
