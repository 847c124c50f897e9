"""The gather path: any aggregation, by chunks of destinations.

Some aggregations need all messages of a destination at once (median, LSTM). A chunk of destinations
is small enough to fetch all rows that its in-edges read; the conv's own code runs there as on one
machine. Nothing is kept: backward fetches the rows again, runs the code with autograd, and drops
it. A row travels once for every chunk that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_sar.aggregate.program import Arguments, Surroundings, as_in_forward, no_autocast_cache
from pyg_sar.comm import Exchange, Request, agree, communicates, once_differentiable
from pyg_sar.shard.destination_chunks import DestinationChunk, make_chunks, no_chunk
from pyg_sar.shard.plan import Plan


@dataclass(frozen=True)
class ChunkProgram:
    """A conv's message and aggregation over all in-edges of some destinations.

    Attributes:
        run: ``run(arguments, edge_index, num_dst) -> (out, edge_outputs)``: `arguments` hold
            source, destination and edge rows of the chunk, `edge_index` refers to them; `out` is
            ``[num_dst, ...]``, or None for a function that only computes edge outputs
            ``[num_edges, ...]``.
        out: A tensor like `out` with any number of rows, or None.
        edge_outputs: Tensors like the edge outputs.
        uses_rng: Whether it draws random numbers.
        as_in_forward: Brings about, for the time of a backward, what `run` read in forward beside
            its arguments.
    """

    run: Callable[[Arguments, Tensor, int], tuple[Tensor | None, tuple[Tensor, ...]]]
    out: Tensor | None
    edge_outputs: tuple[Tensor, ...]
    uses_rng: bool
    as_in_forward: Callable[[], AbstractContextManager[Any]] = nullcontext


class Chunks:
    """The chunks of a plan, as many on all ranks, and who fetches what from whom.

    Collective when they are made: one all-gather and two all-to-alls.

    Args:
        plan: The blocks of the edge_index.
        max_rows: In-edges of a chunk at most, unless one destination has more.
        max_dst: Destinations of a chunk at most, or None.
        exchange: The exchange of the shard.
    """

    def __init__(self, plan: Plan, max_rows: int, max_dst: int | None, exchange: Exchange) -> None:
        self.chunks: list[DestinationChunk] = make_chunks(plan, max_rows, max_dst)
        missing = max(agree(len(self.chunks))) - len(self.chunks)
        self.chunks += [no_chunk(plan)] * missing
        self.requests: list[Request] = exchange.request([chunk.halo for chunk in self.chunks])


def chunks_of(plan: Plan, max_rows: int, max_dst: int | None, exchange: Exchange) -> Chunks:
    """The chunks of a plan, remembered (collective: one small all-gather, or see Chunks)."""
    key = 'chunks', max_dst is None
    # One rank may still know a plan that another has forgotten.
    if not all(agree(key in plan.cache)):
        plan.cache[key] = Chunks(plan, max_rows, max_dst, exchange)
    chunks: Chunks = plan.cache[key]
    return chunks


def gather(
    program: ChunkProgram, arguments: Arguments, plan: Plan, chunks: Chunks, exchange: Exchange
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """Runs message and aggregation chunk by chunk.

    ============  ======================  ===================================================
    tensor        shape                   meaning
    ============  ======================  ===================================================
    src           ``[num_own, ...]``      own rows, read at an edge's source
    dst           ``[num_dst, ...]``      own rows, read at an edge's destination
    edge          ``[num_edges, ...]``    one row per edge of `plan`
    whole         any                     read as they are
    learnable     any                     leaf tensors the function reads by itself
    out           ``[num_dst, ...]``      the aggregation's result
    edge outputs  ``[num_edges, ...]``    what the function computes per edge
    ============  ======================  ===================================================

    Saved for backward: the arguments. Communication: one all-to-all per chunk and source tensor in
    forward, again in backward, and one for its gradient where it needs one.
    """
    out = _Gather.apply(  # type: ignore[no-untyped-call]
        program, plan, chunks, exchange, arguments.counts, *arguments
    )
    if program.out is None:
        return None, tuple(out)
    return out[0], tuple(out[1:])


@communicates
class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        program: ChunkProgram,
        plan: Plan,
        chunks: Chunks,
        exchange: Exchange,
        counts: tuple[int, ...],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        surroundings = Surroundings(program.uses_rng, plan.edge_index.device)
        arguments = Arguments.of(counts, tensors)
        outputs = _empty_outputs(program, plan)
        with no_autocast_cache():
            for i, (chunk, request) in enumerate(zip(chunks.chunks, chunks.requests, strict=True)):
                surroundings.enter(i)
                of_chunk = _arguments_of(arguments, chunk, request, exchange)
                if chunk.num_dst == 0:
                    continue
                out, edge_outputs = program.run(of_chunk, chunk.edge_index, chunk.num_dst)
                values = edge_outputs if out is None else (out, *edge_outputs)
                for target, value, place in zip(
                    outputs, values, _places(program, chunk), strict=True
                ):
                    target[place] = value
        ctx.program, ctx.plan, ctx.chunks, ctx.exchange = program, plan, chunks, exchange
        ctx.counts, ctx.surroundings = counts, surroundings
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(o for o in outputs if not o.is_floating_point()))
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        arguments = Arguments.of(ctx.counts, ctx.saved_tensors)
        needs = ctx.needs_input_grad[5:]
        total = [
            torch.zeros_like(t, memory_format=torch.contiguous_format) if need else None
            for t, need in zip(arguments, needs, strict=True)
        ]
        with as_in_forward(ctx.surroundings, ctx.program, arguments.learnable):
            for i, (chunk, request) in enumerate(
                zip(ctx.chunks.chunks, ctx.chunks.requests, strict=True)
            ):
                ctx.surroundings.enter(i)
                of_chunk = _arguments_of(arguments, chunk, request, ctx.exchange)
                found = _gradients(ctx.program, of_chunk, chunk, needs, grads)
                _add(total, found, of_chunk, chunk, request, ctx.exchange)
        return None, None, None, None, None, *total


def _empty_outputs(program: ChunkProgram, plan: Plan) -> tuple[Tensor, ...]:
    outputs = [t.new_zeros(plan.num_edges, *t.shape[1:]) for t in program.edge_outputs]
    if program.out is not None:
        outputs.insert(0, program.out.new_zeros(plan.shard.num_dst, *program.out.shape[1:]))
    return tuple(outputs)


def _places(program: ChunkProgram, chunk: DestinationChunk) -> list[slice | Tensor]:
    """Where the rows of each output of a chunk belong."""
    places: list[slice | Tensor] = [chunk.edges] * len(program.edge_outputs)
    return places if program.out is None else [chunk.dst, *places]


def _arguments_of(
    arguments: Arguments, chunk: DestinationChunk, request: Request, exchange: Exchange
) -> Arguments:
    """The rows that a chunk reads (collective)."""
    fetched = exchange.fetch_requested(arguments.src, request)
    src = tuple(
        torch.cat([t.index_select(0, chunk.own), halo])
        for t, halo in zip(arguments.src, fetched, strict=True)
    )
    dst = tuple(t[chunk.dst] for t in arguments.dst)
    edge = tuple(t.index_select(0, chunk.edges) for t in arguments.edge)
    return Arguments(src, dst, edge, arguments.whole, arguments.learnable)


def _gradients(
    program: ChunkProgram,
    arguments: Arguments,
    chunk: DestinationChunk,
    needs: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradients of a chunk's arguments that need one."""
    tensors = list(arguments)
    found: list[Tensor | None] = [None] * len(tensors)
    if chunk.num_dst == 0:
        return found
    leaves = arguments.as_leaves(needs)
    with torch.enable_grad():
        out, edge_outputs = program.run(leaves, chunk.edge_index, chunk.num_dst)
    values = edge_outputs if out is None else (out, *edge_outputs)
    outputs, gradients = [], []
    for value, grad, place in zip(values, grads, _places(program, chunk), strict=True):
        if grad is not None and value.requires_grad:
            outputs.append(value)
            gradients.append(grad[place])
    wanted = [i for i, need in enumerate(needs) if need]
    if outputs and wanted:
        of_leaves = list(leaves)
        results = torch.autograd.grad(
            outputs, [of_leaves[i] for i in wanted], gradients, allow_unused=True
        )
        for i, result in zip(wanted, results, strict=True):
            found[i] = result
    return found


def _add(
    total: Sequence[Tensor | None],
    found: Sequence[Tensor | None],
    arguments: Arguments,
    chunk: DestinationChunk,
    request: Request,
    exchange: Exchange,
) -> None:
    """Adds a chunk's gradients to where its rows came from (collective)."""
    num_src, num_dst, num_edge = arguments.counts[:3]
    num_own = chunk.own.numel()
    for i, (target, gradient) in enumerate(zip(total, found, strict=True)):
        if target is None:
            continue
        if i < num_src:
            # Every rank takes part, whether its own share has a gradient or not.
            rows = torch.zeros_like(arguments.src[i]) if gradient is None else gradient
            target.index_add_(0, chunk.own, rows[:num_own])
            exchange.return_requested([rows[num_own:]], [target], request)
        elif gradient is None:
            continue
        elif i < num_src + num_dst:
            target[chunk.dst] += gradient
        elif i < num_src + num_dst + num_edge:
            target[chunk.edges] = gradient
        else:
            target += gradient
