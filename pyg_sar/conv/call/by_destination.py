"""Runs message and aggregation of a conv on the gather path: on all in-edges of some nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyg_sar.aggregate.chunks import edges_within
from pyg_sar.aggregate.gather import ChunkProgram, chunks_of, gather
from pyg_sar.aggregate.program import Arguments, no_autocast_cache
from pyg_sar.comm import Agreed, Exchange, agree
from pyg_sar.conv.inspect.trace import Seen, learnable_leaves, node_of_now
from pyg_sar.conv.message.arguments import Binding
from pyg_sar.conv.message.forward_state import state_of
from pyg_sar.conv.message.sample_edges import (
    NUM_MADE_UP,
    NUM_SAMPLES,
    Undone,
    edge_rows,
    samples_of,
    states_of,
    undo,
    with_made_up_edges,
    written_among,
)
from pyg_sar.conv.message.whole_graph_sizes import WholeGraphSizes
from pyg_sar.conv.message.whole_reads import run_aggregation, run_message
from pyg_sar.ground.class_swap import name_of
from pyg_sar.shard.kept import Kept
from pyg_sar.shard.plan import Plan

_WHOLE_GRAPH: Kept[Agreed[tuple[int, int]]] = Kept()


@dataclass(frozen=True, kw_only=True)
class Observation(Seen):
    """What message and aggregation give for a few edges."""

    out: Tensor | None  # the aggregation's result with nodes first, or None for ``edge_update``
    is_dense: bool  # whether the aggregation makes dense batches of messages
    reads_sizes: bool  # whether it asks for sizes of the whole graph


@no_autocast_cache()
def observe(binding: Binding) -> Observation:
    """Runs message and aggregation on a few edges, each into a destination of its own."""
    samples, edge_index = samples_of(binding)
    first_node = node_of_now()
    sizes = WholeGraphSizes(binding.conv, NUM_SAMPLES, NUM_SAMPLES, is_sample=True)
    slots = [slot for slot in binding.slots if slot.role in ('edge', 'whole')]
    states = states_of({slot.name: getattr(samples, slot.role)[slot.place] for slot in slots})
    here = torch.autograd.set_multithreading_enabled(False)  # as in a trace
    with here, Undone(binding.conv, binding.arguments) as undone, sizes.in_force():
        out, edge_outputs = _run(binding, samples, edge_index, NUM_SAMPLES, is_watched=True)
    written_among(binding, states)
    binding.check_draws(undone.uses_rng)
    undone.check_edges_alone()
    names = undone.edge_attributes
    edge_outputs += undone.edge_rows(names, NUM_SAMPLES)
    outputs = edge_outputs if out is None else (out, *edge_outputs)
    learnable = learnable_leaves(outputs, samples, first_node)
    return Observation(
        out=out,
        edge_outputs=edge_outputs,
        edge_attributes=names,
        numbers=undone.numbers,
        learnable=learnable,
        uses_rng=undone.uses_rng,
        is_dense=sizes.is_dense,
        reads_sizes=sizes.are_read,
    )


def run_gather(
    binding: Binding, plan: Plan, exchange: Exchange, max_rows: int | None
) -> tuple[Tensor | None, tuple[Tensor, ...], Observation]:
    """Computes a conv's message and aggregation by chunks of destinations.

    A chunk has `max_rows` in-edges at most; None is for :func:`edges_within`. Gives the
    aggregation's result in the conv's node dimension, the edge outputs, and what is to be set on
    the conv.
    """
    seen = observe(binding)
    if seen.is_dense and not (plan.is_whole and plan.shard.e_id is not None):
        raise ValueError(
            f'expected the edge_index of the shard itself in {name_of(binding.conv)}, whose '
            'aggregation may depend on the order of the edges (got edges derived from it)'
        )
    width, num_nodes = _whole_graph(plan) if seen.reads_sizes else (0, 0)
    sizes = WholeGraphSizes(binding.conv, width, num_nodes)

    def run(
        arguments: Arguments, edge_index: Tensor, num_dst: int
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        needs_more = edge_index.size(1) < 2 or int(edge_index[1, 0]) > 0
        if num_dst and needs_more:
            # PyG's quantiles take two messages or more, and some for the first node.
            arguments, edge_index = with_made_up_edges(arguments, edge_index)
            out, edge_outputs = run(arguments, edge_index, num_dst + 1)
            edge_outputs = tuple(o[NUM_MADE_UP:] for o in edge_outputs)
            return None if out is None else out[1:], edge_outputs
        conv, before = binding.conv, dict(vars(binding.conv))
        try:
            with sizes.in_force():
                out, edge_outputs = _run(binding, arguments, edge_index, num_dst)
        finally:
            changed = undo(conv, before)
        return out, edge_outputs + edge_rows(
            conv, changed, seen.edge_attributes, edge_index.size(1)
        )

    program = ChunkProgram(run, seen.out, seen.edge_outputs, seen.uses_rng, state_of(binding.conv))
    arguments = replace(binding.arguments, learnable=seen.learnable)
    rows = max_rows
    if rows is None:
        rows = edges_within(_edge_bytes(arguments, seen), plan.edge_index.device)
    # A dense batch has as many rows for every node as the largest in-degree.
    max_dst = max(rows // max(sizes.width, 1), 1) if seen.is_dense else None
    chunks = chunks_of(plan, rows, max_dst, exchange)
    out, outputs = gather(program, arguments, plan, chunks, exchange)
    dim = binding.conv.node_dim
    return None if out is None else out.movedim(0, dim), outputs, seen


def _whole_graph(plan: Plan) -> tuple[int, int]:
    """The largest in-degree and the number of destinations of all ranks.

    Collective: an all-reduce of one number, and a small all-gather at the first time.
    """

    def make() -> tuple[int, int]:
        own = int(plan.in_degree.max()) if plan.in_degree.numel() else 0
        widths, sizes = zip(*agree((own, plan.shard.num_dst)), strict=True)
        return max(widths), sum(sizes)

    return _WHOLE_GRAPH.of(plan, Agreed).get(None, make)


def _run(
    binding: Binding,
    arguments: Arguments,
    edge_index: Tensor,
    num_dst: int,
    *,
    is_watched: bool = False,
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    values = binding.inputs(arguments, edge_index, edge_index[1], num_dst)
    message = run_message(binding, values, arguments) if is_watched else binding.run(values)
    if binding.function != 'message':
        return None, (message,)
    if is_watched:
        out = run_aggregation(binding, values, message, arguments)
    else:
        out = binding.aggregate(values, message)
    return out.movedim(binding.conv.node_dim, 0), ()


def _edge_bytes(arguments: Arguments, seen: Observation) -> int:
    """Bytes of the largest row of an edge, or of what is computed from it."""
    tensors = [*arguments.src, *arguments.dst, *arguments.edge, *seen.edge_outputs]
    if seen.out is not None:
        tensors.append(seen.out)
    return max((t[:1].numel() * t.element_size() for t in tensors), default=0)
