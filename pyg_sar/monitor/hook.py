"""Where other packages say what happens, and who listens.

Nobody listens by default: then a layer, an operation or a transfer costs a look at an empty tuple.
The log and every profile are watchers. While there is one, layers and operations are also named
ranges of torch.profiler, ``pyg_sar::layer 'convs.0' (SAGEConv), forward`` and in it
``pyg_sar::wait: receiving the rows of part 2``: a range costs 12 microseconds, a good part of a
small message.

Where ranks are threads of one process, a profile listens to the rank that it was added on, and the
log to all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch._C._autograd import _profiler_enabled
from torch.profiler import record_function

from pyg_sar.ground.scoped import Scoped

OUTSIDE = 'outside of layers'


@dataclass(frozen=True)
class Transfer:
    """Rows that have come from other ranks and gone to them, together, and their bytes."""

    what: str  # ``'part 2'``, or ``'all ranks'`` of an exchange with all at once
    kind: str  # ``'rows'`` or ``'gradients'``; of all ranks at once always rows
    rows_received: int  # rows that came in; where several tensors travel, those of each
    rows_sent: int
    bytes_received: int
    bytes_sent: int


@dataclass(frozen=True, eq=False)
class ThreadRank:
    """A rank that is a thread of this process."""

    rank: int
    size: int


thread_rank: Scoped[ThreadRank | None] = Scoped(None)
"""The rank that this thread is; None where the process is one, or none."""


class Watcher:
    """Is told what this process does, in the thread that does it.

    What it is told may nest, and what begins always ends, perhaps by an exception.

    Attributes:
        hears_all: Whether it listens to all ranks that are threads.
        hears: The only one that it listens to otherwise; None for what is none of them.
    """

    hears_all = False
    hears: ThreadRank | None = None

    def enter_layer(self, layer: str, phase: str) -> None:
        """A layer's ``'forward'``, or the ``'backward'`` of a step of it that communicates, begins.

        `layer` is ``"layer 'convs.0' (SAGEConv)"``; empty outside of convs and norms, as in a loss.
        """

    def leave_layer(self) -> None:
        """It ends."""

    def enter_operation(self, operation: str, peer: int | None) -> None:
        """An operation (``'receiving the rows of part 2'``) with a rank, or with all, begins.

        Or the wait for the end of one that began before.
        """

    def leave_operation(self) -> None:
        """It ends."""

    def moved(self, transfer: Transfer) -> None:
        """Rows have been exchanged; within the operation that did so, or after several."""

    def looked_up(self, num_rows: int, num_found: int) -> None:
        """Sampled batches have read rows of other ranks, some of which were in their cache."""


watchers: tuple[Watcher, ...] = ()
"""Who listens now. The end of an operation is told to those who were told of its beginning."""


def add(watcher: Watcher) -> None:
    """Has `watcher` listen from now on, after the others."""
    global watchers
    watcher.hears = thread_rank.value
    watchers = (*watchers, watcher)


def remove(watcher: Watcher) -> None:
    """Has it listen no more."""
    global watchers
    watchers = tuple(w for w in watchers if w is not watcher)


def listening() -> list[Watcher]:
    """Those who listen to this thread."""
    return [w for w in watchers if w.hears_all or w.hears is thread_rank.value]


def moved(transfer: Transfer) -> None:
    """Tells everybody of rows that were exchanged."""
    for watcher in listening():
        watcher.moved(transfer)


def looked_up(num_rows: int, num_found: int) -> None:
    """Tells everybody of rows that a cache was asked for."""
    for watcher in listening():
        watcher.looked_up(num_rows, num_found)


@contextmanager
def in_layer(layer: str, phase: str) -> Iterator[None]:
    """A layer, told to those who listened when it began."""
    with ExitStack() as stack:
        stack.enter_context(_named(f'{layer or OUTSIDE}, {phase}'))
        for watcher in listening():
            watcher.enter_layer(layer, phase)
            stack.callback(watcher.leave_layer)
        yield


@contextmanager
def in_operation(operation: str, peer: int | None, is_wait: bool) -> Iterator[None]:
    """An operation with other ranks, told to those who listened when it began."""
    with ExitStack() as stack:
        stack.enter_context(_named(f'wait: {operation}' if is_wait else operation))
        for watcher in listening():
            watcher.enter_operation(operation, peer)
            stack.callback(watcher.leave_operation)
        yield


def _named(name: str) -> AbstractContextManager[Any]:
    """A range where torch's profiler records."""
    return record_function(f'pyg_sar::{name}') if _profiler_enabled() else nullcontext()
