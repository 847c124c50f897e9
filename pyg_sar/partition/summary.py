"""What a partition costs: its sizes, its cut, and the rows it exchanges per layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyg_sar.shard.format import EdgeKey, NodeKey, type_name
from pyg_sar.shard.meta import Meta
from pyg_sar.utils.command_line import printable, text_table


@dataclass(frozen=True)
class PartitionSummary:
    """The sizes of a partition; those of all types together, but for those by type."""

    method: str  #: How nodes were assigned to parts.
    num_nodes: int  #: Number of nodes N.
    num_edges: int  #: Number of directed edges E.
    num_parts: int  #: Number of parts P.
    part_num_nodes: tuple[int, ...]  #: Own nodes of every part.
    part_num_edges: tuple[int, ...]  #: Edges of every part: those into its own nodes.
    #: ``halo_rows[p][q]`` rows that part p reads from part q, per layer.
    halo_rows: tuple[tuple[int, ...], ...]
    boundary_rows: tuple[int, ...]  #: Rows that every part sends, per layer, over its readers.
    edge_cut: int  #: Directed edges whose two ends lie in different parts.
    communication_volume: int  #: Rows exchanged per layer, the sum of all halo rows.
    largest_block_rows: int  #: Most rows of one relation that a part reads from another.
    largest_block_edges: int  #: Edges of the largest block of one relation, own blocks too.
    #: Own nodes of every part, by type of nodes (None in a homogeneous graph).
    type_num_nodes: dict[NodeKey, tuple[int, ...]] = field(hash=False)
    type_num_edges: dict[EdgeKey, tuple[int, ...]] = field(hash=False)  #: The same by relation.
    num_duplicates: int = 0  #: Edges that are there again, between the same two nodes.
    num_self_loops: int = 0  #: Edges from a node to itself.

    @property
    def node_imbalance(self) -> float:
        """Own nodes of the largest part over those of the mean part; 1.0 is perfect."""
        return _imbalance(self.part_num_nodes)

    @property
    def edge_imbalance(self) -> float:
        """Edges of the largest part over those of the mean part; 1.0 is perfect."""
        return _imbalance(self.part_num_edges)

    @property
    def work_imbalance(self) -> float:
        """Edges plus own nodes of the part with most over those of the mean part."""
        pairs = zip(self.part_num_nodes, self.part_num_edges, strict=True)
        return _imbalance([nodes + edges for nodes, edges in pairs])

    def __str__(self) -> str:
        header = ('part', 'nodes', 'edges', 'halo rows', 'boundary rows')
        halo_rows = map(sum, self.halo_rows)
        sizes = self.part_num_nodes, self.part_num_edges, halo_rows, self.boundary_rows
        rows = [map('{:,}'.format, row) for row in zip(range(self.num_parts), *sizes, strict=True)]
        cut = self.edge_cut / max(self.num_edges, 1)
        rows_per_node = self.communication_volume / max(self.num_nodes, 1)
        worst = {
            'node types': _worst(self.type_num_nodes),
            'relations': _worst(self.type_num_edges),
        }
        return '\n'.join(
            [
                f'{self.num_nodes:,} nodes and {self.num_edges:,} edges in {self.num_parts} '
                f'parts ({self.method})',
                f'of the edges          {self.num_self_loops:,} self loops, '
                f'{self.num_duplicates:,} duplicates',
                text_table([header, *rows]),
                f'edge cut              {self.edge_cut:,} ({cut:.1%} of the edges)',
                f'communication volume  {self.communication_volume:,} rows per layer '
                f'({rows_per_node:.2f} per node)',
                f'largest block         {self.largest_block_rows:,} rows received, '
                f'{self.largest_block_edges:,} edges',
                f'imbalance (max/mean)  nodes {self.node_imbalance:.3f}, '
                f'edges {self.edge_imbalance:.3f}, work (both) {self.work_imbalance:.3f}',
                *(f'  {kind:<20}{text}' for kind, text in worst.items() if text),
            ]
        )


def summarize(meta: Meta) -> PartitionSummary:
    """The summary of what META.json says."""
    parts = range(meta.num_parts)
    relations = meta.edges.values()
    part_num_nodes = tuple(
        sum(info.part_num_nodes[p] for info in meta.nodes.values()) for p in parts
    )
    part_num_edges = tuple(sum(info.part_num_edges[p] for info in relations) for p in parts)
    halo_rows = tuple(
        tuple(sum(info.halo_rows[p][q] for info in relations) for q in parts) for p in parts
    )
    own_edges = sum(info.block_edges[p][p] for info in relations for p in parts)
    return PartitionSummary(
        method=printable(str(meta.notes['partition'].get('method', 'unknown'))),
        num_nodes=sum(part_num_nodes),
        num_edges=sum(part_num_edges),
        num_parts=meta.num_parts,
        part_num_nodes=part_num_nodes,
        part_num_edges=part_num_edges,
        halo_rows=halo_rows,
        boundary_rows=tuple(sum(row[q] for row in halo_rows) for q in parts),
        edge_cut=sum(part_num_edges) - own_edges,
        communication_volume=sum(map(sum, halo_rows)),
        largest_block_rows=max((max(map(max, info.halo_rows)) for info in relations), default=0),
        largest_block_edges=max((max(map(max, info.block_edges)) for info in relations), default=0),
        type_num_nodes={key: tuple(info.part_num_nodes) for key, info in meta.nodes.items()},
        type_num_edges={key: tuple(info.part_num_edges) for key, info in meta.edges.items()},
        num_duplicates=meta.notes['partition'].get('duplicates', 0),
        num_self_loops=meta.notes['partition'].get('self_loops', 0),
    )


def _worst(sizes: Mapping[Any, tuple[int, ...]]) -> str:
    """Name and imbalance of the four types with most above the mean; '' of a homogeneous graph."""
    excess = {k: max(n) - sum(n) / len(n) for k, n in sizes.items() if k is not None}
    worst = sorted(excess, key=excess.__getitem__, reverse=True)[:4]
    return ', '.join(f'{type_name(key)} {_imbalance(sizes[key]):.3f}' for key in worst)


def _imbalance(sizes: Sequence[int]) -> float:
    total = sum(sizes)
    return max(sizes) * len(sizes) / total if total else 1.0
