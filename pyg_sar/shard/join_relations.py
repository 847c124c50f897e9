"""Several relations as one bipartite graph: nodes of all types side by side.

A layer over all types at once (HGT) needs that. Joining takes no communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.shard import Shard, make_steps


def join_relations(
    edge_indices: Sequence[ShardEdgeIndex],
    src_offsets: Sequence[int],
    dst_offsets: Sequence[int],
    num_dst: int,
) -> ShardEdgeIndex:
    """The edges of several relations, one relation after another, as one bipartite graph.

    Own sources are those of the relations one after another, at the given offsets; so are own
    destinations. Every rank's parts count as one part.

    Args:
        edge_indices: Handles of relations of one partition, at least one.
        src_offsets: Where each relation's own sources start; they fill all rows in this order.
        dst_offsets: Where the own nodes of each relation's destination type start.
        num_dst: Own destinations of all types.
    """
    shards = [edge_index.shard for edge_index in edge_indices]
    first = shards[0]
    world_size, device = first.world_size, edge_indices[0].device
    num_own = sum(shard.num_own for shard in shards)
    # Halo rows by owner, then by relation: rows of each relation that each rank owns.
    ptrs = [shard.halo_ptr[:: shard.parts_per_rank] for shard in shards]
    counts = torch.tensor([[b - a for a, b in pairwise(p)] for p in ptrs])
    starts = counts.t().flatten().cumsum(0).roll(1).index_fill_(0, torch.tensor([0]), 0)
    starts = (starts.view(world_size, len(shards)).t() + num_own).to(device)
    halo_ptr = [0, *counts.sum(0).cumsum(0).tolist()]

    edges = []
    for r, (shard, edge_index) in enumerate(zip(shards, edge_indices, strict=True)):
        src, dst = edge_index.as_subclass(Tensor)
        ptr = torch.tensor(ptrs[r], device=device)
        halo = (src - shard.num_own).clamp(min=0)
        owner = torch.bucketize(halo, ptr[1:], right=True).clamp(max=world_size - 1)
        remote = halo - ptr[owner] + starts[r][owner]
        joint = torch.where(src < shard.num_own, src + src_offsets[r], remote)
        edges.append(torch.stack([joint, dst + dst_offsets[r]]))

    def sent(reader: int, _: int) -> Tensor:
        return torch.cat(
            [
                step.send_index + offset
                for shard, offset in zip(shards, src_offsets, strict=True)
                for step in shard.steps
                if step.send_rank == reader
            ]
        )

    whole = torch.cat(edges, dim=1)
    shard = Shard(
        root=first.root,
        fingerprint=f'{first.partition} {len(shards)} relations',
        rank=first.rank,
        world_size=world_size,
        num_parts=world_size,
        num_nodes=first.num_nodes,
        own_ptr=(0, num_own),
        halo_ptr=tuple(halo_ptr),
        block_ptr=(*[0] * world_size, whole.size(1)),
        steps=make_steps(first.rank, world_size, halo_ptr, sent),
        dst_rows=num_dst,
    )
    return ShardEdgeIndex.wrap(whole, shard, is_whole=False)
