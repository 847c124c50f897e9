"""Runs a function on several ranks: ``run_ranks(fn, world_size, *args)``.

A rank is a process with gloo initialised through a file (no ports). A fork server imports torch and
PyG once for all of them, and the ranks of a world size are kept for the whole session, so a call
costs milliseconds. After a failure or a timeout they are killed and the next call starts new ones.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import io
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch_geometric.template
from jinja2 import Environment, FileSystemLoader
from started import heed_interrupts  # noqa: F401 (others take it from here)

from pyg_sar.comm.threads import forgets_generated, run_threads

GRACE = 2.0  # seconds after the first failure in which other ranks may report theirs

context = multiprocessing.get_context('forkserver')
# pytest and hypothesis: a rank imports the test module, and perhaps pytest as the main module. On
# a machine with a GPU nothing: what asks CUDA for its devices at import spoils it for all forks.
_PRELOADED = ['torch_geometric', 'pyg_sar', 'pytest', 'hypothesis']
context.set_forkserver_preload([] if torch.cuda.is_available() else _PRELOADED)
_pools: dict[tuple[int, str], _Pool] = {}
_environments: dict[str, Environment] = {}


def _environment(loader: FileSystemLoader) -> Environment:
    folder = loader.searchpath[0]
    return _environments.setdefault(folder, Environment(loader=loader, autoescape=False))


# PyG compiles its templates anew for every class of conv, a quarter of the time of a test of many.
torch_geometric.template.Environment = _environment  # type: ignore[attr-defined]


def seed() -> None:
    """Seeds torch and NumPy, and leaves Python's ``random`` alone.

    PyG names the code that it generates for a ``Sequential`` by ``random``. With a seeded one two
    different models of a test get the same name, and the second runs the code of the first.
    """
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 (what PyG draws from)


def take_device(rank: int, world_size: int) -> None:
    """Makes a GPU the current one of a rank, before NCCL is asked for; some share one if need be.

    NCCL refuses ranks of one host that share a GPU. So each says that it is another host, and what
    they tell each other goes through sockets: slow, and with NCCL's own rules and kernels.
    """
    count = torch.cuda.device_count()
    if count < world_size:
        names = {'NCCL_HOSTID': f'rank {rank}', 'NCCL_SOCKET_IFNAME': 'lo', 'NCCL_NET': 'Socket'}
        os.environ.update(names)
    torch.cuda.set_device(rank % count)


class RankError(AssertionError):
    """A rank raised or died; the message holds its traceback."""


def run_ranks(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float = 120,
    backend: str = 'gloo',
    **kwargs: Any,
) -> list[Any]:
    """Calls ``fn(*args, **kwargs)`` on every rank of a process group.

    Every call starts from the same seed, with one thread and with the caller's warning filters.
    Arguments and results travel by value.

    Args:
        fn: A function at the top level of a module that the ranks can import, such as a test's.
        world_size: Number of ranks.
        *args: Passed on, the same for every rank.
        timeout: Seconds until all ranks are killed.
        backend: Of the process group; with NCCL every rank has a GPU of its own.
        **kwargs: Passed on.

    Returns:
        What `fn` returned on rank 0, 1, ...

    Raises:
        RankError: If a rank failed, with the traceback of the first one in time.
        TimeoutError: With the stacks of the ranks that had not finished.
    """
    message = _dump((_warning_filters(), fn, args, kwargs))
    kind = world_size, backend
    pool = _pools.get(kind)
    try:
        if pool is None:
            pool = _pools[kind] = _Pool(world_size, backend)
        return pool.call(message, timeout)
    except BaseException:
        if kind in _pools:
            _pools.pop(kind).kill()
        raise


def run_as_threads(fn: Callable[..., Any], world_size: int, *args: Any, **kwargs: Any) -> list[Any]:
    """The same with threads of this process as ranks, which the test of same bits stands for.

    A function that is run so asks pyg_sar.comm for its rank, not torch.distributed.
    """
    message = _dump((_warning_filters(), fn, args, kwargs))
    threads = torch.get_num_threads()
    try:
        return run_threads(lambda: _load(_dump(_call(message))), world_size)
    finally:
        torch.set_num_threads(threads)


def run_once(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float = 120,
    may_die: Collection[int] = (),
    backend: str = 'gloo',
    **kwargs: Any,
) -> list[Any]:
    """The same in processes of its own, for functions that end or spoil their process.

    Ranks in `may_die` may end without an answer; their result is then None.
    """
    message = _dump((_warning_filters(), fn, args, kwargs))
    pool = _Pool(world_size, backend)
    try:
        return pool.call(message, timeout, may_die)
    finally:
        pool.kill()


@dataclass(order=True)
class _Failure:
    """Sorts the first in time to the front, a death before the errors that it causes elsewhere."""

    order: tuple[bool, float]
    rank: int = field(compare=False)
    text: str = field(compare=False)


class _Pool:
    """The ranks of one world size and backend."""

    def __init__(self, world_size: int, backend: str = 'gloo') -> None:
        self.folder = Path(tempfile.mkdtemp(prefix='ranks-'))
        self.processes: list[multiprocessing.process.BaseProcess] = []
        self.connections: list[Connection] = []
        try:
            for rank in range(world_size):
                self._start(rank, world_size, backend)
        except BaseException:
            self.kill()
            raise

    def _start(self, rank: int, world_size: int, backend: str) -> None:
        ours, theirs = context.Pipe()
        self.connections.append(ours)
        with theirs:
            process = context.Process(
                target=_serve, args=(rank, world_size, backend, str(self.folder), theirs)
            )
            process.start()
        self.processes.append(process)

    def call(self, message: bytes, timeout: float, may_die: Collection[int] = ()) -> list[Any]:
        world_size = len(self.connections)
        for connection in self.connections:
            with contextlib.suppress(OSError):  # It has died, which receiving will tell.
                connection.send((sys.path, message))
        deadline = time.monotonic() + timeout
        results: dict[int, Any] = {}
        failures: list[_Failure] = []
        pending = set(range(world_size))
        while pending:
            remaining = max(deadline - time.monotonic(), 0)
            ready = wait([self.connections[rank] for rank in pending], remaining)
            if not ready:
                break
            for connection in ready:
                rank = self.connections.index(connection)  # type: ignore[arg-type]
                pending.remove(rank)
                answer = self._receive(rank, rank in may_die)
                if isinstance(answer, _Failure):
                    failures.append(answer)
                    deadline = min(deadline, time.monotonic() + GRACE)
                else:
                    results[rank] = answer
        if failures:
            first = min(failures)
            running = f' (ranks {sorted(pending)} had not finished)' if pending else ''
            raise RankError(f'rank {first.rank} of {world_size} failed{running}:\n{first.text}')
        if pending:
            raise TimeoutError(
                f'ranks {sorted(pending)} of {world_size} had not finished after {timeout} s\n'
                + self._stacks(pending)
            )
        return [results[rank] for rank in range(world_size)]

    def _receive(self, rank: int, may_die: bool) -> Any:
        try:
            return _load(self.connections[rank].recv_bytes())
        except (EOFError, OSError):
            if may_die:
                return None
            process = self.processes[rank]
            process.join(60)
            return _Failure((False, 0.0), rank, f'it ended with exit code {process.exitcode}')

    def _stacks(self, ranks: Collection[int]) -> str:
        for rank in ranks:
            pid = self.processes[rank].pid
            if pid is not None:
                os.kill(pid, signal.SIGUSR1)
        files = {rank: self.folder / f'stack-{rank}' for rank in sorted(ranks)}
        end = time.monotonic() + 10
        while not all(f.exists() and f.stat().st_size for f in files.values()):
            if time.monotonic() > end:
                break
            time.sleep(0.02)
        time.sleep(0.2)
        return '\n'.join(
            f'rank {rank}:\n{file.read_text() if file.exists() else "not started"}'
            for rank, file in files.items()
        )

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for connection in self.connections:
            connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@atexit.register
def _kill_all() -> None:
    while _pools:
        _pools.popitem()[1].kill()


def _serve(rank: int, world_size: int, backend: str, folder: str, connection: Connection) -> None:
    """What a rank does: one call after another, until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The caller is interrupted, and kills.
    threading.Thread(target=_end_with_caller, args=(folder,), daemon=True).start()
    stacks = (Path(folder) / f'stack-{rank}').open('w')
    faulthandler.register(signal.SIGUSR1, file=stacks)
    if sys.platform == 'linux':
        os.environ['GLOO_SOCKET_IFNAME'] = 'lo'  # The host's name need not resolve.
    if 'nccl' in backend:
        take_device(rank, world_size)
    dist.init_process_group(
        backend, init_method=f'file://{folder}/store', rank=rank, world_size=world_size
    )
    while True:
        sys.path[:], message = connection.recv()
        try:
            answer = _dump(_call(message))
        except BaseException:
            failure = _Failure((True, time.monotonic()), rank, traceback.format_exc())
            answer = _dump(failure)
        connection.send_bytes(answer)


def _call(message: bytes) -> Any:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    filters, fn, args, kwargs = _load(message)
    seed()  # a module that it imports may draw
    with forgets_generated(), warnings.catch_warnings():
        warnings.resetwarnings()
        for each in reversed(filters):
            warnings.filterwarnings(*each)
        return fn(*args, **kwargs)


def _end_with_caller(folder: str) -> None:
    """Ends this rank, even in the middle of a call, when the process that started it has ended."""
    caller = multiprocessing.parent_process()
    assert caller is not None
    wait([caller.sentinel])
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _warning_filters() -> list[tuple[Any, str, type[Warning], str, int]]:
    """The filters in force, as arguments of warnings.filterwarnings."""

    def text(pattern: Any) -> str:
        return getattr(pattern, 'pattern', pattern) or ''

    return [
        (action, text(message), category, text(module), lineno)
        for action, message, category, module, lineno in warnings.filters
    ]


def _dump(value: Any) -> bytes:
    """Pickles with tensors by value: in shared memory they would pile up file descriptors."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_protocol=pickle.HIGHEST_PROTOCOL)
    return buffer.getvalue()


def _load(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)
