"""Runs a function on several ranks: ``run_ranks(fn, world_size, *args)``.

Ranks are processes with gloo initialised through a file (no ports). Starting them costs seconds, so
the ranks of a world size are kept and used again; after a failure they are killed and started anew.
The fork server imports torch once for all of them.
"""

from __future__ import annotations

import atexit
import faulthandler
import io
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_GRACE = 0.5  # seconds in which other ranks may report that they failed first

_context = multiprocessing.get_context('forkserver')
_context.set_forkserver_preload(['torch', 'torch.distributed', 'torch_geometric', 'pyg_sar'])
_pools: dict[int, _Pool] = {}


class RankError(AssertionError):
    """A rank raised or died; the message holds its traceback."""


def run_ranks(
    fn: Callable[..., Any], world_size: int, *args: Any, timeout: float = 60, **kwargs: Any
) -> list[Any]:
    """Calls ``fn(*args, **kwargs)`` on every rank of a process group.

    Args:
        fn: A function at the top level of a module.
        world_size: Number of ranks.
        timeout: Seconds until all ranks are killed.

    Returns:
        What `fn` returned on rank 0, 1, ...

    Raises:
        RankError: If a rank failed, with the traceback of the first one in time.
        TimeoutError: With the stacks of the ranks that had not finished.
    """
    pool = _pools.get(world_size)
    if pool is None:
        pool = _pools[world_size] = _Pool(world_size)
    try:
        return pool.run(fn, args, kwargs, timeout)
    except BaseException:
        _pools.pop(world_size).kill()
        raise


def run_once(
    fn: Callable[..., Any], world_size: int, *args: Any, timeout: float = 60, **kwargs: Any
) -> list[Any]:
    """The same in processes of its own, for functions that end or spoil their process."""
    pool = _Pool(world_size)
    try:
        return pool.run(fn, args, kwargs, timeout)
    finally:
        pool.kill()


class _Pool:
    def __init__(self, world_size: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix='ranks-'))
        self.processes = []
        self.connections: list[Connection] = []
        for rank in range(world_size):
            ours, theirs = _context.Pipe()
            process = _context.Process(
                target=_serve, args=(rank, world_size, str(self.folder), theirs), daemon=True
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self.connections.append(ours)

    def run(self, fn: Callable[..., Any], args: Any, kwargs: Any, timeout: float) -> list[Any]:
        call = _dump((sys.path, fn.__module__, fn.__qualname__, args, kwargs))
        for connection in self.connections:
            connection.send_bytes(call)
        results: dict[int, Any] = {}
        failures: list[tuple[float, int, str]] = []
        deadline = time.monotonic() + timeout
        while len(results) < len(self.processes):
            waiting = [c for r, c in enumerate(self.connections) if r not in results]
            ready = wait(waiting, max(deadline - time.monotonic(), 0))
            if not ready:
                break
            for connection in ready:
                rank = self.connections.index(connection)
                results[rank] = self._receive(rank, failures)
            if failures and len(failures) == 1:
                deadline = min(deadline, time.monotonic() + _GRACE)
        if failures:
            _, rank, text = min(failures)
            raise RankError(f'rank {rank} of {len(self.processes)} failed:\n{text}')
        if len(results) < len(self.processes):
            late = [r for r in range(len(self.processes)) if r not in results]
            raise TimeoutError(
                f'ranks {late} had not finished after {timeout} s:\n{self._stacks(late)}'
            )
        return [results[rank] for rank in range(len(self.processes))]

    def _receive(self, rank: int, failures: list[tuple[float, int, str]]) -> Any:
        try:
            when, text, result = _load(self.connections[rank].recv_bytes())
        except EOFError:
            self.processes[rank].join(1)
            code = self.processes[rank].exitcode
            failures.append((time.time(), rank, f'process ended with exit code {code}'))
            return None
        if text is not None:
            failures.append((when, rank, text))
        return result

    def _stacks(self, ranks: list[int]) -> str:
        for rank in ranks:
            pid = self.processes[rank].pid
            if pid is not None and self.processes[rank].is_alive():
                os.kill(pid, signal.SIGUSR1)
        time.sleep(0.2)
        return '\n'.join(
            f'rank {rank}:\n{(self.folder / f"stack-{rank}").read_text()}' for rank in ranks
        )

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for connection in self.connections:
            connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _serve(rank: int, world_size: int, folder: str, connection: Connection) -> None:
    """What a rank does: calls, one after another, until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent kills
    stacks = (Path(folder) / f'stack-{rank}').open('w')
    faulthandler.register(signal.SIGUSR1, file=stacks)
    os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
    torch.set_num_threads(1)
    dist.init_process_group(
        'gloo', init_method=f'file://{folder}/store', rank=rank, world_size=world_size
    )
    while True:
        try:
            path, module, name, args, kwargs = _load(connection.recv_bytes())
        except EOFError:
            return
        text = result = None
        try:
            sys.path[:] = path
            fn: Any = __import__(module, fromlist=['_'])
            for part in name.split('.'):
                fn = getattr(fn, part)
            result = fn(*args, **kwargs)
            answer = _dump((time.time(), None, result))
        except BaseException:
            text = traceback.format_exc()
            answer = _dump((time.time(), text, None))
        connection.send_bytes(answer)


def _dump(value: Any) -> bytes:
    """Pickled with tensors by value: shared memory would pile up file descriptors."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_protocol=pickle.HIGHEST_PROTOCOL)
    return buffer.getvalue()


def _load(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)


@atexit.register
def _kill_all() -> None:
    for pool in _pools.values():
        pool.kill()
    _pools.clear()
