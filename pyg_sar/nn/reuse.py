"""Sums over raw features, which are the same in every epoch and so are computed once.

All ranks decide together whether a kept sum is used. If one rank has other features than before,
all of them exchange rows. Who might write to a kept sum gets a copy; in turns it takes memory once
that happens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from pyg_sar.comm.vote import vote
from pyg_sar.shard.blocks import Plan
from pyg_sar.shard.shard import Cached
from pyg_sar.utils import offload
from pyg_sar.utils.tensor_state import checksum


def kept_copy(tensor: Tensor) -> Tensor:
    """A copy that nobody changes; in turns both are evicted as one."""
    if offload.watcher.value is None:
        return tensor.clone()
    copy: Tensor = _KeptCopy.apply(tensor)
    offer = _Settles(copy)
    if not offload.watcher.value.offers([tensor], offer):
        return tensor.clone()
    copy._settles = offer  # type: ignore[attr-defined]  # lives as long as the copy
    return copy


def lent_copy(kept: Tensor) -> Tensor:
    """A copy of a constant that nobody else has; in turns both are evicted as one."""
    if offload.watcher.value is None:
        return kept.clone()
    offer = kept._settles = _Settles(kept)  # type: ignore[attr-defined]  # lives as long
    return kept.data if offload.watcher.value.offers([kept], offer) else kept.clone()


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


SUMS: Cached[Any] = Cached()
_NOTHING, _KEEPS, _HAS = range(3)
"""A rank computes a result, or also keeps it, or has kept it."""


@dataclass(frozen=True, eq=False)
class _Sum:
    """A kept result, with what it was made of and how that was, which shows writes."""

    weight: ref[Tensor] | None
    states: list[Any]  # version and checksum of each tensor
    out: Tensor
    version: int

    def is_of(self, weight: Tensor | None, tensors: list[Tensor]) -> bool:
        """Whether it is the sum with this weight, and nothing has changed since."""
        if weight is not (None if self.weight is None else self.weight()):
            return False
        return self.out._version == self.version and self.states == _states(tensors)


def _states(tensors: list[Tensor]) -> list[Any]:
    return [(t._version, checksum(t)) for t in tensors]


def kept_sum(
    make: Callable[[], Tensor],
    kind: Hashable,
    x: Tensor,
    weight: Tensor | None,
    plan: Plan,
    *,
    is_hooked: bool,
    copies: bool,
) -> Tensor | None:
    """The sum of raw features that `make` computes, or one that was kept; None if ranks keep none.

    At most one result is kept for each tensor and `kind`: the aggregation, and the dtype in which
    rows travel. A tensor is known by identity, version and checksum, so features after a dropout,
    or that were written to, are aggregated again; a result is freed with its tensor.

    `weight` are those of the edges. With `is_hooked` the aggregation has to run, for its hooks.
    Who might write to the result gets `copies`. Collective: one small all-gather.
    """
    by_tensor = SUMS.of(plan, WeakIdKeyDictionary)
    results: dict[Hashable, _Sum] = by_tensor.get(x, {})
    tensors = [t for t in (x, weight) if t is not None]
    state = _NOTHING
    if not is_hooked and not any(t.is_inference() for t in tensors):
        if kind in results and results[kind].is_of(weight, tensors):
            state = _HAS
        elif torch.is_grad_enabled():  # without gradients nothing is kept
            state = _KEEPS
    size = plan.shard.world_size
    has, may = vote('a decision of all ranks', state == _HAS, state >= _KEEPS) or (0, 0)
    state = _HAS if has == size else _KEEPS if may == size else _NOTHING
    if state == _NOTHING:
        return None
    by_tensor[x] = results
    if state == _KEEPS:
        out = make()
        of_weight = None if weight is None else ref(weight)
        results[kind] = _Sum(of_weight, _states(tensors), out.detach(), out._version)
    kept = results[kind].out
    return lent_copy(kept) if copies else kept
