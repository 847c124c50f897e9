"""Columns whose length is known when all of them have been read."""

from __future__ import annotations

import mmap
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.memmap import Array, Scratch

_MOST = 1 << 22
"""Bytes that are copied at once."""


class Spool:
    """Numbers that are appended, in a file of scratch space without a name, or in memory.

    Where narrow numbers come first and wider ones later, all become wide: float64 in the end.
    """

    def __init__(self, scratch: Scratch) -> None:
        self._scratch, self._arrays = scratch, list[Array]()
        self._file: IO[bytes] | None = None
        self.dtype, self.size = np.dtype(np.bool_), 0

    def add(self, values: Array) -> None:
        """Appends an array [n]."""
        if not self.size:
            self.dtype = values.dtype
        self.widen(np.result_type(self.dtype, values.dtype))
        self._write(_as(values, self.dtype))
        self.size += len(values)

    def _write(self, values: Array) -> None:
        if self._scratch.folder is None:
            self._arrays.append(values)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._scratch.folder)  # noqa: SIM115
        values.tofile(self._file)

    def widen(self, dtype: np.dtype[Any]) -> None:
        """Makes all numbers those of another type, which must hold them."""
        if dtype == self.dtype:
            return
        old, parts = self._file, _parts(self._file, self.dtype) if self._file else self._arrays
        self._file, self._arrays, self.dtype = None, [], dtype
        for part in parts:
            self._write(_as(part, dtype))
        if old is not None:
            old.close()

    def tensor(self) -> Tensor:
        """All numbers [n], mapped."""
        dtype = torch.from_numpy(np.empty(0, self.dtype)).dtype
        if self._file is None:
            return torch.from_numpy(np.concatenate(self._arrays)).to(dtype)
        self._file.flush()
        content = mmap.mmap(self._file.fileno(), 0)
        return torch.frombuffer(content, dtype=dtype)

    def joined(self, other: Spool) -> Tensor:
        """The numbers of both, [2, n]; the other one's are appended to these."""
        self.widen(np.result_type(self.dtype, other.dtype))
        other.widen(self.dtype)
        self._arrays += other._arrays
        if self._file is not None and other._file is not None:
            other._file.seek(0)
            shutil.copyfileobj(other._file, self._file, _MOST)
        return self.tensor().view(2, -1)

    def close(self) -> None:
        """Gives the file back; tensors stay."""
        if self._file is not None:
            self._file.close()


def _as(values: Array, dtype: np.dtype[Any]) -> Array:
    """The same numbers in another type; ValueError where it does not hold them."""
    wide = values.astype(dtype, copy=False)
    if wide.dtype != values.dtype and not np.array_equal(values, wide.astype(values.dtype)):
        raise ValueError(f'expected numbers that {dtype} holds (got larger ones)')
    return wide


def _parts(file: IO[bytes], dtype: np.dtype[Any]) -> Iterator[Array]:
    file.seek(0)
    while content := file.read(_MOST):
        yield np.frombuffer(content, dtype)
