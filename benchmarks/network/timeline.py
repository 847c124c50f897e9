"""What one rank does in an epoch, second by second: computes, waits, receives."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pyg_sar.utils import hook

_SAMPLE_SECONDS = 0.005


class Timeline(hook.Watcher, AbstractContextManager['Timeline']):
    """Records what the epoch inside it does; what is no waiting is computing.

    Args:
        received: The file with the number of bytes that the interface has received.
    """

    def __init__(self, received: Path) -> None:
        self._received = received
        self._waiting: list[list[float]] = []
        self._layers: list[list[Any]] = []
        self._bytes: list[list[float]] = []
        self._depth = {'operation': 0, 'layer': 0}  # both may nest
        self._ended = threading.Event()

    def __enter__(self) -> Timeline:
        self._start = time.perf_counter()
        self._first = int(self._received.read_text())
        self._sampler = threading.Thread(target=self._sample)
        self._sampler.start()
        hook.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        hook.remove(self)
        self._seconds = self._now()
        self._ended.set()
        self._sampler.join()

    def enter_operation(self, operation: str, peer: int | None) -> None:
        """Waiting begins."""
        if not self._depth['operation']:
            self._waiting.append([self._now()])
        self._depth['operation'] += 1

    def leave_operation(self) -> None:
        """It ends."""
        self._depth['operation'] -= 1
        if not self._depth['operation']:
            self._waiting[-1].append(self._now())

    def enter_layer(self, layer: str, phase: str) -> None:
        """A pass of a layer begins."""
        if not self._depth['layer']:
            self._layers.append([phase, self._now()])
        self._depth['layer'] += 1

    def leave_layer(self) -> None:
        """It ends."""
        self._depth['layer'] -= 1
        if not self._depth['layer']:
            self._layers[-1].append(self._now())

    def found(self) -> dict[str, Any]:
        """Of the epoch, in seconds from its start.

        Returns:
            ``seconds`` of all; ``waiting``, a begin and an end each; ``layers``, each ``'forward'``
            or ``'backward'``, a begin and an end; ``received``, a time and the bytes until then.
        """
        return {
            'seconds': self._seconds,
            'waiting': self._waiting,
            'layers': self._layers,
            'received': self._bytes,
        }

    def _now(self) -> float:
        return round(time.perf_counter() - self._start, 4)

    def _sample(self) -> None:
        while True:
            is_last = self._ended.wait(_SAMPLE_SECONDS)
            self._bytes.append([self._now(), int(self._received.read_text()) - self._first])
            if is_last:
                return
