"""Copies of what may be written to; in turns they take memory once that happens."""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
from torch import Tensor

from pyg_sar.utils import offload as evictable


def kept_copy(tensor: Tensor) -> Tensor:
    """A copy that nobody changes; in turns both are evicted as one."""
    if evictable.watcher.value is None:
        return tensor.clone()
    copy: Tensor = _KeptCopy.apply(tensor)
    offer = _Settles(copy)
    if not evictable.watcher.value.offers([tensor], offer):
        return tensor.clone()
    copy._settles = offer  # type: ignore[attr-defined]  # lives as long as the copy
    return copy


def lent_copy(kept: Tensor) -> Tensor:
    """A copy of a constant that nobody else has; in turns both are evicted as one."""
    if evictable.watcher.value is None:
        return kept.clone()
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
