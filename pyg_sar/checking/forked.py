"""Runs functions in forked processes, which change only copies of the caller's variables."""

from __future__ import annotations

import gc
import inspect
import multiprocessing
import os
import random
import sys
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
from pyg_sar.launching.launch import in_new_thread

_GRACE = 5.0  # seconds that the other processes have after a failure


@dataclass(frozen=True)
class Failure:
    """The error of a function, or how its process ended."""

    text: str
    is_of_another: bool = False  # it only reports that another rank has failed
    is_raised: bool = False  # the function raised it


def run_forked(functions: Sequence[Callable[[], Any]], step: Any, timeout: float) -> list[Any]:
    """Runs functions at once, each in a forked process; returns their results or Failures.

    A Failure names the innermost line of the file of `step`.
    """
    context = multiprocessing.get_context('fork')
    processes: dict[Any, Any] = {}
    with warnings.catch_warnings():
        # Python 3.12: other threads may hold locks. Those of notebooks and of torch do not.
        warnings.filterwarnings('ignore', '.*multi-threaded, use of fork', DeprecationWarning)
        for function in functions:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_serve, args=(function, _file_of(step), theirs))
            process.start()
            theirs.close()
            processes[ours] = process
    results: dict[Any, Any] = {}
    end = time.monotonic() + timeout
    try:
        while pending := [ours for ours in processes if ours not in results]:
            ready = wait(pending, max(end - time.monotonic(), 0))
            for connection in ready:
                results[connection] = _received(connection, processes[connection])
                if isinstance(results[connection], Failure):
                    end = min(end, time.monotonic() + _GRACE)
            if not ready:
                late = Failure(f'it has not ended after {timeout:g} s', bool(results))
                results |= dict.fromkeys(pending, late)
    finally:
        for process in processes.values():
            process.kill()
            process.join()
    return [results[ours] for ours in processes]


def _received(connection: Any, process: Any) -> Any:
    try:
        return connection.recv()
    except EOFError:
        process.join()
        return Failure(f'its process has died (exit code {process.exitcode})')


def _serve(function: Callable[[], Any], file: str | None, connection: Connection) -> None:
    """Sends the result of a function; a new thread calls it, as OpenMP may hang in this one."""
    gc.freeze()  # garbage of the caller may wait for threads that a fork does not have
    sys.stdout = open(os.devnull, 'w')  # noqa: SIM115 (open until the end)
    warnings.simplefilter('ignore')
    os.environ['NUMBA_DISABLE_JIT'] = '1'  # to compile loops takes longer than such a graph
    os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo0' if sys.platform == 'darwin' else 'lo')
    try:
        connection.send(in_new_thread(_seeded, function))
    except BaseException as error:  # also an exit
        text = f'{type(error).__name__}: {error}'
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
        if frames:
            text += f' ({file}, line {frames[-1].lineno}: {frames[-1].line})'
        connection.send(Failure(text, isinstance(error, ExchangeError), is_raised=True))
    connection.close()
    os._exit(0)  # ranks would wait for each other at the end of their groups


def _seeded(function: Callable[[], Any]) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 (what PyG draws from)
    random.seed(0)  # of negative_sampling
    return function()


def _file_of(step: Any) -> str | None:
    step = inspect.unwrap(getattr(step, 'func', step))  # of a partial
    code = getattr(step, '__code__', None) or getattr(type(step).__call__, '__code__', None)
    return code and str(code.co_filename)
