"""Reads an aggregation as reductions, merged block by block, and the steps around them.

PyG's aggregations, and a conv's own ``aggregate``, are made of reductions over in-edges (PyG's
``scatter``) and of steps before and after them. The steps before run on every block, and the inputs
of the reductions are merged; the steps after run once, on the merged results. Both are PyG's own
code: it runs on a block up to its last reduction, and at the end on no edges at all, where every
reduction gives its merged result.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyg_sar.nn.call import Call
from pyg_sar.nn.intercept import BlockIndex, Intercept
from pyg_sar.nn.side_effects import edge_rows, parameters_for_rows, undo
from pyg_sar.ops.program import Arguments, MessageReduction, SoftmaxFn
from pyg_sar.ops.reductions import Extremum, Merge, Product, State, Sum
from pyg_sar.rows.one_loss import for_rows
from pyg_sar.rows.over_ranks import zeros_of
from pyg_sar.shard.blocks import Plan

_MERGES: dict[str, Callable[[], Merge]] = {
    'sum': Sum,
    'mul': Product,
    'max': lambda: Extremum('amax'),
    'min': lambda: Extremum('amin'),
}
MERGED_AS = {'add': 'sum', 'sum': 'sum', 'mean': 'sum', 'mul': 'mul', 'max': 'max', 'min': 'min'}


@dataclass(frozen=True)
class Aggregate:
    """The reductions of a conv's aggregation."""

    reductions: tuple[MessageReduction, ...]  # all that are merged, each once
    calls: tuple[tuple[int, str], ...]  # in their order: index in `reductions`, and the kind
    sums_one: bool  # whether all are sums of one tensor


def _index_of(tensor: Tensor, messages: list[Tensor]) -> int:
    """The index of a tensor among the inputs of reductions, which it joins if it is new."""
    for i, other in enumerate(messages):
        if other is tensor:
            return i
    messages.append(tensor)
    return len(messages) - 1


def aggregate_of(calls: list[tuple[int, str, int]], messages: list[Any]) -> Aggregate | None:
    """The reductions of an aggregation, by the index of what each reduces, its kind and dimension.

    None if there are none.
    """
    if not calls:
        return None
    kinds = list(dict.fromkeys((m, MERGED_AS[r], dim) for m, r, dim in calls))
    reductions = tuple(MessageReduction(m, _MERGES[kind](), dim) for m, kind, dim in kinds)
    by_kind = tuple((kinds.index((m, MERGED_AS[r], dim)), r) for m, r, dim in calls)
    only_sums = all(kind == 'sum' for _, kind, _ in kinds)
    return Aggregate(reductions, by_kind, only_sums and len(messages) == 1)


class _Done(Exception):
    """Stops PyG's code at the last reduction of a block."""


