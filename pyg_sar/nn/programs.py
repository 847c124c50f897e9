"""What computes a call of message passing, for every path a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyg_sar.nn.at_once import run_by_destination, run_one_shot
from pyg_sar.nn.call import Call
from pyg_sar.nn.leaky_scores import LeakyScores
from pyg_sar.nn.narrow_exchange import (
    NarrowSum,
    layer_after,
    only_reads,
    rows_through,
    with_partial_sums,
)
from pyg_sar.nn.options import Path
from pyg_sar.nn.plan import Plan
from pyg_sar.nn.reductions import BlockMessages, finish
from pyg_sar.nn.reuse import kept_sum
from pyg_sar.nn.side_effects import state_of
from pyg_sar.nn.source_rows import Ends
from pyg_sar.nn.unchanged import unchanged
from pyg_sar.ops.attention_weights import attention_weights, have_loop
from pyg_sar.ops.block_loop import BlockByBlock
from pyg_sar.ops.chunks import Run
from pyg_sar.ops.end_dots import end_dots
from pyg_sar.ops.online_softmax import online
from pyg_sar.ops.program import Program
from pyg_sar.ops.reductions import State
from pyg_sar.ops.replay import replay
from pyg_sar.ops.weighted_sum import weighted_sum
from pyg_sar.rows.one_loss import for_rows
from pyg_sar.rows.rows import tag


def _on_edges(
    plan: Plan, call: Call, whole: Call | None = None
) -> tuple[list[State], tuple[Tensor, ...]]:
    """The states of the reductions, and the edge outputs, of what runs on every edge.

    That may be a part of the call that is given as `whole`.
    """
    weights = None if plan.scores is None else _weights(plan.scores, plan, call)
    if weights is not None:
        return [], (weights,)
    check, analysed = unchanged(whole or call), (whole or call).arguments
    if plan.ends is not None:
        call = call.of_dots(plan.ends, _dots(plan.ends, call))
    aggregate = plan.aggregate if call.function == 'message' else None
    num_dst = call.plan.shard.num_dst
    program = Program(
        run=BlockMessages(call, aggregate, num_dst, plan.edge_attributes, plan.written).run,
        messages=plan.messages,
        edge_outputs=plan.edge_outputs,
        uses_rng=plan.uses_rng,
        reductions=() if aggregate is None else aggregate.reductions,
        edge_bytes=plan.edge_bytes,
        weights=plan.weights,
        as_in_forward=state_of(call.conv, check),
    )
    arguments, keeps = plan.arguments(call.arguments, analysed), call.options.keeps
    run = Run.of(program, arguments, call.plan, call.exchange, keeps=keeps)
    return (replay if program.weights is None else online)(run)


def _weights(scores: LeakyScores, plan: Plan, call: Call) -> Tensor | None:
    """Weights of attention by their own loop, where it takes them and reads no other rows."""
    source, own, att = _argument(call, scores.source), _argument(call, scores.own), None
    if scores.att is not None:
        att = for_rows(plan.learnable_now()[scores.att])[0]
    if len(call.arguments.src) > 1 or not have_loop(source, own, att):
        return None
    weights = attention_weights(source, own, att, scores.slope, _loop(call))
    return _shaped(weights, call.plan.num_edges, *plan.edge_outputs[0].shape[1:])


def _dots(ends: Ends, call: Call) -> Tensor:
    """Of two arguments, by the last dimension of their rows."""
    source, own = (_argument(call, name) for name in ends)
    *heads, channels = source.shape[1:]
    source, own = (_shaped(t, t.size(0), math.prod(heads), channels) for t in (source, own))
    return _shaped(end_dots(source, own, _loop(call)), call.plan.num_edges, *heads)


def _loop(call: Call) -> BlockByBlock:
    return BlockByBlock(call.plan, call.exchange, [] if call.options.keeps else None)


def _row_sum(plan: Plan, call: Call, x: Tensor, weight: Tensor | None, finishes: bool) -> Tensor:
    """Own sums of `x`; `finishes` says that the conv's aggregation has to run on them."""
    aggregate, out = plan.aggregate, plan.out
    assert aggregate is not None
    is_linear, one_shot = plan.path == 'SpMM', call.options.mode == 'one_shot'
    mean = [kind for _, kind in aggregate.calls] == ['mean']
    blocks, exchange, rows = call.plan, call.exchange, x
    if weight is not None:
        rows = x.to(weight.dtype)
        heads = math.prod(weight.shape[1:])
        weight = _shaped(weight, blocks.num_edges, *(() if is_linear else (heads,)))
        if not is_linear:
            rows = _shaped(rows, x.size(0), heads, math.prod(x.shape[1:]) // heads)
    if is_linear and call.options.partial_sums and not one_shot:
        blocks, exchange = with_partial_sums(call.edge_index, blocks, exchange, weight)
    total = weighted_sum(
        rows,
        weight,
        blocks,
        exchange,
        keep_rows=call.options.keeps,
        one_shot=one_shot,
        mean=mean and is_linear,
    )
    if not is_linear:
        (summed,), dim = plan.messages, aggregate.reductions[0].dim
        row_shape = [size for i, size in enumerate(summed.shape) if i != dim % summed.dim()]
        if plan.summed is not None:
            shape, heads_dim = plan.summed
            total = total.view(blocks.shard.num_dst, *shape).sum(heads_dim + 1)
        total = total.view(blocks.shard.num_dst, *row_shape).movedim(0, dim)
        finishes = finishes or mean
    if not finishes:
        return total
    return finish(call, aggregate, [(total,)], out, call.plan, is_mean=mean and is_linear)


def _sum(plan: Plan, call: Call) -> Tensor:
    """A sum or mean of x_j, or of weights times x_j; on path SpMM they take no gradient.

    Sums of raw features are kept, and a narrower layer may come before the sum.
    """
    conv, x = call.conv, _argument(call, plan.source)
    weight = None if plan.weight is None else call.arguments.edge[plan.weight]
    if plan.path == 'SpMM' and plan.is_sum:
        if not (x.requires_grad and torch.is_grad_enabled()):  # the same on all ranks
            out = kept_sum(
                lambda: _row_sum(plan, call, x, weight, plan.is_hooked),
                (type(conv.aggr_module), call.exchange.wire.dtype),
                x,
                weight,
                call.edge_index,
                call.plan,
                is_hooked=plan.is_hooked,
                copies=not (call.in_forward and only_reads(conv, x)),
            )
            if out is not None:
                return out
        if call.in_forward:
            if not plan.narrower:
                plan.narrower.append(layer_after(conv, x))
            (layer,) = plan.narrower
            # With fewer edges than rows the layer is cheaper after the sum.
            edges, num_rows = call.edges, call.num_nodes[0]
            if layer is not None and edges is not None and edges._sharding.total >= num_rows:
                rows = rows_through(conv, layer, call.kwargs.get('x'), x)
                total = _row_sum(plan, call, rows, weight, plan.is_hooked)
                return NarrowSum.of(total, layer.weight)
    return _row_sum(plan, call, x, weight, plan.is_hooked or not plan.is_sum)


def _argument(call: Call, name: str) -> Tensor:
    slot = next(slot for slot in call.slots if slot.name == name)
    is_there = slot.role != 'stand-in'
    values: Tensor = getattr(call.arguments, slot.role)[slot.index] if is_there else slot.value
    return values


def _replayed(plan: Plan, call: Call) -> Tensor:
    """Any message, block by block, computed again in backward."""
    states, outputs = _on_edges(plan, call)
    if plan.aggregate is None:
        set_attributes(plan, call, outputs[1:])
        return outputs[0]
    set_attributes(plan, call, outputs)
    return finish(call, plan.aggregate, states, plan.out, call.plan)


def _factored(plan: Plan, call: Call) -> Tensor:
    """A sum or mean of x_j times a factor: that of every edge first, block by block."""
    _, (factor, *others) = _on_edges(plan, call.of_factor(plan.source), call)
    set_attributes(plan, call, others)
    x = _argument(call, plan.source)
    return _row_sum(plan, call, x, factor, plan.is_hooked or not plan.is_sum)


def _by_destination(plan: Plan, call: Call) -> Tensor:
    """Any message and aggregation, by chunks of destinations with all their in-edges."""
    out, outputs = run_by_destination(plan, call, unchanged(call))
    if out is None:
        out, outputs = outputs[0], outputs[1:]
    set_attributes(plan, call, outputs)
    return out


def _one_shot(plan: Plan, call: Call) -> Tensor:
    """Plain autograd over all edges, with own and all halo rows."""
    return run_one_shot(plan, call)


PROGRAMS: dict[Path, Callable[[Plan, Call], Tensor]] = {
    'SpMM': _sum,
    'SpMM with learned values': _sum,
    'scalar times x_j': _factored,
    'replay': _replayed,
    'by destination': _by_destination,
    'one_shot': _one_shot,
}


def set_attributes(plan: Plan, call: Call, values: Sequence[Tensor]) -> None:
    """Sets on the conv what its function sets: one row per edge."""
    for name, value in zip(plan.edge_attributes, values, strict=True):
        rows = call.in_given_order(value)
        rows = rows if call.edges is None else tag(rows, 0, call.edges._sharding)
        setattr(call.conv, name, rows)


def _shaped(values: Tensor, *shape: int) -> Tensor:
    # Not a view without need: autograd would add to its gradient out of place.
    return values if values.shape == shape else values.reshape(shape)
