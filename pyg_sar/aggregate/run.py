"""A message function on the chunks of all blocks, as forward and backward run it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from pyg_sar.aggregate.block_loop import BlockByBlock
from pyg_sar.aggregate.chunks import Chunk, chunks_of_blocks, max_edges
from pyg_sar.aggregate.program import Arguments, Program, without_hooks
from pyg_sar.comm import Rows
from pyg_sar.shard.rows_at import rows_at

Chunks = Iterator[tuple[Chunk, Tensor, Arguments]]
"""Chunks, each with its ``edge_index`` and its arguments, one row per edge."""


@dataclass(frozen=True, eq=False)
class Run:
    """A program, the blocks that it runs on, and what it reads."""

    program: Program
    loop: BlockByBlock
    surroundings: Surroundings
    arguments: Arguments

    def of(self, tensors: Sequence[Tensor]) -> Run:
        """A run with other arguments, as autograd's forward gets them."""
        return replace(self, arguments=Arguments.of(self.arguments.counts, tensors))

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
        return replace(ctx.run, loop=loop, arguments=arguments), iter(others)

    @cached_property
    def max_edges(self) -> int:
        """Edges of a chunk at most."""
        program, read = self.program, self.arguments
        reduced = [program.messages[r.message].transpose(0, r.dim) for r in program.reductions]
        tensors = [*read.src, *read.dst, *read.edge, *program.edge_outputs, *reduced]
        return max_edges(self.loop.plan, tensors, program.edge_bytes)

    def chunks(self) -> Chunks:
        """The chunks of all blocks (collective unless rows are kept)."""
        fetched = self.loop.fetch(list(self.arguments.src))
        blocks = zip(fetched, chunks_of_blocks(self.loop.plan, self.max_edges), strict=True)
        return chain.from_iterable(self._read(chunks, rows) for (_, rows), chunks in blocks)

    def give_back(self, out: Rows) -> Iterator[tuple[Rows, Chunks]]:
        """For every block where the gradients of source rows go, and its chunks (collective).

        `out` is as :meth:`BlockByBlock.give_back` takes it.
        """
        given = self.loop.give_back(list(self.arguments.src), out)
        blocks = zip(given, chunks_of_blocks(self.loop.plan, self.max_edges), strict=True)
        return ((targets, self._read(chunks, rows)) for (_, rows, targets), chunks in blocks)

    def _read(self, chunks: list[Chunk], rows: Rows) -> Chunks:
        read = self.arguments
        for chunk in chunks:
            if self.surroundings.uses_rng:
                self.surroundings.enter(chunk.place)
            edge_index = chunk.edge_index(self.loop.plan)
            src, dst = edge_index
            yield (
                chunk,
                edge_index,
                Arguments(
                    tuple(rows_at(t, src) for t in rows),
                    tuple(rows_at(chunk.at_rows(t), dst) for t in read.dst),
                    tuple(chunk.block.take(t) for t in read.edge),
                    read.whole,
                    read.learnable,
                    at_edges=True,
                ),
            )


class Surroundings:
    """A random state for every chunk and the autocast mode, so that a replay sees them again.

    The first chunk goes on from the caller's state, so what fits into one draws what PyG draws. The
    others have states that follow from it, not the ones that forward came to: a pass that stops at
    a softmax has not drawn what comes after it. Arguments are as in a program.
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

    def enter(self, place: int) -> None:
        """Brings about the random state of a chunk of a function that draws."""
        if place == 0:
            self._generator.set_state(self._first)
        else:
            self._generator.manual_seed(self._seed + place)

    @contextmanager
    def again(self, learnable: Sequence[Tensor]) -> Iterator[None]:
        """For a backward that runs messages again: with what forward read, drew and cast.

        The caller's random state is left as it was, and hooks of learnable leaves do not run: a
        gradient of a few edges is none that a hook asked for. Autograd gives it the sum afterwards.
        """
        devices = [self._device] if self._device.type == 'cuda' else []
        enabled, dtype = self._autocast
        with (
            torch.random.fork_rng(devices=devices, enabled=self.uses_rng),
            torch.autocast(self._device.type, dtype, enabled, cache_enabled=False),
            self._as_in_forward(),
            without_hooks(learnable),
        ):
            yield
