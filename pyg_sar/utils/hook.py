"""Other rooms report layers, operations and transfers here; watchers receive the reports.

The log and every profile are watchers. Without watchers a report costs a look at an empty tuple.
With a watcher, layers and operations are also named ranges of torch.profiler:
``pyg_sar::layer 'convs.0' (SAGEConv), forward`` and in it
``pyg_sar::wait: receiving the rows of part 2``. A range costs 12 microseconds.

If ranks are threads of one process, a profile watches the rank that added it, and the log watches
all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch._C._autograd import _profiler_enabled
from torch.profiler import record_function

from pyg_sar.utils.scoped import Scoped

OUTSIDE = 'outside of layers'


@dataclass(frozen=True)
class Transfer:
    """Rows that this rank received from others and sent to them at once, with their bytes."""

    what: str  # ``'part 2'``, or ``'all ranks'`` of an exchange with all at once
    kind: str  # ``'rows'``, ``'keys'`` of attention, or ``'gradients of rows'`` or keys
    rows_received: int  # rows that came in; where several tensors travel, those of each
    rows_sent: int
    bytes_received: int
    bytes_sent: int


thread_rank: Scoped[object] = Scoped(None)
"""Stands for the rank of this thread; None if ranks are not threads."""


def rank_and_size() -> tuple[int, int]:
    """The rank of this thread and the number of ranks; ranks put their own function here."""
    return 0, 1


class Watcher:
    """Receives reports of what this process does, in the thread that does it.

    Layers and operations may nest. Each one that begins also ends, also after an exception.
    """

    watches_all = False  # all ranks that are threads
    watched_rank: object = None  # else the only one that it watches; None if ranks are no threads

    def enter_layer(self, layer: str, phase: str) -> None:
        """A layer's ``'forward'`` begins, or the ``'backward'`` of a step of it that communicates.

        `layer` is ``"layer 'convs.0' (SAGEConv)"``; empty outside of convs and norms, as in a loss.
        """

    def leave_layer(self) -> None:
        """The layer's pass ends."""

    def enter_operation(self, operation: str, peer: int | None) -> None:
        """An operation (``'receiving the rows of part 2'``) with rank `peer`, or with all, begins.

        Or the wait for the end of an operation that began before.
        """

    def leave_operation(self) -> None:
        """The operation ends."""

    def moved(self, transfer: Transfer) -> None:
        """Rows have been exchanged, by the operation under way or by several before."""


watchers: tuple[Watcher, ...] = ()
"""The active watchers. Those that see an operation begin also see its end."""


def add(watcher: Watcher) -> None:
    """Adds a watcher, after the others."""
    global watchers
    watcher.watched_rank = thread_rank.value
    watchers = (*watchers, watcher)


def remove(watcher: Watcher) -> None:
    """Removes a watcher."""
    global watchers
    watchers = tuple(w for w in watchers if w is not watcher)


def listening() -> list[Watcher]:
    """The watchers of this thread."""
    return [w for w in watchers if w.watches_all or w.watched_rank is thread_rank.value]


def moved(transfer: Transfer) -> None:
    """Reports exchanged rows."""
    for watcher in listening():
        watcher.moved(transfer)


@contextmanager
def in_layer(layer: str, phase: str) -> Iterator[None]:
    """Reports the begin and the end of a layer's pass."""
    with ExitStack() as stack:
        stack.enter_context(_named(f'{layer or OUTSIDE}, {phase}'))
        for watcher in listening():
            watcher.enter_layer(layer, phase)
            stack.callback(watcher.leave_layer)
        yield


@contextmanager
def in_operation(operation: str, peer: int | None, is_wait: bool) -> Iterator[None]:
    """Reports the begin and the end of an operation with other ranks."""
    with ExitStack() as stack:
        stack.enter_context(_named(f'wait: {operation}' if is_wait else operation))
        for watcher in listening():
            watcher.enter_operation(operation, peer)
            stack.callback(watcher.leave_operation)
        yield


def _named(name: str) -> AbstractContextManager[Any]:
    """A range of torch.profiler while it records."""
    return record_function(f'pyg_sar::{name}') if _profiler_enabled() else nullcontext()
