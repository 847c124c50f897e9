"""Sums over raw features, which are the same in every epoch and so are computed once.

All ranks decide together whether a kept sum is used. If one rank has other features than before,
all of them exchange rows. Who might write to a kept sum gets a copy; in turns it takes memory once
that happens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from pyg_sar.comm.ranks import cache_of, current
from pyg_sar.comm.vote import vote
from pyg_sar.nn.answers import Forward, asking, is_argument, never, note, recalled, state_of
from pyg_sar.shard.blocks import Plan
from pyg_sar.shard.edges import ShardEdges
from pyg_sar.shard.shard import Cached
from pyg_sar.utils import offload
from pyg_sar.utils.tensor_state import checksum


def kept_copy(tensor: Tensor) -> Tensor:
    """A copy for reading; ranks that take turns evict tensor and copy as one."""
    if offload.watcher.value is None:
        return tensor.clone()
    copy: Tensor = _KeptCopy.apply(tensor)
    offer = _Settles(copy)
    if not offload.watcher.value.offers([tensor], offer):
        return tensor.clone()
    copy._settles = offer  # type: ignore[attr-defined]  # lives as long as the copy
    return copy


def lent_copy(kept: Tensor) -> Tensor:
    """A copy on write of a constant; ranks that take turns evict constant and copy as one."""
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

_SUMMED = 'tensors with kept sums'


@dataclass(frozen=True, eq=False)
class _Sum:
    """A kept result, with what it was made of and how that was, which shows writes."""

    weight: ref[Tensor] | None
    states: list[Any]  # version and checksum of each tensor
    out: Tensor
    version: int
    number: int  # of the things that all ranks made together

    def is_of(self, tensors: Sequence[Tensor], state: Callable[[Tensor], Any]) -> bool:
        """Whether it is the sum of rows, perhaps with weights, and nothing has changed since."""
        weight = tensors[1] if len(tensors) > 1 else None
        if weight is not (None if self.weight is None else self.weight()):
            return False
        return self.out._version == self.version and self.states == [*map(state, tensors)]


def kept_sum(
    make: Callable[[], Tensor],
    kind: Hashable,
    x: Tensor,
    weight: Tensor | None,
    edges: ShardEdges,
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
    Who might write to the result gets `copies`. Collective: one small all-gather, if the answer of
    the last forward does not hold.
    """
    tensors, question = [t for t in (x, weight) if t is not None], ('kept sum', kind)
    known = recalled(question, edges, *tensors)
    if known is not None:
        found = known[0] if known else None
    else:
        found = _sum_of_all(make, kind, tensors, plan, is_hooked)
        if found is not None:
            note(question, (edges, *tensors), (found,), _is_still)
        else:
            holds = never if torch.is_grad_enabled() else _has_no_sum
            note(question, (), (), holds, is_argument(x))
    if found is None:
        return None
    return lent_copy(found.out) if copies else found.out


def _is_still(
    forward: Forward, about: list[Any], value: list[Any], states: tuple[Any, ...]
) -> bool:
    """Whether a kept sum is that of an argument of a forward."""
    (kept,), (_, *tensors) = value, about
    return forward.has(tensors[0]) and kept.is_of(tensors, forward.state)


def _has_no_sum(
    forward: Forward, about: list[Any], value: list[Any], states: tuple[Any, ...]
) -> bool:
    """Whether this rank has kept no sum of what is asked about, as far as it knows."""
    (is_of_argument,) = states
    return not is_of_argument or not any(map(forward.has, cache_of(_SUMMED)))


def _sum_of_all(
    make: Callable[[], Tensor], kind: Hashable, tensors: list[Tensor], plan: Plan, is_hooked: bool
) -> _Sum | None:
    """The sum that all ranks have kept in one call, or keep now; None if one of them keeps none."""
    x, comm = tensors[0], current()
    by_tensor = SUMS.of(plan, WeakIdKeyDictionary)
    results: dict[Hashable, _Sum] = by_tensor.get(x, {})
    state, found = _NOTHING, results.get(kind)
    if not is_hooked and not any(t.is_inference() for t in tensors):
        is_found = found is not None and found.is_of(tensors, state_of)
        # Without gradients nothing is kept.
        state = _HAS if is_found else _KEEPS if torch.is_grad_enabled() else _NOTHING
    number = found.number if found is not None and state == _HAS else 0
    size, what = plan.shard.world_size, 'a decision of all ranks'
    counts = vote(what, state == _HAS, state >= _KEEPS, fingerprint=f'sum {number}')
    # Sums of other calls, or none on some ranks.
    has, may = counts or (0, *(vote(what, state >= _KEEPS) or ()))
    if has == size:
        return found
    if may < size or not torch.is_grad_enabled():
        return None
    with asking.set(None):  # the next forward asks nothing within it
        out = make()
    comm.num_made += 1
    of_weight = ref(tensors[1]) if len(tensors) > 1 else None
    states = [(t._version, checksum(t)) for t in tensors]
    results[kind] = _Sum(of_weight, states, out.detach(), out._version, comm.num_made)
    by_tensor[x], cache_of(_SUMMED)[x] = results, True
    return results[kind]
