"""Rows of all nodes on disk, in the order of ids: written by any ranks, read by any others."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from few import few
from hetero_graphs import assignment, hetero_graph
from on_ranks import on_ranks, parts_of
from ranks import run_as_threads, run_ranks
from small_graphs import small_graph
from torch import Tensor

import pyg_sar
from pyg_sar.comm.ranks import rank
from pyg_sar.comm.vote import agree

N = 40


def _all_rows(kind: str) -> Tensor:
    dtype, columns = kind.split(' ', 1)
    shape = [N, *(int(n) for n in columns.strip('[N]').split(',') if n)]
    values = 99 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return values > 0 if dtype == 'bool' else values.to(getattr(torch, dtype))


KINDS = ['float64 [N, 3]', 'int64 [N]', 'bool [N]', 'float32 [N, 1]', 'float16 [N, 2]']


def _write(root: str, path: str, kind: str) -> None:
    data = pyg_sar.load_shard(root)
    pyg_sar.save_rows(path, _all_rows(kind)[data.n_id], data)


def _read(root: str, path: str) -> Any:
    data = pyg_sar.load_shard(root)
    return pyg_sar.local((data.n_id, pyg_sar.load_rows(path, data)))


@pytest.mark.parametrize('kind', few(KINDS))
def test_written_and_read(tmp_path, kind):
    want, path = _all_rows(kind), tmp_path / 'rows.npy'
    roots = {n: str(parts_of(n, 'empty part')) for n in (2, 3)}
    for ranks in (3, 1):  # the second replaces the first
        run_as_threads(_write, ranks, roots[3], str(path), kind)
        assert [p.name for p in tmp_path.iterdir() if 'rows' in p.name] == [path.name]
        written = np.load(path, mmap_mode='r')
        assert written.dtype == want.numpy().dtype
        assert np.array_equal(written, want.numpy())
        for n_id, rows in run_as_threads(_read, 2, roots[2], str(path)):  # of another partition
            assert rows.dtype == want.dtype
            assert torch.equal(rows, want[n_id])


def test_any_rows_as_npy(tmp_path):
    root, path = parts_of(3), tmp_path / 'rows.npy'
    run_as_threads(_write, 3, str(root), str(path), 'complex64 [N, 2, 2]')
    assert np.array_equal(np.load(path), _all_rows('complex64 [N, 2, 2]').numpy())
    np.save(path, np.asfortranarray(np.arange(N * 4.0).reshape(N, 4)))  # another program's
    for n_id, rows in run_as_threads(_read, 3, str(root), str(path)):
        assert torch.equal(rows, torch.arange(N * 4.0).double().view(N, 4)[n_id])


def test_processes(tmp_path):
    root, path = parts_of(2), tmp_path / 'rows.npy'
    run_ranks(_write, 2, str(root), str(path), KINDS[0])
    assert np.array_equal(np.load(path), _all_rows(KINDS[0]).numpy())


def _nodes_of_a_type(root: str, path: str) -> None:
    data = pyg_sar.load_shard(root)
    author = data['author']
    pyg_sar.save_rows(path, 2 * author.x, author)
    assert torch.equal(pyg_sar.load_rows(path, author), 2 * author.x)
    with pytest.raises(ValueError, match=r"the nodes of a type, data\['paper'\] .got a HeteroData"):
        pyg_sar.save_rows(path, author.x, data)


def test_nodes_of_a_type(tmp_path):
    graph = hetero_graph()
    pyg_sar.partition_graph(graph, 3, tmp_path / 'parts', method=assignment(3))
    path = tmp_path / 'rows.npy'
    run_as_threads(_nodes_of_a_type, 3, str(tmp_path / 'parts'), str(path))
    assert np.array_equal(np.load(path), 2 * graph['author'].x.numpy())


@pytest.mark.parametrize('dtype', ['uint16', 'uint32', 'uint64'])
@pytest.mark.parametrize('world_size', [1, 2])
@on_ranks(num_parts=4, by='threads')
def test_unsigned_numbers(data, tmp_path, world_size, dtype):
    """Torch picks no rows of these types."""
    path, mask, want = tmp_path / 'rows.npy', data.train_mask, torch.arange(N) + 2**15
    data.code = values = data.n_id.clone().add(2**15).to(getattr(torch, dtype))
    pyg_sar.save_rows(path, values, data)
    assert np.array_equal(np.load(path), want.numpy().astype(dtype))
    assert torch.equal(pyg_sar.gather(values).long(), want)
    assert torch.equal(pyg_sar.gather(values[mask]).long(), want[pyg_sar.gather(mask)])
    src = data.edge_index[0]
    assert torch.equal(pyg_sar.gather(values[src]).long(), want[pyg_sar.gather(src)])
    whole = pyg_sar.gather(values)
    pyg_sar.save_rows(path, whole, data)
    assert np.array_equal(np.load(path), want.numpy().astype(dtype))
    data.whole = whole
    for batch in pyg_sar.NeighborLoader(data, [-1], batch_size=8):
        assert batch.code.dtype == whole.dtype
        assert torch.equal(batch.code.long(), want[batch.n_id])
        assert torch.equal(batch.whole.long(), want[batch.n_id])


@pytest.mark.parametrize('world_size', [1, 2, 3])
@on_ranks(num_parts=6, by='threads')
def test_rows_in_another_order(data, tmp_path, world_size):
    """Row i of the whole is that of node i, as on one machine."""
    mask, path = data.train_mask, tmp_path / 'rows.npy'
    values = torch.cat([data.x[mask], data.x[~mask]])
    pyg_sar.save_rows(path, values, data)
    assert np.array_equal(np.load(path), pyg_sar.gather(values).numpy())
    assert torch.equal(pyg_sar.gather(pyg_sar.load_rows(path, data)), pyg_sar.gather(values))
    other = pyg_sar.load_shard(parts_of(6, 'empty part'))  # where other ranks have the nodes
    pyg_sar.save_rows(path, data.x, other)
    assert np.array_equal(np.load(path), small_graph().x.numpy())


WRONG: dict[str, tuple[Any, str, str]] = {  # what becomes of the values, the path, words
    'rows': (lambda v: torch.rand(39, 6) if rank() == 1 else v, 'rows.npy', 'of 40 nodes'),
    'own rows': (pyg_sar.local, 'rows.npy', 'of 40 nodes'),
    'an array': (lambda v: np.zeros(N), 'rows.npy', 'got a ndarray): torch.as_tensor'),
    'a list': (lambda v: [0] * 40, 'rows.npy', 'got a list): torch.as_tensor'),
    'nothing': (lambda v: None, 'rows.npy', "expected a tensor in 'values' (got a NoneType)"),
    'types': (lambda v: v.float() if rank() == 1 else v, 'rows.npy', "same rows in 'values'"),
    'bfloat16': (Tensor.bfloat16, 'rows.npy', '.float() is one'),
    'Parquet': (Tensor.clone, 'rows.parquet', "pyarrow.parquet.write_table(table, 'rows.parquet')"),
    'suffix': (Tensor.clone, 'rows.csv', 'must end in .npy'),
    'a folder': (Tensor.clone, 'folder.npy', 'to replace'),
    'nowhere': (Tensor.clone, 'no/rows.npy', 'No such file'),
}


@pytest.mark.parametrize('kind', WRONG)
@on_ranks(2, by='threads')
def test_refused_on_all_ranks(data, tmp_path, kind):
    (tmp_path / 'folder.npy').mkdir(exist_ok=True)
    change, name, words = WRONG[kind]
    error = FileNotFoundError if kind == 'nowhere' else ValueError
    with pytest.raises(error, match=re.escape(words)):
        pyg_sar.save_rows(tmp_path / name, change(data.x), data)
    assert {path.name for path in tmp_path.iterdir()} == {'folder.npy'}


@on_ranks(2, by='threads')
def test_own_data_is_refused(data, tmp_path):
    own = pyg_sar.local(data)
    with pytest.raises(ValueError, match=r"'save_rows' takes.*pyg_sar\.local"):
        pyg_sar.save_rows(tmp_path / 'rows.npy', own.x, own)


FILES = {
    '39 rows': lambda path: np.save(path, np.zeros(39)),
    'text': lambda path: path.write_text('no array'),
    'an object': lambda path: np.save(path, np.array([{}] * N), allow_pickle=True),
    'nothing': lambda path: path.unlink(missing_ok=True),
}


@pytest.mark.parametrize('content', FILES)
@on_ranks(2, by='threads')
def test_files_that_do_not_fit(data, tmp_path, content):
    if rank() == 0:
        FILES[content](tmp_path / 'rows.npy')
    error = FileNotFoundError if content == 'nothing' else ValueError
    agree(0)
    with pytest.raises(error, match='expected a'):
        pyg_sar.load_rows(tmp_path / 'rows.npy', data)


def test_parquet_of_the_file(tmp_path, monkeypatch):
    """The two lines of the error's words and of docs/running.md."""
    pyarrow, parquet = pytest.importorskip('pyarrow'), pytest.importorskip('pyarrow.parquet')
    root = str(parts_of(1))
    monkeypatch.chdir(tmp_path)
    _write(root, 'rows.npy', KINDS[0])
    table = pyarrow.table({'value': list(np.load('rows.npy'))})
    parquet.write_table(table, 'rows.parquet')
    column = parquet.read_table('rows.parquet').column('value').to_pylist()
    assert np.array_equal(np.array(column), _all_rows(KINDS[0]).numpy())
    with pytest.raises(ValueError, match=r'must end in \.npy'):
        _read(root, 'rows.parquet')
