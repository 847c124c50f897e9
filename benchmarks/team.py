"""Groups of processes that take turns, so that what is compared sees the same machine.

A team is one process, or the ranks of a process group, that runs a program step by step. Between
its steps it sleeps on a pipe: several teams are alive at once and work in turn (ours, plain, ours,
plain ...), each with memory of its own.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from process_memory import read_libraries
from tqdm import tqdm

Program = Callable[..., Iterator[Any]]

_context = multiprocessing.get_context('forkserver')
_context.set_forkserver_preload(['torch_geometric', 'pyg_sar'])  # imported once, for all


class Steps(Protocol):
    """What takes turns with others."""

    def step(self) -> list[Any]: ...


class Team(AbstractContextManager['Team']):
    """Processes that run a program step by step.

    Args:
        program: A generator function at the top level of a module. What it does up to its first
            ``yield`` is the setup; every further one ends a step and gives its result.
        processes: Number of ranks; with more than one they form a gloo process group.
        threads: Threads of each.
        mmap_threshold: Fixes glibc's threshold for separate mappings, in bytes, as the environment
            variable MALLOC_MMAP_THRESHOLD_ does; None leaves it as it is.
        **options: Passed to the program.

    Attributes:
        setup: What the program gave at its first ``yield``, by rank.
    """

    def __init__(
        self,
        program: Program,
        processes: int = 1,
        *,
        threads: int = 1,
        mmap_threshold: int | None = None,
        **options: Any,
    ) -> None:
        self._folder = tempfile.mkdtemp(prefix='team-')
        self._connections: list[Connection] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        try:
            for rank in range(processes):
                ours, theirs = _context.Pipe()
                place = (rank, processes, f'file://{self._folder}/store')
                process = _context.Process(
                    target=_work,
                    args=(theirs, program, options, place, threads, mmap_threshold),
                    daemon=True,
                )
                with theirs:
                    process.start()
                self._connections.append(ours)
                self._processes.append(process)
            self.setup = self._receive()
        except BaseException:
            self.close()
            raise

    def step(self) -> list[Any]:
        """Runs the program up to its next ``yield`` on all ranks; what it gave, by rank."""
        for connection in self._connections:
            connection.send(None)
        return self._receive()

    def _receive(self) -> list[Any]:
        results = []
        for rank, connection in enumerate(self._connections):
            try:
                is_done, result = connection.recv()
            except EOFError:
                is_done, result = False, 'it ended without an answer (out of memory?)'
            if not is_done:
                raise RuntimeError(f'rank {rank} of {len(self._connections)} failed:\n{result}')
            results.append(result)
        return results

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for connection in self._connections:
            connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __exit__(self, *_: object) -> None:
        self.close()


def take_turns(
    teams: Mapping[str, Steps], rounds: int, *, warmup: int = 1, progress: str = ''
) -> dict[str, list[list[Any]]]:
    """Steps all teams in turn, `warmup` + `rounds` times.

    Returns:
        For every team the results of all steps, warm-up included: by step, then by rank.
    """
    results: dict[str, list[list[Any]]] = {name: [] for name in teams}
    for _ in tqdm(range(warmup + rounds), desc=progress, unit='round', leave=False):
        for name, team in teams.items():
            results[name].append(team.step())
    return results


def slowest(steps: Iterable[list[Any]]) -> list[float]:
    """Seconds of every step: those of the slowest rank."""
    return [max(result['seconds'] for result in step) for step in steps]


def _work(
    connection: Connection,
    program: Program,
    options: dict[str, Any],
    place: tuple[int, int, str],
    threads: int,
    mmap_threshold: int | None,
) -> None:
    try:
        rank, world_size, store = place
        if mmap_threshold is not None:
            os.environ['MALLOC_MMAP_THRESHOLD_'] = str(mmap_threshold)  # read at start; pyg_sar's
            ctypes.CDLL(None).mallopt(-3, ctypes.c_int(mmap_threshold))  # M_MMAP_THRESHOLD
        torch.set_num_threads(threads)
        read_libraries()
        if world_size > 1:
            if Path('/sys/class/net/lo').exists():
                os.environ['GLOO_SOCKET_IFNAME'] = 'lo'  # the host's name need not resolve
            dist.init_process_group('gloo', init_method=store, rank=rank, world_size=world_size)
        steps = program(**options)
        while True:
            connection.send((True, next(steps)))
            connection.recv()
    except EOFError:
        pass  # the caller has gone
    except BaseException:
        connection.send((False, traceback.format_exc()))
