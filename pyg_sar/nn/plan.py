"""How calls of message passing are computed, as all ranks agreed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from pyg_sar.nn.at_once import run_by_destination, run_one_shot
from pyg_sar.nn.call import Call
from pyg_sar.nn.narrow_exchange import (
    NarrowSum,
    is_hooked,
    is_sum,
    layer_after,
    only_reads,
    rows_through,
    with_partial_sums,
)
from pyg_sar.nn.options import Path
from pyg_sar.nn.reductions import BlockMessages, finish
from pyg_sar.nn.reuse import kept_sum
from pyg_sar.nn.sample_edges import state_of
from pyg_sar.nn.trace import Trace, set_attributes, trace, with_factor
from pyg_sar.ops.chunks import Run
from pyg_sar.ops.online_softmax import online
from pyg_sar.ops.program import Program
from pyg_sar.ops.reductions import State
from pyg_sar.ops.replay import replay
from pyg_sar.ops.weighted_sum import weighted_sum


@dataclass(frozen=True, kw_only=True)
class CallPlan:
    """How one kind of call is computed, the same on all ranks."""

    path: Path
    function: str  # the function's name, with its conv's
    drops: bool = False  # whether it draws masks of dropout by edge, or may do so
    uses_rng: bool = False  # whether it draws by a generator of torch, or may do so

    def result(self, call: Call) -> Tensor:
        """The aggregated messages ``[num_dst, ...]`` of a call of ``propagate``.

        A call of ``edge_updater`` gives a row ``[num_edges, ...]`` for every edge.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TracedPlan(CallPlan):
    """A plan for a function with a trace, which tells what it computes."""

    trace: Trace
    # The parameters that it reads by itself, by module and name; None if it has to be traced at
    # every call: it reads a learnable tensor that is no parameter, or sets a number.
    learnable: tuple[tuple[ref[torch.nn.Module], str], ...] | None

    def traced(self, call: Call) -> TracedPlan:
        """With a trace of this call."""
        traced = trace(call)
        if self.trace.source:
            traced = with_factor(traced, call, self.trace.source)
        if self.trace.computed.weights is None:  # on some rank
            traced = traced.in_passes()
        return replace(self, trace=traced)

    def on_edges(self, call: Call) -> tuple[list[State], tuple[Tensor, ...]]:
        """The states of the reductions, and the edge outputs, of what runs on every edge."""
        computed = self.trace.factor or self.trace
        learnable = computed.learnable
        if self.learnable is not None:  # a program may have replaced the parameters since
            learnable = tuple([getattr(module(), name) for module, name in self.learnable])
        program = program_of(call, computed, call.plan.shard.num_dst)
        arguments = replace(call.arguments, learnable=learnable)
        keep_rows = call.options.mode == 'sequential_no_remat'
        run = Run.of(program, arguments, call.plan, call.exchange, keep_rows=keep_rows)
        return (replay if program.weights is None else online)(run)

    def row_sum(self, call: Call, x: Tensor, weight: Tensor | None, finishes: bool) -> Tensor:
        """Own sums of `x`; `finishes` says that the conv's aggregation has to run on them."""
        aggregate, out = self.trace.aggregate, self.trace.out
        assert aggregate is not None
        is_linear, one_shot = self.path == 'SpMM', call.options.mode == 'one_shot'
        mean = [kind for _, kind in aggregate.calls] == ['mean']
        plan, exchange, rows = call.plan, call.exchange, x
        if weight is not None:
            rows = x.to(weight.dtype)
            heads = math.prod(weight.shape[1:])
            weight = _shaped(weight, plan.num_edges, *(() if is_linear else (heads,)))
            if not is_linear:
                rows = _shaped(rows, x.size(0), heads, math.prod(x.shape[1:]) // heads)
        if is_linear and call.options.partial_sums and not one_shot:
            plan, exchange = with_partial_sums(call.edge_index, plan, exchange, weight)
        total = weighted_sum(
            rows,
            weight,
            plan,
            exchange,
            keep_rows=call.options.mode == 'sequential_no_remat',
            one_shot=one_shot,
            mean=mean and is_linear,
        )
        if not is_linear:
            dim = aggregate.reductions[0].dim % out.dim()
            row_shape = [size for i, size in enumerate(out.shape) if i != dim]
            if self.trace.summed is not None:
                shape, heads_dim = self.trace.summed
                total = total.view(plan.shard.num_dst, *shape).sum(heads_dim + 1)
            total = total.view(plan.shard.num_dst, *row_shape).movedim(0, dim)
            finishes = finishes or mean
        if not finishes:
            return total
        return finish(call, aggregate, [(total,)], out, call.plan, is_mean=mean and is_linear)


@dataclass(frozen=True, kw_only=True)
class RowSum(TracedPlan):
    """A sum or mean of x_j, or of weights times x_j; on path linear they take no gradient."""

    # Whether it pays on all ranks to apply a narrower layer first, once they have told each other
    # for the loaded edges.
    pays: list[bool] = field(default_factory=list)

    def result(self, call: Call) -> Tensor:
        """HasCache sums of raw features, and may apply a narrower layer before the sum."""
        set_attributes(call, self.trace, ())
        conv, plan, index = call.conv, call.plan, self.trace.weight
        x = call.arguments.src[0]
        weight = None if index is None else call.arguments.edge[index]
        is_alone = is_sum(conv)
        hooked = is_alone and is_hooked(conv)
        if self.path == 'SpMM' and is_alone:
            if not (x.requires_grad and torch.is_grad_enabled()):  # the same on all ranks
                out = kept_sum(
                    lambda: self.row_sum(call, x, weight, hooked),
                    (type(conv.aggr_module), call.exchange.wire.dtype),
                    x,
                    weight,
                    plan,
                    is_hooked=hooked,
                    copies=not (call.in_forward and only_reads(conv, x)),
                )
                if out is not None:
                    return out
            pays = self.pays if call.edge_index.is_whole else []
            layer = layer_after(conv, x, plan, pays) if call.in_forward else None
            if layer is not None:
                rows = rows_through(conv, layer, call.kwargs.get('x'), x)
                return NarrowSum.of(self.row_sum(call, rows, weight, hooked), layer.weight)
        return self.row_sum(call, x, weight, hooked or not is_alone)


@dataclass(frozen=True, kw_only=True)
class Replay(TracedPlan):
    """Any message, block by block, computed again in backward."""

    def result(self, call: Call) -> Tensor:  # noqa: D102
        traced = self.trace
        states, outputs = self.on_edges(call)
        if traced.aggregate is None:
            set_attributes(call, traced, outputs[1:])
            return outputs[0]
        set_attributes(call, traced, outputs)
        return finish(call, traced.aggregate, states, traced.out, call.plan)


@dataclass(frozen=True, kw_only=True)
class Factored(TracedPlan):
    """A sum or mean of x_j times a factor: that of every edge first, block by block."""

    def result(self, call: Call) -> Tensor:  # noqa: D102
        source = self.trace.source
        _, (factor, *others) = self.on_edges(call.of_factor(source))
        set_attributes(call, self.trace.computed, others)
        index = next(slot.index for slot in call.slots if slot.name == source)
        is_watched = not is_sum(call.conv) or is_hooked(call.conv)
        return self.row_sum(call, call.arguments.src[index], factor, is_watched)


@dataclass(frozen=True, kw_only=True)
class ByDestination(CallPlan):
    """Any message and aggregation, by chunks of destinations with all their in-edges."""

    def result(self, call: Call) -> Tensor:  # noqa: D102
        out, outputs, seen = run_by_destination(call, in_chunks=call.options.mode != 'one_shot')
        if out is None:
            out, outputs = outputs[0], outputs[1:]
        set_attributes(call, seen, outputs)
        return out


@dataclass(frozen=True, kw_only=True)
class OneShot(CallPlan):
    """Plain autograd over all edges, with own and all halo rows."""

    across_edges: bool = False  # whether the function needs the edges of all ranks

    def result(self, call: Call) -> Tensor:  # noqa: D102
        return run_one_shot(call, self.function, across_edges=self.across_edges)


PLANS: dict[Path, Any] = {
    'SpMM': RowSum,
    'SpMM with learned values': RowSum,
    'scalar times x_j': Factored,
    'replay': Replay,
    'by destination': ByDestination,
    'one_shot': OneShot,
}
"""The kind of plan of every path."""


def program_of(call: Call, traced: Trace, num_dst: int) -> Program:
    """A conv's message as :mod:`pyg_sar.ops` runs it."""
    aggregate = traced.aggregate
    return Program(
        run=BlockMessages(
            call, traced.num_calls, num_dst, traced.edge_attributes, traced.written
        ).run,
        num_softmax=traced.num_softmax,
        messages=traced.messages,
        edge_outputs=traced.edge_outputs,
        uses_rng=traced.uses_rng,
        reductions=() if aggregate is None else aggregate.reductions,
        edge_bytes=traced.edge_bytes,
        weights=traced.weights,
        as_in_forward=state_of(call.conv),
    )


def _shaped(values: Tensor, *shape: int) -> Tensor:
    # Not a view without need: autograd would add to its gradient out of place.
    return values if values.shape == shape else values.reshape(shape)
