"""By destination: any aggregation, by chunks of destinations.

Some aggregations need all messages of a destination at once (median, LSTM). A chunk of destinations
is small enough to fetch all rows that its in-edges read; the conv's own code runs there as on one
machine. Nothing is kept: backward fetches the rows again, runs the code with autograd, and drops
it. A row travels once for every chunk that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.collectives import communicates, once_differentiable
from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.row_map import RowMap
from pyg_sar.comm.send_recv import TensorList
from pyg_sar.comm.vote import Agreed, agree
from pyg_sar.ops.chunks import RngAndAutocast
from pyg_sar.ops.program import Arguments, gradients_of, no_autocast_cache
from pyg_sar.shard.blocks import DestinationChunk, Plan, make_chunks, no_chunk
from pyg_sar.shard.shard import Cached


@dataclass(frozen=True)
class ChunkProgram:
    """A conv's message and aggregation over all in-edges of some destinations.

    ``run(arguments, edge_index, num_dst) -> (out, edge_outputs)``: `arguments` hold source,
    destination and edge rows of the chunk, `edge_index` refers to them; `out` is ``[num_dst,
    ...]``, or None for a function that only computes edge outputs ``[num_edges, ...]``.
    """

    run: Callable[[Arguments, Tensor, int], tuple[Tensor | None, tuple[Tensor, ...]]]
    out: Tensor | None  # like `out`, with any number of rows
    edge_outputs: tuple[Tensor, ...]  # like the edge outputs
    uses_rng: bool  # whether it draws random numbers
    # Sets, for the time of a backward, what `run` read in forward besides its arguments.
    as_in_forward: Callable[[], AbstractContextManager[Any]] = nullcontext


DestinationChunks = list[tuple[DestinationChunk, RowMap]]
"""The chunks of a plan, as many on all ranks, with who fetches what from whom."""

_CHUNKS: Cached[Agreed[DestinationChunks]] = Cached()


def chunks_of(
    plan: Plan, max_rows: int, max_dst: int | None, exchange: Exchange
) -> DestinationChunks:
    """The chunks of a plan in one size, remembered.

    A chunk has `max_rows` in-edges at most, unless one destination has more, and `max_dst`
    destinations at most. Collective: one small all-gather; to make the chunks, one small
    all-gather and two all-to-alls.
    """

    def make() -> DestinationChunks:
        chunks = make_chunks(plan, max_rows, max_dst)
        chunks += [no_chunk(plan)] * (max(agree(len(chunks))) - len(chunks))
        return list(zip(chunks, exchange.parts([chunk.halo for chunk in chunks]), strict=True))

    return _CHUNKS.of(plan, Agreed).get((max_rows, max_dst), make)


def aggregate_chunks(
    program: ChunkProgram,
    arguments: Arguments,
    plan: Plan,
    chunks: DestinationChunks,
    exchange: Exchange,
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """Runs message and aggregation chunk by chunk.

    Shapes as for :func:`~pyg_sar.ops.replay.replay`; in place of the states it gives the
    aggregation's result ``[num_dst, ...]``.

    Saved for backward: the arguments. Communication: one all-to-all per chunk and source tensor in
    forward, again in backward, and one for its gradient where it needs one.
    """
    rng_and_autocast = RngAndAutocast(
        program.uses_rng, plan.edge_index.device, program.as_in_forward
    )
    run = _ChunkRun(program, plan, chunks, exchange, rng_and_autocast, arguments)
    out = _ByDestination.apply(run, *arguments.inputs())
    return (None, tuple(out)) if program.out is None else (out[0], tuple(out[1:]))


@dataclass(frozen=True, eq=False)
class _ChunkRun:
    """A program, the chunks that it runs on, and what it reads."""

    program: ChunkProgram
    plan: Plan
    chunks: DestinationChunks
    exchange: Exchange
    rng_and_autocast: RngAndAutocast
    arguments: Arguments

    def read(self) -> Iterator[tuple[DestinationChunk, RowMap, Arguments]]:
        """Every chunk with its arguments, while its random state holds (collective)."""
        inputs = self.arguments
        for number, (chunk, request) in enumerate(self.chunks):
            halo = self.exchange.fetch(list(inputs.src), request)
            pairs = zip(inputs.src, halo, strict=True)
            if self.rng_and_autocast.uses_rng:
                self.rng_and_autocast.enter(number)
            src = tuple(torch.cat([t.index_select(0, chunk.own), rows]) for t, rows in pairs)
            dst = tuple(t[chunk.dst] for t in inputs.dst)
            edge = tuple(t.index_select(0, chunk.edges) for t in inputs.edge)
            yield chunk, request, Arguments(src, dst, edge, inputs.whole, inputs.learnable)

    def reduce_scatter(
        self, out: TensorList
    ) -> Iterator[tuple[DestinationChunk, Arguments, TensorList]]:
        """Every chunk again, with zeros to which the caller adds gradients of its source rows.

        They come into `out`, gradients ``[num_own, ...]`` of own rows (collective).
        """
        for chunk, request, arguments in self.read():
            num_own = chunk.own.numel()
            targets = [t.new_zeros(num_own + chunk.halo.numel(), *t.shape[1:]) for t in out]
            yield chunk, arguments, targets
            for total, target in zip(out, targets, strict=True):
                total.index_add_(0, chunk.own, target[:num_own])
            self.exchange.give_back([t[num_own:] for t in targets], out, request)

    def outputs(
        self, chunk: DestinationChunk, arguments: Arguments
    ) -> list[tuple[slice | Tensor, Tensor]]:
        """The outputs on a chunk, each with the rows of the whole output that it gives."""
        out, edge_outputs = self.program.run(arguments, chunk.edge_index, chunk.num_dst)
        of_edges: list[tuple[slice | Tensor, Tensor]] = [(chunk.edges, o) for o in edge_outputs]
        return of_edges if out is None else [(chunk.dst, out), *of_edges]

    def add_gradients(
        self,
        targets: Sequence[Tensor | None],
        chunk: DestinationChunk,
        arguments: Arguments,
        grads: Sequence[Tensor | None],
    ) -> None:
        """Adds a chunk's gradients to their targets; an argument without one has no target."""
        needs = [target is not None for target in targets]
        leaves = arguments.as_leaves(needs)
        with torch.enable_grad():
            pairs = self.outputs(chunk, leaves)
        outputs, of_outputs = [], []
        for (rows, value), grad in zip(pairs, grads, strict=True):
            if grad is not None and value.requires_grad:
                outputs.append(value)
                of_outputs.append(grad[rows])
        gradients = gradients_of(outputs, of_outputs, leaves, needs)
        num_src, num_dst, num_edge = leaves.counts[:3]
        for i, (target, gradient) in enumerate(zip(targets, gradients, strict=True)):
            if gradient is None or target is None:
                continue
            if num_src <= i < num_src + num_dst:
                target[chunk.dst] += gradient
            elif num_src + num_dst <= i < num_src + num_dst + num_edge:
                target[chunk.edges] = gradient
            else:
                target += gradient


