"""What this package asks of a message function.

`conv` describes a conv's message by a :class:`Program`; the Functions here run it block by
block without knowing what it computes. Its tensors have nodes or edges in their first dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from pyg_sar.ops.reductions import Merge, State

SoftmaxFn = Callable[[Tensor, Tensor], Tensor]
"""The softmax of some edges: logits ``[num_edges, ...]``, destinations ``[num_edges]``."""


@dataclass(frozen=True)
class Arguments:
    """The tensors a message reads, by what a block needs of them."""

    src: tuple[Tensor, ...]  # ``[num_own, ...]``: read at the source of an edge, so exchanged
    dst: tuple[Tensor, ...]  # ``[num_dst, ...]``: read at the destination, local
    edge: tuple[Tensor, ...]  # ``[num_edges, ...]``: one row per edge, sliced per block
    whole: tuple[Tensor, ...]  # any shape: read as they are
    learnable: tuple[Tensor, ...] = ()  # leaves that the function reads by itself: parameters
    # What gets the gradients of these, if it is others.
    instead: tuple[Tensor, ...] = field(default=(), kw_only=True)
    # Whether `src` and `dst` have been read: they hold a row for every edge.
    at_edges: bool = field(default=False, kw_only=True)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many tensors of each kind there are."""
        kinds = self.src, self.dst, self.edge, self.whole, self.learnable
        return tuple(map(len, kinds))

    @property
    def device(self) -> torch.device:
        """The device of the tensors; of the CPU if there are none."""
        return next((t.device for t in self), torch.device('cpu'))

    def __iter__(self) -> Iterator[Tensor]:
        return chain(self.src, self.dst, self.edge, self.whole, self.learnable)

    def inputs(self) -> Iterator[Tensor]:
        """The tensors as inputs of the autograd Function that gives them gradients."""
        read = chain(self.src, self.dst, self.edge, self.whole)
        return chain(read, self.instead or self.learnable)

    def as_leaves(self, needs: Sequence[bool]) -> Arguments:
        """Detached, those that need it with a gradient; learnable tensors are leaves already."""
        leaves = iter(needs)
        src, dst, edge, whole = (
            tuple(t.detach().requires_grad_(next(leaves)) for t in kind)
            for kind in (self.src, self.dst, self.edge, self.whole)
        )
        return Arguments(src, dst, edge, whole, self.learnable, at_edges=self.at_edges)

    def zeros(self, needs: Sequence[bool], *, but_src: bool = False) -> list[Tensor | None]:
        """Zeros like those tensors that need a gradient; of any content for `src` if `but_src`."""
        num_any = len(self.src) if but_src else 0
        found: list[Tensor | None] = []
        for i, (t, need) in enumerate(zip(self, needs, strict=True)):
            like = torch.empty_like if i < num_any else torch.zeros_like
            found.append(like(t, memory_format=torch.contiguous_format) if need else None)
        return found

    @staticmethod
    def of(counts: Sequence[int], tensors: Sequence[Tensor]) -> Arguments:
        """The inverse of iteration, given :attr:`counts`."""
        rest = iter(tensors)
        return Arguments(*(tuple(islice(rest, count)) for count in counts))


@dataclass(frozen=True)
class MessageReduction:
    """One reduction of messages over the in-edges of every destination."""

    message: int  # which of the program's messages is reduced
    merge: Merge  # how blocks of it are merged
    dim: int  # its edge dimension


@dataclass(frozen=True)
class Program:
    """A message function over some edges.

    ``run(arguments, edge_index, softmax) -> (messages, edge_outputs)``: `arguments` hold the edges'
    source and edge rows, which `edge_index` refers to; `softmax` stands in for every softmax over
    in-edges. `messages` are what is reduced, with one row per edge in the dimension of their
    reductions; `edge_outputs` are ``[num_edges, ...]``.
    """

    run: Callable[[Arguments, Tensor, SoftmaxFn], tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]
    messages: tuple[Tensor, ...]  # of any number of edges, for their shapes and dtypes
    edge_outputs: tuple[Tensor, ...]  # likewise
    uses_rng: bool  # whether it draws random numbers (dropout)
    reductions: tuple[MessageReduction, ...] = ()
    edge_bytes: int = 0  # what the largest tensor that it computes takes per edge
    # The result of its only softmax, of any number of edges, if every message and edge output is
    # linear in it as :mod:`pyg_sar.ops.online_softmax` asks; else None.
    weights: Tensor | None = None
    # Sets, for the time of a backward, what `run` read in forward besides its arguments.
    as_in_forward: Callable[[], AbstractContextManager[Any]] = nullcontext

    def init_states(self, num_dst: int) -> list[State]:
        """The empty state of every reduction."""
        return [r.merge.init(self.messages[r.message], num_dst, r.dim) for r in self.reductions]


def gradients_of(
    outputs: Sequence[Tensor], grads: Sequence[Tensor], leaves: Arguments, needs: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of those leaves that need one; None where no output depends on it."""
    wanted = [t for t, need in zip(leaves, needs, strict=True) if need]
    if not outputs or not wanted:
        return [None] * len(needs)
    gradients = iter(torch.autograd.grad(outputs, wanted, grads, allow_unused=True))
    return [next(gradients) if need else None for need in needs]


@contextmanager
def no_autocast_cache() -> Iterator[None]:
    """While it lasts, autocast casts weights anew.

    A cast kept while gradients are off has no history, and one from before has a history of its
    own: both would hide a weight from ``torch.autograd.grad``.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def without_hooks(leaves: Sequence[Tensor]) -> Iterator[None]:
    """While it lasts, hooks of leaves do not run, such as those that average gradients."""
    hooks = [t._backward_hooks for t in leaves]
    copies = [(now, dict(now)) for now in hooks if now]
    for now, _ in copies:
        now.clear()
    try:
        yield
    finally:
        for now, before in copies:
            now.update(before)
