"""A message function on the edges of blocks, in chunks whose tensors stay in the cache.

What a message function computes for an edge does not depend on other edges. So a block's rows are
received once, and its edges are computed in chunks of a few MiB. Edges of a block are sorted by
destination, so a chunk concerns a range of destinations only. Forward and backward run it alike.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.send_recv import TensorList
from pyg_sar.ops.block_loop import BlockByBlock
from pyg_sar.ops.program import Arguments, Program, SoftmaxFn, without_hooks
from pyg_sar.shard.blocks import Block, Plan
from pyg_sar.shard.index_rows import rows_at
from pyg_sar.shard.shard import Cached
from pyg_sar.utils.installed import find_or_none
from pyg_sar.utils.rng import random_states_kept

CHUNK_BYTES = 2 << 20
"""Bytes that the largest tensor of a chunk may take on a CPU.

Well below the size from which :func:`pyg_sar.utils.malloc.return_freed_memory` has blocks given
back: the tensors of a chunk would cost a page fault for every page of every chunk.
"""

CUDA_CHUNK_BYTES = 256 << 20
"""On a GPU, where small operations take as long as larger ones."""

MIN_EDGES = 256
_hooks_of_saved = find_or_none('torch._C._autograd._top_saved_tensors_default_hooks')
_CHUNKS: Cached[dict[int, list[list[Chunk]]]] = Cached()


def edges_within(edge_bytes: int, device: torch.device) -> int:
    """Edges of a chunk at most, from the bytes that its largest tensor takes for one edge.

    No state of the machine counts: where a chunk ends decides the last bits of gradients.
    """
    num_bytes = CHUNK_BYTES if device.type == 'cpu' else CUDA_CHUNK_BYTES
    return max(num_bytes // max(edge_bytes, 1), MIN_EDGES)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some edges of a block, in its order."""

    number: int  # among the chunks of all blocks
    block: Block  # of these edges alone
    rows: slice  # the destinations from the first to the last of the edges
    starts: Tensor  # what `src` and `dst` are counted from, int64 ``[2, 1]``

    @property
    def edge_index(self) -> Tensor:
        """Source row of the block, destination counted from `rows`: int64 ``[2, num_edges]``."""
        edges = self.block.edges
        if isinstance(edges, slice):
            return self.block.all_edges[:, edges] - self.starts
        return self._kept_ids.long()

    @cached_property
    @torch.inference_mode(False)
    def _kept_ids(self) -> Tensor:
        # Ids that lie apart take longer to gather than those of a range: 8 bytes an edge are kept.
        return (self.block.take(self.block.all_edges, dim=1) - self.starts).int()

    def at_rows(self, values: Tensor, dim: int) -> Tensor:
        """The chunk's destinations in dimension `dim`, a view."""
        return values.narrow(dim, self.rows.start, self.rows.stop - self.rows.start)


def of_blocks(plan: Plan, max_edges: int) -> list[list[Chunk]]:
    """The chunks of every block, remembered."""
    kept = _CHUNKS.of(plan, dict)
    if max_edges not in kept:
        chunks: list[list[Chunk]] = []
        for block in plan.blocks:
            chunks.append(_cut(block, plan, max_edges, sum(map(len, chunks))))
        kept[max_edges] = chunks  # complete: another thread may read it
    return kept[max_edges]


@torch.inference_mode(False)  # it outlives the caller's mode
def _cut(block: Block, plan: Plan, max_edges: int, number: int) -> list[Chunk]:
    firsts = list(range(0, block.num_edges, max_edges))
    if not firsts:
        return []
    ends = [min(first + max_edges, block.num_edges) for first in firsts]
    all_edges, device = block.edges, plan.edge_index.device
    outer = torch.tensor([firsts, [end - 1 for end in ends]], device=device)
    outer = outer + all_edges.start if isinstance(all_edges, slice) else all_edges[outer]
    dst = plan.edge_index[1][outer]
    starts = torch.stack([torch.full_like(dst[0], block.start), dst[0]])
    chunks = []
    for i, (first_dst, last_dst) in enumerate(dst.t().tolist()):
        edges = (
            slice(all_edges.start + firsts[i], all_edges.start + ends[i])
            if isinstance(all_edges, slice)
            else all_edges[firsts[i] : ends[i]]
        )
        rows = slice(first_dst, last_dst + 1)
        chunks.append(Chunk(number + i, replace(block, edges=edges), rows, starts[:, i : i + 1]))
    return chunks


