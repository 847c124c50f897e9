"""Runs a conv's message and aggregation on all in-edges of some nodes, or on all edges, at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.collectives import torch_apply
from pyg_sar.comm.rows_by_id import with_halo
from pyg_sar.comm.vote import Agreed, agree
from pyg_sar.nn.call import NUM_EDGES, Call
from pyg_sar.nn.intercept import WholeGraphSizes
from pyg_sar.nn.plan import Plan as CallPlan
from pyg_sar.nn.side_effects import (
    UndoneSideEffects,
    edge_rows,
    leaves_of,
    node_of_now,
    parameters_for_rows,
    state_of,
    undo,
)
from pyg_sar.ops.by_destination import ChunkProgram, aggregate_chunks, chunks_of
from pyg_sar.ops.chunks import edges_within
from pyg_sar.ops.program import Arguments
from pyg_sar.rows.align import own_rows
from pyg_sar.rows.one_loss import for_rows
from pyg_sar.rows.rows import Rows, plain, tag
from pyg_sar.shard.blocks import Plan
from pyg_sar.shard.shard import Cached
from pyg_sar.utils.class_swap import name_of

_WHOLE_GRAPH: Cached[Agreed[tuple[int, int]]] = Cached()


def observed(plan: CallPlan, call: Call) -> CallPlan:
    """The plan of a call by destination, with what message and aggregation compute.

    Both run on a few edges, each into a destination of its own.
    """
    samples = replace(call.samples(), at_edges=False)  # a message may write to what it reads
    ids = torch.arange(NUM_EDGES, device=samples.device)
    first_node = node_of_now()
    sizes = WholeGraphSizes(call.conv, NUM_EDGES, NUM_EDGES, is_sample=True)
    here = torch.autograd.set_multithreading_enabled(False)  # as in an analysis
    with here, UndoneSideEffects(call.conv, call.arguments) as undone, sizes.in_force():
        out = run_on(call, samples, torch.stack([ids, ids]), NUM_EDGES)
    names = undone.edge_attributes(
        lambda t: isinstance(t, Tensor) and t.dim() > 0 and t.size(0) == NUM_EDGES
    )
    edge_outputs = tuple(undone.changed[name] for name in names)
    if call.function != 'message':
        edge_outputs = (out, *edge_outputs)
    learnable, are_read = leaves_of([out, *edge_outputs], samples, first_node)
    return replace(
        plan,
        out=out.detach(),
        edge_outputs=tuple(t.detach() for t in edge_outputs),
        edge_attributes=names,
        learnable=learnable,
        are_read=are_read,
        uses_rng=undone.uses_rng,
        is_dense=sizes.is_dense,
        reads_sizes=sizes.are_read,
    )


def run_by_destination(
    plan: CallPlan, call: Call, check: Callable[[], None] | None
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """Computes a conv's message and aggregation by chunks of destinations.

    In mode ``'one_shot'`` all destinations are one chunk. Gives the aggregation's result in the
    conv's node dimension, and the edge outputs. `check` is called before backward runs them again.
    """
    blocks = call.plan
    if plan.is_dense and not (blocks.is_whole and blocks.shard.e_id is not None):
        raise ValueError(
            f'expected the edge_index of the shard itself in {name_of(call.conv)}, whose '
            'aggregation may depend on the order of the edges (got edges derived from it)'
        )
    width, num_nodes = _whole_graph(blocks) if plan.reads_sizes else (0, 0)
    sizes, is_message = WholeGraphSizes(call.conv, width, num_nodes), call.function == 'message'

    def run(
        arguments: Arguments, edge_index: Tensor, num_dst: int
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        needs_more = edge_index.size(1) < 2 or int(edge_index[1, 0]) > 0
        if num_dst and needs_more:
            # PyG's quantiles take two messages or more, and some for the first node.
            arguments, edge_index = _with_padding_edges(arguments, edge_index)
            out, edge_outputs = run(arguments, edge_index, num_dst + 1)
            edge_outputs = tuple(o[_NUM_PADDING:] for o in edge_outputs)
            return None if out is None else out[1:], edge_outputs
        conv, before = call.conv, dict(vars(call.conv))
        try:
            with sizes.in_force():
                out = run_on(call, arguments, edge_index, num_dst)
        finally:
            changed = undo(conv, before)
        of_edges = edge_rows(conv, changed, plan.edge_attributes, edge_index.size(1))
        return (out, of_edges) if is_message else (None, (out, *of_edges))

    as_in_forward = state_of(call.conv, check)
    program = ChunkProgram(
        run, plan.out if is_message else None, plan.edge_outputs, plan.uses_rng, as_in_forward
    )
    arguments = plan.arguments(call.arguments, call.arguments)
    rows = max(blocks.num_edges, 1)
    if call.options.mode != 'one_shot':
        read = *arguments.src, *arguments.dst, *arguments.edge, *plan.edge_outputs, plan.out
        edge_bytes = max(t[:1].numel() * t.element_size() for t in read)
        rows = edges_within(edge_bytes, blocks.edge_index.device)
    # A dense batch has as many rows for every node as the largest in-degree.
    max_dst = max(rows // max(sizes.width, 1), 1) if plan.is_dense else None
    chunks = chunks_of(blocks, rows, max_dst, call.exchange)
    out, outputs = aggregate_chunks(program, arguments, blocks, chunks, call.exchange)
    return None if out is None else out.movedim(0, call.conv.node_dim), outputs


_NUM_PADDING = 2
"""Edges of the made-up node."""


def _with_padding_edges(arguments: Arguments, edge_index: Tensor) -> tuple[Arguments, Tensor]:
    """The edges, after copies of the first one that end in a new first destination.

    What a message cannot compute of other numbers would be NaN in gradients of parameters, too.
    """
    places = (*edge_index[:, :1], slice(1)) if edge_index.size(1) else (None, None, None)
    src, dst, first = places
    num_src = next((t.size(0) for t in arguments.src), 0)
    ends = edge_index.new_tensor([[num_src], [0]]).expand(2, _NUM_PADDING)
    shifted = torch.stack([edge_index[0], edge_index[1] + 1])
    more = replace(
        arguments,
        src=tuple(torch.cat([t, _row_at(t, src, 1.0)]) for t in arguments.src),
        dst=tuple(torch.cat([_row_at(t, dst, 0.5), t]) for t in arguments.dst),
        edge=tuple(
            torch.cat([*[_row_at(t, first, 1.0)] * _NUM_PADDING, t]) for t in arguments.edge
        ),
    )
    return more, torch.cat([ends, shifted], dim=1)


def _row_at(values: Tensor, place: Any, number: float) -> Tensor:
    """The row at a place; without one a row of a number, or of index zero."""
    if place is not None:
        return values[place]
    is_index = not (values.is_floating_point() or values.is_complex())
    return values.new_full((1, *values.shape[1:]), 0 if is_index else number)


def _whole_graph(plan: Plan) -> tuple[int, int]:
    """The largest in-degree and the number of destinations of all ranks.

    Collective: one small all-gather, two at the first time.
    """

    def make() -> tuple[int, int]:
        own = int(plan.in_degree.max()) if plan.in_degree.numel() else 0
        widths, sizes = zip(*agree((own, plan.shard.num_dst)), strict=True)
        return max(widths), sum(sizes)

    return _WHOLE_GRAPH.of(plan, Agreed).get(None, make)


def run_on(call: Call, arguments: Arguments, edge_index: Tensor, num_dst: int) -> Tensor:
    """The aggregation's result with nodes first; a row per edge of ``edge_update``."""
    values = call.inputs(arguments, edge_index, edge_index[1], num_dst)
    message = call.run(values)
    if call.function != 'message':
        return message
    return call.aggregate(values, message).movedim(call.conv.node_dim, 0)


