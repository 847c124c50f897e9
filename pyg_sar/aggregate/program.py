"""What the aggregate room asks of a message function, and how it runs one block of it.

`conv` describes a conv's message by a :class:`Program`; the Functions of this room run it block by
block without knowing what it computes. All tensors of a program have nodes or edges in their first
dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from pyg_sar.merge import Merge, SoftmaxStats, State

SoftmaxFn = Callable[[Tensor, Tensor], Tensor]
"""The softmax of some edges: logits ``[num_edges, ...]``, destinations ``[num_edges]``."""


@dataclass(frozen=True)
class Arguments:
    """The tensors a message reads, by what a block needs of them.

    Attributes:
        src: ``[num_own, ...]``: read at the source of an edge, so exchanged.
        dst: ``[num_dst, ...]``: read at the destination, local.
        edge: ``[num_edges, ...]``: one row per edge, sliced per block.
        whole: Any shape: read as they are.
        learnable: Leaf tensors that the function reads by itself, such as the conv's parameters.
        at_edges: Whether `src` and `dst` have been read: they hold a row for every edge.
    """

    src: tuple[Tensor, ...]
    dst: tuple[Tensor, ...]
    edge: tuple[Tensor, ...]
    whole: tuple[Tensor, ...]
    learnable: tuple[Tensor, ...] = ()
    at_edges: bool = field(default=False, kw_only=True)

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        """How many tensors of each kind there are."""
        return (
            len(self.src),
            len(self.dst),
            len(self.edge),
            len(self.whole),
            len(self.learnable),
        )

    @property
    def device(self) -> torch.device:
        """The device of the tensors; of the CPU if there are none."""
        return next((t.device for t in self), torch.device('cpu'))

    def __iter__(self) -> Iterator[Tensor]:
        return iter((*self.src, *self.dst, *self.edge, *self.whole, *self.learnable))

    def as_leaves(self, needs: Sequence[bool]) -> Arguments:
        """Detached, those that need it with a gradient; learnable tensors are leaves already."""
        tensors = list(self)
        num_detached = len(tensors) - len(self.learnable)
        leaves = [
            t.detach().requires_grad_(need)
            for t, need in zip(tensors[:num_detached], needs, strict=False)
        ]
        found = Arguments.of(self.counts, leaves + tensors[num_detached:])
        return replace(found, at_edges=self.at_edges)

    @staticmethod
    def of(counts: Sequence[int], tensors: Sequence[Tensor]) -> Arguments:
        """The inverse of iteration, given :attr:`counts`."""
        rest = iter(tensors)
        return Arguments(*(tuple(islice(rest, count)) for count in counts))


@dataclass(frozen=True)
class Reduction:
    """One reduction of messages over the in-edges of every destination.

    Attributes:
        message: Which of the program's messages is reduced.
        merge: How blocks of it are merged.
        dim: Its edge dimension.
    """

    message: int
    merge: Merge
    dim: int


@dataclass(frozen=True)
class Program:
    """A message function over some edges.

    Attributes:
        run: ``run(arguments, edge_index, softmax) -> (messages, edge_outputs)``: `arguments` hold
            the edges' source and edge rows, which `edge_index` refers to; `softmax` stands in for
            every softmax over in-edges. `messages` are what is reduced, with one row per edge in
            the dimension of their reductions; `edge_outputs` are ``[num_edges, ...]``.
        num_softmax: How many softmaxes over in-edges the function computes.
        messages: Messages of any number of edges, for their shapes and dtypes.
        edge_outputs: Edge outputs of any number of edges, likewise.
        uses_rng: Whether it draws random numbers (dropout).
        reductions: What becomes of the messages.
        edge_bytes: What the largest tensor that it computes takes per edge.
        weights: The result of its only softmax, of any number of edges, if every message and edge
            output is linear in it as :mod:`pyg_sar.aggregate.online_softmax` asks; else None.
        as_in_forward: Brings about, for the time of a backward, what `run` read in forward beside
            its arguments.
    """

    run: Callable[[Arguments, Tensor, SoftmaxFn], tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]
    num_softmax: int
    messages: tuple[Tensor, ...]
    edge_outputs: tuple[Tensor, ...]
    uses_rng: bool
    reductions: tuple[Reduction, ...] = ()
    edge_bytes: int = 0
    weights: Tensor | None = None
    as_in_forward: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def merges(self) -> list[Merge]:
        """The merge of every reduction."""
        return [reduction.merge for reduction in self.reductions]

    def init_states(self, num_dst: int) -> list[State]:
        """The empty state of every reduction."""
        return [r.merge.init(self.messages[r.message], num_dst, r.dim) for r in self.reductions]


class _Reached(Exception):
    """Carries the logits out of a message function that is run only up to its k-th softmax."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits


