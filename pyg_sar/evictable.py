"""Memory of tensors that may be away on a disk: who gets at it past torch says so first.

Ranks that take turns (:mod:`pyg_sar.in_turns`) have their watcher see every operation of torch. It
does not see what compiled loops write, nor what threads compute beside the one it is in.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pyg_sar.scoped import Scoped


class Watcher(Protocol):
    """Sees what a thread reads and writes."""

    def beside(self) -> AbstractContextManager[Any]:
        """For another thread, which computes for this one meanwhile."""

    def needs(self, tensor: Tensor, *, is_written: bool) -> None:
        """Has the memory of a tensor here until the turn ends."""


watcher: Scoped[Watcher | None] = Scoped(None)
"""That of a thread, where memory may be away."""


def beside() -> Callable[[], AbstractContextManager[Any]]:
    """What threads enter that compute for the one which this is called in."""
    return nullcontext if watcher.value is None else watcher.value.beside


class _Memory:
    """What NumPy asks for an array."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor  # lives as long as the array
        kind = str(tensor.dtype).removeprefix('torch.')
        self.__array_interface__ = {
            'version': 3,
            'shape': (tensor.numel(),),
            'typestr': np.dtype(kind).str,
            'data': (tensor.data_ptr(), False),
        }


def array_of(tensor: Tensor, *, is_written: bool = False) -> np.ndarray[Any, Any]:
    """The numbers of a contiguous tensor as a flat array, for the time of one call.

    ``Tensor.numpy`` is for longer: from then on torch keeps the memory where it is.
    """
    if not tensor.is_contiguous():
        raise ValueError(f'expected a contiguous tensor (got strides {tensor.stride()})')
    if watcher.value is not None:
        watcher.value.needs(tensor, is_written=is_written)
    with torch._C.DisableTorchFunction():
        return np.asarray(_Memory(tensor))
