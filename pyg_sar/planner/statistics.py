"""What is known of a graph and its cut before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from pyg_sar.planner.sizes import CutPoint, RankSizes, extrapolate
from pyg_sar.shard.format.meta import EdgeInfo, NodeInfo, read_meta


class Cut(NamedTuple):
    """Every rank, or the largest of ranks that are alike, and where these counts come from."""

    ranks: tuple[RankSizes, ...]
    how: Literal['this folder', 'extrapolated', 'given']


@dataclass(frozen=True)
class Statistics:
    """Counts of a graph and of the cut that is known; made by the functions below.

    Attributes:
        num_nodes: Nodes of the whole graph.
        num_edges: Directed edges of the whole graph.
        points: Known cuts, for extrapolation.
        node_bytes: Bytes of one node's attributes in a loaded shard; None if features and labels
            are all there is.
        edge_bytes: Bytes of one edge's attributes.
        in_channels: Width of the features, where it is known.
        num_classes: Number of classes, where it is known.
        folder: The parts of a partition folder, or None.
        num_relations: How many relations are taken together.
    """

    num_nodes: int
    num_edges: int
    points: tuple[CutPoint, ...]
    node_bytes: int | None = None
    edge_bytes: int = 0
    in_channels: int | None = None
    num_classes: int | None = None
    folder: Parts | None = None
    num_relations: int = 1

    def at(self, num_ranks: int) -> Cut:
        """The cut for `num_ranks` ranks: the folder's if they divide its parts, else extrapolated.

        Raises:
            ValueError: If `num_ranks` is not between 1 and the number of nodes.
        """
        if not 1 <= num_ranks <= self.num_nodes:
            raise ValueError(
                f'expected 1 to {self.num_nodes} ranks, as many as nodes (got {num_ranks})'
            )
        if self.folder is not None and self.folder.num_parts % num_ranks == 0:
            return Cut(self.folder.ranks(num_ranks), 'this folder')
        if num_ranks > 1 and not self.points:
            raise ValueError(
                f"expected a cut to extrapolate to {num_ranks} ranks from: 'cut', or a folder of "
                'at least 2 parts (got none)'
            )
        sizes = extrapolate(self.num_nodes, self.num_edges, self.points, num_ranks)
        is_given = num_ranks == 1 or any(p.num_ranks == num_ranks for p in self.points)
        return Cut((sizes,), 'given' if is_given else 'extrapolated')

    def shard_bytes(self, sizes: RankSizes, in_channels: int, feature_bytes: int = 4) -> int:
        """Bytes of a loaded shard: attributes, edge_index, ids and boundary lists."""
        node_bytes = self.node_bytes
        if node_bytes is None:
            node_bytes = in_channels * feature_bytes + 8 + 3  # y as int64, and three masks
        of_nodes = sizes.num_own * (node_bytes + 8)
        of_edges = sizes.num_edges * (2 * 8 + 8 + self.edge_bytes)
        return of_nodes + of_edges + 8 * sizes.boundary


@dataclass(frozen=True)
class Parts:
    """The counts of a partition folder, as :func:`from_counts` takes them."""

    num_nodes: Sequence[int]
    halo_rows: Sequence[Sequence[int]]
    block_edges: Sequence[Sequence[int]]
    cover_share: float = 1.0

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.num_nodes)

    def ranks(self, num_ranks: int) -> tuple[RankSizes, ...]:
        """Every rank, with a contiguous run of parts each."""
        k = self.num_parts // num_ranks
        runs = [range(r * k, r * k + k) for r in range(num_ranks)]
        return tuple(self._rank(rank, runs) for rank in range(num_ranks))

    def _rank(self, rank: int, parts: list[range]) -> RankSizes:
        own, k = parts[rank], len(parts[rank])
        remote = [q for s in range(1, len(parts)) for q in parts[rank - s]]
        edges = [sum(self.block_edges[p][q] for p in own) for q in (*own, *remote)]
        return RankSizes(
            own=tuple(self.num_nodes[q] for q in own),
            own_edges=tuple(edges[:k]),
            halo=tuple(self._rows(own, q) for q in remote),
            halo_edges=tuple(edges[k:]),
            boundary=sum(self._rows(reader, q) for reader in parts if reader != own for q in own),
            cover_share=self.cover_share,
        )

    def _rows(self, readers: Sequence[int], owner: int) -> int:
        """Rows that any of some parts reads; which of them several read is not known."""
        rows = self.num_nodes[owner]
        if len(readers) == 1 or rows == 0:
            return self.halo_rows[readers[0]][owner]
        # As if every part chose its rows independently of the others.
        unread = math.prod(1 - min(self.halo_rows[p][owner] / rows, 1) for p in readers)
        return round(rows * (1 - unread))


def read_statistics(root: str | Path) -> Statistics:
    """Reads the statistics of a partition folder from its META.json alone.

    Types of nodes and relations are taken together, as one graph with features of the mean width.

    Not collective::

        statistics = pyg_sar.planner.read_statistics('parts/')
        print(statistics.num_nodes, statistics.in_channels)

    Raises:
        FileNotFoundError: If the folder or its META.json is missing.
        ValueError: If META.json is not one that this version reads.
    """
    meta = read_meta(root)
    nodes, edges = [*meta.nodes.values()], [*meta.edges.values()]
    counts = [info.num_nodes for info in nodes]
    shapes = [info.attrs.get('x', {}).get('shape', []) for info in nodes]
    widths = [shape[0] if len(shape) == 1 else 0 for shape in shapes]
    found = [info.extra.get('num_classes') for info in nodes] if meta.is_hetero else []
    found = [*found, meta.graph_attrs.get('num_classes')]
    classes = {count for count in found if isinstance(count, int)}
    cover_rows = meta.notes['partition'].get('cover_rows')
    return from_counts(
        np.sum([info.part_num_nodes for info in nodes], axis=0).tolist(),
        np.sum([info.halo_rows for info in edges], axis=0).tolist(),
        np.sum([info.block_edges for info in edges], axis=0).tolist(),
        cover_rows=None if cover_rows is None else int(np.sum(cover_rows)),
        node_bytes=round(_mean(map(_row_bytes, nodes), counts)),
        edge_bytes=round(_mean(map(_row_bytes, edges), [info.num_edges for info in edges])),
        in_channels=round(_mean(widths, counts)) or None,
        num_classes=classes.pop() if len(classes) == 1 else None,
        num_relations=len(edges),
    )


def _mean(values: Iterable[int], counts: Sequence[int]) -> float:
    total = sum(value * count for value, count in zip(values, counts, strict=True))
    return total / max(sum(counts), 1)


def from_counts(
    part_num_nodes: Sequence[int],
    halo_rows: Sequence[Sequence[int]],
    block_edges: Sequence[Sequence[int]],
    *,
    cover_rows: int | None = None,
    **known: Any,
) -> Statistics:
    """The statistics of a cut.

    Of two parts with 50 nodes each, which read 5 rows from each other. Not collective::

        cut = pyg_sar.planner.from_counts([50, 50], [[0, 5], [5, 0]], [[90, 10], [10, 90]])

    Args:
        part_num_nodes: Own nodes of every part.
        halo_rows: ``halo_rows[p][q]`` rows that part p reads from part q.
        block_edges: ``block_edges[p][q]`` edges from part q into part p.
        cover_rows: Rows and sums that travel in an exchange of all parts where sums may; the halo
            rows by default.
        **known: Attributes of :class:`Statistics`.

    Raises:
        IndexError: If a list lacks the entry of a part.
    """
    num_halo = sum(map(sum, halo_rows))
    share = 1.0 if cover_rows is None else cover_rows / max(num_halo, 1)
    parts = Parts(part_num_nodes, halo_rows, block_edges, share)
    halves = [parts.num_parts // 2] if parts.num_parts % 2 == 0 else []
    counts = [n for n in (*halves, parts.num_parts) if n > 1]
    points = tuple(_point(parts.ranks(n)) for n in counts)
    num_edges = sum(map(sum, block_edges))
    return Statistics(sum(part_num_nodes), num_edges, points, folder=parts, **known)


def by_hand(
    num_nodes: int,
    num_edges: int,
    cut: Sequence[tuple[float, int]] = (),
    halo: Sequence[tuple[float, int]] = (),
    *,
    imbalance: float = 1.1,
) -> Statistics:
    """The statistics of a graph that is known by a few numbers only.

    Of ogbn-papers100M, if 20 % of its edges are cut at 64 ranks. Not collective::

        graph = pyg_sar.planner.by_hand(111_059_956, 3_231_371_744, cut=[(0.2, 64)])

    Args:
        num_nodes: Nodes of the whole graph.
        num_edges: Directed edges of the whole graph.
        cut: Pairs (share of the edges cut, number of ranks); two of them fit the growth with the
            number of ranks.
        halo: Pairs (halo rows of a rank over its own nodes, number of ranks), for some of them.
        imbalance: Edges and halo rows of the largest rank over those of the mean one.

    Raises:
        ValueError: If a number is out of range.
    """
    if num_nodes < 1 or num_edges < 0:
        raise ValueError(f'expected nodes and edges (got {num_nodes} and {num_edges})')
    if imbalance < 1:
        raise ValueError(f"'imbalance' must be at least 1 (got {imbalance})")
    for share, ranks in cut:
        if ranks < 2 or not 0 <= share <= 1:
            raise ValueError(
                f'expected a share between 0 and 1 of edges cut at 2 or more ranks (got {share} '
                f'at {ranks})'
            )
    rows, counts = {ranks: value * num_nodes for value, ranks in halo}, [ranks for _, ranks in cut]
    if not rows.keys() <= {*counts} or len({*counts}) < len(counts):
        raise ValueError(
            f"expected one 'cut' for each number of ranks, and 'halo' for some of them (got 'cut' "
            f"at {counts}, 'halo' at {list(rows)})"
        )
    points = [CutPoint(ranks, share, rows.get(ranks), imbalance=imbalance) for share, ranks in cut]
    return Statistics(num_nodes, num_edges, tuple(points))


def _point(ranks: Sequence[RankSizes]) -> CutPoint:
    def most_over_mean(counts: Sequence[int]) -> float:
        return max(counts) * len(counts) / sum(counts) if any(counts) else 1.0

    edges, rows = [rank.num_edges for rank in ranks], [rank.num_halo for rank in ranks]
    return CutPoint(
        num_ranks=len(ranks),
        share=sum(sum(rank.halo_edges) for rank in ranks) / max(sum(edges), 1),
        halo_rows=sum(rows),
        skew=most_over_mean([n for rank in ranks for n in rank.halo]),
        imbalance=max(most_over_mean(edges), most_over_mean(rows)),
        cover_share=ranks[0].cover_share,
    )


def _row_bytes(info: NodeInfo | EdgeInfo) -> int:
    rows = info.attrs.values()
    return sum(math.prod(row['shape']) * getattr(torch, row['dtype']).itemsize for row in rows)
