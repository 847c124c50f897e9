"""Loses a rank in a chosen operation of a program, many times in the same processes.

Ranks 0 and 1 go from cell to cell. Rank 2 starts a process for each, which is the rank 2 of the
cell and is really killed or stopped.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from path_programs import place_of, program

import pyg_sar
from pyg_sar.comm import process_group
from pyg_sar.comm.errors import location
from pyg_sar.comm.process_group import GroupComm
from pyg_sar.comm.ranks import set_timeout
from pyg_sar.nn.options import Mode

FAULTY = 2
TIMEOUT = 10.0
START = 60.0  # the timeout while programs are built and run for the first time, in seconds
SUM = 'the sum of gradients'
_PR_SET_PDEATHSIG = 1


class PathCell(NamedTuple):
    """A fault in an operation of a program.

    Attributes:
        program: Which.
        mode: Of its layers.
        phase: ``'forward'``, ``'backward'``, `SUM`, or ``''`` where a function is called.
        fault: ``'killed'`` or ``'stopped'``.
        when: 0 for the first operation of the phase, 1 for the last.
    """

    program: str
    mode: Mode
    phase: str
    fault: str
    when: float


class End(NamedTuple):
    """How one of the others ended: the error's type, text, peer, layer and operation."""

    kind: str
    text: str
    peer: int | None
    layer: str
    operation: str
    seconds: float


def run_cells(root: str, cells: list[PathCell]) -> list[End]:
    """How this rank ends in every cell; nothing on the faulty one."""
    rank = dist.get_rank()
    dist.destroy_process_group()
    ends = []
    for number, cell in enumerate(cells):
        folder = Path(root).parent / f'cell-{number}'
        folder.mkdir(exist_ok=True)
        if rank == FAULTY:
            _start_and_end(cell, root, folder)
        else:
            ends.append(_run(cell, rank, root, folder))
    return ends


def _start_and_end(cell: PathCell, root: str, folder: Path) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            end = _run(cell, FAULTY, root, folder)
            (folder / 'not lost').write_text(str(end))
        finally:
            os._exit(1)
    try:
        while not all((folder / f'end-{rank}').exists() for rank in range(FAULTY)):
            time.sleep(0.01)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _run(cell: PathCell, rank: int, root: str, folder: Path) -> End:
    # Processes of different age have made different numbers of groups.
    process_group._numbers = itertools.count()
    dist.init_process_group(
        'gloo',
        init_method=f'file://{folder}/store',
        rank=rank,
        world_size=3,
        timeout=timedelta(seconds=START),
    )
    error: Any = None
    try:
        torch.manual_seed(0)
        build, _ = program(cell.program)
        data = pyg_sar.load_shard(root)
        step = build(data, cell.mode, START, folder)
        step(1)
        if rank == FAULTY:
            _count_and_fail(cell, step, folder)
        else:
            step(2)
            set_timeout(timedelta(seconds=TIMEOUT))
            step(3)
            step(4)  # nobody may have needed the rank's last operation
    except Exception as found:
        error = found
    found = End(
        type(error).__name__,
        str(error),
        getattr(error, 'peer', None),
        getattr(error, 'layer', ''),
        getattr(error, 'operation', ''),
        time.monotonic(),
    )
    del error
    start = folder / 'fault'
    begin = float(start.read_text()) if start.exists() else float('-inf')  # nobody was lost
    found = found._replace(seconds=found.seconds - begin)
    (folder / f'end-{rank}').touch()
    if dist.is_initialized():
        dist.destroy_process_group()
    return found


def _count_and_fail(cell: PathCell, step: Callable[[int], object], folder: Path) -> None:
    """Step 2 tells how many operations there are; step 3 does not get beyond the chosen one."""
    wanted = place_of(cell.program, cell.phase)
    count, last = 0, -1

    def come() -> None:
        nonlocal count
        if count == last:
            (folder / 'fault').write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL if cell.fault == 'killed' else signal.SIGSTOP)
        count += 1

    guard = GroupComm.guard

    @contextmanager
    def guarding(self: GroupComm, operation: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        with guard(self, operation, *args, **kwargs):
            is_sum = operation.startswith('the sum of the gradients of parameters')
            if is_sum if cell.phase == SUM else not is_sum and location() == wanted:
                come()
            yield

    with mock.patch.object(GroupComm, 'guard', guarding):
        step(2)
        (folder / 'count').write_text(str(count))
        set_timeout(timedelta(seconds=TIMEOUT))  # all have come as far as this
        count, last = 0, round(cell.when * (count - 1))
        step(3)
