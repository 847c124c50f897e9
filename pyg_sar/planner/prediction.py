"""Memory, traffic and time of training, before anything is loaded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pyg_sar.planner.rehearsal import Job, rehearse
from pyg_sar.planner.sizes import RankSizes
from pyg_sar.planner.statistics import Statistics

_MAX_NODES, _MAX_EDGES = 1 << 13, 3 << 15
_MAX_BLOCKS = 32
_ALIKE = 0.97  # a rank this near in every count need not be rehearsed too
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
        peak_bytes: The most it holds in training over what it held with its shard loaded.
        shard_bytes: Its loaded shard.
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
        how: Where the cut comes from: ``'this folder'``, ``'extrapolated'`` or ``'given'``.
        ranks: Every rank; a single one stands for the largest of `num_ranks` alike.
        bandwidth: Bytes per second that a rank receives.
    """

    num_ranks: int
    how: str
    ranks: tuple[RankPrediction, ...]
    bandwidth: float

    @property
    def peak_bytes(self) -> int:
        """The largest peak of a rank."""
        return max(rank.peak_bytes for rank in self.ranks)

    @property
    def shard_bytes(self) -> int:
        """The largest shard of a rank."""
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
        return max(seconds, default=None)

    @property
    def seconds_per_epoch(self) -> float | None:
        """Compute and exchange one after the other: nothing is assumed to be hidden."""
        compute = self.compute_seconds
        return None if compute is None else compute + self.exchange_seconds


class Planner:
    """Rehearses training of one model and predicts what it needs on any cut.

    What is rehearsed is kept, so further numbers of ranks cost little. Not collective::

        job = pyg_sar.planner.Job(GraphSAGE(8, 8, 2, 3), in_channels=8)
        graph = pyg_sar.planner.by_hand(10_000, 100_000, cut=[(0.2, 4)])
        planner = pyg_sar.planner.Planner(graph, job, bandwidth=1e9, timed=False)
        prediction = planner.least_ranks(lambda p: p.peak_bytes < 1e9, most=64)

    Args:
        statistics: The graph.
        job: What is trained.
        bandwidth: Bytes per second that a rank receives.
        timed: Whether to measure this machine's rate (some seconds).

    Raises:
        ValueError: If `bandwidth` is not positive; by :meth:`predict`, if nothing is known of the
            cut for a number of ranks, or the model cannot run on a cut graph.
    """

    def __init__(
        self, statistics: Statistics, job: Job, *, bandwidth: float, timed: bool = True
    ) -> None:
        if bandwidth <= 0:
            raise ValueError(f"'bandwidth' must be positive (got {bandwidth})")
        self.statistics, self.job = statistics, job
        self.bandwidth = bandwidth
        self._timed = timed
        self._rates: tuple[float, float] | None = None
        self._predicted: dict[int, Prediction] = {}

    def predict(self, num_ranks: int) -> Prediction:
        """Predicts training on `num_ranks` ranks."""
        if num_ranks not in self._predicted:
            cut = self.statistics.at(num_ranks)
            if self._timed and self._rates is None:
                self._rates = self._measure_rates(cut.ranks[0])
            needs = {sizes: self._rehearse(sizes) for sizes in _extremes(cut.ranks)}
            ranks = tuple(self._rank(sizes, needs) for sizes in cut.ranks)
            self._predicted[num_ranks] = Prediction(num_ranks, cut.how, ranks, self.bandwidth)
        return self._predicted[num_ranks]

    def least_ranks(self, fits: Callable[[Prediction], bool], most: int) -> Prediction | None:
        """The prediction for the least number of ranks that suffice; None if `most` do not.

        Args:
            fits: Whether a prediction is good enough; more ranks are taken to be no worse.
            most: The largest number that is tried.
        """
        low, high = 0, 1
        while not fits(self.predict(high)):
            if high == most:
                return None
            low, high = high, min(2 * high, most)
        between = range(low + 1, high)
        least = bisect_left(between, True, key=lambda count: fits(self.predict(count)))
        return self.predict(low + 1 + least)

    def _rank(
        self, sizes: RankSizes, needs: dict[RankSizes, tuple[float, float, float]]
    ) -> RankPrediction:
        like = min(needs, key=lambda other: _distance(sizes, other))
        peak, rows, num_bytes = needs[like]
        seconds = None
        if self._rates is not None:
            seconds = self._rates[0] * sizes.num_own + self._rates[1] * sizes.num_edges
        job = self.job
        return RankPrediction(
            sizes=sizes,
            peak_bytes=round(peak * sizes.num_own / max(like.num_own, 1)) + OVERHEAD_BYTES,
            shard_bytes=self.statistics.shard_bytes(sizes, job.in_channels, job.dtype.itemsize),
            rows_per_epoch=round(rows * sizes.num_halo),
            bytes_per_epoch=round(num_bytes * sizes.num_halo),
            compute_seconds=seconds,
        )

    def _rehearse(self, sizes: RankSizes) -> tuple[float, float, float]:
        """Peak bytes of a rank; rows and bytes that it receives in an epoch for every halo row.

        By two rehearsals of half and full measure, and the straight line through them.
        """
        few, factor = _small_enough(sizes)
        scaled = few.scaled(factor, factor)
        large = rehearse(self.job, scaled)
        peak: float = large.peak_bytes
        if factor < 1:
            small = rehearse(self.job, few.scaled(factor / 2, factor / 2))
            peak += (large.peak_bytes - small.peak_bytes) * 2 * (1 / factor - 1)
        halo = max(scaled.num_halo, 1)
        return peak, large.rows_received / halo, large.bytes_received / halo

    def _measure_rates(self, sizes: RankSizes) -> tuple[float, float]:
        """Seconds per own node and per edge of this machine, by two rehearsals without counting."""
        few, factor = _small_enough(sizes, 4)
        full, sparse = few.scaled(factor, factor), few.scaled(factor, factor / 2)
        first, second = (
            rehearse(self.job, s, count=False, epochs=3).seconds for s in (full, sparse)
        )
        per_edge = max(first - second, 0.0) / max(full.num_edges - sparse.num_edges, 1)
        per_node = max(first - per_edge * full.num_edges, 0.0) / max(full.num_own, 1)
        return per_node, per_edge


