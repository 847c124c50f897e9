"""Copies that take no memory until somebody writes to them or to the original."""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
from torch import Tensor

from pyg_sar import evictable
from pyg_sar.ground.changes import copy_on_write


def kept_copy(tensor: Tensor) -> Tensor:
    """As :func:`copy_on_write`, of a copy that nobody changes: both are evicted as one."""
    if evictable.watcher.value is None:
        return copy_on_write(tensor)
    copy: Tensor = _KeptCopy.apply(tensor)
    offer = _Settles(copy)
    if not evictable.watcher.value.offers([tensor], offer):
        return tensor.clone()
    copy._settles = offer  # type: ignore[attr-defined]  # lives as long as the copy
    return copy


def lent_copy(kept: Tensor) -> Tensor:
    """As :func:`copy_on_write`, of a constant that nobody else has: both are evicted as one."""
    if evictable.watcher.value is None:
        return copy_on_write(kept)
    offer = kept._settles = _Settles(kept)  # type: ignore[attr-defined]  # lives as long
    return kept.data if evictable.watcher.value.offers([kept], offer) else kept.clone()


class _KeptCopy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.data

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class _Settles:
    """Gives a tensor memory of its own before somebody writes to shared memory."""

    is_open = False

    def __init__(self, copy: Tensor) -> None:
        self._copy = ref(copy)

    def settle(self) -> None:
        copy = self._copy()
        if copy is not None:
            copy.data = copy.data.clone()
