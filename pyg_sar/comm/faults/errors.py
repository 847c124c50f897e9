"""The error of a lost rank, and the place in the model that it names."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from pyg_sar.monitor import hook


class ExchangeError(RuntimeError):
    """Another rank has ended, is silent, has failed or does something else.

    After it the ranks of this process group exchange nothing any more: every later exchange raises.

    Attributes:
        rank: This rank.
        peer: The rank that was lost, as far as that is known, or None.
        operation: What this rank was doing: ``'receiving the rows of part 2'``.
        layer: Where: ``"layer 'convs.1' (GATConv), backward"``; empty outside of layers.
        reason: What is known of the peer.
    """

    def __init__(
        self, rank: int, peer: int | None, operation: str, layer: str, reason: str
    ) -> None:
        super().__init__(rank, peer, operation, layer, reason)
        self.rank, self.peer, self.operation = rank, peer, operation
        self.layer, self.reason = layer, reason

    def __str__(self) -> str:
        where = f' in {self.layer}' if self.layer else ''
        return f'rank {self.rank} stopped at {self.operation}{where}: {self.reason}'


class _Place(threading.local):
    layer = ''
    phase = ''


_place = _Place()


def place() -> str:
    """The layer or function that this thread is in, for messages; empty outside of them."""
    return f'{_place.layer}, {_place.phase}' if _place.phase else _place.layer


def placed(operation: str) -> str:
    """An operation with the place where it is done."""
    where = place()
    return f'{operation} in {where}' if where else operation


def place_and_phase() -> tuple[str, str]:
    """Both, for :func:`in_call`."""
    return _place.layer, _place.phase


def layer_of_place() -> str:
    """The layer alone, forward or backward."""
    return _place.layer


@contextmanager
def in_layer(layer: str, phase: str = 'forward') -> Iterator[None]:
    """Names the layer that is computed while it lasts; the innermost counts."""
    told = hook.in_layer(layer, phase) if hook.watchers else nullcontext()
    with told, in_call(layer, phase):
        yield


@contextmanager
def in_call(function: str, phase: str = '') -> Iterator[None]:
    """Names a function of this library in the place of a layer; a decorator as well."""
    before = _place.layer, _place.phase
    _place.layer, _place.phase = function, phase
    try:
        yield
    finally:
        _place.layer, _place.phase = before
