"""Where the other rooms say what happens, and who listens.

Nobody listens by default: then a layer, an operation or a transfer costs a look at an empty tuple.
The log and every profile are watchers; each keeps for itself what it needs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True)
class Transfer:
    """Rows that have come from other ranks and gone to them, together.

    Attributes:
        what: ``'part 2'``, or ``'all ranks'`` of an exchange with all at once.
        kind: ``'rows'`` or ``'gradients'``; of all ranks at once always rows.
        rows_received: Rows that came in; where several tensors travel, those of each.
        rows_sent: Rows that went out.
        bytes_received: The same in bytes, as they travelled.
        bytes_sent: The same in bytes, as they travelled.
    """

    what: str
    kind: str
    rows_received: int
    rows_sent: int
    bytes_received: int
    bytes_sent: int


class Watcher:
    """Is told what this process does, in the thread that does it. What it is told may nest."""

    def enter_layer(self, layer: str, phase: str) -> None:
        """A layer's forward, or the backward of a step of it that communicates, begins.

        Args:
            layer: ``"layer 'convs.0' (SAGEConv)"``; empty outside of convs and norms, as in a loss.
            phase: ``'forward'`` or ``'backward'``.
        """

    def leave_layer(self) -> None:
        """It ends, perhaps by an exception."""

    def enter_operation(self, operation: str, peer: int | None, is_wait: bool) -> None:
        """An operation with other ranks begins.

        Args:
            operation: ``'receiving the rows of part 2'``.
            peer: The rank it is done with; None for all of them.
            is_wait: Whether it is the end of one that began before.
        """

    def leave_operation(self) -> None:
        """It ends, perhaps by an exception."""

    def moved(self, transfer: Transfer) -> None:
        """Rows have been exchanged; within the operation that did so, or after several."""


watchers: tuple[Watcher, ...] = ()
"""Who listens now. Whoever tells something twice, as beginning and end, tells the same ones."""


def add(watcher: Watcher) -> None:
    """Has `watcher` listen from now on, after the others."""
    global watchers
    watchers = (*watchers, watcher)


def remove(watcher: Watcher) -> None:
    """Has it listen no more."""
    global watchers
    watchers = tuple(w for w in watchers if w is not watcher)


def moved(transfer: Transfer) -> None:
    """Tells everybody of rows that were exchanged."""
    for watcher in watchers:
        watcher.moved(transfer)


class Watched:
    """An operation with other ranks in its guard, told to those who listened when it began."""

    __slots__ = ('guard', 'operation', 'watchers')

    def __init__(
        self, guard: AbstractContextManager[None], operation: str, peer: int | None, is_wait: bool
    ) -> None:
        self.guard, self.operation = guard, (operation, peer, is_wait)
        self.watchers = watchers

    def __enter__(self) -> None:
        for watcher in self.watchers:
            watcher.enter_operation(*self.operation)
        try:
            self.guard.__enter__()
        except BaseException:
            self._leave()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.guard.__exit__(kind, error, trace)
        finally:
            self._leave()

    def _leave(self) -> None:
        for watcher in reversed(self.watchers):
            watcher.leave_operation()
