"""How a conv uses the sums over in-edges: where a narrower layer follows, its columns travel.

A sum commutes with a linear map of the rows: ``sum(x) @ W.T == sum(x @ W.T)``, and so does a mean.
Where a conv applies a layer of fewer columns to what it has aggregated (256 to 47, say), exchanging
and summing ``x @ W.T`` costs a fraction. Whether it does so is seen in its first forward, where the
sum is computed as it is; the ranks agree on what they saw. From then on ``propagate`` computes the
narrow sum, the same on all ranks whatever follows, and gives it to the layer.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing, aggr

from pyg_sar.comm import agree, all_ranks
from pyg_sar.conv.reuse.deferred_sum import (
    Modes,
    Seen,
    StandIn,
    SumFn,
    WatchedSum,
    narrow_sum,
    plain,
)
from pyg_sar.conv.reuse.raw_feature_sums import copy_on_write
from pyg_sar.shard.plan import Plan
from pyg_sar.shard.shard import Shard

_NEVER = ''


def is_sum(conv: MessagePassing) -> bool:
    """Whether the conv's aggregation is a sum or a mean and nothing beside; a property of it."""
    return (
        'aggregate' not in vars(conv)
        and type(conv).aggregate is MessagePassing.aggregate
        and type(getattr(conv, 'aggr_module', None)) in (aggr.SumAggregation, aggr.MeanAggregation)
    )


def is_hooked(conv: MessagePassing) -> bool:
    """Whether hooks look on at the aggregation, on this rank."""
    return bool(
        conv._aggregate_forward_pre_hooks
        or conv._aggregate_forward_hooks
        or conv.aggr_module._forward_hooks
        or conv.aggr_module._forward_pre_hooks
    )


class Uses:
    """The stand-ins of one forward of a SARConv. None of them leaves it: see :meth:`settle`."""

    def __init__(self) -> None:
        self._noted: list[_Noted] = []
        self._num_calls = 0

    def place(self, conv: MessagePassing, shard: Shard, agreed: dict[Any, Any]) -> Place:
        """The next call of ``propagate`` or ``edge_updater`` in the forward.

        Args:
            conv: Whose call it is.
            shard: Whose edges it is of.
            agreed: What the ranks have agreed on for the conv; added to.
        """
        self._num_calls += 1
        return Place(self, conv, ('use', self._num_calls, shard.fingerprint), agreed)

    def settle(self, out: Any, conv: torch.nn.Module) -> Any:
        """What a conv's forward returned, without stand-ins; nor are attributes any.

        Collective where a use was seen for the first time (one small all-gather).

        Args:
            out: What it returned: a tensor, or tensors in tuples, lists and dicts.
            conv: The conv, whose modules may have kept one as an attribute.
        """
        if not self._noted:
            return out
        out = plain(out)
        for module in conv.modules():
            for name, value in vars(module).items():
                if isinstance(value, StandIn):
                    vars(module)[name] = value.total()
        watched = [noted for noted in self._noted if noted.is_first]
        if watched:
            _agree(watched)
        for noted in self._noted:
            if not noted.is_first and noted.seen.other_uses:
                noted.place.agreed[noted.place.key] = _NEVER
        return out

    def note(self, stand_in: StandIn, place: Place, plan: Plan, *, is_first: bool) -> None:
        """Takes charge of a stand-in."""
        self._noted.append(_Noted(weakref.ref(stand_in), stand_in.seen, place, plan, is_first))


