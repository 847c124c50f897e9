"""Sums over raw features, which are the same in every epoch and so are computed once."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.nn import MessagePassing, aggr

from pyg_sar.comm import all_ranks
from pyg_sar.shard.plan import Plan
from pyg_sar.shard.shard import Shard


def is_plain(conv: MessagePassing) -> bool:
    """Whether the conv's aggregation is a sum or a mean and nothing beside."""
    hooks = (conv._aggregate_forward_pre_hooks, conv._aggregate_forward_hooks)
    return (
        type(conv).aggregate is MessagePassing.aggregate
        and type(conv.aggr_module) in (aggr.SumAggregation, aggr.MeanAggregation)
        and not any(hooks)
    )


@dataclass(frozen=True)
class _Kept:
    """A result, and what it was computed from."""

    x_version: int
    weight: weakref.ref[Tensor] | None
    weight_version: int
    out: Tensor
    out_version: int

    def is_of(self, x: Tensor, weight: Tensor | None) -> bool:
        """Whether nothing has changed since."""
        if self.x_version != x._version or self.out_version != self.out._version:
            return False
        if self.weight is None or weight is None:
            return self.weight is None and weight is None
        return self.weight() is weight and self.weight_version == weight._version


class KeptSums:
    """The aggregated raw features of one plan, at most one result for each tensor and aggregation.

    A tensor is known by identity and version, so features that a dropout has made anew, or that
    were written to, are aggregated again; what was kept is freed with the tensor it came from.

    Args:
        plan: The edges.
        conv: Whose aggregation it is; :func:`is_plain`.
    """

    def __init__(self, plan: Plan, conv: MessagePassing) -> None:
        # By tensor, then by aggregation.
        self._kept: Any = plan.cache.setdefault('kept sums', WeakIdKeyDictionary())
        self._reduce = type(conv.aggr_module)
        self._shard: Shard = plan.shard

    def find(self, x: Tensor, weight: Tensor | None) -> Tensor | None:
        """The kept result, if all ranks have theirs (collective: an all-reduce of one number)."""
        kept: _Kept | None = None
        if not x.is_inference():
            kept = self._kept.get(x, {}).get(self._reduce)
        has = kept is not None and kept.is_of(x, weight)
        if not all_ranks(has, x.device, self._shard.world_size):
            return None
        assert kept is not None
        return kept.out.detach()

    def keep(self, x: Tensor, weight: Tensor | None, out: Tensor) -> None:
        """Keeps a result while `x` lives."""
        if x.is_inference() or out.is_inference() or (weight is not None and weight.is_inference()):
            return
        self._kept.setdefault(x, {})[self._reduce] = _Kept(
            x._version,
            None if weight is None else weakref.ref(weight),
            0 if weight is None else weight._version,
            out.detach(),
            out._version,
        )


def are_raw(x: Tensor) -> bool:
    """Whether rows take no gradient now; agreed between the ranks like every need of a gradient."""
    return not (x.requires_grad and torch.is_grad_enabled())
