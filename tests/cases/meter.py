"""Counts what a rank holds of other ranks' rows, and notes the paths its convs take.

All by watching pyg_sar at work: nothing is taken from what its documentation says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.process_group import GroupComm
from pyg_sar.comm.send_recv import Buffers, Transfer
from pyg_sar.nn.plan import Plan
from pyg_sar.nn.programs import PROGRAMS
from pyg_sar.shard.shard import Shard


@dataclass
class Meter:
    """Rows are counted once for every tensor that is read at a source.

    Attributes:
        paths: The paths taken, in order, each once.
        halo: Most rows of other ranks' nodes held at once in receive buffers.
        halo_sent: Most rows held at once of own nodes that are on their way to others.
        gradients: Most rows held at once of gradients of other ranks' nodes.
        gradients_received: Most rows held at once of gradients that came in for own nodes.
        num_tensors: Most tensors exchanged together.
        together: Most rows of many blocks fetched together, as by the path by destination.
        together_numbers: The same where each row is a single number, such as a degree.
        shards: The shards whose rows were exchanged.
    """

    paths: list[str] = field(default_factory=list)
    halo: int = 0
    halo_sent: int = 0
    gradients: int = 0
    gradients_received: int = 0
    num_tensors: int = 0
    together: int = 0
    together_numbers: int = 0
    shards: list[Shard] = field(default_factory=list)
    _live: dict[int, tuple[Buffers, str, int]] = field(default_factory=dict)

    def take(self, buffers: Buffers, kind: str, num_rows: int) -> None:
        """A buffer of `num_rows` rows in all is in use from now on."""
        self._live[id(buffers)] = buffers, kind, num_rows
        held = sum(rows for _, other, rows in self._live.values() if other == kind)
        setattr(self, kind, max(getattr(self, kind), held))
        self.num_tensors = max(self.num_tensors, len(buffers.rows))

    def give(self, buffers: Buffers) -> None:
        """It is not in use any more."""
        self._live.pop(id(buffers), None)

    @property
    def num_live(self) -> int:
        """Buffers that were not given back."""
        return len(self._live)

    def note(self, path: str) -> None:
        """A path is taken."""
        if path not in self.paths:
            self.paths.append(path)


@contextmanager
def metered() -> Iterator[Meter]:
    """Watches pyg_sar while it lasts."""
    meter = Meter()
    with ExitStack() as stack:

        def patch(cls: type, name: str, around: Callable[..., Any]) -> None:
            original = getattr(cls, name)

            def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
                return around(original, self, *args, **kwargs)

            stack.enter_context(mock.patch.object(cls, name, wrapper))

        def count(buffers: Buffers) -> int:
            return sum(rows.size(0) for rows in buffers.rows)

        def start(original: Any, self: GroupComm, transfer: Transfer) -> None:
            original(self, transfer)
            if 'keys' in transfer.kind:  # of attention to all nodes
                return
            is_rows, sent, received = transfer.kind == 'rows', transfer.sent, transfer.received
            meter.take(received, 'halo' if is_rows else 'gradients_received', count(received))
            assert sent is not None
            meter.take(sent, 'halo_sent' if is_rows else 'gradients', count(sent))

        def packed(original: Any, self: Transfer) -> Buffers:
            sent: Buffers = original(self)
            if 'keys' not in self.kind:
                # Held from now on, though the transfer may come later.
                meter.take(sent, 'halo_sent' if self.kind == 'rows' else 'gradients', count(sent))
            return sent

        def reduce_scatter_halo(original: Any, self: Exchange, *args: Any, **kwargs: Any) -> Any:
            lend, lent = self.buffers, []

            def lending(like: Any, num_rows: int) -> Buffers:
                lent[:] = [lend(like, num_rows)]
                return lent[0]

            self.buffers = lending
            for item, rows in original(self, *args, **kwargs):
                if lent and lent[0].rows is rows:
                    meter.take(lent[0], 'gradients', count(lent[0]))
                yield item, rows
            self.buffers = lend

        def free(original: Any, self: Buffers) -> None:
            meter.give(self)
            original(self)

        def fetch(original: Any, self: Exchange, tensors: Any, row_map: Any = None) -> Any:
            fetched = original(self, tensors, row_map)
            rows = sum(t.size(0) for t in fetched)
            if all(t.dim() == 1 for t in fetched):
                meter.together_numbers = max(meter.together_numbers, rows)
            else:
                meter.together = max(meter.together, rows)
            return fetched

        def noting(program: Any) -> Any:
            def noted(plan: Plan, call: Any) -> Any:
                is_softmax = plan.path == 'replay' and plan.weights is not None
                meter.note('softmax' if is_softmax else plan.path)
                return program(plan, call)

            return noted

        def exchange(original: Any, self: Exchange, shard: Shard, **kwargs: Any) -> None:
            original(self, shard, **kwargs)
            meter.shards.append(shard)

        patch(Exchange, '__init__', exchange)
        patch(GroupComm, 'start', start)
        patch(Transfer, 'packed', packed)
        patch(Buffers, 'free', free)
        patch(Exchange, 'reduce_scatter_halo', reduce_scatter_halo)
        patch(Exchange, 'fetch', fetch)
        noted = {path: noting(program) for path, program in PROGRAMS.items()}
        stack.enter_context(mock.patch.dict(PROGRAMS, noted))
        yield meter
