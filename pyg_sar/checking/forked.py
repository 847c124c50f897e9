"""Functions in processes that are forked: whatever they change is changed in a copy."""

from __future__ import annotations

import functools
import gc
import inspect
import multiprocessing
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch

from pyg_sar.comm import ExchangeError

_GRACE = 5.0  # seconds that the others have after one of them has failed


@dataclass(frozen=True)
class Failure:
    """What a function raised, or how its process ended."""

    text: str
    is_of_another: bool = False  # it only tells that another rank has failed

    def __str__(self) -> str:
        return self.text


def run_forked(functions: Sequence[Callable[[], Any]], step: Any, timeout: float) -> list[Any]:
    """What every function returns in a process of its own, at the same time, or its Failure.

    A failure names the innermost line of the file that `step` is in.
    """
    context = multiprocessing.get_context('fork')
    processes, connections = [], []
    with warnings.catch_warnings():
        # Python 3.12: other threads may hold locks. Those of notebooks and of torch do not.
        warnings.filterwarnings('ignore', '.*multi-threaded, use of fork', DeprecationWarning)
        for function in functions:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_serve, args=(function, _file_of(step), theirs))
            process.start()
            theirs.close()
            processes.append(process)
            connections.append(ours)
    results: dict[Any, Any] = {}
    end = time.monotonic() + timeout
    try:
        while len(results) < len(connections):
            pending = [each for each in connections if each not in results]
            ready = wait(pending, max(end - time.monotonic(), 0))
            if not ready:
                text = f'it has not ended after {timeout:g} s'
                is_late = any(isinstance(each, Failure) for each in results.values())
                results |= dict.fromkeys(pending, Failure(text, is_of_another=is_late))
            for connection in ready:
                index = connections.index(connection)  # type: ignore[arg-type]
                results[connection] = _received(connections[index], processes[index])
                if isinstance(results[connection], Failure):
                    end = min(end, time.monotonic() + _GRACE)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [results[each] for each in connections]


def _received(connection: Connection, process: Any) -> Any:
    try:
        return connection.recv()
    except EOFError:
        process.join()
        return Failure(f'its process has died (exit code {process.exitcode})')


def _serve(function: Callable[[], Any], file: str | None, connection: Connection) -> None:
    """The life of a process: OpenMP waits for the threads of the caller's, but in a new thread."""
    gc.freeze()  # what waits for threads that are not here when it goes
    sys.stdout = open(os.devnull, 'w')  # noqa: SIM115 (the caller prints by himself)
    warnings.simplefilter('ignore')
    os.environ['NUMBA_DISABLE_JIT'] = '1'  # loops for a small graph are not worth to be compiled
    os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo0' if sys.platform == 'darwin' else 'lo')
    thread = threading.Thread(target=_call, args=(function, file, connection), daemon=True)
    thread.start()
    thread.join()
    connection.close()
    os._exit(0)  # groups of processes wait for each other when they go


def _call(function: Callable[[], Any], file: str | None, connection: Connection) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 (what PyG draws from)
    try:
        answer = function()
    except BaseException as error:  # also an exit
        text = f'{type(error).__name__}: {error}{_place(error, file)}'
        answer = Failure(text, is_of_another=isinstance(error, ExchangeError))
    connection.send(answer)


def _file_of(step: Any) -> str | None:
    while isinstance(step, functools.partial):
        step = step.func
    found = inspect.unwrap(step)
    for each in (found, getattr(type(found), '__call__', None)):
        code = getattr(inspect.unwrap(each), '__code__', None) if each is not None else None
        if code is not None:
            return str(code.co_filename)
    return None


def _place(error: BaseException, file: str | None) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    if not frames:
        return ''
    return f' ({frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line})'
