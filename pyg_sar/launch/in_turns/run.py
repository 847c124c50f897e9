"""``run_in_turns``: a program of P ranks in one process, whose memory is bounded."""

from __future__ import annotations

import contextlib
import gc
import logging
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pyg_sar.comm.ranks import current, is_distributed
from pyg_sar.comm.threads import TurnHooks, run_threads
from pyg_sar.launch.in_turns.evictions import LEAST_BYTES, Evictions, Figures
from pyg_sar.launch.in_turns.spill_file import SpillFile
from pyg_sar.launch.in_turns.users_calls import replaced
from pyg_sar.launch.in_turns.watch import Watch
from pyg_sar.shard.meta import read_meta
from pyg_sar.utils.command_line import parse_bytes, users_files
from pyg_sar.utils.log import say
from pyg_sar.utils.malloc import return_freed_memory

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class InTurns:
    """The results of the program on rank 0, 1, ..., and the figures of the run."""

    results: list[Any]
    figures: Figures


def run_in_turns(
    function: Callable[..., Any],
    root: str | Path,
    *args: Any,
    memory: str | int,
    spill: str | Path | None = None,
    host_memory: str | int | None = None,
    num_ranks: int | None = None,
    reserve: str | int = 0,
) -> InTurns:
    """Calls ``function(*args)`` on all ranks of a partitioned graph, in turn, in this process.

    The function is the program that torchrun would run on every rank: it calls
    :func:`pyg_sar.init` and :func:`pyg_sar.load_shard`. Losses, weights and outputs have the same
    bits as on processes. One rank computes at a time. Meanwhile large tensors of the others that
    exceed `memory` are evicted: from a GPU to the host, and from the host to a file. Not
    collective: one process calls it.

    Random states are as in :func:`pyg_sar.launch`: every rank starts with those of the caller.

    Args:
        function: What every rank runs.
        root: The folder that ``python -m pyg_sar.partition`` wrote; its parts are the ranks.
        *args: Passed on, the same objects to every rank, none of which learns. Their tensors are
            never evicted.
        memory: Bytes, or a text such as ``'4GB'``, that large tensors of all ranks may take
            together: on a GPU if they compute on one, and in memory of the host. Python, its
            libraries and small tensors come on top. The turn of one rank may need more; then the
            tensors of all others are evicted, and its own stay.
        spill: A folder on a disk, where a file without a name takes what is evicted from the host.
            With a GPU it may be left out: then memory of the host takes all that is evicted.
        host_memory: With a GPU, bytes of the host's memory; None for as many as `memory`.
        num_ranks: How many ranks take turns; divides the number of parts. None for one rank for
            each part.
        reserve: Bytes of `spill` that are taken at the start, so that a full disk is an error then.

    Returns:
        The results of all ranks, and what was moved.

    Raises:
        ValueError: If this process is a rank already, or an argument is wrong; without a GPU also
            if `host_memory` is given, or `spill` is not.
        OSError: With the folder, if it may not be written, is full, or cannot be read.
        Exception: Of the first rank that raises, as it is.

    As in::

        def train():
            data = pyg_sar.load_shard('parts/')
            return float(data.x.sum())  # here a model is trained

        run = pyg_sar.run_in_turns(train, 'parts/', memory='4GB', spill='.')
        run.results, run.figures.peak
    """
    if is_distributed():
        raise ValueError(
            'expected a process that is no rank (got rank '
            f'{current().rank} of {current().size}; run_in_turns plays all ranks by itself)'
        )
    num_parts = read_meta(Path(root)).num_parts
    num_ranks = num_parts if num_ranks is None else num_ranks
    if num_ranks < 1 or num_parts % num_ranks:
        raise ValueError(
            f"'num_ranks' must divide the {num_parts} parts of '{root}' (got {num_ranks})"
        )
    return play(
        partial(function, *args),
        num_ranks,
        memory=memory,
        spill=spill,
        host_memory=host_memory,
        reserve=reserve,
    )


def run_script(script: Path, arguments: Sequence[str], root: str | Path, **options: Any) -> Figures:
    """Runs a program for torchrun by :func:`run_in_turns`, with `arguments` as its command line."""
    sys.argv[:] = [str(script), *arguments]
    sys.path.insert(0, str(script.parent.resolve()))
    users_files.add(str(script))

    def run() -> None:
        try:
            runpy.run_path(str(script), run_name='__main__')
        except SystemExit as end:
            if end.code not in (None, 0):
                raise

    main_module = sys.modules['__main__']
    try:
        return run_in_turns(run, root, **options).figures
    finally:
        sys.modules['__main__'] = main_module  # ranks put it back in any order


def play(
    function: Callable[[], Any],
    num_ranks: int,
    *,
    memory: str | int,
    spill: str | Path | None = None,
    host_memory: str | int | None = None,
    reserve: str | int = 0,
    least: int = LEAST_BYTES,
) -> InTurns:
    """As :func:`run_in_turns`, for so many ranks; `least` is that of `Evictions`."""
    has_gpu = torch.cuda.is_available()
    if host_memory is not None and not has_gpu:
        raise ValueError(
            f"'host_memory' is for programs on a GPU (got {host_memory} and no GPU; 'memory' is "
            'that of the host)'
        )
    if spill is None and not has_gpu:
        raise ValueError("'spill' must be a folder where there is no GPU (got None)")
    if spill is None and (host_memory is not None or reserve):
        raise ValueError(
            f"'spill' must be a folder with host_memory={host_memory} and reserve={reserve} (got "
            'None; then memory of the host takes all that is evicted)'
        )
    budget, reserved = _bytes('memory', memory), _bytes('reserve', reserve)
    host_budget = budget if host_memory is None else _bytes('host_memory', host_memory)
    if has_gpu:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # ranks begin with its random state
    file = None if spill is None else SpillFile(spill, reserved)
    host_budget = sys.maxsize if file is None else host_budget
    evictions = Evictions(budget, host_budget, file, num_ranks, least)
    return_freed_memory(LEAST_BYTES)
    try:
        with replaced():
            results = run_threads(function, num_ranks, around=_Evicting(evictions))
        gc.collect()  # tensors that only cycles hold need not be read
        evictions.restore()
    except BaseException:
        # The first error is the one to tell.
        with contextlib.suppress(OSError, torch.OutOfMemoryError):
            evictions.restore()
        raise
    finally:
        figures = evictions.counted()
        evictions.close()
    where = '' if file is None else f" in '{file.folder}'"
    text = f'{num_ranks} ranks in turn: {figures}, {figures.evictions} evictions{where}'
    say(_logger, logging.INFO, text)
    return InTurns(results, figures)


class _Evicting(TurnHooks):
    """Evicts memory when a turn begins."""

    def __init__(self, evictions: Evictions) -> None:
        self._evictions = evictions

    def rank(self) -> AbstractContextManager[Any]:
        return Watch(self._evictions).in_thread()

    def switch(self, rank: int) -> None:
        self._evictions.begin(rank)


def _bytes(name: str, size: str | int) -> int:
    num_bytes = parse_bytes(size) if isinstance(size, str) else size
    if num_bytes < 0:
        raise ValueError(f"'{name}' must be bytes, at least 0 (got {size})")
    return num_bytes
