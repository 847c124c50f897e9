"""How a kind of call of message passing is computed, the same on all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from weakref import ref

import torch
from torch import Tensor

from pyg_sar.nn.analysis import Analysis, analyze
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
from pyg_sar.nn.side_effects import state_of
from pyg_sar.ops.chunks import Run
from pyg_sar.ops.online_softmax import online
from pyg_sar.ops.program import Program
from pyg_sar.ops.reductions import State
from pyg_sar.ops.replay import replay
from pyg_sar.ops.weighted_sum import weighted_sum
from pyg_sar.rows.rows import tag


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one kind of call is computed.

    Attributes:
        path: One of :data:`pyg_sar.nn.options.Path`.
        function: The function's name, with its conv's.
        found: What the function does; None where it needs the edges of all ranks.
        learnable: The parameters that it reads by itself, by module and name; None if it has to be
            analysed at every call: it reads a learnable tensor that is no parameter.
        across_edges: Whether the function needs the edges of all ranks.
        drops: Whether it draws masks of dropout by edge, or may do so.
        uses_rng: Whether it draws by a generator of torch, or may do so.
        pays: Of a sum, whether it pays on all ranks to apply a narrower layer first, once they have
            told each other for the loaded edges.
    """

    path: Path
    function: str
    found: Analysis | None = None
    learnable: tuple[tuple[ref[torch.nn.Module], str], ...] | None = ()
    across_edges: bool = False
    drops: bool = False
    uses_rng: bool = False
    pays: list[bool] = field(default_factory=list)

    @property
    def program(self) -> Callable[[Plan, Call], Tensor]:
        """Computes a call, given this plan.

        A call of ``propagate`` gives the aggregated messages ``[num_dst, ...]``, one of
        ``edge_updater`` a row ``[num_edges, ...]`` for every edge.
        """
        return _PROGRAMS[self.path]

    def of(self, call: Call) -> Plan:
        """The plan for a call: itself, if the function reads parameters alone."""
        return self if self.learnable is not None else replace(self, found=analyze(call))


def _on_edges(plan: Plan, call: Call) -> tuple[list[State], tuple[Tensor, ...]]:
    """The states of the reductions, and the edge outputs, of what runs on every edge."""
    found = plan.found
    assert found is not None
    learnable = found.learnable
    if plan.learnable is not None:  # a program may have replaced the parameters since
        learnable = tuple([getattr(module(), name) for module, name in plan.learnable])
    program = _program_of(call, found)
    arguments = replace(call.arguments, learnable=learnable)
    keep_rows = call.options.mode == 'sequential_no_remat'
    run = Run.of(program, arguments, call.plan, call.exchange, keep_rows=keep_rows)
    return (replay if program.weights is None else online)(run)


def _row_sum(plan: Plan, call: Call, x: Tensor, weight: Tensor | None, finishes: bool) -> Tensor:
    """Own sums of `x`; `finishes` says that the conv's aggregation has to run on them."""
    found = plan.found
    assert found is not None
    aggregate, out = found.aggregate, found.out
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
        keep_rows=call.options.mode == 'sequential_no_remat',
        one_shot=one_shot,
        mean=mean and is_linear,
    )
    if not is_linear:
        dim = aggregate.reductions[0].dim % out.dim()
        row_shape = [size for i, size in enumerate(out.shape) if i != dim]
        if found.summed is not None:
            shape, heads_dim = found.summed
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
    conv, found = call.conv, plan.found
    assert found is not None
    x = _source(call, found)
    weight = None if found.weight is None else call.arguments.edge[found.weight]
    is_alone = is_sum(conv)
    hooked = is_alone and is_hooked(conv)
    if plan.path == 'SpMM' and is_alone:
        if not (x.requires_grad and torch.is_grad_enabled()):  # the same on all ranks
            out = kept_sum(
                lambda: _row_sum(plan, call, x, weight, hooked),
                (type(conv.aggr_module), call.exchange.wire.dtype),
                x,
                weight,
                call.plan,
                is_hooked=hooked,
                copies=not (call.in_forward and only_reads(conv, x)),
            )
            if out is not None:
                return out
        pays = plan.pays if call.edge_index.is_whole else []
        layer = layer_after(conv, x, call.plan, pays) if call.in_forward else None
        if layer is not None:
            rows = rows_through(conv, layer, call.kwargs.get('x'), x)
            return NarrowSum.of(_row_sum(plan, call, rows, weight, hooked), layer.weight)
    return _row_sum(plan, call, x, weight, hooked or not is_alone)


def _source(call: Call, found: Analysis) -> Tensor:
    slot = next(slot for slot in call.slots if slot.name == found.source)
    return call.arguments.src[slot.index]


def _replayed(plan: Plan, call: Call) -> Tensor:
    """Any message, block by block, computed again in backward."""
    found = plan.found
    assert found is not None
    states, outputs = _on_edges(plan, call)
    if found.aggregate is None:
        set_attributes(call, found, outputs[1:])
        return outputs[0]
    set_attributes(call, found, outputs)
    return finish(call, found.aggregate, states, found.out, call.plan)


def _factored(plan: Plan, call: Call) -> Tensor:
    """A sum or mean of x_j times a factor: that of every edge first, block by block."""
    found = plan.found
    assert found is not None
    _, (factor, *others) = _on_edges(plan, call.of_factor(found.source))
    set_attributes(call, found, others)
    is_watched = not is_sum(call.conv) or is_hooked(call.conv)
    return _row_sum(plan, call, _source(call, found), factor, is_watched)


def _by_destination(plan: Plan, call: Call) -> Tensor:
    """Any message and aggregation, by chunks of destinations with all their in-edges."""
    out, outputs, found = run_by_destination(call, in_chunks=call.options.mode != 'one_shot')
    if out is None:
        out, outputs = outputs[0], outputs[1:]
    set_attributes(call, found, outputs)
    return out


def _one_shot(plan: Plan, call: Call) -> Tensor:
    """Plain autograd over all edges, with own and all halo rows."""
    return run_one_shot(call, plan.function, across_edges=plan.across_edges)


_PROGRAMS: dict[Path, Callable[[Plan, Call], Tensor]] = {
    'SpMM': _sum,
    'SpMM with learned values': _sum,
    'scalar times x_j': _factored,
    'replay': _replayed,
    'by destination': _by_destination,
    'one_shot': _one_shot,
}


def set_attributes(call: Call, found: Analysis, values: Sequence[Tensor]) -> None:
    """Sets on the conv what its function sets: one row per edge."""
    for name, value in zip(found.edge_attributes, values, strict=True):
        rows = call.in_given_order(value)
        rows = rows if call.edges is None else tag(rows, 0, call.edges._sharding)
        setattr(call.conv, name, rows)


def _program_of(call: Call, found: Analysis) -> Program:
    """A conv's message as :mod:`pyg_sar.ops` runs it."""
    aggregate = None if found.is_factored else found.aggregate
    num_calls = 0 if aggregate is None else len(aggregate.calls)
    num_dst = call.plan.shard.num_dst
    return Program(
        run=BlockMessages(call, num_calls, num_dst, found.edge_attributes, found.written).run,
        messages=found.messages,
        edge_outputs=found.edge_outputs,
        uses_rng=found.uses_rng,
        reductions=() if aggregate is None else aggregate.reductions,
        edge_bytes=found.edge_bytes,
        weights=found.weights,
        as_in_forward=state_of(call.conv),
    )


def _shaped(values: Tensor, *shape: int) -> Tensor:
    # Not a view without need: autograd would add to its gradient out of place.
    return values if values.shape == shape else values.reshape(shape)
