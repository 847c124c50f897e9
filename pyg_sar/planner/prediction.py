"""Memory, traffic and time of training, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_sar.conv.options import Mode
from pyg_sar.planner.rehearsal import Job, rehearse
from pyg_sar.planner.sizes import RankSizes
from pyg_sar.planner.statistics import Cut, Statistics

_MAX_NODES, _MAX_EDGES = 1 << 13, 3 << 15
_MAX_BLOCKS = 32
_ALIKE = 0.97  # a rank this near in every count need not be rehearsed too
MODES: tuple[Mode, ...] = ('sequential', 'sequential_no_remat', 'one_shot')
OVERHEAD_BYTES = 48 << 20
"""What a process needs beside tensors: code first run in training, and what the C library keeps.

Measured, as the difference between the high-water mark and the tensors alive, on 1 to 8 processes
with glibc, on two graphs, with GraphSAGE and GAT: 20 to 80 MiB.
"""


@dataclass(frozen=True)
class RankPrediction:
    """One rank.

    Attributes:
        sizes: Its counts.
        peak_bytes: The most it holds in training over what it held with the shard loaded.
        shard_bytes: The loaded shard.
        rows_per_epoch: Rows it receives in an epoch.
        bytes_per_epoch: Bytes it receives in an epoch.
        compute_seconds: Per epoch, without exchange; None if it was not timed.
    """

    sizes: RankSizes
    peak_bytes: int
    shard_bytes: int
    rows_per_epoch: int
    bytes_per_epoch: int
    compute_seconds: float | None


@dataclass(frozen=True)
class Prediction:
    """All ranks of one cut.

    Attributes:
        num_ranks: Number of ranks.
        how: Where the cut comes from; see :class:`Cut`.
        ranks: Every rank; a single one stands for the largest of `num_ranks` alike.
        bandwidth: Bytes per second that a rank receives.
    """

    num_ranks: int
    how: str
    ranks: tuple[RankPrediction, ...]
    bandwidth: float

    @property
    def peak_bytes(self) -> int:
        """Of the largest rank."""
        return max(rank.peak_bytes for rank in self.ranks)

    @property
    def shard_bytes(self) -> int:
        """Of the largest rank."""
        return max(rank.shard_bytes for rank in self.ranks)

    @property
    def memory_bytes(self) -> int:
        """Shard and peak of the rank with the largest sum, without the interpreter."""
        return max(rank.shard_bytes + rank.peak_bytes for rank in self.ranks)

    @property
    def exchange_seconds(self) -> float:
        """Per epoch, of the rank that receives most."""
        return max(rank.bytes_per_epoch for rank in self.ranks) / self.bandwidth

    @property
    def compute_seconds(self) -> float | None:
        """Per epoch, of the slowest rank; None if it was not timed."""
        seconds = [r.compute_seconds for r in self.ranks if r.compute_seconds is not None]
        return max(seconds) if seconds else None

    @property
    def seconds_per_epoch(self) -> float | None:
        """Compute and exchange one after the other: nothing is assumed to be hidden."""
        compute = self.compute_seconds
        return None if compute is None else compute + self.exchange_seconds


class Planner:
    """Rehearses training of one model and predicts what it needs on any cut.

    Args:
        statistics: The graph.
        job: What is trained.
        bandwidth: Bytes per second that a rank receives.
        timed: Whether to measure this machine's rate (some seconds).
    """

    def __init__(
        self, statistics: Statistics, job: Job, *, bandwidth: float, timed: bool = True
    ) -> None:
        self.statistics, self.job = statistics, job
        self.bandwidth = bandwidth
        self._timed = timed
        self._rates: tuple[float, float] | None = None

    def predict(self, num_ranks: int) -> Prediction:
        """Predicts training on `num_ranks` ranks."""
        cut = self.statistics.at(num_ranks)
        if self._timed and self._rates is None:
            self._rates = self._measure_rates(cut.ranks[0])
        rehearsed = {place: self._rehearse(cut.ranks[place]) for place in _extremes(cut.ranks)}
        ranks = tuple(
            self._rank(sizes, *_nearest(sizes, place, cut, rehearsed))
            for place, sizes in enumerate(cut.ranks)
        )
        return Prediction(num_ranks, cut.how, ranks, self.bandwidth)

    def _rank(self, sizes: RankSizes, like: RankSizes, found: _Extrapolated) -> RankPrediction:
        job = self.job
        ratio = sizes.num_own / max(like.num_own, 1)
        rows = found.rows_per_halo_row * sizes.num_halo
        seconds = None
        if self._rates is not None:
            seconds = self._rates[0] * sizes.num_own + self._rates[1] * sizes.num_edges
        return RankPrediction(
            sizes=sizes,
            peak_bytes=round(found.peak_bytes * ratio) + OVERHEAD_BYTES,
            shard_bytes=self.statistics.shard_bytes(sizes, job.in_channels, job.dtype.itemsize),
            rows_per_epoch=round(rows),
            bytes_per_epoch=round(found.bytes_per_halo_row * sizes.num_halo),
            compute_seconds=seconds,
        )

    def _rehearse(self, sizes: RankSizes) -> _Extrapolated:
        """Two rehearsals of half and full measure, and the straight line through them."""
        small_enough = sizes.with_fewer_blocks(_MAX_BLOCKS)
        factor = _factor(sizes, _MAX_NODES, _MAX_EDGES)
        scaled = small_enough.scaled(factor)
        large = rehearse(self.job, scaled)
        peak: float = large.peak_bytes
        if factor < 1:
            small = rehearse(self.job, small_enough.scaled(factor / 2))
            peak += (large.peak_bytes - small.peak_bytes) * 2 * (1 / factor - 1)
        if sizes.halo:
            peak += large.parameter_bytes  # the buckets of DistributedDataParallel
        halo = max(scaled.num_halo, 1)
        return _Extrapolated(peak, large.received_bytes / halo, large.received_rows / halo)

    def _measure_rates(self, sizes: RankSizes) -> tuple[float, float]:
        """Seconds per own node and per edge of this machine, by two rehearsals without counting."""
        few = sizes.with_fewer_blocks(_MAX_BLOCKS)
        full = few.scaled(_factor(sizes, 4 * _MAX_NODES, 4 * _MAX_EDGES))
        sparse = full.with_edges(0.5)
        first, second = (
            rehearse(self.job, s, count=False, epochs=3).seconds for s in (full, sparse)
        )
        per_edge = max(first - second, 0.0) / max(full.num_edges - sparse.num_edges, 1)
        per_node = max(first - per_edge * full.num_edges, 0.0) / max(full.num_own, 1)
        return per_node, per_edge


@dataclass(frozen=True)
class _Extrapolated:
    peak_bytes: float
    bytes_per_halo_row: float
    rows_per_halo_row: float


def _factor(sizes: RankSizes, max_nodes: int, max_edges: int) -> float:
    rows = max(sizes.num_own, 1)
    return min(1.0, max_nodes / rows, max_edges / max(sizes.num_edges, 1))


def _extremes(ranks: Sequence[RankSizes]) -> list[int]:
    """The ranks that may hold most: by nodes, edges, halo rows and largest remote block."""
    keys: list[Callable[[RankSizes], int]] = [
        lambda r: r.num_own,
        lambda r: r.num_edges,
        lambda r: r.num_halo,
        lambda r: max(r.halo, default=0),
    ]
    chosen: list[int] = []
    for key in keys:
        most = max(range(len(ranks)), key=lambda i: key(ranks[i]))
        if all(any(k(ranks[c]) < _ALIKE * k(ranks[most]) for k in keys) for c in chosen):
            chosen.append(most)
    return chosen


def _nearest(
    sizes: RankSizes, place: int, cut: Cut, found: dict[int, _Extrapolated]
) -> tuple[RankSizes, _Extrapolated]:
    def distance(other: int) -> float:
        like = cut.ranks[other]
        pairs = [
            (sizes.num_own, like.num_own),
            (sizes.num_edges, like.num_edges),
            (sizes.num_halo, like.num_halo),
        ]
        return sum(abs(a - b) / max(a, b, 1) for a, b in pairs)

    nearest = place if place in found else min(found, key=distance)
    return cut.ranks[nearest], found[nearest]


def predict(
    statistics: Statistics,
    model: torch.nn.Module,
    *,
    in_channels: int | None = None,
    ranks: Sequence[int] | None = None,
    mode: Mode = 'sequential',
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.Adam,
    dtype: torch.dtype = torch.float32,
    bandwidth: float = 1.25e9,
    forward: Callable[[torch.nn.Module, Data], Tensor] | None = None,
    timed: bool = True,
) -> list[Prediction]:
    """Predicts memory, traffic and time of full-batch training.

    The model is trained for two steps on small made-up shards with the proportions of the real
    ones, by the real code, with every other rank answered for. All tensors that come alive are
    counted, and the peak grows in proportion. So it holds for any model; the model itself is
    copied and stays as it is.

    Args:
        statistics: Of a folder (:func:`read_statistics`) or :func:`by_hand`.
        model: A PyG model as it would be given to DistributedDataParallel, not wrapped.
        in_channels: Width of the features; that of the folder by default.
        ranks: Numbers of ranks; by default as many as the folder has parts.
        mode: The mode of every SARConv.
        optimizer: Makes the optimizer from the parameters.
        dtype: Of features and parameters.
        bandwidth: Bytes per second that a rank receives.
        forward: Runs the model, if not by ``model(data.x, data.edge_index)``; ``data`` has ``x``,
            ``edge_index``, ``y``, ``train_mask`` and ``num_nodes``. The result is taken for logits.
        timed: Whether to measure this machine's rate.

    Returns:
        A prediction for every number of ranks. Not collective.

    Raises:
        ValueError: If a number of ranks or the width is not known or not possible, or the model
            cannot run on a cut graph.
    """
    width = statistics.in_channels if in_channels is None else in_channels
    if width is None or width < 1:
        raise ValueError(f"expected 'in_channels', the width of the features (got {width})")
    if mode not in MODES:
        raise ValueError(f"'mode' must be one of {MODES} (got {mode!r})")
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise ValueError('expected the plain model (got a DistributedDataParallel around it)')
    if bandwidth <= 0:
        raise ValueError(f"'bandwidth' must be positive (got {bandwidth})")
    if ranks is None:
        if statistics.folder is None:
            raise ValueError("expected 'ranks', as there is no folder (got none)")
        ranks = [statistics.folder.num_parts]
    job = Job(model, width, mode, forward or _forward, optimizer, dtype)
    planner = Planner(statistics, job, bandwidth=bandwidth, timed=timed)
    return [planner.predict(n) for n in ranks]


def _forward(model: torch.nn.Module, data: Data) -> Tensor:
    out: Tensor = model(data.x, data.edge_index)
    return out
