"""What a function of rows takes beside rows; see :mod:`pyg_sar.comm.met`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pyg_sar.comm.comm import Comm
from pyg_sar.ground.changes import version_of
from pyg_sar.ground.inert import is_hidden
from pyg_sar.rows.registry import bare_name, is_in_place, name_of
from pyg_sar.rows.replicated import PLAIN, is_averaged

_MOST = 2**14
"""Numbers of a tensor that is compared; larger ones with the rows of the whole are, too."""

_AT_ONCE = 2**10
"""Numbers that are read at every call; a tensor with more only when something was written to it."""

_SINGLE = (bool, int, float, complex, str)

_OF_THIS_RANK = ('requires_grad', 'retain_grad', 'grad')
"""Functions and attributes that say what a rank wants to know of its rows."""

_BY_IDS = ('getitem', 'index_select', 'take', 'gather', 'take_along_dim')
"""Functions that read some places of a table. As where a function writes, others may hold anything."""

_seen = WeakTensorKeyDictionary()


def note(comm: Comm, func: Any, args: Any, kwargs: Any) -> None:
    """Takes note of the numbers and plain tensors that a function of rows, or a conv, takes."""
    if is_hidden.value or torch._C._are_functorch_transforms_active():
        return
    name = bare_name(func)
    if name in _OF_THIS_RANK:
        return
    skips_first = name in _BY_IDS or is_in_place(name_of(func))
    values = [*(args[1:] if skips_first else args), *(kwargs or {}).values()]
    for value in values:  # grows
        kind = type(value)
        if kind in PLAIN:
            _note_tensor(comm, name, value)
        elif kind in _SINGLE:
            comm.met.note(name, value)
        elif kind in (list, tuple):
            values.extend(value)
        elif kind is slice:
            values.extend((value.start, value.stop, value.step))
        elif isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
            _note_tensor(comm, name, torch.as_tensor(value))


def _note_tensor(comm: Comm, name: str, tensor: Tensor) -> None:
    count = tensor.numel()
    if not 0 < count <= _MOST or tensor.layout != torch.strided or tensor.is_meta:
        return
    if tensor.is_leaf and tensor.requires_grad and is_averaged(tensor):
        return  # compared when the model was wrapped
    on_device = tensor.device.type != 'cpu'
    if on_device and tensor.requires_grad and not tensor.is_leaf:
        return  # it would wait for the device
    if on_device or count > _AT_ONCE:
        version = version_of(tensor)
        if _seen.get(tensor) == version:  # type: ignore[no-untyped-call]
            return
        _seen[tensor] = version
    comm.met.note(name, tensor.detach().cpu())
