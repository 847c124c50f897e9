"""The paths on which one call of a conv's message passing can be computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.aggregate.halo import with_halo
from pyg_sar.aggregate.program import Arguments, Program, SoftmaxFn
from pyg_sar.aggregate.replay import replay
from pyg_sar.aggregate.weighted_sum import weighted_sum
from pyg_sar.comm import Exchange
from pyg_sar.conv.call.by_destination import Observation, run_gather
from pyg_sar.conv.call.decision import Decision
from pyg_sar.conv.exchanges import Oriented
from pyg_sar.conv.inspect.trace import Trace
from pyg_sar.conv.message.arguments import Binding
from pyg_sar.conv.message.forward_state import state_of
from pyg_sar.conv.message.reductions import Aggregate, finish, messages_of
from pyg_sar.conv.message.sample_edges import Undone
from pyg_sar.conv.options import Path
from pyg_sar.conv.reuse.narrow_exchange import is_hooked, is_sum, sum_for_layer
from pyg_sar.conv.reuse.raw_feature_sums import are_raw, kept_sum
from pyg_sar.merge import State
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.rows import plain, tag
from pyg_sar.shard.plan import Plan


@dataclass(frozen=True)
class Call:
    """One call of ``propagate``, up to the conv's ``update``, or of ``edge_updater``."""

    binding: Binding  # the function with its arguments
    plan: Plan
    exchange: Exchange
    oriented: Oriented  # the edges; results per edge go back to the caller's order
    decision: Decision  # how the ranks compute it
    # In-edges of a chunk of the gather path; None for what fits into free memory.
    max_rows: int | None
    in_forward: bool  # whether the conv's own forward takes the result
    edges: EdgeIndex | None  # as they were given, if the call was made with rows of the whole

    @property
    def conv(self) -> MessagePassing:
        """The conv."""
        return self.binding.conv

    @property
    def is_one_shot(self) -> bool:
        """Whether all halo rows are exchanged at once."""
        return self.decision.mode == 'one_shot'

    @property
    def trace(self) -> Trace:
        """What the function does."""
        assert self.decision.trace is not None
        return self.decision.trace

    @property
    def reductions(self) -> Aggregate:
        """What the aggregation reduces."""
        assert self.trace.aggregate is not None
        return self.trace.aggregate

    @property
    def most_rows(self) -> int | None:
        """In-edges of a chunk of destinations."""
        return max(self.plan.num_edges, 1) if self.is_one_shot else self.max_rows

    def set_attributes(self, seen: Trace | Observation, values: tuple[Tensor, ...]) -> None:
        """Sets on the conv what its function sets: one row per edge, and numbers."""
        for name, number in seen.numbers.items():
            setattr(self.conv, name, number)
        for name, value in zip(seen.edge_attributes, values, strict=True):
            rows = self.oriented.to_given(value)
            setattr(
                self.conv, name, rows if self.edges is None else tag(rows, 0, self.edges._space)
            )


def update_edges(call: Call) -> Tensor:
    """The result ``[num_edges, ...]`` of a call of ``edge_updater``."""
    if call.decision.path == 'one_shot':
        return call.oriented.to_given(_one_shot(call))
    seen: Trace | Observation
    if call.decision.path == 'gather':
        _, outputs, seen = run_gather(call.binding, call.plan, call.exchange, call.most_rows)
    else:
        seen = call.trace
        _, outputs = _replayed(call)
    call.set_attributes(seen, outputs[1:])
    return call.oriented.to_given(outputs[0])


def _linear(call: Call) -> Tensor:
    call.set_attributes(call.trace, ())
    plan, arguments, place = call.plan, call.binding.arguments, call.trace.weight
    x = arguments.src[0]
    weight = None if place is None else arguments.edge[place]
    mean = [kind for _, kind in call.reductions.calls] == ['mean']

    def sum_of(rows: Tensor) -> Tensor:
        flat = None if weight is None else weight.view(-1)
        rows = rows if flat is None else rows.to(flat.dtype)
        total = weighted_sum(rows, flat, plan, call.exchange, one_shot=call.is_one_shot, mean=mean)
        out = call.trace.out
        return finish(call.binding, call.reductions, [(total,)], out, plan, is_mean=mean)

    if not is_sum(call.conv):
        return sum_of(x)
    if are_raw(x):
        out = kept_sum(call.conv, x, weight, plan, sum_of, is_hooked=is_hooked(call.conv))
        if out is not None:
            return out
    if not call.in_forward:
        return sum_of(x)
    return sum_for_layer(call.conv, x, plan, sum_of)


