"""What a function of rows takes: values equal on all ranks, and rows of ranks that live."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pyg_sar.comm.met import Met
from pyg_sar.comm.ranks import cache_of, check_lives, current
from pyg_sar.ground.changes import version_of
from pyg_sar.ground.inert import is_hidden
from pyg_sar.rows.registry import bare_name, is_in_place, name_of

_MOST = 2**14
"""Numbers of a tensor that is compared; larger ones with the rows of the whole are, too."""

_AT_ONCE = 2**10
"""Numbers that are read at every call; a tensor with more only when something was written to it."""

_NUMBERS = (bool, int, float, complex, str, np.ndarray, np.generic)

_OF_THIS_RANK = ('requires_grad', 'retain_grad', 'grad', 'to', 'cuda')
"""Functions and attributes that say what a rank wants to know of its rows, and where they lie."""

_BY_IDS = ('getitem', 'index_select', 'take', 'gather', 'take_along_dim')
"""Functions that read places of a table. Others may hold anything, as where a function writes."""


def note(func: Any, args: Any, kwargs: Any) -> None:
    """Takes note of the numbers and plain tensors that a function of rows, or a conv, takes.

    Raises:
        RuntimeError: If the ranks that have the rows are no more.
    """
    values, found, lives = [*args, *(kwargs or {}).values()], [], False
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
        elif not lives and hasattr(value, '_space'):
            comm, world, lives = value._space.comm, dist.group.WORLD, True
            is_there = comm is not None and world is not None and comm.world() is world
            if not is_there and name_of(func) != 'shape':
                check_lives(comm)
    if not found or is_hidden.value or torch._C._are_functorch_transforms_active():
        return
    name = bare_name(func)
    if values[0] is found[0] and (name in _BY_IDS or is_in_place(name_of(func))):
        del found[0]
    if name in _OF_THIS_RANK:
        return
    met = current().met
    found = [_compared(value, name, met) for value in found]
    found = [value for value in found if value is not None]
    if found:
        met.note(name, found)


def _compared(value: Any, name: str, met: Met) -> Any:
    """What of a value the next message compares, or None: it has before, need not, or waits."""
    if isinstance(value, (np.ndarray, np.generic)):
        return str(value.tolist()) if value.size <= _MOST else None
    if not isinstance(value, Tensor):
        return value
    count = value.numel()
    if not 0 < count <= _MOST or value.layout != torch.strided or value.is_meta:
        return None
    is_on_host = value.device.type == 'cpu'
    if is_on_host and count <= _AT_ONCE:
        return value
    version, seen = version_of(value), cache_of('met')
    if seen.get(value) == version:
        return None
    seen[value] = version
    if is_on_host:
        return value.detach()
    met.note_later(name, value)
    return None
