"""Code that reads a tensor without an operation of torch asks here first: it may be on a disk.

Such code are NumPy, numba and pointers. The watcher of ranks that take turns
(:mod:`pyg_sar.launch.in_turns`) sees every operation of torch in its thread, but neither compiled
loops nor other threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pyg_sar.utils.scoped import Scoped


class Offered(Protocol):
    """A computation that reads tensors, to be done later, or before they are written to."""

    @property
    def is_open(self) -> bool:
        """Whether a next turn is to do it."""

    def settle(self) -> None:
        """Does it now."""


class Watcher(Protocol):
    """Sees what a thread reads and writes."""

    def in_thread(self) -> AbstractContextManager[Any]:
        """A context for another thread that computes for this one."""

    def needs(self, tensor: Tensor, *, is_written: bool) -> None:
        """Brings the memory of a tensor here, until the turn ends."""

    def leaves(self, tensor: Tensor) -> None:
        """Frees a tensor of another rank that the turn has read and does not need again."""

    def keeps(self, tensor: Tensor) -> None:
        """Never evicts the memory of a tensor."""

    def is_read_by_rows(self, tensor: Tensor) -> bool:
        """Whether a contiguous tensor is on the disk, and only the rows in use should be read."""

    def reads_rows(self, out: Tensor, tensor: Tensor, index: Tensor) -> bool:
        """Reads rows of a tensor that is away, and nothing else of it; False if it is not."""

    def reads_run(self, out: Tensor, run: Tensor) -> bool:
        """Reads a contiguous tensor that is away, and nothing else; False if it is not away."""

    def offers(self, tensors: Sequence[Tensor], offer: Offered) -> bool:
        """Settles an offer, while it lives, before one of the tensors is written to.

        False where it would not see the write.
        """


watcher: Scoped[Watcher | None] = Scoped(None)
"""The watcher of this thread, where memory may be away."""


address_of = Tensor.data_ptr
"""torch's own, which ranks in turns replace: the address of a tensor that is in memory."""


class _Memory:
    """What NumPy makes an array from; the array keeps the tensor alive."""

    def __init__(self, tensor: Tensor, kind: str) -> None:
        self._tensor, address = tensor, (address_of(tensor), False)
        form = {'shape': (tensor.numel(),), 'typestr': np.dtype(kind).str}
        self.__array_interface__ = {'version': 3, 'data': address, **form}


def array_of(tensor: Tensor, *, is_written: bool = False) -> np.ndarray[Any, Any]:
    """The numbers of a contiguous tensor as a flat array, for the time of one call.

    ``Tensor.numpy`` is for longer: from then on torch keeps the memory where it is.
    """
    if not tensor.is_contiguous():
        raise ValueError(f'expected a contiguous tensor (got strides {tensor.stride()})')
    if watcher.value is not None:
        watcher.value.needs(tensor, is_written=is_written)
    kind = str(tensor.dtype).removeprefix('torch.')
    with torch._C.DisableTorchFunction():
        # NumPy of Python 3.10 takes no address of nothing.
        return np.asarray(_Memory(tensor, kind)) if tensor.numel() else np.empty(0, kind)


def arrays_of(
    written: Sequence[Tensor | None], read: Sequence[Tensor | None]
) -> list[np.ndarray[Any, Any] | None]:
    """As :func:`array_of`: of contiguous tensors that are written to, and of any that are read."""
    read = [None if t is None else t.detach().contiguous() for t in read]
    if watcher.value is None:
        return [None if t is None else t.view(-1).numpy() for t in (*written, *read)]
    return [
        *(None if t is None else array_of(t, is_written=True) for t in written),
        *(None if t is None else array_of(t) for t in read),
    ]


def keep_here(tensor: Tensor) -> None:
    """Never evicts the memory of a tensor."""
    if watcher.value is not None:
        watcher.value.keeps(tensor)


def start_of(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor begins: its storage, whose address may change, and the offset in it."""
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata), int(tensor.storage_offset())


def is_read_by_rows(tensor: Tensor) -> bool:
    """Whether a tensor is away, so that :func:`select_rows` should read single rows of it."""
    return watcher.value is not None and watcher.value.is_read_by_rows(tensor)


def select_rows(out: Tensor, tensor: Tensor, index: Tensor) -> None:
    """``torch.index_select(tensor, 0, index, out=out)`` of rows that may be away."""
    watch = watcher.value
    if watch is None or not watch.reads_rows(out, tensor, index):
        torch.index_select(tensor, 0, index, out=out)


def selected_rows(tensor: Tensor, index: Tensor) -> Tensor:
    """As :func:`select_rows`, in new memory."""
    out = tensor.new_empty(index.numel(), *tensor.shape[1:])
    select_rows(out, tensor, index)
    return out
