"""A made-up shard of rank 0, with given counts and random edges."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.planner.counts import RankSizes
from pyg_sar.shard.edges import LocalEdges, ShardEdges
from pyg_sar.shard.format import EdgeKey
from pyg_sar.shard.meta import EdgeInfo, Meta
from pyg_sar.shard.read_shard import note_kinds
from pyg_sar.shard.shard import Shard, make_steps
from pyg_sar.shard.vertex_cover import covers_pay

_LABELS = {'y': {'dtype': 'int64', 'shape': []}, 'train_mask': {'dtype': 'bool', 'shape': []}}


def made_up_shard(sizes: RankSizes, meta: Meta) -> Any:
    """A shard with the attributes of a folder, and with labels for all nodes.

    Floating-point values are random between 0 and 1; others are 0.
    """
    data: Any = HeteroData() if meta.is_hetero else Data()
    nodes = {key: replace(n, attrs={**n.attrs, **_LABELS}) for key, n in meta.nodes.items()}
    for key, info in nodes.items():
        store, num_own = data if key is None else data[key], sum(sizes.nodes[key])
        store.update({**info.extra, **_attributes(info.attrs, num_own)})
        store.train_mask = torch.arange(num_own) % 5 < 3
        store.n_id, store.num_nodes = torch.arange(num_own), num_own
        store.num_nodes_total = num_own * sizes.num_ranks
    for edge_key, edges in meta.edges.items():
        handle = _edges(sizes, edge_key, edges)
        store = data if edge_key is None else data[edge_key]
        store.update({**edges.extra, **_attributes(edges.attrs, handle.num_edges)})
        store.edge_index, store.e_id = LocalEdges.of(handle), handle.shard.e_id
    for name, value in meta.graph_attrs.items():
        data[name] = value
    if isinstance(data, Data):
        note_kinds(data, replace(meta, nodes=nodes))
    return data


def _attributes(attrs: dict[str, Any], num_rows: int) -> dict[str, Tensor]:
    values = {}
    for name, row in attrs.items():
        dtype, shape = getattr(torch, row['dtype']), (num_rows, *row['shape'])
        draw = torch.rand if dtype.is_floating_point else torch.zeros
        values[name] = draw(shape).to(dtype)
    return values


def _edges(sizes: RankSizes, key: EdgeKey, info: EdgeInfo) -> ShardEdges:
    own, ends, relation = sizes.nodes[info.src], sizes.nodes[info.dst], sizes.relations[key]
    is_bipartite = info.src != info.dst
    per_rank, world_size, num_own = sizes.per_rank, sizes.num_ranks, sum(own)
    num_parts = per_rank * world_size
    # Step (s, i) reads part i of rank -s and serves rank s; in file order remote parts ascend.
    halo, halo_edges = [0] * num_parts, [0] * num_parts
    halo_edges[:per_rank] = relation.own_edges
    own_ptr = (0, *accumulate(own))
    for block, rows in enumerate(relation.halo):
        part = (world_size - block // per_rank - 1) * per_rank + block % per_rank
        halo[part] = rows
        halo_edges[part] = relation.halo_edges[block] if rows else 0
    halo_ptr = (0, *accumulate(halo))

    def sent(reader: int, i: int) -> Tensor:
        rows = torch.arange(relation.halo[(reader - 1) * per_rank + i])
        return own_ptr[i] + rows % max(own[i], 1)

    shard = Shard(
        root='(rehearsal)',
        fingerprint=f'rehearsal {key}',
        rank=0,
        world_size=world_size,
        num_parts=num_parts,
        num_nodes=num_own * world_size,
        own_ptr=own_ptr,
        halo_ptr=halo_ptr,
        block_ptr=(0, *accumulate(halo_edges)),
        steps=make_steps(0, world_size, halo_ptr, sent),
        dst_rows=sum(ends) if is_bipartite else None,
        dst_ptr=(0, *accumulate(ends)) if is_bipartite else None,
    )
    shares = [1.0] * per_rank + [sizes.cover_share] * (num_parts - per_rank)
    blocks = [
        _block(*shard.source_range(q), shard.num_dst, halo_edges[q], shares[q])
        for q in range(num_parts)
    ]
    edges = torch.cat(blocks, dim=1)
    return ShardEdges(edges, replace(shard, e_id=torch.arange(edges.size(1))), is_whole=True)


def _block(start: int, end: int, num_dst: int, num_edges: int, cover_share: float) -> Tensor:
    """Edges of one block, sorted by destination and source; `cover_share` of its rows must travel.

    Each row that must travel has an edge to a destination of its own. The edges of the other rows
    end in one destination, whose sum travels in their place.
    """
    num_rows = max(end - start, 1)
    row = torch.arange(num_edges) % num_rows  # every row is read
    dst = torch.randint(max(num_dst, 1), (num_edges,))
    if covers_pay(cover_share, 1):
        dst[:num_rows] = row[:num_rows] % max(num_dst, 1)
        dst[row >= round(cover_share * num_rows) - 1] = 0
    order = torch.argsort(dst * num_rows + row)
    return torch.stack([start + row[order], dst[order]])
