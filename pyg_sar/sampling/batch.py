"""Makes what PyG's loader gives of a batch: a ``Data`` or ``HeteroData`` on plain edges."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from pyg_sar.sampling.attributes import (
    Attributes,
    EdgeKey,
    NodeKey,
    edge_stores,
    ends_of,
    node_stores,
    take,
)
from pyg_sar.sampling.rounds import Round


@dataclass(frozen=True, eq=False)
class _Edges:
    """A batch's edges of one relation.

    Attributes:
        src: Sources among the batch's nodes, int64 ``[num_edges]``.
        dst: Destinations, int64 ``[num_edges]``.
        row: Where their attributes are; None where they have none (PyG's bidirectional ones of two
            relations).
        per_hop: How many each hop added.
    """

    src: Tensor
    dst: Tensor
    row: Tensor | None
    per_hop: list[int]


class Batches:
    """The batches of a round as PyG's.

    Args:
        data: What the loader was given; what is not of nodes or edges is in every batch as it is.
        attributes: Its attributes.
        sampled: The round.
    """

    def __init__(self, data: Data | HeteroData, attributes: Attributes, sampled: Round) -> None:
        self._data, self._attributes, self._sampled = data, attributes, sampled
        # Where every node of the round is in its batch.
        self._place = {key: torch.empty_like(grown.keys) for key, grown in sampled.nodes.items()}

    def __getitem__(self, number: int) -> Data | HeteroData:
        sampled, kind = self._sampled, self._sampled.fans.subgraph_type
        out = copy.copy(self._data)
        for key, store in node_stores(out).items():
            grown = sampled.nodes[key]
            cuts = [cut[number : number + 2] for cut in grown.cuts]
            found = torch.cat([torch.arange(start, end) for start, end in cuts])
            self._place[key][found] = torch.arange(found.numel())
            store.num_nodes, row = found.numel(), grown.row.index_select(0, found)
            for name, value in self._attributes.nodes[key].items():
                rows = take(value, row, [values[name] for values in grown.came])
                store[name] = self._in_place(name, store, rows)
            if sampled.fans.disjoint:
                store.batch = self._trees(key, grown.keys[found], number)
            if kind != 'bidirectional':
                store.num_sampled_nodes = [end - start for start, end in cuts]
        edges = {key: self._edges(key, number) for key in sampled.edges}
        if kind == 'bidirectional':
            edges = _both_ways(edges)
        for edge_key, store in edge_stores(out).items():
            found_edges = edges[edge_key]
            edge_index = torch.stack([found_edges.src, found_edges.dst])
            store.edge_index = edge_index.to(store.edge_index.device)
            for name, value in self._attributes.edges[edge_key].items():
                if found_edges.row is None:
                    store.pop(name, None)
                else:
                    came = [values[name] for values in sampled.edges[edge_key].came]
                    rows = take(value, found_edges.row, came)
                    store[name] = self._in_place(name, store, rows)
            if kind == 'directional':
                store.num_sampled_edges = found_edges.per_hop
        sampled.seeds.tell(node_stores(out), edge_stores(out), number)
        return out

    def _in_place(self, name: str, store: Any, rows: Tensor) -> Tensor:
        """Rows in the dimension in which PyG joins the attribute."""
        dim = self._data.__cat_dim__(name, rows, store)
        return rows.movedim(0, dim) if dim else rows

    def _edges(self, key: EdgeKey, number: int) -> _Edges:
        linked = self._sampled.edges[key]
        src_type, dst_type = ends_of(key)
        cuts = [slice(*cut[number : number + 2]) for cut in linked.cuts]

        def cat(hops: list[Tensor]) -> Tensor:
            none = torch.empty(0, dtype=torch.int64)
            return torch.cat([none, *(hop[cut] for hop, cut in zip(hops, cuts, strict=True))])

        src = self._place[src_type].index_select(0, cat(linked.src))
        dst = self._place[dst_type].index_select(0, cat(linked.dst))
        return _Edges(src, dst, cat(linked.row), [cut.stop - cut.start for cut in cuts])

    def _trees(self, key: NodeKey, keys: Tensor, number: int) -> Tensor:
        """The seed of every node of a batch, counted in the batch."""
        total = self._sampled.graph.nodes[key].total
        group = torch.div(keys, max(total, 1), rounding_mode='floor')
        return self._sampled.seeds.trees(group, number)


def _both_ways(edges: dict[EdgeKey, _Edges]) -> dict[EdgeKey, _Edges]:
    """PyG's bidirectional edges."""
    row = {key: each.src for key, each in edges.items()}
    col = {key: each.dst for key, each in edges.items()}
    edge = {key: torch.arange(each.src.numel()) for key, each in edges.items()}
    if None in edges:
        made = SamplerOutput(row[None][:0], row[None], col[None], edge[None]).to_bidirectional()
        row, col, edge = {None: made.row}, {None: made.col}, {None: made.edge}
    else:
        both = HeteroSamplerOutput({}, row, col, edge).to_bidirectional()
        row, col, edge = both.row, both.col, both.edge
    out = {}
    for key, each in edges.items():
        kept = None if edge[key] is None or each.row is None else each.row[edge[key]]
        out[key] = _Edges(row[key], col[key], kept, [])
    return out
