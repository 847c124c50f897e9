"""Predicts memory, traffic and time of all ranks of a folder, from rehearsals of a few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pyg_sar.commands.users_model import run_model
from pyg_sar.nn.ddp.data_parallel import DistributedDataParallel
from pyg_sar.nn.options import Mode
from pyg_sar.planner.counts import RankSizes, shard_bytes, sizes_of
from pyg_sar.planner.rehearsal import Job, Rehearsal, rehearse
from pyg_sar.shard.meta import read_meta

_MAX_NODES, _MAX_EDGES, _MAX_BLOCKS = 1 << 13, 3 << 15, 32
_ALIKE = 0.97  # a rank is not rehearsed if another one has this share of each of its counts
# Code that runs first in training, and freed memory that glibc keeps: measured 20 to 80 MiB.
_OVERHEAD_BYTES = 48 << 20


@dataclass(frozen=True)
class Prediction:
    """What the largest of some ranks needs; each number is of the rank with most of it.

    Attributes:
        num_ranks: Number of ranks.
        num_nodes: Own nodes of a rank, of all types.
        halo_rows: Rows of other ranks that its edges read, of all relations.
        shard_bytes: Its loaded shard.
        peak_bytes: The most it holds in training over what it held with its shard loaded.
        memory_bytes: Both together, without Python and its libraries.
        rows_per_epoch: Rows it receives in an epoch.
        bytes_per_epoch: Bytes it receives in an epoch.
        cpu_seconds: CPU seconds of this machine for an epoch; None if they were not measured.
    """

    num_ranks: int
    num_nodes: int
    halo_rows: int
    shard_bytes: int
    peak_bytes: int
    memory_bytes: int
    rows_per_epoch: int
    bytes_per_epoch: int
    cpu_seconds: float | None


def plan(
    parts: str | Path,
    model: torch.nn.Module,
    *,
    ranks: Sequence[int] | None = None,
    mode: Mode = 'sequential',
    forward: Callable[[torch.nn.Module, Any], Any] = run_model,
    timed: bool = True,
) -> list[Prediction]:
    """Predicts memory, traffic and CPU time of full-batch training on the parts of a folder.

    Only META.json of the folder is read. The model is trained for two steps on small made-up shards
    with the proportions of the real ones, by the real code, with every other rank answered for. All
    tensors that come alive are counted, and the peak grows in proportion. So it holds for any
    model. The loss is a cross entropy of 60 % of the nodes, the optimizer Adam. Not collective::

        (prediction,) = pyg_sar.planner.plan('parts/', GraphSAGE(8, 8, 2, 3), ranks=[4])
        print(prediction.memory_bytes)

    Args:
        parts: A partition folder.
        model: A PyG model as it would be given to DistributedDataParallel, not wrapped. It is
            copied and stays as it is.
        ranks: Numbers of ranks that divide the number of parts; by default all of them.
        mode: The mode of the convs, as DistributedDataParallel takes it.
        forward: Called as ``forward(model, data)`` for the logits of nodes, or a dict of them by
            type of node; by default ``model(data.x, data.edge_index)``, of a HeteroData
            ``model(data.x_dict, data.edge_index_dict)``.
        timed: Whether to measure CPU seconds (some seconds).

    Returns:
        A prediction for every number of ranks.

    Raises:
        FileNotFoundError: If the folder or its META.json is missing.
        ValueError: If META.json is not one that this version reads, a number of ranks does not
            divide the parts, or the model cannot run on a cut graph or gives no logits.
    """
    if isinstance(model, DistributedDataParallel):
        raise ValueError('expected the plain model (got one of DistributedDataParallel)')
    meta = read_meta(parts)
    fitting = [n for n in range(1, meta.num_parts + 1) if meta.num_parts % n == 0]
    counts = fitting if ranks is None else ranks
    if not {*counts} <= {*fitting}:
        raise ValueError(
            f"expected ranks among which the {meta.num_parts} parts of '{parts}' can be dealt: "
            f'{", ".join(map(str, fitting))} (got {", ".join(map(str, counts))})'
        )
    job = Job(model, meta, mode, forward)
    return [predict_cut(job, sizes_of(meta, num_ranks), timed=timed) for num_ranks in counts]


def predict_cut(job: Job, cut: Sequence[RankSizes], *, timed: bool) -> Prediction:
    """Predicts the largest rank from the counts of all."""
    halo_rows = max(sizes.num_halo for sizes in cut)
    largest = [(shard_bytes(job.meta, s), _needs(job, s, halo_rows, timed)) for s in _extremes(cut)]
    needs = [rehearsal for _, rehearsal in largest]
    return Prediction(
        num_ranks=cut[0].num_ranks,
        num_nodes=max(sizes.num_own for sizes in cut),
        halo_rows=halo_rows,
        shard_bytes=max(shard for shard, _ in largest),
        peak_bytes=max(rehearsal.peak_bytes for rehearsal in needs),
        memory_bytes=max(shard + rehearsal.peak_bytes for shard, rehearsal in largest),
        rows_per_epoch=max(rehearsal.rows_received for rehearsal in needs),
        bytes_per_epoch=max(rehearsal.bytes_received for rehearsal in needs),
        cpu_seconds=max(rehearsal.cpu_seconds for rehearsal in needs) if timed else None,
    )


def _needs(job: Job, sizes: RankSizes, halo_rows: int, timed: bool) -> Rehearsal:
    """What a rank needs: two rehearsals, one half as large, and the line through their peaks."""
    few, factor = _small_enough(sizes)
    scaled = few.scaled(factor)
    large = rehearse(job, scaled)
    peak = float(large.peak_bytes)
    if factor < 1:
        small = rehearse(job, few.scaled(factor / 2))
        peak += (large.peak_bytes - small.peak_bytes) * 2 * (1 / factor - 1)
    times, seconds = halo_rows / max(scaled.num_halo, 1), 0.0
    if timed:
        few, factor = _small_enough(sizes, 4)  # so that caches do not hold it all
        seconds = rehearse(job, few.scaled(factor), count=False).cpu_seconds / factor
    received = round(large.bytes_received * times), round(large.rows_received * times)
    return Rehearsal(round(peak) + _OVERHEAD_BYTES, *received, seconds)


def _small_enough(sizes: RankSizes, times: int = 1) -> tuple[RankSizes, float]:
    """The rank in fewer blocks, and the factor that makes it small enough to rehearse."""
    num_own, num_edges, *_ = sizes.totals
    most = times * min(_MAX_NODES / max(num_own, 1), _MAX_EDGES / max(num_edges, 1))
    return sizes.with_fewer_blocks(_MAX_BLOCKS), min(1.0, most)


def _extremes(ranks: Sequence[RankSizes]) -> list[RankSizes]:
    """The ranks that may hold most: by nodes, edges, halo rows and largest remote block."""
    chosen: list[RankSizes] = []
    for key in range(4):
        most = max(ranks, key=lambda rank: rank.totals[key])
        pairs = [zip(rank.totals, most.totals, strict=True) for rank in chosen]
        if all(any(a < _ALIKE * b for a, b in pair) for pair in pairs):
            chosen.append(most)
    return chosen
