"""Training by ranks in turn: what the disk takes, from what a rank of the rehearsal holds.

A rank's peak is what it holds when its backward begins, so the peaks of all ranks are what waits.
A turn needs its own rank's peak at most, and less: what lies deep in the graph may go, too. What
exceeds the memory is written once and read once an epoch; rows that ranks read of each other are
read once more, as they lie with their owner. Tensors that are made, evicted and freed between two
layers are not counted.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pyg_sar.planner.prediction import OVERHEAD_BYTES, Prediction

_PROBE_BYTES = 64 << 20


@dataclass(frozen=True)
class TurnsPrediction:
    """One process that plays all ranks of a cut.

    Attributes:
        turn_bytes: A turn needs at most that, and mostly half: what a rank holds in all layers.
        host_bytes: The most bytes of a GPU's tensors that wait in memory of the host.
        disk_bytes: The most that lies on the disk.
        written_bytes: Written in an epoch.
        read_bytes: Read in an epoch, with the rows that ranks read of each other.
        halo_bytes: Those rows' part of it.
        disk_seconds: Of an epoch at the rate of the disk.
        compute_seconds: Of an epoch, of all ranks one after the other; None if it was not timed.
    """

    turn_bytes: int
    host_bytes: int
    disk_bytes: int
    written_bytes: int
    read_bytes: int
    halo_bytes: int
    disk_seconds: float
    compute_seconds: float | None


def predict_turns(
    prediction: Prediction,
    memory: int,
    write_rate: float,
    read_rate: float,
    host_memory: int = 0,
) -> TurnsPrediction:
    """What training needs if the ranks of a prediction take turns.

    `memory` are bytes for large tensors of all ranks together; if it is that of a GPU,
    `host_memory` are bytes that wait on the host before the disk. Rates of the disk are bytes per
    second.
    """
    ranks = prediction.ranks
    times = 1 if len(ranks) == prediction.num_ranks else prediction.num_ranks
    held = times * sum(rank.peak_bytes - OVERHEAD_BYTES for rank in ranks)
    waiting = max(held - memory, 0)
    away = max(waiting - host_memory, 0)
    halo = times * sum(rank.bytes_per_epoch for rank in ranks)
    halo = halo * away // waiting if away else 0  # rows of what is on the host are not read
    seconds = [rank.compute_seconds for rank in ranks if rank.compute_seconds is not None]
    return TurnsPrediction(
        turn_bytes=max(rank.peak_bytes for rank in ranks),
        host_bytes=min(waiting, host_memory),
        disk_bytes=away,
        written_bytes=away,
        read_bytes=away + halo,
        halo_bytes=halo,
        disk_seconds=away / write_rate + (away + halo) / read_rate,
        compute_seconds=times * sum(seconds) if seconds else None,
    )


def probe_disk(folder: Path) -> tuple[float, float]:
    """Bytes per second that a folder's disk writes and reads, by a file of 64 MiB without a name.

    Raises OSError if it cannot be written there.
    """
    run = mmap.mmap(-1, _PROBE_BYTES)
    with tempfile.TemporaryFile(dir=folder) as file:
        start = time.perf_counter()
        os.pwrite(file.fileno(), run, 0)
        os.fdatasync(file.fileno())
        written = time.perf_counter()
        if hasattr(os, 'posix_fadvise'):  # so that it does not come from memory
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begin = time.perf_counter()
        os.preadv(file.fileno(), [run], 0)
        end = time.perf_counter()
    return _PROBE_BYTES / (written - start), _PROBE_BYTES / (end - begin)


def told(found: TurnsPrediction, epochs: int, rates: tuple[float, float]) -> str:
    """The prediction in words for people."""
    compute = found.compute_seconds
    lines = [
        'all ranks in turn, in one process',
        f'a turn needs at most        {found.turn_bytes / 1e9:.3g} GB beside the shard',
        f'disk space                  {found.disk_bytes / 1e9:.3g} GB',
        f'written per epoch           {found.written_bytes / 1e9:.3g} GB',
        f'read per epoch              {found.read_bytes / 1e9:.3g} GB, '
        f'of which rows of other parts {found.halo_bytes / 1e9:.3g} GB',
        f'written in {epochs} epochs{" " * max(9 - len(str(epochs)), 1)}'
        f'{found.written_bytes * epochs / 1e12:.3g} TB',
        f'seconds of the disk         {found.disk_seconds:.3g} per epoch, at the probed '
        f'{rates[0] / 1e9:.2g} GB/s written and {rates[1] / 1e9:.2g} GB/s read (64 MiB)',
    ]
    if found.host_bytes:
        lines.insert(2, f'waits in memory of the host {found.host_bytes / 1e9:.3g} GB')
    if compute is not None:
        lines.append(f'seconds of computing        {compute:.3g} per epoch, one rank at a time')
    return '\n'.join(lines)
