"""The counts of nodes, edges and halo rows of each rank, from META.json of a folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from pyg_sar.shard.file_names import EdgeKey, NodeKey
from pyg_sar.shard.meta import EdgeInfo, Meta

_Change = Callable[[Sequence[int]], tuple[int, ...]]


class RelationSizes(NamedTuple):
    """The edges of one relation into the own nodes of a rank."""

    own_edges: tuple[int, ...]  # from every own part
    # By remote part, in the order of the exchange:
    halo: tuple[int, ...] = ()  # rows read from it
    halo_edges: tuple[int, ...] = ()  # edges from these rows
    boundary: int = 0  # rows sent in one exchange, summed over the readers

    @property
    def num_edges(self) -> int:
        """All edges into own nodes."""
        return sum(self.own_edges) + sum(self.halo_edges)

    def changed(self, remote: _Change, own: _Change) -> RelationSizes:
        """The sizes with `remote` and `own` applied to their counts, and no boundary."""
        return RelationSizes(own(self.own_edges), remote(self.halo), remote(self.halo_edges))


class RankSizes(NamedTuple):
    """The counts of one rank, by type of node and by relation."""

    nodes: dict[NodeKey, tuple[int, ...]]  # own nodes of every own part
    relations: dict[EdgeKey, RelationSizes]
    cover_share: float = 1.0  # rows that travel with partial sums, as a share of all halo rows

    @property
    def per_rank(self) -> int:
        """Parts of a rank."""
        return len(next(iter(self.nodes.values())))

    @property
    def num_ranks(self) -> int:
        """This rank and those that it reads from."""
        return 1 + max(len(relation.halo) for relation in self.relations.values()) // self.per_rank

    @property
    def num_own(self) -> int:
        """Own nodes."""
        return sum(map(sum, self.nodes.values()))

    @property
    def num_halo(self) -> int:
        """Rows received in one exchange of every relation."""
        return sum(sum(relation.halo) for relation in self.relations.values())

    @property
    def totals(self) -> tuple[int, int, int, int]:
        """Own nodes, edges, halo rows, and rows of the largest remote block."""
        blocks = (rows for relation in self.relations.values() for rows in relation.halo)
        num_edges = sum(relation.num_edges for relation in self.relations.values())
        return self.num_own, num_edges, self.num_halo, max(blocks, default=0)

    def scaled(self, factor: float) -> RankSizes:
        """Rows and edges times a factor; a count above 0 stays at least 1."""

        def shrink(counts: Sequence[int]) -> tuple[int, ...]:
            return tuple(max(round(n * factor), 1) if n else 0 for n in counts)

        nodes = {key: shrink(counts) for key, counts in self.nodes.items()}
        relations = {key: r.changed(shrink, shrink) for key, r in self.relations.items()}
        return RankSizes(nodes, relations, self.cover_share)

    def with_fewer_blocks(self, most: int) -> RankSizes:
        """The same rows and edges in at most `most` remote blocks; the largest block stays."""
        if self.num_ranks - 1 <= most or self.per_rank > 1:
            return self

        def fewer(counts: Sequence[int]) -> tuple[int, ...]:
            largest = max(counts)
            rest, ones = divmod(sum(counts) - largest, most - 1)
            return (largest, *(rest + (i < ones) for i in range(most - 1)))

        changed = {key: r.changed(fewer, tuple) for key, r in self.relations.items()}
        return self._replace(relations=changed)


def sizes_of(meta: Meta, num_ranks: int) -> tuple[RankSizes, ...]:
    """The sizes of every rank, which holds a contiguous run of parts."""
    k = meta.num_parts // num_ranks
    runs = [range(r * k, r * k + k) for r in range(num_ranks)]
    return tuple(
        RankSizes(
            {key: tuple(info.part_num_nodes[q] for q in own) for key, info in meta.nodes.items()},
            {key: _relation(meta, info, rank, runs) for key, info in meta.edges.items()},
            1.0,
        )
        for rank, own in enumerate(runs)
    )


def _relation(meta: Meta, info: EdgeInfo, rank: int, runs: Sequence[range]) -> RelationSizes:
    own, sources = runs[rank], meta.nodes[info.src].part_num_nodes
    remote = [q for s in range(1, len(runs)) for q in runs[rank - s]]
    readers = [run for run in runs if run != own]
    edges = {q: sum(info.block_edges[p][q] for p in own) for q in (*own, *remote)}
    return RelationSizes(
        own_edges=tuple(edges[q] for q in own),
        halo=tuple(_rows(info, sources, own, q) for q in remote),
        halo_edges=tuple(edges[q] for q in remote),
        boundary=sum(_rows(info, sources, reader, q) for reader in readers for q in own),
    )


def _rows(info: EdgeInfo, sources: Sequence[int], readers: Sequence[int], owner: int) -> int:
    """Rows of `owner` that at least one reader reads; an estimate if there are several readers."""
    rows = sources[owner]
    if len(readers) == 1 or rows == 0:
        return info.halo_rows[readers[0]][owner]
    # As if every part chose its rows independently.
    unread = math.prod(1 - min(info.halo_rows[p][owner] / rows, 1) for p in readers)
    return round(rows * (1 - unread))


def shard_bytes(meta: Meta, sizes: RankSizes) -> int:
    """Bytes of a loaded shard: attributes, edge_index, ids and boundary lists."""
    nodes = sum(
        sum(parts) * (_row_bytes(meta.nodes[key].attrs) + 8) for key, parts in sizes.nodes.items()
    )
    edges = sum(
        relation.num_edges * (_row_bytes(meta.edges[key].attrs) + 3 * 8) + 8 * relation.boundary
        for key, relation in sizes.relations.items()
    )
    return nodes + edges


def _row_bytes(attrs: dict[str, Any]) -> int:
    rows = attrs.values()
    return sum(math.prod(row['shape']) * getattr(torch, row['dtype']).itemsize for row in rows)
