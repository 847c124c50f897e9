"""The process group of the exchanges, and what guards its operations.

All state of exchanges and of debugging hangs on a :class:`Connection`, and every function here
finds its own by :func:`_connection`: that of the default group. A world of another kind
(:func:`pyg_sar.comm.transport.world`) has no connections that could break: its rank is told what
it is at, and nothing else.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from pyg_sar.comm import transport
from pyg_sar.comm.faults.connection import Connection, Guard
from pyg_sar.comm.faults.errors import ExchangeError, in_layer, layer_of_place, placed
from pyg_sar.comm.transport import World, is_distributed
from pyg_sar.monitor import hook

Function = TypeVar('Function', bound=type)

_connections: WeakKeyDictionary[dist.ProcessGroup, Connection] = WeakKeyDictionary()
_num_connections = 0


class _Here(threading.local):
    lane: Connection | None = None


_here = _Here()


def _connection() -> Connection | None:
    """Of the lane or the world that this code runs in; None if it has none yet."""
    if _here.lane is not None:
        return _here.lane
    default = dist.group.WORLD if transport.world() is None else None
    return None if default is None else _connections.get(default)


def connected() -> Connection | World:
    """The same, made at its first use (collective); or the world of another kind."""
    return transport.world() or _connection() or _connect(None)


def guard(
    operation: str, peer: int | None = None, *, is_wait: bool = False, alike: str = ''
) -> AbstractContextManager[None]:
    """For the time of an operation in the exchange group: its errors come as ExchangeError.

    Args:
        operation: What is done, for messages.
        peer: The rank it is done with; None for all.
        is_wait: Whether this is the end of one that began before. All ranks begin as many.
        alike: The operation in words that are equal on all ranks, with what it moves; debugging
            raises on all ranks where they differ.
    """
    # By default a device has a thread of its own for backward. That begins with the first layer
    # that is ready, while a loss on the CPU, or one of several, is about to make others ready: so
    # ranks would take two layers in different orders. Messages of NCCL, and collectives, have no
    # tags that could tell them apart. In one thread the last layer is the first, always.
    torch.autograd.set_multithreading_enabled(False)
    connection = connected()
    if isinstance(connection, World):
        connection.operation = placed(operation)
        guarded: AbstractContextManager[None] = nullcontext()
    else:
        if not is_wait:
            connection.num_operations += 1
            if connection.debug:
                connection.sum_alike(operation, alike)
        guarded = Guard(connection, operation, peer)
    # What a lane waits for, the program does not.
    is_watched = hook.watchers and _here.lane is None
    return hook.in_operation(guarded, operation, peer, is_wait) if is_watched else guarded


def left_by(error: BaseException) -> None:
    """To be told of every exception that leaves a layer, a model or the backward of a layer.

    If it is this rank's alone the others would wait for it: see :meth:`Connection.left_by`.
    """
    connection = _connection()
    if connection is not None:
        connection.left_by(error)


def communicates(function: Function) -> Function:
    """For autograd Functions that communicate: their backward is in the layer of their forward."""
    forward: Callable[..., Any] = function.forward  # type: ignore[attr-defined]
    backward: Callable[..., Any] = function.backward  # type: ignore[attr-defined]

    @functools.wraps(forward)
    def noting(ctx: Any, *args: Any) -> Any:
        ctx.layer = layer_of_place()
        return forward(ctx, *args)

    @functools.wraps(backward)
    def naming(ctx: Any, *grads: Any) -> Any:
        with in_layer(ctx.layer, 'backward'):
            try:
                return backward(ctx, *grads)
            except BaseException as error:
                left_by(error)
                raise

    function.forward = staticmethod(noting)  # type: ignore[attr-defined]
    function.backward = staticmethod(naming)  # type: ignore[attr-defined]
    return function


def exchange_group() -> dist.ProcessGroup | None:
    """The group of the exchanges: all ranks, made once beside the default group (collective).

    None when ``torch.distributed`` is not initialised, and in another world; raises ExchangeError
    if it has ended.
    """
    if not is_distributed():
        return None
    connected().check('an exchange')
    return connected().group


def connect_devices(device: torch.device) -> None:
    """See :meth:`Connection.connect_devices`."""
    connection = connected()
    if isinstance(connection, Connection):
        connection.connect_devices(device)


def as_timedelta(timeout: float | timedelta | None) -> timedelta | None:
    """A timeout in seconds, checked."""
    if timeout is None:
        return None
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not (is_number or isinstance(timeout, timedelta)):
        raise ValueError(f"'timeout' must be seconds or a timedelta (got {timeout!r})")
    limit = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    if limit < timedelta(milliseconds=1):
        raise ValueError(f"'timeout' must be positive (got {timeout!r})")
    return limit


def set_timeout(timeout: timedelta | None) -> None:
    """How long exchanges wait for a silent rank from now on (collective if it is another time)."""
    if timeout is None or not is_distributed():
        return
    exchange_group()  # raises if it has ended
    before = connected()
    if isinstance(before, Connection) and before.timeout != timeout:
        _connect(timeout)
        assert before.group is not None
        dist.destroy_process_group(before.group)


def set_debug(debug: bool | None) -> None:
    """Whether ranks compare their programs before every operation from now on; None: as it is."""
    if debug is not None and is_distributed():
        connected().debug = debug


def open_lane() -> Connection | None:
    """A connection for one more thread of every rank, beside that of the program (collective).

    Operations of a lane never meet those of the program, whatever their order. It ends when the
    program's connection does. None where there is one rank, or a world of another kind.
    """
    global _num_connections
    if transport.world() is not None or transport.world_size() == 1:
        return None
    exchange_group()  # raises if it has ended
    _num_connections += 1
    main = _connection()
    assert main is not None
    return Connection(_num_connections, main.timeout, main, is_lane=True)


@contextmanager
def in_lane(lane: Connection | None) -> Iterator[None]:
    """This thread's operations are those of a lane while it lasts."""
    _here.lane = lane
    try:
        yield
    except BaseException as error:
        if lane is not None:
            lane.fail(error)
        raise
    finally:
        _here.lane = None


def lane_failed(error: BaseException) -> None:
    """Ends the program's connection after an exception ended a lane, as it ends with a layer."""
    connection = _connection()
    if connection is not None and connection.error is None:
        if isinstance(error, ExchangeError):
            connection.end_as(error)
        else:
            connection.fail(error)


def _connect(timeout: timedelta | None) -> Connection:
    global _num_connections
    _num_connections += 1
    default = dist.group.WORLD
    assert default is not None
    _connections[default] = Connection(_num_connections, timeout, _connection())
    atexit.unregister(_let_go)
    atexit.register(_let_go)
    return _connections[default]


def _let_go() -> None:
    """Says what exception the process ends with, if nobody has caught it, and lets gloo go.

    A thread of gloo's that frees a tensor while the interpreter shuts down kills the process with
    "terminate called without an active exception" (torch 2.13, with or without
    ``destroy_process_group``): they get time to let go of the last ones.
    """
    connection = _connection()
    error = getattr(sys, 'last_value', None)
    if connection is not None and error is not None and not hasattr(sys, 'ps1'):
        connection.fail(error)
    time.sleep(0.2)
