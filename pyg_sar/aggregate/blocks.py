"""The blocks of a plan in chunks of edges, each with what a message function reads there.

What a function computes for an edge does not depend on other edges. So a block's rows are received
once, and its edges are computed in chunks of a few MiB, which stay in the cache. A TransformerConv
layer (40,000 nodes, 600,000 edges, 4 heads x 32, one process) fell from 2.3 to 0.5 times plain
PyG's time, and from 2,400 to 280 MiB. Edges of a block are sorted by destination, so a chunk
concerns a range of destinations only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_sar.aggregate.block_sources import block_sources
from pyg_sar.aggregate.program import Arguments, Program, Surroundings, as_in_forward
from pyg_sar.comm import Exchange, Rows
from pyg_sar.shard.plan import Block, Plan

CHUNK_BYTES = 4 << 20
"""Bytes that the largest tensor of a chunk may take on a CPU: what stays in its cache."""

CUDA_CHUNK_BYTES = 256 << 20
"""The same on a GPU, where small operations take as long as larger ones."""

_MIN_EDGES = 256


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some edges of a block, in its order.

    Attributes:
        edges: Their places in the order of edge tensors: a slice, or int64 ``[num_edges]``.
        rows: The destinations from the first to the last of its edges.
        edge_index: int64 ``[2, num_edges]``: source row of the block, destination counted from the
            first of `rows`; sorted by destination.
    """

    edges: slice | Tensor
    rows: slice
    edge_index: Tensor

    @property
    def src(self) -> Tensor:
        """The source row of every edge."""
        return self.edge_index[0]

    @property
    def dst(self) -> Tensor:
        """The destination of every edge, counted from the first of `rows`."""
        return self.edge_index[1]

    def at_rows(self, values: Tensor, dim: int = 0) -> Tensor:
        """The chunk's destinations of ``[num_dst, ...]``, a view."""
        return values.narrow(dim, self.rows.start, self.rows.stop - self.rows.start)

    def take(self, values: Tensor) -> Tensor:
        """The chunk's rows of an edge tensor ``[E, ...]``; a view where the edges are a range."""
        return values[self.edges]

    def put(self, values: Tensor, rows: Tensor) -> None:
        """Writes the chunk's rows into an edge tensor ``[E, ...]``."""
        values[self.edges] = rows


