"""What a function of rows takes: values equal on all ranks, and rows of ranks that live."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pyg_sar.comm.ranks import check_lives, current
from pyg_sar.ground.changes import version_of
from pyg_sar.ground.inert import is_hidden
from pyg_sar.rows.registry import bare_name, is_in_place, name_of

_MOST = 2**14
"""Numbers of a tensor that is compared; larger ones with the rows of the whole are, too."""

_AT_ONCE = 2**10
"""Numbers that are read at every call; a tensor with more only when something was written to it."""

_NUMBERS = (bool, int, float, complex, str, np.ndarray, np.generic)

_OF_THIS_RANK = ('requires_grad', 'retain_grad', 'grad')
"""Functions and attributes that say what a rank wants to know of its rows."""

_BY_IDS = ('getitem', 'index_select', 'take', 'gather', 'take_along_dim')
"""Functions that read places of a table. Others may hold anything, as where a function writes."""

_seen = WeakTensorKeyDictionary()


def note(func: Any, args: Any, kwargs: Any) -> None:
    """Takes note of the numbers and plain tensors that a function of rows, or a conv, takes.

    Raises:
        RuntimeError: If the ranks that have the rows are no more.
    """
    values, found = [*args, *(kwargs or {}).values()], []
    for value in values:  # grows
        kind = type(value)
        if kind is Tensor or (kind is torch.nn.Parameter and not value.requires_grad):
            found.append(value)
        elif kind in (list, tuple):
            values.extend(value)
        elif kind is slice:
            values.extend((value.start, value.stop, value.step))
        elif isinstance(value, _NUMBERS):
            found.append(value)
        elif (space := getattr(value, '_space', None)) is not None and name_of(func) != 'shape':
            check_lives(space.comm)
    if not found or is_hidden.value or torch._C._are_functorch_transforms_active():
        return
    name = bare_name(func)
    if values[0] is found[0] and (name in _BY_IDS or is_in_place(name_of(func))):
        del found[0]
    if name in _OF_THIS_RANK:
        return
    met = current().met
    for value in found:
        if isinstance(value, Tensor):
            if _is_compared(value):
                met.note(name, value.detach().cpu())
        elif isinstance(value, (np.ndarray, np.generic)):
            if value.size <= _MOST:
                met.note(name, str(value.tolist()))
        else:
            met.note(name, value)


def _is_compared(tensor: Tensor) -> bool:
    count = tensor.numel()
    if not 0 < count <= _MOST or tensor.layout != torch.strided or tensor.is_meta:
        return False
    if tensor.device.type != 'cpu':
        if tensor.requires_grad and not tensor.is_leaf:
            return False  # to read it would wait for the device
    elif count <= _AT_ONCE:
        return True
    version = version_of(tensor)
    is_new: bool = _seen.get(tensor) != version  # type: ignore[no-untyped-call]
    _seen[tensor] = version
    return is_new
