"""Readers of files tell errors of the system as they are, and damaged files as damaged."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from pyg_sar.checkpoint.files import read_state
from pyg_sar.checkpoint.row_files import map_npy
from pyg_sar.partition.given import _read
from pyg_sar.partition.sources import load_source
from pyg_sar.shard.files import load_plain, load_tensors

READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    'a saved graph': ('graph.pt', load_source),
    'arrays of a graph': ('graph.npz', load_source),
    'a file of a partition': ('graph.pt', lambda path: load_tensors(path, dict, root=path.parent)),
    'parts that are given': ('parts.pt', _read),
    'parts as an array': ('rows.npy', _read),
    'a state of a checkpoint': ('state.pt', lambda p: read_state(p.parent, p.parent, 'state')),
    'rows of a checkpoint': ('rows.npy', map_npy),
}
ERRORS = [
    OSError(errno.EMFILE, 'Too many open files'),
    OSError(errno.EIO, 'Input/output error'),
    MemoryError('no memory'),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    UserWarning('a new warning of torch'),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    edges = torch.tensor([[0, 1], [1, 0]])
    torch.save({'edge_index': edges, 'x': torch.ones(2, 1)}, tmp_path / 'graph.pt')
    np.savez(tmp_path / 'graph.npz', edge_index=edges.numpy(), x=np.ones((2, 1)))
    torch.save(torch.tensor([0, 1]), tmp_path / 'parts.pt')
    torch.save({'a': torch.ones(2)}, tmp_path / 'state.pt')
    np.save(tmp_path / 'rows.npy', np.arange(2))
    return tmp_path


@pytest.mark.parametrize('error', ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize('name', READERS)
def test_an_error_of_the_system_is_told_as_it_is(
    name: str, error: Exception, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read = READERS[name]
    read(folder / file)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    for owner, function in ((torch, 'load'), (np, 'load'), (np.lib.format, 'open_memmap')):
        monkeypatch.setattr(owner, function, fail)
    with pytest.raises(type(error)) as told:
        read(folder / file)
    assert told.value is error


@pytest.mark.parametrize('name', READERS)
def test_a_damaged_file_is_told_as_damaged(name: str, folder: Path) -> None:
    file, read = READERS[name]
    whole = (folder / file).read_bytes()
    for damaged in (b'', b'nothing', whole[: len(whole) // 2], whole[:40] + b'?' * 400):
        (folder / file).write_bytes(damaged)
        with pytest.raises(ValueError, match=r'expected|cannot be read'):
            read(folder / file)


def test_sparse_tensors_are_read_without_a_word_and_checked(tmp_path: Path) -> None:
    right = torch.eye(3)
    wrong = torch.sparse_csr_tensor(
        *(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 9]), torch.ones(3)),
        size=(3, 3),
        check_invariants=False,
    )
    for sparse in (right.to_sparse(), right.to_sparse_csr()):
        torch.save(sparse, tmp_path / 'right.pt')
        assert torch.equal(load_plain(tmp_path / 'right.pt').to_dense(), right)
    torch.save(wrong, tmp_path / 'wrong.pt')
    with pytest.raises(RuntimeError, match='col_indices'):
        load_plain(tmp_path / 'wrong.pt')
    torch.save(Data(x=wrong, edge_index=torch.tensor([[0], [1]])), tmp_path / 'graph.pt')
    with pytest.raises(ValueError, match='col_indices'):
        load_source(tmp_path / 'graph.pt')
    content = io.BytesIO((tmp_path / 'right.pt').read_bytes())
    assert torch.equal(load_plain(content).to_dense(), right)
