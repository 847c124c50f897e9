"""Files as torch.save writes them, of tensors that are not in memory as a whole.

torch.save holds all it writes. Its format is an ordinary zip archive: a pickle in which every
tensor names a record, and one record of plain numbers for each. So the pickle is made with
stand-ins, tensors of the right size whose memory is never touched, and the records are filled by
chunks. The bytes depend on the content alone: the archive's dates are fixed.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from pyg_sar.partitioner.on_disk.rows import RowStream

_ALIGNMENT = 64
"""torch.load(mmap=True) computes with records where they lie in the file."""


def save_rows(content: object, path: Path) -> None:
    """Writes dicts of dense tensors [N, ...], RowStreams and plain values as torch.load reads them.

    Each tensor has its own place in the file. The folder is made if need be.

    Raises:
        OSError: If it cannot be written.
    """
    path.parent.mkdir(exist_ok=True)
    leaves: list[RowStream] = []
    pickled = io.BytesIO()
    with warnings.catch_warnings():
        # What torch itself pickles of a tensor.
        warnings.filterwarnings('ignore', 'TypedStorage is deprecated')
        _Pickler(pickled, protocol=2).dump(_stand_ins(content, leaves))
    try:
        with zipfile.ZipFile(path, 'w') as archive:
            _write(archive, 'data.pkl', [pickled.getbuffer()])
            _write(archive, 'byteorder', [sys.byteorder.encode()])
            for number, leaf in enumerate(leaves):
                _write(archive, f'data/{number}', _content(leaf))
            _write(archive, 'version', [b'3\n'])
    except OSError as error:  # A full disk is reported without the file's name.
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _stand_ins(content: object, leaves: list[RowStream]) -> object:
    """`content` with a tensor for every leaf; the leaves in the order in which they are pickled."""
    if isinstance(content, (Tensor, RowStream)):
        leaves.append(content if isinstance(content, RowStream) else RowStream(content))
        return leaves[-1].stand_in()
    if isinstance(content, dict):
        return {key: _stand_ins(value, leaves) for key, value in content.items()}
    return content


class _Pickler(pickle.Pickler):
    """As torch.save's, but numbers the storages and does not collect them."""

    def __init__(self, file: IO[bytes], protocol: int) -> None:
        super().__init__(file, protocol)
        self._num_storages = 0

    def persistent_id(self, value: Any) -> object:
        is_typed = isinstance(value, torch.storage.TypedStorage)
        if not is_typed and not torch.is_storage(value):
            return None
        storage: Any = value
        number, self._num_storages = self._num_storages, self._num_storages + 1
        if is_typed:
            kind = getattr(torch, storage.pickle_storage_type())
            count = storage.nbytes() // storage.dtype.itemsize
        else:  # of types younger than typed storages, such as uint16
            kind, count = torch.UntypedStorage, storage.nbytes()
        return 'storage', kind, str(number), 'cpu', count


def _content(leaf: RowStream) -> Iterator[memoryview]:
    for part in leaf.chunks():
        if part.numel():
            yield part.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _write(archive: zipfile.ZipFile, name: str, content: Iterable[bytes | memoryview]) -> None:
    info = zipfile.ZipInfo(f'archive/{name}', date_time=(1980, 1, 1, 0, 0, 0))
    assert archive.fp is not None
    header = 30 + len(info.filename) + _ZIP64_FIELD + 4
    padding = -(archive.fp.tell() + header) % _ALIGNMENT
    info.extra = struct.pack('<2sH', b'FB', padding) + b'\0' * padding
    with archive.open(info, 'w', force_zip64=True) as record:
        for part in content:
            record.write(part)


_ZIP64_FIELD = 20
"""Bytes that zipfile adds to a header for sizes beyond 4 GiB."""