@communicates
class _ByDestination(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _ChunkRun, *tensors: Tensor) -> tuple[Tensor, ...]:
        program, num_edges = run.program, run.plan.num_edges
        outputs = [t.new_zeros(num_edges, *t.shape[1:]) for t in program.edge_outputs]
        if program.out is not None:
            outputs.insert(0, program.out.new_zeros(run.plan.shard.num_dst, *program.out.shape[1:]))
        with no_autocast_cache():
            for chunk, _, arguments in run.read():
                if chunk.num_dst:
                    pairs = run.outputs(chunk, arguments)
                    for target, (rows, value) in zip(outputs, pairs, strict=True):
                        target[rows] = value
        ctx.counts = run.arguments.counts
        ctx.run = replace(run, arguments=Arguments((), (), (), ()))
        ctx.save_for_backward(*run.arguments)
        ctx.set_materialize_grads(False)
        others = (o for o in outputs if not (o.is_floating_point() or o.is_complex()))
        ctx.mark_non_differentiable(*others)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = Arguments.of(ctx.counts, ctx.saved_tensors)
        run: _ChunkRun = replace(ctx.run, arguments=saved)
        total = saved.zeros(ctx.needs_input_grad[1:])
        num_src, targets = len(saved.src), list(total)
        needs_src = [i for i in range(num_src) if total[i] is not None]
        out = [t for t in total[:num_src] if t is not None]
        with run.rng_and_autocast.again(saved.learnable):
            for chunk, arguments, of_src in run.reduce_scatter(out):
                for i, target in zip(needs_src, of_src, strict=True):
                    targets[i] = target
                if chunk.num_dst:
                    run.add_gradients(targets, chunk, arguments, grads)
        return None, *total
