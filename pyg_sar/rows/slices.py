"""Slices of rows that were read: copies on every rank, where torch gives views.

A program that changes one in place (``x[3].zero_()``) expects ``x`` to change, and the other way
round. A plain tensor tells nobody that it changes, so the next function of rows looks. A slice is
forgotten once the program has freed it unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from pyg_sar.rows.registry import is_in_place, name_of
from pyg_sar.utils.scoped import Scoped
from pyg_sar.utils.tensor_state import checksum, storage_of

_FEW = 4096


@dataclass(frozen=True, eq=False)
class _Slice:
    index: Any
    same: Tensor  # in its memory
    version: int | None  # torch counts no changes of tensors of inference mode
    numbers: tuple[int, ...]
    values: StorageWeakRef  # of the rows

    @property
    def is_alive(self) -> bool:
        """Whether the program has the slice, or a view of it."""
        storage = self.same.untyped_storage()
        return bool(torch._C._storage_Use_Count(storage._cdata) > 2)  # `same` and `storage`

    @property
    def is_changed(self) -> bool:
        """Whether it was written to; of a large one that is alive what torch counts."""
        if self.version is not None and self.same._version != self.version:
            return True
        is_counted = self.version is not None and self.same.numel() > _FEW and self.is_alive
        return not is_counted and checksum(self.same) != self.numbers


slices_read: Scoped[list[_Slice] | None] = Scoped(None)


def remember(out: Tensor, values: Any, index: Any) -> None:
    """Remembers that ``values[index]`` gave a copy."""
    with torch._C.DisableTorchFunctionSubclass():
        values = getattr(values, 'view_of', values)  # rows of an edge_index show the edges
        if values is None:
            return
        same = out.detach()
        version = None if same.is_inference() else same._version
        storage = StorageWeakRef(values.untyped_storage())  # type: ignore[no-untyped-call]
        part = _Slice(index, same, version, checksum(same), storage)
    slices_read.value = [*(slices_read.value or []), part]


def check_slices(func: Any = None, args: Any = ()) -> None:
    """Raises a ValueError if a slice has changed, or if `func` changes rows that a slice shows.

    ``x[:5] += 1`` writes the slice back itself. An optimizer may change parameters.
    """
    every = slices_read.value or []
    with torch._C.DisableTorchFunctionSubclass():
        changes = bool(args) and isinstance(args[0], Tensor) and not args[0].is_sparse
        changes = changes and is_in_place(name_of(func))
        changed = storage_of(args[0]) if changes else None
        kept = []
        for part in every:
            if part.values.expired():  # type: ignore[no-untyped-call]
                continue
            if part.is_changed:
                writes_back = func is Tensor.__setitem__ and part.values.cdata == changed
                if writes_back and str(args[1]) == str(part.index):
                    continue
                raise ValueError(
                    'a slice of rows is a copy on every rank, and one was changed in place, which '
                    'the rows do not see: write x[:5] = ... instead, or change x[:5].clone()'
                )
            if part.is_alive:
                kept.append(part)
        slices_read.value = kept
        if changed is None or (args[0].is_leaf and args[0].requires_grad):
            return
        # A slice that is an argument itself may be nobody else's.
        given = {storage_of(arg) for arg in args[1:] if isinstance(arg, Tensor)}
        if any(p.values.cdata == changed and storage_of(p.same) not in given for p in kept):
            raise ValueError(
                f"'{name_of(func)}' changes rows in place of which a slice or an array was read "
                'before: it is a copy on every rank and does not change with them; read it '
                'afterwards, or read x[:5].clone() or x.numpy().copy()'
            )