def run_one_shot(plan: CallPlan, call: Call) -> Tensor:
    """Plain autograd over all edges, with own and all halo rows."""
    conv, (edges, num_edges, shard) = call.conv, (call.edges, call.plan.num_edges, call.plan.shard)
    across_edges = plan.across_edges
    src = tuple(with_halo(t, call.exchange) for t in call.arguments.src)
    arguments, ids = replace(call.arguments, src=src), call.plan.edge_index
    if not across_edges:
        arguments = replace(arguments, whole=tuple(map(for_rows, arguments.whole)))
    values = call.inputs(arguments, ids, ids[1], shard.num_dst)
    if across_edges:
        values = _of_all_edges(call, plan.function, values)
    before = dict(vars(conv))
    with nullcontext() if across_edges else parameters_for_rows(conv):
        out = call.run(values)
        for attribute, value in list(vars(conv).items()):
            is_new = type(value) is Tensor and before.get(attribute) is not value
            if is_new and edges is not None and value.shape[:1] == (num_edges,):
                setattr(conv, attribute, tag(call.in_given_order(value), 0, edges._sharding))
        if call.function == 'message':
            out = call.aggregate(values, out)
        if num_edges == 0 and not across_edges:
            read = [t for t, is_read in zip(arguments, plan.are_read, strict=True) if is_read]
            read += [getattr(module(), name) for module, name in plan.parameters or ()]
            out = _WithoutEdges.apply(plain(out), *read)
    if not isinstance(out, Tensor):  # a tuple or dict of nodes and of edges: rows of the whole
        return out
    if across_edges and not isinstance(out, Rows):
        out = _own(call, out)
    return plain(out)


