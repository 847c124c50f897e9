"""The error of a lost rank, and the place in the model that it names."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pyg_sar.monitor import hook

Function = TypeVar('Function', bound=type)


class ExchangeError(RuntimeError):
    """Another rank has ended, is silent, or has failed by itself, so this one cannot go on.

    After it the ranks of this process group exchange nothing any more: what was under way is lost.
    Every later exchange raises it again.

    Attributes:
        rank: This rank.
        peer: The rank that was lost first, as far as that is known, or None.
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


@contextmanager
def in_layer(layer: str, phase: str = 'forward') -> Iterator[None]:
    """Names the layer that is computed while it lasts; the innermost counts."""
    watchers = hook.watchers
    for watcher in watchers:
        watcher.enter_layer(layer, phase)
    try:
        with _in_place(layer, phase):
            yield
    finally:
        for watcher in reversed(watchers):
            watcher.leave_layer()


@contextmanager
def in_call(function: str) -> Iterator[None]:
    """Names a function of this library in the place of a layer; a decorator as well."""
    with _in_place(function, ''):
        yield


@contextmanager
def _in_place(layer: str, phase: str) -> Iterator[None]:
    before = _place.layer, _place.phase
    _place.layer, _place.phase = layer, phase
    try:
        yield
    finally:
        _place.layer, _place.phase = before


def collective(on_error: Callable[[BaseException], None]) -> Callable[[Function], Function]:
    """Makes the decorator of autograd Functions that communicate.

    Their backward knows the layer of their forward, and what leaves it is given to `on_error`.
    """

    def decorate(function: Function) -> Function:
        forward: Callable[..., Any] = function.forward  # type: ignore[attr-defined]
        backward: Callable[..., Any] = function.backward  # type: ignore[attr-defined]

        @functools.wraps(forward)
        def noting(ctx: Any, *args: Any) -> Any:
            ctx.layer = _place.layer
            return forward(ctx, *args)

        @functools.wraps(backward)
        def naming(ctx: Any, *grads: Any) -> Any:
            with in_layer(ctx.layer, 'backward'):
                try:
                    return backward(ctx, *grads)
                except BaseException as error:
                    on_error(error)
                    raise

        function.forward = staticmethod(noting)  # type: ignore[attr-defined]
        function.backward = staticmethod(naming)  # type: ignore[attr-defined]
        return function

    return decorate
