"""Arrays on disk, scratch space, and files that are written by chunks."""

from __future__ import annotations

import gc
import importlib
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from pyg_sar.partitioner import partition_graph
from pyg_sar.partitioner.on_disk import mapped, rows
from pyg_sar.partitioner.on_disk.mapped import Scratch, is_mapped, map_array, release
from pyg_sar.partitioner.on_disk.rows import Rows, chunks, take_rows
from pyg_sar.partitioner.on_disk.torch_archive import save_rows
from pyg_sar.partitioner.sources.sources import load_source

ARRAYS = {
    'first': np.arange(7, dtype=np.int64),
    'odd_name_': np.random.default_rng(0).random((30, 4), dtype=np.float32),
    'fortran': np.asfortranarray(np.arange(24, dtype=np.int16).reshape(4, 6)),
    'mask': np.arange(9) % 2 == 0,
    'empty': np.empty((0, 3)),
    'number': np.float64(2.5),
}


@pytest.mark.parametrize('save', [np.savez, np.savez_compressed])
def test_members_of_archives(tmp_path, save):
    save(tmp_path / 'a.npz', **ARRAYS)
    for name, wanted in ARRAYS.items():
        found = map_array(tmp_path / 'a.npz', name)
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted)
        assert is_mapped(found) == (save is np.savez and wanted.size > 0), name


def test_npy_files(tmp_path):
    for name, wanted in ARRAYS.items():
        np.save(tmp_path / name, wanted)
        found = map_array(tmp_path / f'{name}.npy')
        assert np.array_equal(found, wanted)
        assert found.flags.f_contiguous == wanted.flags.f_contiguous


def test_what_is_no_array_is_refused(tmp_path):
    np.savez(tmp_path / 'a.npz', x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match='plain numbers'):
        map_array(tmp_path / 'a.npz', 'x')
    with pytest.raises(ValueError, match=r"expected the array 'y' in .*\(got \['x.npy'\]\)"):
        map_array(tmp_path / 'a.npz', 'y')


def test_maps_are_private_and_forgotten_with_the_array(tmp_path):
    before = len(mapped._MAPS)
    np.save(tmp_path / 'a.npy', ARRAYS['first'])
    tensor = torch.from_numpy(map_array(tmp_path / 'a.npy'))
    assert len(mapped._MAPS) == before + 1
    tensor += 1
    assert np.array_equal(np.load(tmp_path / 'a.npy'), ARRAYS['first'])
    part = tensor[2:]
    del tensor
    assert is_mapped(part)
    del part
    gc.collect()
    assert len(mapped._MAPS) == before


def _resident() -> int:
    status = Path('/proc/self/status').read_text()
    return int(re.search(r'VmRSS:\s+(\d+)', status)[1]) // 1024


def test_memory_is_given_back(tmp_path):
    """In MiB: 64 of a map and 64 of scratch space, which keeps its content."""
    np.save(tmp_path / 'a.npy', np.ones(8 << 20))
    gc.collect()
    values = torch.from_numpy(map_array(tmp_path / 'a.npy'))
    space = Scratch(tmp_path).empty((8 << 20,), torch.int64)
    before = _resident()
    assert float(values.sum()) == 8 << 20
    space.fill_(3)
    assert _resident() - before > 100
    release(values, space)
    assert _resident() - before < 30
    assert int(space[::4096].sum()) == 3 * 2048
    ordinary = torch.ones(1 << 20)
    release(ordinary)
    assert float(ordinary.sum()) == 1 << 20
    assert [path.name for path in tmp_path.iterdir()] == ['a.npy']


def test_scratch_says_at_once_that_the_disk_is_full(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'posix_fallocate', full)
    with pytest.raises(OSError, match='No space left'):
        Scratch(tmp_path).empty((1 << 20,), torch.int64)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('kind', ['memory', 'mapped', 'misaligned', 'sparse'])
