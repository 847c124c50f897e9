"""Arrays that stay on disk: tensors and numpy arrays whose numbers lie in a mapped file.

Everything computes with them as with any other. What has been read of one counts as memory of the
process until :func:`release` gives it back, which a pass does after every chunk. The system's page
cache may keep the pages, so a second pass need not read the disk again.

A source's file is mapped privately: a write into it changes nothing else, and may be forgotten at
the next :func:`release`. Scratch space keeps what is written into it.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import tempfile
import weakref
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
IndexArray = npt.NDArray[Any]
"""int32 or int64."""

IN_MEMORY = 1 << 20
"""Bytes up to which scratch space is ordinary memory."""

_AROUND = 1 << 21
"""Linux maps more than the page that is read: what the page cache has near it, up to so many bytes.
Some of it belongs to the chunk before and would stay."""

_MAPS: dict[int, int] = {}
"""First and last address of all that is mapped, as long as it is."""


def register(address: int, num_bytes: int, owner: object) -> None:
    """Notes that memory is a map, for :func:`release`, as long as `owner` lives."""
    _MAPS[address] = address + num_bytes
    weakref.finalize(owner, _MAPS.pop, address, None)


def is_mapped(values: Tensor | Array) -> bool:
    """Whether these numbers lie in a file and not in memory."""
    address = values.data_ptr() if isinstance(values, Tensor) else int(values.ctypes.data)
    return _map_of(address) is not None


def hold(*tensors: Tensor) -> None:
    """Keeps what is written to mapped tensors: their memory is not given back any more."""
    for tensor in tensors:
        bounds = _map_of(tensor.data_ptr())
        if bounds is not None:
            _MAPS.pop(bounds[0], None)


def release(*tensors: Tensor) -> None:
    """Gives back the memory of what has been read or written of tensors that are mapped."""
    for tensor in tensors:
        bounds = _map_of(tensor.data_ptr())
        if bounds is None or sys.platform != 'linux':
            continue
        start, end = bounds
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        page = mmap.PAGESIZE
        first = max(tensor.data_ptr() // _AROUND * _AROUND, -(-start // page) * page)
        stop = tensor.data_ptr() + last * tensor.element_size()
        stop = min(-(-stop // _AROUND) * _AROUND, end)
        if stop > first:
            _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(stop - first), mmap.MADV_DONTNEED)


def trim() -> None:
    """Gives back what the C library has kept of freed memory, where it can: glibc."""
    if hasattr(_LIBC, 'malloc_trim'):
        _LIBC.malloc_trim(0)


@dataclass(frozen=True)
class Scratch:
    """Space for temporary arrays, of which nothing is left when the process ends in any way.

    Its files have no name, lie in `folder`, and are allocated as a whole: a full disk is an OSError
    now, and no write fails later. Arrays of few bytes, and all without a folder, are in memory.
    """

    folder: Path | None = None

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor with arbitrary content."""
        tensor, file = self.open(shape, dtype)
        if file is not None:
            file.close()
        return tensor

    def open(self, shape: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, IO[bytes] | None]:
        """A tensor and its file, if it has one: what is written there needs no memory at all."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if self.folder is None or num_bytes <= IN_MEMORY:
            return torch.empty(shape, dtype=dtype), None
        file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115
        try:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            content = mmap.mmap(file.fileno(), num_bytes)
        except BaseException:
            file.close()
            raise
        tensor = torch.frombuffer(content, dtype=dtype).view(*shape)
        register(tensor.data_ptr(), num_bytes, content)
        return tensor, file


MEMORY = Scratch()


def map_array(
    path: str | os.PathLike[str], member: str | None = None, scratch: Scratch = MEMORY
) -> Array:
    """Maps the array of a .npy file, or of a member of an .npz file, into memory.

    It may be at an odd address, as archives do not align their members. A compressed member is
    unpacked into `scratch`.
    """
    with Path(path).open('rb') as file:
        if member is not None:
            with zipfile.ZipFile(file) as archive:
                names = archive.namelist()
                members = [name for name in (member, f'{member}.npy') if name in names]
                if not members:
                    raise ValueError(f"expected the array '{member}' in '{path}' (got {names})")
                info = archive.getinfo(members[0])
                if info.compress_type != zipfile.ZIP_STORED:
                    with archive.open(info) as stream:
                        return _unpack(stream, path, info.file_size, scratch)
            file.seek(info.header_offset + 26)
            lengths = file.read(4)  # of the name and of the extra field, which end the header
            length = sum(int.from_bytes(part, 'little') for part in (lengths[:2], lengths[2:]))
            file.seek(length, os.SEEK_CUR)
        shape, order, dtype = _npy_header(file, path, os.fstat(file.fileno()).st_size)
        if math.prod(shape) == 0:
            return np.empty(shape, dtype)
        array: Array = np.memmap(file, dtype, 'c', file.tell(), shape, order)
    register(array.ctypes.data, array.nbytes, array.base)
    return np.asarray(array)


def _unpack(stream: IO[bytes], path: str | os.PathLike[str], size: int, scratch: Scratch) -> Array:
    shape, order, dtype = _npy_header(stream, path, size)
    num_bytes = math.prod(shape) * dtype.itemsize
    space = scratch.empty((num_bytes,), torch.uint8)
    for target in torch.split(space, 1 << 20):
        octets = stream.read(target.numel())
        if len(octets) < target.numel():
            raise ValueError(f'expected {target.numel()} bytes more (got {len(octets)})')
        target.numpy().data[:] = octets
        release(target)
    if stream.read(1):  # the end, where zipfile compares its checksum
        raise ValueError(f"expected {num_bytes} bytes in '{path}' (got more)")
    return np.ndarray(shape, dtype, space.numpy(), order=order)


def _npy_header(
    file: IO[bytes], path: str | os.PathLike[str], size: int
) -> tuple[Any, Any, np.dtype[Any]]:
    """Shape, order and type of an array that a file of `size` bytes may hold."""
    lib = np.lib.format
    try:
        version = lib.read_magic(file)
    except ValueError as error:
        raise ValueError(
            f"expected the header of a .npy file in '{path}' (got {error}): numbers alone, as "
            "np.memmap writes them, get one by np.save(path, np.memmap(path, dtype, 'r', 0, shape))"
        ) from error
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"expected numpy's format 1.0 or 2.0 in '{path}' (got {version})")
    read = lib.read_array_header_1_0 if version == (1, 0) else lib.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError(f"expected plain numbers in '{path}' (got objects)")
    num_bytes, left = math.prod(shape) * dtype.itemsize, size - file.tell()
    if num_bytes > left:
        raise ValueError(f"expected {num_bytes} bytes in '{path}' (got {left})")
    return shape, 'F' if is_fortran else 'C', dtype


def tensor_of(array: Array) -> Tensor | None:
    """An array as a tensor, in place where that can be; None of what torch has no numbers for."""
    if array.dtype.kind not in 'biufc':
        return None
    array = np.require(array, array.dtype.newbyteorder('='), 'W')
    if any(step < 0 or step % array.itemsize for step in array.strides):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:  # of numbers such as np.longdouble
        return None


def _map_of(address: int) -> tuple[int, int] | None:
    """The map that an address is in; None of 0, that of tensors without numbers."""
    maps = _MAPS.copy()  # as one may go whenever Python collects garbage
    return next((bounds for bounds in maps.items() if bounds[0] <= address < bounds[1]), None)


_LIBC = ctypes.CDLL(None)
