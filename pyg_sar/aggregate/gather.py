"""The gather path: any aggregation, by chunks of destinations.

Some aggregations need all messages of a destination at once (median, LSTM). A chunk of destinations
is small enough to fetch all rows that its in-edges read; the conv's own code runs there as on one
machine. Nothing is kept: backward fetches the rows again, runs the code with autograd, and drops
it. A row travels once for every chunk that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_sar.aggregate.program import Arguments, Surroundings, gradients_of, no_autocast_cache
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


Chunks = list[tuple[DestinationChunk, Request]]
"""The chunks of a plan, as many on all ranks, with who fetches what from whom."""


def chunks_of(plan: Plan, max_rows: int, max_dst: int | None, exchange: Exchange) -> Chunks:
    """The chunks of a plan, remembered.

    Collective: one small all-gather; where a rank does not know them also another one and two
    all-to-alls.

    Args:
        plan: The blocks of the edge_index.
        max_rows: In-edges of a chunk at most, unless one destination has more.
        max_dst: Destinations of a chunk at most, or None.
        exchange: The exchange of the shard.
    """
    key = 'chunks', max_dst is None
    # One rank may still know a plan that another has forgotten.
    if not all(agree(key in plan.cache)):
        chunks = make_chunks(plan, max_rows, max_dst)
        chunks += [no_chunk(plan)] * (max(agree(len(chunks))) - len(chunks))
        requests = exchange.request([chunk.halo for chunk in chunks])
        plan.cache[key] = list(zip(chunks, requests, strict=True))
    found: Chunks = plan.cache[key]
    return found


def gather(
    program: ChunkProgram, arguments: Arguments, plan: Plan, chunks: Chunks, exchange: Exchange
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """Runs message and aggregation chunk by chunk.

    Shapes as for :func:`~pyg_sar.aggregate.replay.replay`; in place of the states it gives the
    aggregation's result ``[num_dst, ...]``.

    Saved for backward: the arguments. Communication: one all-to-all per chunk and source tensor in
    forward, again in backward, and one for its gradient where it needs one.
    """
    surroundings = Surroundings(program.uses_rng, plan.edge_index.device, program.as_in_forward)
    call = _Call(program, plan, chunks, exchange, arguments.counts, surroundings)
    out = _Gather.apply(call, *arguments)  # type: ignore[no-untyped-call]
    return (None, tuple(out)) if program.out is None else (out[0], tuple(out[1:]))


@dataclass(frozen=True)
class _Call:
    """A run of a program on all chunks."""

    program: ChunkProgram
    plan: Plan
    chunks: Chunks
    exchange: Exchange
    counts: tuple[int, ...]
    surroundings: Surroundings

    def each_chunk(
        self, arguments: Arguments
    ) -> Iterator[tuple[DestinationChunk, Request, Arguments]]:
        """The chunks with the rows that each reads (collective)."""
        for i, (chunk, request) in enumerate(self.chunks):
            self.surroundings.enter(i)
            halo = self.exchange.fetch_requested(arguments.src, request)
            src = [
                torch.cat([t.index_select(0, chunk.own), rows])
                for t, rows in zip(arguments.src, halo, strict=True)
            ]
            dst = [t[chunk.dst] for t in arguments.dst]
            edge = [t.index_select(0, chunk.edges) for t in arguments.edge]
            tensors = [*src, *dst, *edge, *arguments.whole, *arguments.learnable]
            yield chunk, request, Arguments.of(self.counts, tensors)

    def run(
        self, chunk: DestinationChunk, arguments: Arguments
    ) -> list[tuple[slice | Tensor, Tensor]]:
        """The outputs on a chunk, each with the places where its rows belong."""
        out, edge_outputs = self.program.run(arguments, chunk.edge_index, chunk.num_dst)
        of_edges: list[tuple[slice | Tensor, Tensor]] = [(chunk.edges, o) for o in edge_outputs]
        return of_edges if out is None else [(chunk.dst, out), *of_edges]

    def gradients(
        self,
        chunk: DestinationChunk,
        arguments: Arguments,
        needs: Sequence[bool],
        grads: Sequence[Tensor | None],
    ) -> list[Tensor | None]:
        """The gradients of a chunk's arguments that need one."""
        if chunk.num_dst == 0:
            return [None] * len(needs)
        leaves = arguments.as_leaves(needs)
        with torch.enable_grad():
            found = self.run(chunk, leaves)
        outputs, of_outputs = [], []
        for (place, value), grad in zip(found, grads, strict=True):
            if grad is not None and value.requires_grad:
                outputs.append(value)
                of_outputs.append(grad[place])
        return gradients_of(outputs, of_outputs, leaves, needs)

    def add(
        self,
        total: Sequence[Tensor | None],
        gradients: Sequence[Tensor | None],
        arguments: Arguments,
        chunk: DestinationChunk,
        request: Request,
    ) -> None:
        """Adds a chunk's gradients to where its rows came from (collective)."""
        num_src, num_dst, num_edge = self.counts[:3]
        num_own = chunk.own.numel()
        for i, (target, gradient) in enumerate(zip(total, gradients, strict=True)):
            if target is None:
                continue
            if i < num_src:
                # Every rank takes part, whether its own share has a gradient or not.
                rows = torch.zeros_like(arguments.src[i]) if gradient is None else gradient
                target.index_add_(0, chunk.own, rows[:num_own])
                self.exchange.return_requested([rows[num_own:]], [target], request)
            elif gradient is None:
                continue
            elif i < num_src + num_dst:
                target[chunk.dst] += gradient
            elif i < num_src + num_dst + num_edge:
                target[chunk.edges] = gradient
            else:
                target += gradient


@communicates
class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        program, plan = call.program, call.plan
        outputs = [t.new_zeros(plan.num_edges, *t.shape[1:]) for t in program.edge_outputs]
        if program.out is not None:
            outputs.insert(0, program.out.new_zeros(plan.shard.num_dst, *program.out.shape[1:]))
        with no_autocast_cache():
            for chunk, _, arguments in call.each_chunk(Arguments.of(call.counts, tensors)):
                if chunk.num_dst:
                    found = call.run(chunk, arguments)
                    for target, (place, value) in zip(outputs, found, strict=True):
                        target[place] = value
        ctx.call = call
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        others = (o for o in outputs if not (o.is_floating_point() or o.is_complex()))
        ctx.mark_non_differentiable(*others)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        call, needs = ctx.call, ctx.needs_input_grad[1:]
        all_arguments = Arguments.of(call.counts, ctx.saved_tensors)
        total = all_arguments.zeros(needs)
        with call.surroundings.again(all_arguments.learnable):
            for chunk, request, arguments in call.each_chunk(all_arguments):
                found = call.gradients(chunk, arguments, needs, grads)
                call.add(total, found, arguments, chunk, request)
        return None, *total
