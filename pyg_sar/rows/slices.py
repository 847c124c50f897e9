"""Slices of rows that were read: copies on every rank, where torch gives views.

A program that changes one in place (``x[3].zero_()``) expects ``x`` to change, and the other way
round. A plain tensor tells nobody that it changes, so the next function of rows looks. A slice is
forgotten once the program has freed it unchanged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from pyg_sar.rows.registry import is_in_place, name_of
from pyg_sar.utils.nested import leaves
from pyg_sar.utils.scoped import Scoped
from pyg_sar.utils.tensor_state import checksum, storage_of

_FEW = 4096


@dataclass(frozen=True, eq=False)
class _Slice:
    index: Any
    same: Tensor  # in its memory
    version: int | None  # torch counts no changes of tensors of inference mode
    numbers: object
    source: Tensor  # in the memory of the rows
    version_of_source: int | None  # None for parameters, which an optimizer may change

    @property
    def is_alive(self) -> bool:
        """Whether the program has the slice, or a view of it."""
        return _num_tensors(self.same) > 1

    @property
    def is_changed(self) -> bool:
        """Whether it was written to; of a large one that is alive what torch counts."""
        if self.version is not None and self.same._version != self.version:
            return True
        is_counted = self.version is not None and self.same.numel() > _FEW and self.is_alive
        return not is_counted and _bits(self.same) != self.numbers

    @property
    def is_stale(self) -> bool:
        """Whether the rows have changed while the program has the slice."""
        known = self.version_of_source
        return known is not None and self.source._version != known and self.is_alive


def _num_tensors(tensor: Tensor) -> int:
    """How many tensors and arrays share its memory."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)) - 1


def _bits(tensor: Tensor) -> object:
    """What tells its content from another one."""
    is_small = tensor.numel() <= _FEW and tensor.device.type == 'cpu'
    if is_small and tensor.dtype != torch.bfloat16:
        return tensor.numpy(force=True).tobytes()
    return checksum(tensor)


slices_read: Scoped[list[_Slice] | None] = Scoped(None)


def remember(out: Tensor, values: Any, index: Any) -> None:
    """Remembers that ``values[index]`` gave a copy."""
    with torch._C.DisableTorchFunctionSubclass():
        values = getattr(values, 'view_of', values)  # rows of an edge_index show the edges
        if values is None:
            return
        same, source = out.detach(), values.detach()
        learns = values.is_leaf and values.requires_grad
        version = None if learns or source.is_inference() else source._version
        counted = None if same.is_inference() else same._version
        part = _Slice(index, same, counted, _bits(same), source, version)
    slices_read.value = [*(slices_read.value or []), part]


def check_slices(func: Any = None, args: Any = (), kwargs: Any = None) -> None:
    """Raises a ValueError if a slice has changed, or the rows that a slice shows.

    ``x[:5] += 1`` writes the slice back itself. An optimizer may change parameters.
    """
    every = slices_read.value or []
    with torch._C.DisableTorchFunctionSubclass():
        written = leaves(args[:1]) if args and _writes(func, kwargs or {}) else []
        written = [each for each in written if isinstance(each, Tensor) and not each.is_sparse]
        changed = {storage_of(each) for each in written}
        sources = Counter(storage_of(part.source) for part in every)
        kept = []
        for part in every:
            if _num_tensors(part.source) <= sources[storage_of(part.source)]:
                continue  # the rows are gone
            if part.is_changed:
                writes_back = func is Tensor.__setitem__ and storage_of(part.source) in changed
                if writes_back and str(args[1]) == str(part.index):
                    continue
                raise ValueError(
                    'a slice of rows is a copy on every rank, and one was changed in place, which '
                    'the rows do not see: write x[:5] = ... instead, or change x[:5].clone()'
                )
            if part.is_stale:
                _refuse('rows have been changed')
            if part.is_alive:
                kept.append(part)
        changed -= {storage_of(each) for each in written if each.is_leaf and each.requires_grad}
        # A slice that is an argument itself may be nobody else's.
        given = {storage_of(arg) for arg in args[1:] if isinstance(arg, Tensor)}
        for i, part in enumerate(kept):
            if storage_of(part.source) in changed:
                if storage_of(part.same) not in given:
                    _refuse(f"'{name_of(func)}' changes rows")
                kept[i] = replace(part, version_of_source=None)
        slices_read.value = kept


def _writes(func: Any, kwargs: Any) -> bool:
    """Whether a function writes to its first argument."""
    return is_in_place(name_of(func)) or bool(kwargs.get('inplace'))


def _refuse(what: str) -> NoReturn:
    raise ValueError(
        f'{what} in place of which a slice or an array was read before: it is a copy on every rank '
        'and does not change with them; read it afterwards, or read x[:5].clone() or '
        'x.numpy().copy()'
    )
