"""Makes batches as PyG's loaders do: a ``Data`` or ``HeteroData`` on plain edges."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from pyg_sar.loader.attributes import edge_stores, ends_of, node_stores, take
from pyg_sar.loader.rounds import Round
from pyg_sar.loader.seeds import SeedBatches
from pyg_sar.shard.format import EdgeKey


class _Edges(NamedTuple):
    src: Tensor  # among the batch's nodes, int64 ``[num_edges]``
    dst: Tensor
    # Where their attributes are; None where they have none (bidirectional ones of two relations).
    row: Tensor | None
    per_hop: list[int]  # how many each hop added


def make_batch(data: Data | HeteroData, sampled: Round, number: int) -> Data | HeteroData:
    """A batch of a round, by its number, as PyG's.

    What `data` has beside attributes of nodes and edges is in every batch as it is.
    """
    kind, attributes, out = sampled.options.subgraph_type, sampled.attributes, copy.copy(data)

    def put(store: Any, name: str, rows: Tensor) -> None:
        """Rows in the dimension in which PyG joins the attribute."""
        dim = data.__cat_dim__(name, rows, store)
        store[name] = rows.movedim(0, dim) if dim else rows

    for key, store in node_stores(out).items():
        grown = sampled.nodes[key]
        cuts = [cut[number : number + 2] for cut in grown.cuts]
        index = torch.cat([torch.arange(start, end) for start, end in cuts])
        grown.number_in_batch[index] = torch.arange(index.numel())
        store.num_nodes, row = index.numel(), grown.row.index_select(0, index)
        for name, value in attributes.nodes[key].items():
            put(store, name, take(value, row, [values[name] for values in grown.came]))
        if sampled.seeds.tree is not None:
            total = max(sampled.graph.nodes[key].total, 1)
            group = torch.div(grown.keys[index], total, rounding_mode='floor')
            store.batch = sampled.seeds.tree[group]
        if kind != 'bidirectional':
            store.num_sampled_nodes = [end - start for start, end in cuts]
    edges = {key: _edges(sampled, key, number) for key in sampled.edges}
    if kind == 'bidirectional':
        edges = _both_ways(edges)
    for edge_key, store in edge_stores(out).items():
        sampled_edges, came = edges[edge_key], sampled.edges[edge_key].came
        edge_index = torch.stack([sampled_edges.src, sampled_edges.dst])
        store.edge_index = edge_index.to(store.edge_index.device)
        for name, value in attributes.edges[edge_key].items():
            if sampled_edges.row is None:
                store.pop(name, None)
            else:
                put(store, name, take(value, sampled_edges.row, [values[name] for values in came]))
        if kind == 'directional':
            store.num_sampled_edges = sampled_edges.per_hop
    _add_seeds(out, sampled.seeds, number)
    return out


def _add_seeds(out: Data | HeteroData, seeds: SeedBatches, number: int) -> None:
    nodes, edges = node_stores(out), edge_stores(out)
    cut, links = slice(*seeds.cuts[number : number + 2]), seeds.links
    if links is None:
        store = nodes[seeds.type]
        store.input_id, store.batch_size = seeds.input_id[cut], cut.stop - cut.start
        if seeds.until is not None:
            store.seed_time = seeds.until[cut]
        return
    store, of_negatives = edges[seeds.type], slice(*links.cuts[number : number + 2])
    src_type, dst_type = ends_of(seeds.type)
    src, src_neg, dst, dst_neg = (
        values[at] - seeds.first[end].cuts[number]
        for end, both in ((src_type, links.src), (dst_type, links.dst))
        for values, at in zip(both, (cut, of_negatives), strict=True)
    )
    for name in ('edge_label_index', 'edge_label', 'edge_label_time'):
        store.pop(name, None)  # of the whole graph's links
    store.input_id = seeds.input_id[cut]
    if links.per_link is None:
        ends = torch.cat([src, src_neg]), torch.cat([dst, dst_neg])
        store.edge_label_index = torch.stack(ends)
        for name, pair in (('edge_label', links.label), ('edge_label_time', links.time)):
            if pair is not None:
                store[name] = torch.cat([pair[0][cut], pair[1][of_negatives]])
        return
    nodes[src_type].src_index, nodes[dst_type].dst_pos_index = src, dst
    nodes[dst_type].dst_neg_index = dst_neg.view(-1, links.per_link).squeeze(1)
    if links.time is not None:
        nodes[src_type].seed_time = nodes[dst_type].seed_time = links.time[0][cut]


def _edges(sampled: Round, key: EdgeKey, number: int) -> _Edges:
    linked = sampled.edges[key]
    src_number, dst_number = (sampled.nodes[end].number_in_batch for end in ends_of(key))
    cuts = [slice(*cut[number : number + 2]) for cut in linked.cuts]

    def cat(hops: list[Tensor]) -> Tensor:
        return torch.cat([src_number[:0], *(hop[cut] for hop, cut in zip(hops, cuts, strict=True))])

    src, dst = (
        numbers.index_select(0, cat(hops))
        for numbers, hops in ((src_number, linked.src), (dst_number, linked.dst))
    )
    return _Edges(src, dst, cat(linked.row), [cut.stop - cut.start for cut in cuts])


def _both_ways(edges: dict[EdgeKey, _Edges]) -> dict[EdgeKey, _Edges]:
    row = {key: one_way.src for key, one_way in edges.items()}
    col = {key: one_way.dst for key, one_way in edges.items()}
    edge = {key: torch.arange(src.numel()) for key, src in row.items()}
    if None in edges:
        plain = SamplerOutput(row[None][:0], row[None], col[None], edge[None]).to_bidirectional()
        row, col, edge = {None: plain.row}, {None: plain.col}, {None: plain.edge}
    else:
        both = HeteroSamplerOutput({}, row, col, edge).to_bidirectional()
        row, col, edge = both.row, both.col, both.edge
    out = {}
    for key, one_way in edges.items():
        rows = None if edge[key] is None or one_way.row is None else one_way.row[edge[key]]
        out[key] = _Edges(row[key], col[key], rows, [])
    return out