Chunks = Iterator[tuple[Chunk, Tensor, Arguments]]
"""Chunks, each with its ``edge_index`` and its arguments, one row per edge."""


@dataclass(frozen=True, eq=False)
class Computed:
    """What a program gives for the edges of a chunk, with its history, from leaves."""

    arguments: Arguments
    messages: tuple[Tensor, ...]
    edge_outputs: tuple[Tensor, ...]

    @staticmethod
    def of(
        program: Program,
        arguments: Arguments,
        edge_index: Tensor,
        softmax: SoftmaxFn,
        needs: Sequence[bool],
    ) -> Computed:
        """From arguments without history; `needs` says which of them get a gradient."""
        leaves = arguments.as_leaves(needs)
        with torch.enable_grad():
            messages, edge_outputs = program.run(leaves, edge_index, softmax)
        return Computed(leaves, messages, edge_outputs)


@dataclass(frozen=True, eq=False)
class Run:
    """A program, the blocks that it runs on, and what it reads."""

    program: Program
    loop: BlockByBlock
    rng_and_autocast: RngAndAutocast
    arguments: Arguments
    # What forward computed, for the first backward; None if backward computes it again.
    kept: deque[Computed] | None

    @staticmethod
    def of(
        program: Program, arguments: Arguments, plan: Plan, exchange: Exchange, *, keeps: bool
    ) -> Run:
        """A program on all blocks; `keeps` says that a forward keeps what it computes.

        That are the rows received alone where a softmax is not finished before the last block, or
        hooks take what is saved elsewhere, such as a checkpoint's, or torch is too old to tell.
        """
        rng_and_autocast = RngAndAutocast(
            program.uses_rng, plan.edge_index.device, program.as_in_forward
        )
        learns = torch.is_grad_enabled() and any(t.requires_grad for t in arguments.inputs())
        tells = _hooks_of_saved is not None  # as torch does from 2.8 on
        has_all = program.weights is None and tells and _hooks_of_saved(True) is None
        kept = deque[Computed]() if keeps and learns and has_all else None
        loop = BlockByBlock(plan, exchange, [] if keeps and not has_all else None)
        return Run(program, loop, rng_and_autocast, arguments, kept)

    def save(self, ctx: Any, *others: Tensor) -> None:
        """Saves what backward needs, with other tensors."""
        ctx.save_for_backward(*others, *self.arguments, *(self.loop.kept or ()))
        ctx.sizes = len(others), self.arguments.counts
        loop = replace(self.loop, kept=None)
        ctx.run = replace(self, loop=loop, arguments=Arguments((), (), (), ()))

    @staticmethod
    def saved(ctx: Any) -> tuple[Run, Iterator[Tensor]]:
        """The run in backward, and the other tensors that :meth:`save` got."""
        tensors, (num_others, counts) = iter(ctx.saved_tensors), ctx.sizes
        others = list(islice(tensors, num_others))
        arguments = Arguments.of(counts, list(islice(tensors, sum(counts))))
        loop = replace(ctx.run.loop, kept=list(tensors) or None)
        run = replace(ctx.run, loop=loop, arguments=arguments)
        ctx.run = replace(ctx.run, kept=None)  # a second backward computes again
        return run, iter(others)

    @cached_property
    def max_edges(self) -> int:
        """Edges of a chunk at most."""
        program, read = self.program, self.arguments
        reduced = [program.messages[r.message].transpose(0, r.dim) for r in program.reductions]
        tensors = [*read.src, *read.dst, *read.edge, *program.edge_outputs, *reduced]
        sizes = [t[:1].numel() * t.element_size() for t in tensors]
        edge_bytes = max([program.edge_bytes, *sizes])
        return edges_within(edge_bytes, self.loop.plan.edge_index.device)

    def chunks(self) -> Chunks:
        """The chunks of all blocks (collective unless rows are kept)."""
        fetched = self.loop.all_gather_halo(list(self.arguments.src))
        blocks = zip(fetched, of_blocks(self.loop.plan, self.max_edges), strict=True)
        return chain.from_iterable(self._read(of_block, rows) for (_, rows), of_block in blocks)

    def forward(
        self, arguments: Arguments, edge_index: Tensor, softmax: SoftmaxFn, needs: Sequence[bool]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Messages and edge outputs of the next chunk; `needs` says what gets a gradient."""
        if self.kept is None:
            return self.program.run(arguments, edge_index, softmax)
        computed = Computed.of(self.program, arguments, edge_index, softmax, needs)
        self.kept.append(computed)
        messages, outputs = computed.messages, computed.edge_outputs
        return tuple(t.detach() for t in messages), tuple(t.detach() for t in outputs)

    def backward(
        self, out: TensorList, needs: Sequence[bool], softmax_of: Callable[[slice], SoftmaxFn]
    ) -> Iterator[tuple[TensorList, Iterator[tuple[Chunk, Tensor, Computed]]]]:
        """For every block where the gradients of source rows go, and its chunks (collective).

        `out` is as :meth:`BlockByBlock.reduce_scatter` takes it, `softmax_of` gives the softmax of
        the destinations of a chunk. Each chunk comes with its ``edge_index`` and what it computes.
        """
        kept = self.kept

        def again(read: tuple[Chunk, Tensor, Arguments]) -> tuple[Chunk, Tensor, Computed]:
            chunk, edge_index, arguments = read
            softmax = softmax_of(chunk.rows)
            computed = Computed.of(self.program, arguments, edge_index, softmax, needs)
            return chunk, edge_index, computed

        returned = self.loop.reduce_scatter([] if kept is not None else [*self.arguments.src], out)
        blocks = zip(returned, of_blocks(self.loop.plan, self.max_edges), strict=True)
        for (_, rows, targets), of_block in blocks:
            if kept is None:
                yield targets, map(again, self._read(of_block, rows))
            else:
                yield targets, ((c, c.edge_index, kept.popleft()) for c in of_block)

    def _read(self, of_block: list[Chunk], rows: TensorList) -> Chunks:
        read = self.arguments
        for chunk in of_block:
            if self.rng_and_autocast.uses_rng:
                self.rng_and_autocast.enter(chunk.number)
            src, dst = edge_index = chunk.edge_index
            yield (
                chunk,
                edge_index,
                Arguments(
                    tuple(rows_at(t, src) for t in rows),
                    tuple(rows_at(t[chunk.rows], dst) for t in read.dst),
                    tuple(chunk.block.take(t) for t in read.edge),
                    read.whole,
                    read.learnable,
                    at_edges=True,
                ),
            )


class RngAndAutocast:
    """A random state for every chunk and the autocast mode, so that a replay sees them again.

    Chunk 0 draws from the caller's state, so a graph of one chunk draws the numbers of PyG. Chunk
    k > 0 has a seed of that state and k: a pass that stops at a softmax draws fewer numbers than a
    whole pass, and no chunk may depend on it. Arguments are as in a program.
    """

    def __init__(
        self,
        uses_rng: bool,
        device: torch.device,
        as_in_forward: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.uses_rng = uses_rng
        self._device, self._as_in_forward = device, as_in_forward
        kind = device.type
        self._autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        if uses_rng:
            is_cuda = kind == 'cuda'
            generators = torch.cuda.default_generators if is_cuda else ()
            self._generator = generators[device.index] if is_cuda else torch.default_generator
            self._first = self._generator.get_state()
            # From the state itself: a draw on a device would wait for it.
            digest = hashlib.blake2b(self._first.numpy().tobytes(), digest_size=7).digest()
            self._seed = int.from_bytes(digest, 'big')

    def enter(self, number: int) -> None:
        """Sets the random state of a chunk, for a function that draws."""
        if number == 0:
            self._generator.set_state(self._first)
        else:
            self._generator.manual_seed(self._seed + number)

    @contextmanager
    def again(self, learnable: Sequence[Tensor]) -> Iterator[None]:
        """For a backward that runs messages again: with what forward read, drew and cast.

        The caller's random state is left as it was. Hooks of learnable leaves do not run for the
        gradient of a few edges: autograd calls them with the sum afterwards.
        """
        enabled, dtype = self._autocast
        with (
            random_states_kept(self._device) if self.uses_rng else nullcontext(),
            torch.autocast(self._device.type, dtype, enabled, cache_enabled=False),
            self._as_in_forward(),
            without_hooks(learnable),
        ):
            yield