def logits_of(
    program: Program,
    arguments: Arguments,
    edge_index: Tensor,
    done: Sequence[SoftmaxStats],
    rows: slice,
) -> Tensor | None:
    """Runs the function up to its first softmax that is not in `done`.

    Returns:
        That softmax's logits, or None if the function did not reach it on these edges.
    """
    calls = 0

    def softmax(logits: Tensor, dst: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > len(done):
            raise _Reached(logits)
        return done[calls - 1].alpha(logits, dst, rows)

    try:
        program.run(arguments, edge_index, softmax)
    except _Reached as reached:
        return reached.logits
    return None


def finished_softmax(stats: Sequence[SoftmaxStats], rows: slice) -> SoftmaxFn:
    """The softmax of a forward pass once all statistics are complete."""
    remaining = iter(stats)
    return lambda logits, dst: next(remaining).alpha(logits, dst, rows)


@contextmanager
def no_autocast_cache() -> Iterator[None]:
    """While it lasts, autocast casts weights anew.

    What it keeps while gradients are off has no history, and what it kept before has a history of
    its own: both would hide a weight from ``torch.autograd.grad``.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def without_hooks(leaves: Sequence[Tensor]) -> Iterator[None]:
    """While it lasts, hooks on the gradients of these leaves do not run.

    A gradient of a few edges is none that a hook asked for; autograd gives it the sum afterwards.
    """
    hooks = [t._backward_hooks for t in leaves]
    found = [(now, dict(now)) for now in hooks if now]
    for now, _ in found:
        now.clear()
    try:
        yield
    finally:
        for now, before in found:
            now.update(before)


class Surroundings:
    """A random state for every chunk and the autocast mode, so that a replay sees them again.

    The first chunk goes on from the caller's state, so what fits into one draws what PyG draws. The
    others have states of their own that follow from it: noting the state where a chunk is first
    entered would not do, as a pass that stops at a softmax has not drawn what comes after it.

    Args:
        uses_rng: Whether the function draws random numbers.
        device: The device it draws on.
    """

    def __init__(self, uses_rng: bool, device: torch.device) -> None:
        self.uses_rng = uses_rng
        self.device = device
        kind = device.type
        self._autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        if uses_rng:
            self._first = self._get_state()
            with self.replay():
                self._seed = int(torch.randint(2**62, (), device=device))

    def enter(self, place: int) -> None:
        """Brings about the random state of a chunk."""
        if not self.uses_rng:
            return
        if place == 0:
            self._set_state(self._first)
        elif self.device.type == 'cuda':
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(self._seed + place)
        else:
            torch.default_generator.manual_seed(self._seed + place)

    def replay(self) -> AbstractContextManager[Any]:
        """For the time of a backward: the caller's random state is left as it was."""
        if not self.uses_rng:
            return nullcontext()
        devices = [self.device] if self.device.type == 'cuda' else []
        return torch.random.fork_rng(devices=devices)

    def autocast(self) -> AbstractContextManager[Any]:
        """The autocast mode of forward, whichever backward is called in."""
        enabled, dtype = self._autocast
        return torch.autocast(self.device.type, dtype, enabled, cache_enabled=False)

    def _get_state(self) -> Tensor:
        if self.device.type == 'cuda':
            return torch.cuda.get_rng_state(self.device)
        return torch.get_rng_state()

    def _set_state(self, state: Tensor) -> None:
        if self.device.type == 'cuda':
            torch.cuda.set_rng_state(state, self.device)
        else:
            torch.set_rng_state(state)


@contextmanager
def as_in_forward(
    surroundings: Surroundings, program: Program, learnable: Sequence[Tensor]
) -> Iterator[None]:
    """For a backward that runs messages again: with what forward read, drew and cast."""
    with (
        surroundings.replay(),
        surroundings.autocast(),
        program.as_in_forward(),
        without_hooks(learnable),
    ):
        yield
