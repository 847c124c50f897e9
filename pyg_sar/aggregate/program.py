"""What the aggregate room asks of a message function.

`conv` describes a conv's message by a :class:`Program`; the Functions of this room run it block by
block without knowing what it computes. Its tensors have nodes or edges in their first dimension.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from pyg_sar.merge import Merge, State

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
    def kinds(self) -> tuple[tuple[Tensor, ...], ...]:
        """The tensors of every kind."""
        return self.src, self.dst, self.edge, self.whole, self.learnable

    @property
    def counts(self) -> tuple[int, ...]:
        """How many tensors of each kind there are."""
        return tuple(len(kind) for kind in self.kinds)

    @property
    def device(self) -> torch.device:
        """The device of the tensors; of the CPU if there are none."""
        return next((t.device for t in self), torch.device('cpu'))

    def __iter__(self) -> Iterator[Tensor]:
        return chain.from_iterable(self.kinds)

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

    def zeros(self, needs: Sequence[bool]) -> list[Tensor | None]:
        """Zeros like those tensors that need a gradient."""
        return [
            torch.zeros_like(t, memory_format=torch.contiguous_format) if need else None
            for t, need in zip(self, needs, strict=True)
        ]

    @staticmethod
    def of(counts: Sequence[int], tensors: Sequence[Tensor]) -> Arguments:
        """The inverse of iteration, given :attr:`counts`."""
        rest = iter(tensors)
        return Arguments(*(tuple(islice(rest, count)) for count in counts))


NO_ARGUMENTS = Arguments((), (), (), ())


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


def gradients_of(
    outputs: Sequence[Tensor], grads: Sequence[Tensor], leaves: Arguments, needs: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of those leaves that need one; None where no output depends on it."""
    wanted = [t for t, need in zip(leaves, needs, strict=True) if need]
    if not outputs or not wanted:
        return [None] * len(needs)
    found = iter(torch.autograd.grad(outputs, wanted, grads, allow_unused=True))
    return [next(found) if need else None for need in needs]


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


class Surroundings:
    """A random state for every chunk and the autocast mode, so that a replay sees them again.

    The first chunk goes on from the caller's state, so what fits into one draws what PyG draws. The
    others have states of their own that follow from it: noting the state where a chunk is first
    entered would not do, as a pass that stops at a softmax has not drawn what comes after it.

    Args:
        uses_rng: Whether the function draws random numbers.
        device: The device it draws on.
        as_in_forward: Brings about what else the function reads beside its arguments.
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
        """Brings about the random state of a chunk."""
        if self.uses_rng and place == 0:
            self._generator.set_state(self._first)
        elif self.uses_rng:
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


@contextmanager
def without_hooks(leaves: Sequence[Tensor]) -> Iterator[None]:
    """While it lasts, hooks of leaves do not run, such as those that average gradients."""
    hooks = [t._backward_hooks for t in leaves]
    found = [(now, dict(now)) for now in hooks if now]
    for now, _ in found:
        now.clear()
    try:
        yield
    finally:
        for now, before in found:
            now.update(before)