def _weighted(call: Call) -> Tensor:
    traced, plan, arguments = call.trace, call.plan, call.binding.arguments
    assert traced.weight is not None
    call.set_attributes(traced, ())
    weight = arguments.edge[traced.weight]
    x = arguments.src[0].to(weight.dtype)
    heads = math.prod(weight.shape[1:])
    total = weighted_sum(
        _shaped(x, x.size(0), heads, math.prod(x.shape[1:]) // heads),
        _shaped(weight, plan.num_edges, heads),
        plan,
        call.exchange,
        keep_rows=call.decision.mode == 'sequential_no_remat',
        one_shot=call.is_one_shot,
    )
    dim = call.reductions.reductions[0].dim % traced.out.dim()
    row_shape = [size for i, size in enumerate(traced.out.shape) if i != dim]
    state = total.view(plan.shard.num_dst, *row_shape).movedim(0, dim)
    return finish(call.binding, call.reductions, [(state,)], traced.out, plan)


def _shaped(values: Tensor, *shape: int) -> Tensor:
    # Not a view without need: autograd would add to its gradient out of place.
    return values if values.shape == shape else values.reshape(shape)


def _replay(call: Call) -> Tensor:
    states, outputs = _replayed(call)
    call.set_attributes(call.trace, outputs)
    return finish(call.binding, call.reductions, states, call.trace.out, call.plan)


def _replayed(call: Call) -> tuple[list[State], tuple[Tensor, ...]]:
    learnable = call.decision.learnable_of(call.conv)
    program = program_of(call.binding, call.trace, call.plan.shard.num_dst)
    if not call.decision.one_pass:
        program = replace(program, weights=None)
    arguments = replace(call.binding.arguments, learnable=learnable)
    keep_rows = call.decision.mode == 'sequential_no_remat'
    return replay(program, arguments, call.plan, call.exchange, keep_rows=keep_rows)


def _gather(call: Call) -> Tensor:
    out, outputs, seen = run_gather(call.binding, call.plan, call.exchange, call.most_rows)
    assert out is not None
    call.set_attributes(seen, outputs)
    return out


def _one_shot(call: Call) -> Tensor:
    """Plain autograd over all edges, with all halo rows beside the own ones."""
    binding, edges, num_dst = call.binding, call.plan.edge_index, call.plan.shard.num_dst
    src = tuple(with_halo(t, call.exchange) for t in binding.arguments.src)
    values = binding.inputs(replace(binding.arguments, src=src), edges, edges[1], num_dst)
    if call.decision.has_statistics:
        values = _of_all_edges(call, values)
    out = binding.run(values)
    if binding.function == 'message':
        out = binding.aggregate(values, out)
    out = plain(out)
    if call.plan.num_edges == 0 and out.is_floating_point():
        # A conv may skip parameters that other ranks, which have edges, have gradients of.
        # DistributedDataParallel would wait for them.
        for parameter in call.conv.parameters():
            out = out + 0 * parameter.sum()
    return out


def _of_all_edges(call: Call, values: dict[str, Any]) -> dict[str, Any]:
    """What a function gets that looks across edges: rows of the edges of all ranks."""
    edges = call.edges
    if edges is None or call.oriented.edges is not None:
        raise ValueError(
            f"'{call.decision.function}' takes statistics over edges: call it with the edge_index "
            'of pyg_sar.load_shard, with messages from row 0 to row 1'
        )
    space, num_dst = edges._space, edges.ends.dst.total
    index = edges._row(1 - edges.handle.is_flipped)
    rows = {}
    for name, value, at_nodes in call.binding.edge_values(values):
        dim = int(call.conv.node_dim) % value.dim() if at_nodes else 0
        # Not the tensor itself: that of an edge tensor is kept as the plain one of the own rows.
        rows[name] = tag(value.view_as(value), dim, space)
    return {
        **values,
        'index': index,
        'edge_index_i': index,
        'edge_index_j': edges._row(int(edges.handle.is_flipped)),
        'size_i': num_dst,
        'dim_size': num_dst,
        **rows,
        **call.binding.at_nodes,
    }


AGGREGATE: dict[Path, Callable[[Call], Tensor]] = {
    'linear': _linear,
    'weighted': _weighted,
    'replay': _replay,
    'gather': _gather,
    'one_shot': _one_shot,
}
"""Every path of ``propagate``: the aggregated messages ``[num_dst, ...]`` of a call."""


def program_of(binding: Binding, traced: Trace, num_dst: int) -> Program:
    """A conv's message as the aggregate room runs it."""
    conv, aggregate = binding.conv, traced.aggregate
    num_calls = 0 if aggregate is None else len(aggregate.calls)

    def run(
        arguments: Arguments, edge_index: Tensor, softmax: SoftmaxFn
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        with Undone(conv) as undone:
            out = messages_of(binding, num_calls, arguments, edge_index, num_dst, softmax)
        outputs = undone.edge_rows(traced.edge_attributes, edge_index.size(1))
        return ((), out + outputs) if aggregate is None else (out, outputs)

    return Program(
        run=run,
        num_softmax=traced.num_softmax,
        messages=traced.messages,
        edge_outputs=traced.edge_outputs,
        uses_rng=traced.uses_rng,
        reductions=() if aggregate is None else aggregate.reductions,
        edge_bytes=traced.edge_bytes,
        weights=traced.weights,
        as_in_forward=state_of(conv),
    )