def test_rows_by_index(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(rows, '_CHUNK_BYTES', 48)
    wanted = torch.from_numpy(ARRAYS['odd_name_'])
    values = wanted
    if kind == 'sparse':
        values = wanted.to_sparse()
    elif kind == 'mapped':
        np.save(tmp_path / 'a.npy', wanted)
        values = torch.from_numpy(map_array(tmp_path / 'a.npy'))
    elif kind == 'misaligned':
        np.savez(tmp_path / 'a.npz', **{'x' * odd: ARRAYS['odd_name_'] for odd in range(1, 6)})
        found = [map_array(tmp_path / 'a.npz', 'x' * odd) for odd in range(1, 6)]
        values = torch.from_numpy(next(array for array in found if not array.flags.aligned))
    for index in (torch.randperm(30), torch.tensor([3, 3, 29, 0]), torch.empty(0).long()):
        taken = take_rows(values, index)
        assert taken.shape == (index.numel(), 4)
        parts = [torch.empty(0, 4), *taken.chunks()]
        assert torch.equal(torch.cat(parts), wanted[index])
        assert len(parts) == 1 + -(-index.numel() // 3)
    if kind != 'sparse':
        assert torch.equal(torch.cat(list(chunks(values))), wanted)


CONTENT = {
    'a': torch.randn(5, 3),
    'types': {dtype: torch.ones(2, 1).to(dtype) for dtype in (torch.bfloat16, torch.complex64)},
    'young type': torch.ones(3, dtype=torch.int32).to(torch.uint16),
    'no rows': torch.empty(0, 4),
    'mask': torch.tensor([True, False]),
    'view': torch.arange(12).view(3, 4).t(),
    'plain': (3, 4),
    ('a', 'b'): None,
}


def test_file_is_read_by_torch(tmp_path):
    by_chunk = Rows(
        torch.float64, (3, 2), lambda: (c.double() for c in torch.eye(3)[:, :2].split(2))
    )
    save_rows({**CONTENT, 'rows': by_chunk}, tmp_path / 'a.pt')
    for is_mapped_file in (False, True):
        found = torch.load(tmp_path / 'a.pt', weights_only=True, mmap=is_mapped_file)
        assert torch.equal(found.pop('rows'), torch.eye(3, 2, dtype=torch.float64))
        assert found.keys() == CONTENT.keys()
        for key, value in CONTENT.items():
            if isinstance(value, torch.Tensor):
                assert found[key].dtype == value.dtype
                assert torch.equal(found[key], value)
                assert found[key].data_ptr() % 64 == 0 or not is_mapped_file or not value.numel()
            elif isinstance(value, dict):
                assert all(torch.equal(found[key][k], v) for k, v in value.items())
            else:
                assert found[key] == value


def test_file_has_no_dates(tmp_path):
    save_rows(CONTENT, tmp_path / 'a.pt')
    with zipfile.ZipFile(tmp_path / 'a.pt') as archive:
        assert archive.testzip() is None
        assert {info.date_time[0] for info in archive.infolist()} == {1980}


def test_disk_full_leaves_nothing(tmp_path, graph, monkeypatch):
    """A limit on the size of files, and so an error of the system in the middle of one."""
    import resource

    graph.x = torch.randn(graph.num_nodes, 3000)
    old_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_action = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, old_limit[1]))
    try:
        with pytest.raises(OSError, match=r'File too large: .*\.pt'):
            partition_graph(graph, 2, tmp_path / 'out')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old_limit)
        signal.signal(signal.SIGXFSZ, old_action)
    assert list(tmp_path.iterdir()) == []


_KILLED = """
import sys, time
from pathlib import Path
from pyg_sar.partitioner.write.atomic_folder import replace_folder
with replace_folder(Path(sys.argv[1])) as folder:
    (folder / 'half').write_text('a')
    print('ready', flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_what_a_killed_run_left_is_removed(tmp_path, graph):
    command = [sys.executable, '-W', 'ignore', '-c', _KILLED, str(tmp_path / 'out')]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == 'ready\n'
        partition_graph(graph, 2, tmp_path / 'other')
        (left,) = tmp_path.glob('.out.*.tmp')
        partition_graph(graph, 2, tmp_path / 'out')  # does not touch that of a living process
        assert (left / 'half').exists()
        process.kill()
    partition_graph(graph, 3, tmp_path / 'out', force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['other', 'out']


def test_table_without_pyarrow(tmp_path, monkeypatch):
    def missing(name: str) -> None:
        raise ImportError(f"No module named '{name}'")

    (tmp_path / 'edges.csv').write_text('src,dst\n0,1\n')
    monkeypatch.setattr(importlib, 'import_module', missing)
    with pytest.raises(ValueError, match=r"install it with pip install 'pyg_sar\[parquet\]'"):
        load_source(tmp_path / 'edges.csv')


@pytest.mark.parametrize('suffix', ['.csv', '.parquet'])
def test_tables(tmp_path, monkeypatch, suffix):
    pyarrow = pytest.importorskip('pyarrow')
    from pyg_sar.partitioner.sources import tables

    monkeypatch.setattr(tables, '_BATCH', 3)
    columns = {'weight': [0.5, 1, 2, 4, 8], 'dst': [1, 2, 3, 0, 1], 'src': [0, 0, 2, 3, 3]}
    table = pyarrow.table(columns)
    path = tmp_path / 'graph' / f'edges{suffix}'
    path.parent.mkdir()
    writer = importlib.import_module(f'pyarrow.{suffix[1:]}')
    (writer.write_csv if suffix == '.csv' else writer.write_table)(table, path)
    np.save(path.parent / 'x.npy', np.eye(6, dtype=np.float32))
    data = load_source(path.parent)
    assert data.num_nodes == 6
    assert data.edge_index.tolist() == [columns['src'], columns['dst']]
    assert data.weight.tolist() == columns['weight']
    assert load_source(path).num_nodes == 4
    partition_graph(data, 2, tmp_path / 'a', method='random')
    partition_graph(path.parent, 2, tmp_path / 'b', method='random')
    for file in (tmp_path / 'a').rglob('*.*'):
        assert file.read_bytes() == (tmp_path / 'b' / file.relative_to(tmp_path / 'a')).read_bytes()


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('src\n0\n', 'expected two columns or more'),
        ('src,dst\n0,\n', "no empty cell in 'dst'"),
        ('src,dst\n0,a\n', "expected numbers in 'dst'"),
        ('src,dst\n0,0.5\n', r'expected integers in .*float64'),
        ('src,dst\n0,1,2\n', 'expected a table of numbers'),
    ],
)
def test_bad_tables(tmp_path, text, message):
    pytest.importorskip('pyarrow')
    (tmp_path / 'a.csv').write_text(text)
    with pytest.raises(ValueError, match=message):
        load_source(tmp_path / 'a.csv')
