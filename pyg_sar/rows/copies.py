"""Slices of rows, ``x[:5]`` or ``x[3]``: a copy on every rank, where torch gives a view.

A program that changes one in place (``x[3].zero_()``) expects ``x`` to change. A plain tensor tells
nobody that it changes, so the next function of rows looks whether one has changed.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from pyg_sar.scoped import Scoped


class Copy:
    """A slice that was read; it is forgotten once the program has freed it unchanged."""

    def __init__(self, out: Tensor, values: Tensor, index: Any, read: list[Copy]) -> None:
        self.index = index
        self._values = StorageWeakRef(values.untyped_storage())  # type: ignore[no-untyped-call]
        self._same, self._version = out.detach(), out._version  # of one count of changes
        whole = out if out._base is None else out._base  # which lives as long as any view
        self._out = weakref.ref(whole, lambda _: None if self.is_changed() else read.remove(self))

    def is_changed(self) -> bool:
        """Whether it has changed."""
        return self._same._version != self._version

    def is_missed(self) -> bool:
        """Whether the rows that should have changed with it can still be read."""
        return not self._values.expired()  # type: ignore[no-untyped-call]


slices_read: Scoped[list[Copy] | None] = Scoped(None)


def remember(out: Tensor, values: Tensor, index: Any) -> None:
    """Remembers that ``values[index]`` gave a copy."""
    if out.is_inference():  # whose changes are not counted
        return
    read = slices_read.value = slices_read.value or []
    with torch._C.DisableTorchFunctionSubclass():
        read.append(Copy(out, values, index, read))


def check(func: Any, args: Any) -> None:
    """Raises a ValueError if a slice has changed; ``x[:5] += 1`` writes it back itself."""
    read = slices_read.value or []
    changed = [each for each in read if each.is_changed()]
    for each in changed:
        read.remove(each)
    if any(
        each.is_missed() and not (func is Tensor.__setitem__ and args[1] is each.index)
        for each in changed
    ):
        raise ValueError(
            'a slice of rows is a copy on every rank, and one was changed in place, which the rows '
            'do not see: write x[:5] = ... instead, or change x[:5].clone()'
        )
