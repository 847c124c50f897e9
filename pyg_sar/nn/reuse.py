"""Sums over raw features, which are the same in every epoch and so are computed once.

All ranks decide together whether a kept sum is used. If one rank has other features than before,
all of them exchange rows. Who might write to a kept sum gets a copy; in turns it takes memory once
that happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.nn import MessagePassing

from pyg_sar.comm.vote import least_of_ranks
from pyg_sar.shard.blocks import Plan
from pyg_sar.shard.shard import Kept
from pyg_sar.utils import offload as evictable
from pyg_sar.utils.tensor_state import checksum


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


SUMS: Kept[Any] = Kept()
_NOTHING, _KEEPS, _HAS = range(3)
"""A rank computes a result, or also keeps it, or has kept it."""


@dataclass(eq=False)
class RawSum:
    """The aggregated raw features of one plan: kept already, or to be kept."""

    x: Tensor
    weight: Tensor | None
    results: dict[Any, tuple[Any, list[Any], Tensor, int]]  # by kind: weight, states, result
    kind: tuple[type, Any]  # the aggregation, and the dtype in which rows travel
    is_kept: bool = False

    def states(self) -> list[Any]:
        """Version and checksum of each tensor, which show writes."""
        return [(t._version, checksum(t)) for t in (self.x, self.weight) if t is not None]

    def is_known(self) -> bool:
        """Whether this rank has kept it, and nothing has changed since."""
        if self.kind not in self.results:
            return False
        weight, states, out, version = self.results[self.kind]
        if self.weight is not (None if weight is None else weight()) or out._version != version:
            return False
        return states == self.states()

    def kept(self, *, copies: bool) -> Tensor:
        """The result, or a copy of it for who might write to it."""
        out = self.results[self.kind][2]
        return lent_copy(out) if copies else out

    def keep(self, out: Tensor) -> None:
        """Keeps the result."""
        weight = None if self.weight is None else ref(self.weight)
        self.results[self.kind] = weight, self.states(), out.detach(), out._version


def raw_sum(
    conv: MessagePassing,
    x: Tensor,
    weight: Tensor | None,
    plan: Plan,
    dtype: torch.dtype | None,
    *,
    is_hooked: bool,
) -> RawSum | None:
    """Where sums of raw features are kept; None where ranks do not keep them.

    At most one result is kept for each tensor, aggregation and `dtype` of rows that travel. A
    tensor is known by identity, version and checksum, so features after a dropout, or that were
    written to, are aggregated again; a result is freed with its tensor. Writers get a copy.

    The conv's aggregation is a sum. `weight` are those of the edges. With `is_hooked` the
    aggregation has to run, for its hooks. Collective: one small all-gather.
    """
    by_tensor = SUMS.of(plan, WeakIdKeyDictionary)
    raw = RawSum(x, weight, by_tensor.get(x, {}), (type(conv.aggr_module), dtype))
    state = _NOTHING
    if not is_hooked and not any(t.is_inference() for t in (x, weight) if t is not None):
        if raw.is_known():
            state = _HAS
        elif torch.is_grad_enabled():  # without gradients nothing is kept
            state = _KEEPS
    state = least_of_ranks(state, plan.shard.world_size)
    if state == _NOTHING:
        return None
    by_tensor[x] = raw.results
    raw.is_kept = state == _HAS
    return raw
