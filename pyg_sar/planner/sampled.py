"""What mini-batches need: their nodes and edges, rows of other ranks, memory.

Degrees are taken to be spread geometrically about their mean d. So a hop draws
``d (1 - exp(-k / d))`` in-edges of every node that the last hop has found. Of the sources of an
own node's edges the share c is with other ranks, if c of all edges is cut; of the sources of a
remote node's edges c / (R - 1) are own nodes. m draws meet ``M (1 - exp(-m / M))`` distinct nodes
of M: of the own nodes, or of the remote rows that :mod:`pyg_sar.planner.sizes` finds from a cut.
n batches that meet r of M each meet ``M (1 - (1 - r / M)^n)`` together.

Seeds are own nodes; or both ends of links, whose destinations are own nodes, and the ends of
negatives, which are any nodes.

A round keeps 24 bytes for each of its nodes and edges, and those rows. The last hop's numbers take
twice as much again while they are sorted. Later rows are there four times: gathered and packed,
received and unpacked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyg_sar.planner.rehearsal import Job, rehearse
from pyg_sar.planner.sizes import RankSizes, distinct, pool_share
from pyg_sar.planner.statistics import Statistics
from pyg_sar.sampling.batch import ROUND

_MAX_NODES = 1 << 14
_ID_BYTES = 24


@dataclass(frozen=True)
class SampledPrediction:
    """The batches of the largest rank.

    Attributes:
        num_ranks: Number of ranks.
        num_nodes: Nodes of a batch.
        num_edges: Edges of a batch.
        remote_rows: Nodes of a batch that other ranks own.
        remote_bytes: Bytes of their attributes, without a cache.
        batch_bytes: Bytes of a batch: its attributes, `edge_index` and ids.
        peak_bytes: The most that a training step holds beside the batch.
        round_rows: Remote rows of all batches of a round, each once.
        round_bytes: The most that a round holds beside the batches that it gives.
        shard_bytes: The loaded shard.
        num_batches: Batches of an epoch, if every node is a seed, or every edge a link.
    """

    num_ranks: int
    num_nodes: int
    num_edges: int
    remote_rows: int
    remote_bytes: int
    batch_bytes: int
    peak_bytes: int
    round_rows: int
    round_bytes: int
    shard_bytes: int
    num_batches: int

    @property
    def memory_bytes(self) -> int:
        """All but the interpreter: the shard, a round, two batches ahead and the one in use."""
        return self.shard_bytes + self.round_bytes + 3 * self.batch_bytes + self.peak_bytes


@dataclass
class _NodesMet:
    """Nodes that hops meet: how many are there, were met in total, and by the last hop."""

    there: float
    total: float
    last: float

    def meet(self, draws: float) -> None:
        """The next hop, of so many draws."""
        unmet = max(1 - self.total / self.there, 0.0) if self.there else 0.0
        self.last = distinct(draws, self.there) * unmet
        self.total += self.last


def predict_batches(
    statistics: Statistics,
    job: Job,
    num_ranks: int,
    num_neighbors: Sequence[int],
    batch_size: int,
    negatives: float | None = None,
) -> SampledPrediction:
    """Predicts the batches of a loader and what a step on one holds.

    They are those of :class:`pyg_sar.NeighborLoader`; with `negatives` those of
    :class:`pyg_sar.LinkNeighborLoader`, whose edges all stay.

    The model is rehearsed on a made-up graph of the size of a batch, or of a part of it. Not
    collective::

        job = pyg_sar.planner.Job(GraphSAGE(8, 8, 2, 3), in_channels=8)
        graph = pyg_sar.planner.by_hand(10_000, 100_000, cut=[(0.2, 4)])
        batch = pyg_sar.planner.predict_batches(graph, job, 4, [15, 10], batch_size=64)
        print(batch.num_nodes, batch.remote_bytes)

    Args:
        statistics: Of a folder (:func:`read_statistics`) or :func:`by_hand`.
        job: What is trained.
        num_ranks: Number of ranks.
        num_neighbors: By hop; -1 for all.
        batch_size: Seeds of a part in a batch: nodes, or links if there are `negatives`.
        negatives: Binary negatives for each link, such as 1.0 or 0.0; None for batches of nodes.

    Raises:
        ValueError: If nothing is known of the cut for a number of ranks.
    """
    sizes = max(statistics.at(num_ranks).ranks, key=lambda rank: rank.num_own)
    degree = statistics.num_edges / statistics.num_nodes
    cut = sum(sizes.halo_edges) / max(sizes.num_edges, 1)
    back = cut / max(num_ranks - 1, 1)
    known = max(statistics.points, key=lambda p: p.num_ranks, default=None)
    share = pool_share(known, statistics.num_nodes, statistics.num_edges) if known else 1.0
    own_there = statistics.num_nodes / num_ranks
    remote_there = share * statistics.num_nodes * (1 - 1 / num_ranks)
    if negatives is None:
        count = max(sizes.own)
        of_own, of_remote = float(min(batch_size, count)), 0.0
    else:
        count = -(-sizes.num_edges // len(sizes.own))
        links = min(batch_size, count)
        drawn = 2 * negatives * links
        of_own = distinct(links * (2 - cut) + drawn / num_ranks, own_there)
        of_remote = distinct(links * cut + drawn * (1 - 1 / num_ranks), remote_there)
    own = _NodesMet(own_there, of_own, of_own)
    remote = _NodesMet(remote_there, of_remote, of_remote)
    num_edges = 0.0
    for k in num_neighbors:
        each = degree * (1.0 if k < 0 else -math.expm1(-k / max(degree, 1e-9)))
        of_own, of_remote = each * own.last, each * remote.last
        own.meet(of_own * (1 - cut) + of_remote * back)
        remote.meet(of_own * cut + of_remote * (1 - back))
        num_edges += of_own + of_remote
    parts = len(sizes.own)
    width, itemsize = job.in_channels, job.dtype.itemsize
    nodes = round(parts * (own.total + remote.total))
    edges, rows = round(parts * num_edges), round(parts * remote.total)
    num_batches = -(-count // batch_size)
    in_round = min(ROUND, num_batches) if num_ranks > 1 else 1
    unmet = max(1 - remote.total / remote.there, 0.0) if remote.there else 1.0
    round_rows = round(remote.there * (1 - unmet ** (in_round * parts)))
    ids = _ID_BYTES * in_round * (nodes + edges)

    def row_bytes(count: int) -> int:
        return statistics.shard_bytes(RankSizes((count,), (0,)), width, itemsize)

    batch = RankSizes((nodes,), (edges,))
    factor = min(1.0, _MAX_NODES / nodes)
    peak = rehearse(job, batch.scaled(factor, factor), is_batch=True).peak_bytes / factor
    return SampledPrediction(
        num_ranks=num_ranks,
        num_nodes=nodes,
        num_edges=edges,
        remote_rows=rows,
        remote_bytes=row_bytes(rows),
        batch_bytes=statistics.shard_bytes(batch, width, itemsize),
        peak_bytes=round(peak),
        round_rows=round_rows,
        round_bytes=max(3 * ids, ids + 4 * row_bytes(round_rows)),
        shard_bytes=statistics.shard_bytes(sizes, width, itemsize),
        num_batches=num_batches,
    )