@dataclass(frozen=True)
class Place:
    """One call of ``propagate`` among those of a conv's forward.

    Attributes:
        uses: The stand-ins of the forward.
        conv: The conv.
        key: Tells the call from the others.
        agreed: The weight, by name, of the layer that follows, from earlier forwards; the same on
            all ranks; added to.
    """

    uses: Uses
    conv: MessagePassing
    key: Any
    agreed: dict[Any, Any]

    def sum(self, x: Tensor, plan: Plan, sum_of: SumFn) -> Tensor:
        """The sum of `x` or what stands in for it.

        Collective as `sum_of` is, and one all-reduce of one number where a narrower layer may
        follow: on no rank may anyone look on.

        Args:
            x: Own rows ``[num_own, F]``.
            plan: The edges.
            sum_of: Gives the sum of own rows of any width.
        """
        weights = _narrower(self.conv, x)
        name = self.agreed.get(self.key)
        if not weights or name == _NEVER:
            return sum_of(x)
        if not all_ranks(not _is_watched(self.conv, x), x.device, plan.shard.world_size):
            return sum_of(x)
        out: StandIn
        if name is None:
            out = WatchedSum.of(sum_of(x))
        elif name not in weights:
            return sum_of(x)
        else:
            # Unlike a sum, a layer keeps its rows: what changes them in place must not show.
            x, weight = x if _saving_hooks() else copy_on_write(x), weights[name]
            out = narrow_sum(x, weight, sum_of)
        self.uses.note(out, self, plan, is_first=name is None)
        return out


@dataclass(frozen=True)
class _Noted:
    stand_in: weakref.ref[StandIn]
    seen: Seen
    place: Place
    plan: Plan
    is_first: bool

    @property
    def layer(self) -> str:
        """The name of the weight of the only layer that was applied; ``''`` for any other use.

        Whoever still has the stand-in may use it later.
        """
        if self.seen.other_uses or self.stand_in() is not None:
            return _NEVER
        weights = self.place.conv.named_parameters()
        return next((name for name, weight in weights if weight is self.seen.weight), _NEVER)


def _agree(watched: list[_Noted]) -> None:
    """Whether a layer follows on all ranks, and is not applied to more rows than there are edges.

    Collective: one small all-gather.
    """
    own = [(n.layer, n.plan.num_edges, n.plan.shard.num_own) for n in watched]
    answers = agree(own) if watched[0].plan.shard.world_size > 1 else [own]
    for noted, of_ranks in zip(watched, zip(*answers, strict=True), strict=True):
        layers, edges, rows = zip(*of_ranks, strict=True)
        is_one = len(set(layers)) == 1 and sum(edges) >= sum(rows)
        noted.place.agreed[noted.place.key] = layers[0] if is_one else _NEVER


def _narrower(conv: MessagePassing, x: Tensor) -> dict[str, Tensor]:
    """The weights of layers that would make fewer columns of `x`, by name; as on all ranks."""
    if x.dtype not in (torch.float32, torch.float64):  # where sums of products are rounded
        return {}
    return {
        name: weight
        for name, weight in conv.named_parameters()
        if not torch.nn.parameter.is_lazy(weight)
        and weight.dim() == 2
        and weight.size(0) < weight.size(1) == x.size(1)
        and weight.dtype == x.dtype
    }


def _is_watched(conv: MessagePassing, x: Tensor) -> bool:
    """Whether somebody on this rank would see a stand-in, or that something else is computed.

    Hooks on saved tensors are those of a checkpoint: it runs a forward again and compares what both
    save, but the second may know more of the conv.
    """
    hooks = _saving_hooks()
    return (
        (hooks is not None and not hooks[0].__module__.startswith('pyg_sar.'))
        or Modes.now(x.device).autocast
        or is_hooked(conv)
        or bool(conv._propagate_forward_hooks)
        or _has_hooks(torch.nn.modules.module, '_global_')
        or any(_has_hooks(module, '_') for module in conv.modules())
    )


def _saving_hooks() -> Any:
    """The pair of hooks that autograd gives what it saves to, or None."""
    # torch 2.5 does not tell, which counts as hooks: rows then travel as they are.
    top = getattr(torch._C._autograd, '_top_saved_tensors_default_hooks', lambda _: (print, print))
    return top(True)


def _has_hooks(owner: Any, prefix: str) -> bool:
    names = ('forward_hooks', 'forward_pre_hooks', 'backward_hooks', 'backward_pre_hooks')
    return any(getattr(owner, prefix + name, None) for name in names)
