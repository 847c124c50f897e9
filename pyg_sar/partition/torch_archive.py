"""Files as torch.save writes them, of tensors that are not in memory as a whole.

torch.save writes all but the numbers, for which it leaves space. A shared map of the file is then
filled by chunks. So the zip archive has no checksums of the numbers, which torch does not read.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_sar.partition.mapped import register, release
from pyg_sar.partition.row_files import RowStream
from pyg_sar.utils.nested import in_nested, leaves


def save_rows(content: object, path: Path) -> None:
    """Writes dicts of dense tensors [N, ...], RowStreams and plain values as torch.load reads them.

    Each tensor has its own space in the file. The folder is made if need be.

    Raises:
        OSError: If it cannot be written.
    """
    path.parent.mkdir(exist_ok=True)
    streams = _tensors(content)
    try:
        with path.open('wb') as file:
            with torch.serialization.skip_data():
                torch.save(in_nested(content, _stand_in), file)
            # A full disk is an error now, and no signal when the map is filled.
            if hasattr(os, 'posix_fallocate'):  # not on macOS
                os.posix_fallocate(file.fileno(), 0, file.tell())
    except OSError as error:  # reported without the file's name
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        spaces = _tensors(torch.load(path, weights_only=True, mmap=True))
    for stream, space in zip(streams, spaces, strict=True):
        _fill(space, stream)


def _fill(space: Tensor, stream: Tensor | RowStream) -> None:
    if space.numel():
        register(space.data_ptr(), space.nbytes, space)
        rows = stream if isinstance(stream, RowStream) else RowStream(stream)
        start = 0
        for part in rows.chunks():
            written = space[start : start + part.size(0)]
            written.copy_(part)
            release(written)
            start += part.size(0)


def _tensors(content: object) -> list[Any]:
    return [value for value in leaves(content) if isinstance(value, (Tensor, RowStream))]


def _stand_in(value: object) -> object:
    """A tensor of the right size, whose memory is never touched, for a tensor or RowStream."""
    if isinstance(value, RowStream):
        count = value.values.size(0) if value.index is None else value.index.numel()
        shape = (count, *value.values.shape[1:])
        return torch.empty(shape, dtype=value.dtype or value.values.dtype)
    return torch.empty(value.shape, dtype=value.dtype) if isinstance(value, Tensor) else value