def _small_enough(sizes: RankSizes, times: int = 1) -> tuple[RankSizes, float]:
    """The rank in few blocks, and the factor that makes it small enough to rehearse."""
    most_nodes, most_edges = times * _MAX_NODES, times * _MAX_EDGES
    factor = min(1.0, most_nodes / max(sizes.num_own, 1), most_edges / max(sizes.num_edges, 1))
    return sizes.with_fewer_blocks(_MAX_BLOCKS), factor


def _counts(sizes: RankSizes) -> tuple[int, ...]:
    return sizes.num_own, sizes.num_edges, sizes.num_halo, max(sizes.halo, default=0)


def _extremes(ranks: Sequence[RankSizes]) -> list[RankSizes]:
    """The ranks that may hold most: by nodes, edges, halo rows and largest remote block."""
    chosen: list[RankSizes] = []
    for key in range(4):
        most = max(ranks, key=lambda r: _counts(r)[key])
        pairs = [zip(_counts(c), _counts(most), strict=True) for c in chosen]
        if all(any(a < _ALIKE * b for a, b in counts) for counts in pairs):
            chosen.append(most)
    return chosen


def _distance(sizes: RankSizes, other: RankSizes) -> float:
    pairs = zip(_counts(sizes)[:3], _counts(other)[:3], strict=True)
    return sum(abs(a - b) / max(a, b, 1) for a, b in pairs)


def predict(
    statistics: Statistics,
    model: torch.nn.Module,
    *,
    in_channels: int | None = None,
    ranks: Sequence[int] | None = None,
    bandwidth: float = 1.25e9,
    timed: bool = True,
    **job_options: Any,
) -> list[Prediction]:
    """Predicts memory, traffic and time of full-batch training.

    The model is trained for two steps on small made-up shards with the proportions of the real
    ones, by the real code, with every other rank answered for. All tensors that come alive are
    counted, and the peak grows in proportion. So it holds for any model; the model itself is
    copied and stays as it is.

    For the folder of a partition::

        statistics = pyg_sar.planner.read_statistics('parts/')
        (prediction,) = pyg_sar.planner.predict(statistics, GraphSAGE(8, 8, 2, 3), timed=False)
        print(prediction.peak_bytes)

    Args:
        statistics: Of a folder (:func:`read_statistics`) or :func:`by_hand`.
        model: A PyG model as it would be given to DistributedDataParallel, not wrapped.
        in_channels: Width of the features; that of the folder by default.
        ranks: Numbers of ranks; by default as many as the folder has parts.
        bandwidth: Bytes per second that a rank receives.
        timed: Whether to measure this machine's rate.
        **job_options: ``mode``, ``optimizer``, ``dtype`` and ``forward``, see :class:`Job`.

    Returns:
        A prediction for every number of ranks. Not collective.

    Raises:
        ValueError: If a number of ranks or the width is not known or not possible, or the model
            cannot run on a cut graph.
    """
    width = statistics.in_channels if in_channels is None else in_channels
    if width is None:
        raise ValueError("expected 'in_channels', the width of the features (got None)")
    if ranks is None:
        if statistics.folder is None:
            raise ValueError("expected 'ranks', as there is no folder (got none)")
        ranks = [statistics.folder.num_parts]
    job = Job(model, width, **job_options)
    planner = Planner(statistics, job, bandwidth=bandwidth, timed=timed)
    return [planner.predict(n) for n in ranks]
