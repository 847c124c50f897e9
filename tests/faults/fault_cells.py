"""Runs cells of the fault matrix: a fault in a phase, on three ranks, and how the others end."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_program import (
    FAULTS,
    FAULTY,
    GROUP_TIMEOUT,
    LIMIT,
    PHASES,
    TIMEOUT,
    WORLD_SIZE,
    Cell,
    run,
)
from ranks import context
from small_graphs import cut, small_graph

SLACK = 20.0  # seconds to tell each other who was lost, on a busy machine
NOT_DEFINED = {('shape', phase) for phase in ('backward', 'optimizer', 'checkpoint')}
CELLS = [Cell(f, p) for f in FAULTS for p in PHASES if (f, p) not in NOT_DEFINED]


@dataclass(frozen=True)
class Outcome:
    """How a cell ended.

    Attributes:
        ends: What each of the others raised: type, text, peer, layer, operation; or where it hung:
            stacks.
        seconds: From the fault to the last of their exceptions.
        exit_codes: Of the others; None for one that did not end by itself.
    """

    ends: list[dict[str, Any]]
    seconds: float
    exit_codes: list[int | None]


def is_silent(cell: Cell) -> bool:
    """Whether the others find the rank by their timeout."""
    # What a rank does outside of its model nobody sees: as long as its process lives it is silent.
    is_seen = cell.phase in ('load', 'forward')
    return cell.fault == 'stopped' or (cell.fault == 'raises, lives on' and not is_seen)


def bound(cell: Cell) -> float:
    """Seconds within which the others have to end."""
    limit = GROUP_TIMEOUT if cell.phase in ('load', 'construction') else TIMEOUT
    return SLACK + (limit if is_silent(cell) else 0)


def outcomes(cells: Iterable[Cell], folder: Path, *, at_once: int = 3) -> dict[Cell, Outcome]:
    """Runs cells, some of them at the same time."""
    cells = list(cells)
    cut(small_graph(), WORLD_SIZE, folder / 'parts')
    cut(small_graph(seed=1), WORLD_SIZE, folder / 'others', 'empty part')
    with ThreadPoolExecutor(at_once) as pool:
        found = pool.map(lambda c: _outcome(c[1], folder / f'cell-{c[0]}'), enumerate(cells))
        return dict(zip(cells, found, strict=True))


@contextmanager
def started(of: Any, target: Callable[..., None], *args: Any) -> Iterator[list[Any]]:
    """The processes of all ranks, which call `target` with their rank; killed in the end."""
    processes = [of.Process(target=target, args=(i, *args)) for i in range(WORLD_SIZE)]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def _outcome(cell: Cell, folder: Path) -> Outcome:
    folder.mkdir()
    with started(context, run, str(folder), cell, sys.path) as ranks:
        others = [rank for i, rank in enumerate(ranks) if i != FAULTY]
        end = time.monotonic() + LIMIT
        for rank in others:
            rank.join(max(end - time.monotonic(), 0))
        exit_codes = [rank.exitcode for rank in others]
    ends = []
    for i in set(range(WORLD_SIZE)) - {FAULTY}:
        file, stacks = folder / f'end-{i}', folder / f'stacks-{i}'
        if file.exists():
            ends.append(json.loads(file.read_text()))
        else:
            ends.append({'stacks': stacks.read_text() if stacks.exists() else 'not started'})
    start = folder / 'fault'
    if start.exists():
        last = max(e.get('time', float('inf')) for e in ends)
        return Outcome(ends, last - float(start.read_text()), exit_codes)
    return Outcome(ends, 0.0, exit_codes)  # found by comparing, before anything was awaited