class BlockMessages(Intercept):
    """Runs message and aggregation on some edges, up to the last reduction of `aggregate`.

    It sets `attributes` of the conv to one row per edge; all attributes are restored. It changes
    the inputs `written` in place, so it gets copies of them.
    """

    def __init__(
        self,
        call: Call,
        aggregate: Aggregate | None,
        num_dst: int,
        attributes: tuple[str, ...] = (),
        written: tuple[str, ...] = (),
    ) -> None:
        super().__init__(call.conv)
        self._call, self._num_dst = call, num_dst
        self._num_calls = 0 if aggregate is None else len(aggregate.calls)
        reductions = () if aggregate is None else aggregate.reductions
        self._dims = {r.message: r.dim for r in reductions}
        self._attributes, self._written = attributes, written

    def run(
        self, arguments: Arguments, edge_index: Tensor, softmax: SoftmaxFn
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The inputs of the reductions, and edge outputs; see :class:`.program.Program`.

        One edge is computed twice: ``squeeze()`` would take its dimension, too.
        """
        if edge_index.size(1) == 1:
            twice, ends = _twice(arguments), edge_index.repeat(1, 2)
            messages, outputs = self.run(twice, ends, _of_one(softmax))
            firsts = (m.narrow(self._dims[i], 0, 1) for i, m in enumerate(messages))
            return tuple(firsts), tuple(output[:1] for output in outputs)
        call, self.softmax, self._remaining = self._call, softmax, 0
        conv, reduced = call.conv, list[Tensor]()
        index = edge_index[1].as_subclass(BlockIndex)
        values = call.inputs(arguments, edge_index, index, self._num_dst)
        values.update((name, values[name].clone()) for name in self._written)
        before = dict(vars(conv))
        try:
            with self:
                message = call.run(values)
                if call.function == 'message':
                    self._messages, self._remaining = reduced, self._num_calls
                    with suppress(_Done):
                        call.aggregate({**values, 'dim_size': 0, 'size_i': 0}, message)
        finally:
            self.softmax, self._messages = None, []  # they may hold an owner of this object
            changed = undo(conv, before)
        of_edges: tuple[Tensor, ...] = () if call.function == 'message' else (message,)
        if self._attributes:
            of_edges += edge_rows(conv, changed, self._attributes, edge_index.size(1))
        return tuple(reduced), of_edges

    def scatter(self, src: Tensor, dst: Tensor, dim: int, reduce: str) -> Tensor:
        """Notes the input; the result has no rows, as no block knows it yet."""
        if not self._remaining:
            return super().scatter(src, dst, dim, reduce)
        _index_of(src, self._messages)
        self._remaining -= 1
        if self._remaining == 0:
            raise _Done
        return src.detach().narrow(dim, 0, 0)

    def degree(self, dst: Tensor, dtype: torch.dtype | None) -> Tensor:
        """No rows, as the results of reductions have."""
        if not self._remaining:
            return super().degree(dst, dtype)
        return torch.empty(0, dtype=dtype or torch.float, device=dst.device)


def _twice(one: Arguments) -> Arguments:
    """The rows of an edge as those of two edges."""
    src, dst, edge = (tuple(torch.cat([t, t]) for t in k) for k in (one.src, one.dst, one.edge))
    return replace(one, src=src, dst=dst, edge=edge)


def _of_one(softmax: SoftmaxFn) -> SoftmaxFn:
    """The softmax of an edge for two that are alike."""

    def both(logits: Tensor, dst: Tensor) -> Tensor:
        weights = softmax(logits[:1], dst[:1])
        return torch.cat([weights, weights])

    return both


class _Finisher(Intercept):
    """Gives the merged results to an aggregation that runs on no edges."""

    def __init__(
        self,
        conv: torch.nn.Module,
        aggregate: Aggregate,
        states: list[State],
        plan: Plan,
        is_mean: bool,
    ) -> None:
        super().__init__(conv, lambda logits, _: logits)
        self.is_mean = is_mean
        self.calls = iter(aggregate.calls)
        self.reductions = aggregate.reductions
        self.states = states
        self.plan = plan
        # Where nothing else reads the sums the mean overwrites them, to save a row per node.
        self.may_overwrite = len(aggregate.calls) == 1

    def scatter(self, src: Tensor, dst: Tensor, dim: int, reduce: str) -> Tensor:
        """The merged result of the next reduction."""
        index, expected = next(self.calls)
        assert reduce == expected
        state, dim = self.states[index], self.reductions[index].dim
        if not torch.is_grad_enabled() and any(t.requires_grad for t in state):
            state = tuple(t.detach().clone() for t in state)
        shape = [1] * state[0].dim()
        shape[dim] = -1
        if reduce == 'mean' and not self.is_mean:
            count = self.plan.in_degree.to(state[0].dtype).clamp(min=1).view(shape)
            if self.may_overwrite and state[0].is_floating_point():
                return state[0].div_(count)
            return state[0] / count
        if reduce in ('max', 'min'):
            return state[0].masked_fill((self.plan.in_degree == 0).view(shape), 0)
        if reduce == 'mul':
            # One zero among the factors does not keep it from its gradient, that of the others.
            return state[0].detach() * (state[1] == 0) + zeros_of(state[0])
        return state[0]

    def degree(self, dst: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Number of in-edges of every own node."""
        return self.plan.in_degree.to(dtype or torch.float)


def finish(
    call: Call,
    aggregate: Aggregate,
    states: list[State],
    message: Tensor,
    plan: Plan,
    *,
    is_mean: bool = False,
) -> Tensor:
    """The aggregation's result from the merged state of every reduction, of ``num_dst`` rows.

    `message` is one of any number of edges, for shape and dtype. `is_mean` says that sums of a mean
    are divided by the number of in-edges already.
    """
    conv, num_dst = call.conv, plan.shard.num_dst
    no_message = message.detach().narrow(conv.node_dim, 0, 0)
    a, no_edges = call.arguments, plan.edge_index[:, :0]
    whole = tuple(map(for_rows, a.whole))
    nothing = Arguments(a.src, a.dst, tuple(t[:0] for t in a.edge), whole)
    values = call.inputs(nothing, no_edges, no_edges[1].as_subclass(BlockIndex), num_dst)
    is_pygs = type(conv).aggregate.__module__.startswith('torch_geometric.')
    flattens: AbstractContextManager[Any] = nullcontext() if is_pygs else _Flattens()
    with parameters_for_rows(conv), _Finisher(conv, aggregate, states, plan, is_mean), flattens:
        return call.aggregate(values, no_message)


class _Flattens(TorchFunctionMode):
    """Computes the -1 of ``view(0, -1)`` of no edges, which torch finds ambiguous."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.view, Tensor.reshape, torch.reshape) and len(args) > 1:
            rows, *shape = args
            shape = [*shape[0]] if isinstance(shape[0], (tuple, list)) else shape
            if -1 in shape and 0 in shape and rows.dim() and rows.size(0) == 0:
                others = prod(size for size in shape if size not in (0, -1))
                shape[shape.index(-1)] = prod(rows.shape[1:]) // max(others, 1)
                args = rows, shape
        return func(*args, **kwargs)