class _WithoutEdges(torch.autograd.Function):
    """The result of a rank without edges, whose gradients of what a message reads are zero.

    The message may leave early (GATConv does). Ranks with edges wait for this one in backward.
    """

    apply = torch_apply

    @staticmethod
    def forward(ctx: Any, out: Tensor, *read: Tensor) -> Tensor:
        ctx.save_for_backward(*read)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return grads[0], *map(torch.zeros_like, ctx.saved_tensors)


def _own(call: Call, out: Tensor) -> Tensor:
    """Own rows of a result with those of all nodes, or of all edges."""
    edges, is_message = call.edges, call.function == 'message'
    assert edges is not None
    sharding = edges.ends.dst if is_message else edges._sharding
    dim = int(call.conv.node_dim) % out.dim() if is_message else 0
    if out.size(dim) != sharding.total:
        raise ValueError(
            f"expected a row per node in what 'aggregate' of {name_of(call.conv)} gives, "
            f'{sharding.total} rows (got shape {tuple(out.shape)}): its argument dim_size is '
            'their number'
        )
    return own_rows('propagate', out, dim, sharding)


def _of_all_edges(call: Call, name: str, values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the function, as rows of the edges of all ranks."""
    edges = call.edges
    if edges is None or call.move is not None:
        raise ValueError(
            f"'{name}' looks at all edges at once (it takes statistics, asks for their number or "
            'values, gives several tensors, keeps something of them, or has hooks): call it with '
            'rows and the edge_index of pyg_sar.load_shard, with messages from row 0 to row 1'
        )
    sharding, num_src, num_dst = edges._sharding, edges.ends.src.total, edges.ends.dst.total
    is_flipped = edges.handle.is_flipped
    index = edges._row(1 - is_flipped)
    rows = {}
    for slot in call.slots:
        if slot.role in ('src', 'dst', 'edge'):
            value = values[slot.name]
            dim = 0 if slot.role == 'edge' else int(call.conv.node_dim) % value.dim()
            # Not the tensor itself: of an edge tensor that is kept as the plain one of its rows.
            rows[slot.name] = tag(value.view_as(value), dim, sharding)
    return {
        **values,
        'edge_index': edges,
        'size': [num_dst, num_src] if is_flipped else [num_src, num_dst],
        'index': index,
        'edge_index_i': index,
        'edge_index_j': edges._row(int(is_flipped)),
        'size_i': num_dst,
        'size_j': num_src,
        'dim_size': num_dst,
        **rows,
        **call.as_they_are,
    }