@dataclass(eq=False)
class Blocks:
    """The blocks of a plan with the arguments the message function reads there.

    Attributes:
        program: The function.
        arguments: The arguments.
        plan: The blocks.
        exchange: The exchange of the plan's shard.
        surroundings: What the function reads and draws beside its arguments.
        kept: Rows that came from other ranks; see :func:`block_sources`.
    """

    program: Program
    arguments: Arguments
    plan: Plan
    exchange: Exchange
    surroundings: Surroundings
    kept: list[Tensor] | None

    @property
    def max_edges(self) -> int:
        """Edges of a chunk at most."""
        return _max_edges(self.program, self.arguments, self.plan.edge_index.device)

    @staticmethod
    def of_forward(
        program: Program,
        plan: Plan,
        exchange: Exchange,
        keep_rows: bool,
        counts: tuple[int, ...],
        tensors: tuple[Tensor, ...],
    ) -> Blocks:
        """Those of a forward; it saves the arguments and, with `keep_rows`, what it receives."""
        surroundings = Surroundings(program.uses_rng, plan.edge_index.device)
        arguments = Arguments.of(counts, tensors)
        return Blocks(program, arguments, plan, exchange, surroundings, [] if keep_rows else None)

    def save(self, ctx: Any, *others: Tensor) -> None:
        """Saves what backward needs, with other tensors."""
        kept = self.kept or []
        ctx.save_for_backward(*others, *self.arguments, *kept)
        ctx.saved = self.program, self.plan, self.exchange, self.surroundings
        ctx.counts = len(others), self.arguments.counts

    @staticmethod
    def saved(ctx: Any) -> tuple[Blocks, Iterator[Tensor]]:
        """What :meth:`save` saved."""
        num_others, counts = ctx.counts
        tensors = list(ctx.saved_tensors)
        arguments = Arguments.of(counts, tensors[num_others:])
        kept = tensors[num_others + sum(counts) :]
        program, plan, exchange, surroundings = ctx.saved
        blocks = Blocks(program, arguments, plan, exchange, surroundings, kept or None)
        return blocks, iter(tensors[:num_others])

    def as_in_forward(self) -> AbstractContextManager[None]:
        """For a backward that runs messages again."""
        return as_in_forward(self.surroundings, self.program, self.arguments.learnable)

    def __iter__(self) -> Iterator[Iterator[tuple[Chunk, Arguments]]]:
        """Yields the chunks of every block, each with its arguments, one row per edge."""
        cuts = self._cuts()
        place = 0
        sources = block_sources(self.arguments.src, self.plan, self.exchange, kept=self.kept)
        for block, own_cuts, rows in zip(self.plan.blocks, cuts, sources, strict=True):
            yield self._chunks(block, own_cuts, rows, place)
            place += len(own_cuts)

    def chunks(self) -> Iterator[tuple[Chunk, Arguments]]:
        """Yields the chunks of all blocks."""
        for chunks in self:
            yield from chunks

    def _chunks(
        self, block: Block, cuts: list[tuple[int, int, int, int]], rows: Rows, place: int
    ) -> Iterator[tuple[Chunk, Arguments]]:
        a = self.arguments
        for i, (start, end, first, last) in enumerate(cuts):
            self.surroundings.enter(place + i)
            edges, edge_index = _edges(block, self.plan, start, end)
            offset = edge_index.new_tensor([[block.start], [first]])
            chunk = Chunk(edges, slice(first, last + 1), edge_index - offset)
            yield (
                chunk,
                Arguments(
                    tuple(t.index_select(0, chunk.src) for t in rows),
                    tuple(chunk.at_rows(t).index_select(0, chunk.dst) for t in a.dst),
                    tuple(chunk.take(t) for t in a.edge),
                    a.whole,
                    a.learnable,
                    at_edges=True,
                ),
            )

    def _cuts(self) -> list[list[tuple[int, int, int, int]]]:
        """Of every chunk of every block first edge, end, first and last destination."""
        max_edges = self.max_edges
        key = ('cuts', max_edges)
        if key not in self.plan.cache:
            self.plan.cache[key] = [_cut(b, self.plan, max_edges) for b in self.plan.blocks]
        cuts: list[list[tuple[int, int, int, int]]] = self.plan.cache[key]
        return cuts


def _max_edges(program: Program, arguments: Arguments, device: torch.device) -> int:
    tensors = [*arguments.src, *arguments.dst, *arguments.edge, *program.edge_outputs]
    sizes = [_row_bytes(t, 0) for t in tensors]
    sizes += [_row_bytes(program.messages[r.message], r.dim) for r in program.reductions]
    largest = max(program.edge_bytes, *sizes, 1)
    num_bytes = CHUNK_BYTES if device.type == 'cpu' else CUDA_CHUNK_BYTES
    return max(num_bytes // largest, _MIN_EDGES)


def _row_bytes(values: Tensor, dim: int) -> int:
    return values.narrow(dim, 0, min(values.size(dim), 1)).numel() * values.element_size()


def _edges(block: Block, plan: Plan, start: int, end: int) -> tuple[slice | Tensor, Tensor]:
    """Places and edge_index of the edges from `start` to `end` of a block."""
    if isinstance(block.edges, slice):
        edges = slice(block.edges.start + start, block.edges.start + end)
        return edges, plan.edge_index[:, edges]
    places = block.edges[start:end]
    return places, plan.edge_index.index_select(1, places)


def _cut(block: Block, plan: Plan, max_edges: int) -> list[tuple[int, int, int, int]]:
    starts = list(range(0, block.num_edges, max_edges))
    ends = [min(start + max_edges, block.num_edges) for start in starts]
    if not starts:
        return []
    device = plan.edge_index.device
    outer = torch.tensor([starts, [end - 1 for end in ends]], device=device)
    places = outer + block.edges.start if isinstance(block.edges, slice) else block.edges[outer]
    first, last = plan.edge_index[1][places].tolist()
    return list(zip(starts, ends, first, last, strict=True))
