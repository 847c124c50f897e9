"""Sums over raw features, which are the same in every epoch and so are computed once.

All ranks decide together whether a kept sum is used. If one rank has other features than before,
all of them exchange rows.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.nn import MessagePassing

from pyg_sar.comm import least_of_ranks
from pyg_sar.conv.reuse.checksum import checksum
from pyg_sar.shard.plan import Plan

SumFn = Callable[[Tensor], Tensor]

_NOTHING, _KEEPS, _HAS = range(3)
"""What a rank does with a result: computes it, keeps it as well, or has kept it."""


@dataclass(frozen=True)
class _Kept:
    """A result, and what it was computed from."""

    weight: weakref.ref[Tensor] | None
    states: list[Any]
    out: Tensor

    def is_of(self, x: Tensor, weight: Tensor | None) -> bool:
        """Whether nothing has changed since."""
        is_same = weight is (None if self.weight is None else self.weight())
        return is_same and self.states == _states(x, weight)


def _states(*tensors: Tensor | None) -> list[Any]:
    return [(t._version, checksum(t)) for t in tensors if t is not None]


def kept_sum(
    conv: MessagePassing,
    x: Tensor,
    weight: Tensor | None,
    plan: Plan,
    sum_of: SumFn,
    *,
    is_hooked: bool,
) -> Tensor | None:
    """The aggregated raw features of one plan; None where ranks do not keep them.

    At most one result is kept for each tensor and aggregation. A tensor is known by identity,
    version and checksum, so features that a dropout has made anew, or that were written to, are
    aggregated again; what was kept is freed with the tensor it came from. Every caller has a copy
    of its own, which takes memory once it is written to.

    The conv's aggregation is a sum. `weight` are those of the edges. With `is_hooked` the
    aggregation has to run, as somebody looks on.

    Collective: an all-reduce of one number; as `sum_of` is where the result is not kept yet.
    """
    # By tensor, then by aggregation.
    results: Any = plan.cache.setdefault('kept sums', WeakIdKeyDictionary())
    reduce = type(conv.aggr_module)
    state, kept = _NOTHING, None
    if not is_hooked and not any(t.is_inference() for t in (x, weight) if t is not None):
        kept = results.get(x, {}).get(reduce)
        if kept is not None and kept.is_of(x, weight):
            state = _HAS
        elif torch.is_grad_enabled():  # nothing is kept where nothing is learned
            state = _KEEPS
    state = least_of_ranks(state, plan.shard.world_size)
    if state == _NOTHING:
        return None
    if state == _HAS:
        assert kept is not None
        return copy_on_write(kept.out)
    out = sum_of(x)
    known_weight = None if weight is None else weakref.ref(weight)
    kept = _Kept(known_weight, _states(x, weight), out.detach())
    results.setdefault(x, {})[reduce] = kept
    return copy_on_write(out)


def copy_on_write(tensor: Tensor) -> Tensor:
    """A copy whose memory is the original's until one of them is changed in place."""
    try:
        copy: Tensor = torch._lazy_clone(tensor)
    except (AttributeError, RuntimeError):  # memory that torch did not allocate
        copy = tensor.clone()
    return copy


def are_raw(x: Tensor) -> bool:
    """Whether rows take no gradient now; agreed between the ranks like every need of a gradient."""
    return not (x.requires_grad and torch.is_grad_enabled())
