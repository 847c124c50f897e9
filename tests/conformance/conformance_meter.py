"""Counts what a rank holds of other ranks' rows, and notes the paths its convs take.

All by watching pyg_sar at work: nothing is taken from what its documentation says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from pyg_sar.comm.buffers import Buffers
from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.gradient_return import GradientReturn
from pyg_sar.comm.swap import ROWS_TAG, Swap
from pyg_sar.conv.propagation import Propagation
from pyg_sar.conv.trace import Trace

_PATHS = {'_linear': 'linear', '_gather': 'gather', '_one_shot': 'one_shot'}


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
        whole_halo: Rows fetched for all of the halo at once, the largest time.
        whole_halo_numbers: The same where each row is a single number, such as a degree.
    """

    paths: list[str] = field(default_factory=list)
    halo: int = 0
    halo_sent: int = 0
    gradients: int = 0
    gradients_received: int = 0
    num_tensors: int = 0
    whole_halo: int = 0
    whole_halo_numbers: int = 0
    _live: dict[int, tuple[Buffers, str, int]] = field(default_factory=dict)
    _traced: Trace | None = None

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

    def traced(self, trace: Trace | None) -> None:
        """What the message function that comes next does."""
        self._traced = trace

    def note_replay(self) -> None:
        """The replay path is taken; with a softmax it has a name of its own."""
        has_softmax = self._traced is not None and self._traced.num_softmax > 0
        self.note('softmax' if has_softmax else 'replay')


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

        def swap(original: Any, self: Swap, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            received, _, sent, _, _, tag = args
            is_rows = tag == ROWS_TAG
            meter.take(received, 'halo' if is_rows else 'gradients_received', count(received))
            meter.take(sent, 'halo_sent' if is_rows else 'gradients', count(sent))

        def gradient_rows(original: Any, self: GradientReturn) -> Any:
            rows = original(self)
            if self._filled is not None and self._step() is not None:
                # Held from now on, though the swap comes later.
                meter.take(self._filled, 'gradients', count(self._filled))
            return rows

        def free(original: Any, self: Buffers) -> None:
            meter.give(self)
            original(self)

        def fetch_all(original: Any, self: Exchange, tensors: Any) -> Any:
            rows = self.shard.num_halo * len(tensors)
            if all(t.dim() == 1 for t in tensors):
                meter.whole_halo_numbers = max(meter.whole_halo_numbers, rows)
            else:
                meter.whole_halo = max(meter.whole_halo, rows)
            return original(self, tensors)

        def trace(original: Any, self: Propagation, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            meter.traced(result)
            return result

        def replay(original: Any, self: Propagation, *args: Any, **kwargs: Any) -> Any:
            meter.note_replay()
            return original(self, *args, **kwargs)

        def edge_updater(original: Any, self: Propagation, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            meter.note_replay()
            return result

        patch(Swap, '__init__', swap)
        patch(Buffers, 'free', free)
        patch(GradientReturn, 'rows', gradient_rows)
        patch(Exchange, 'fetch_all', fetch_all)
        patch(Propagation, '_trace', trace)
        patch(Propagation, '_replay', replay)
        patch(Propagation, 'edge_updater', edge_updater)
        for name, path in _PATHS.items():
            if hasattr(Propagation, name):

                def taken(original: Any, *args: Any, path: str = path, **kwargs: Any) -> Any:
                    meter.note(path)
                    return original(*args, **kwargs)

                patch(Propagation, name, taken)
        yield meter
