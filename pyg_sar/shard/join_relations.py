"""Joins several relations to one bipartite graph, for a layer over all types at once (HGT).

Joining takes no communication.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyg_sar.shard.edges import ShardEdges
from pyg_sar.shard.shard import Shard, make_steps


def join_relations(
    handles: Sequence[ShardEdges],
    src_offsets: Sequence[int],
    dst_offsets: Sequence[int],
    num_dst: int,
) -> ShardEdges:
    """The edges of several relations, one relation after another, as one bipartite graph.

    Own sources are those of the relations one after another, at the given offsets; so are own
    destinations. Every rank's parts count as one part.

    Args:
        handles: Edges of relations of one partition, at least one.
        src_offsets: Where each relation's own sources start; they fill all rows in this order.
        dst_offsets: Where the own nodes of each relation's destination type start.
        num_dst: Own destinations of all types.
    """
    shards = [handle.shard for handle in handles]
    first = shards[0]
    world_size, device = first.world_size, handles[0].ids.device
    num_own = sum(shard.num_own for shard in shards)
    # The joint id of every local source of a relation: own ones, then the halo, which is joined by
    # owner and then by relation.
    ptrs = [shard.halo_ptr[:: shard.parts_per_rank] for shard in shards]
    ids = [[torch.arange(o, o + s.num_own)] for s, o in zip(shards, src_offsets, strict=True)]
    halo_ptr = [0]
    for owner in range(world_size):
        end = halo_ptr[-1]
        for ptr, of_relation in zip(ptrs, ids, strict=True):
            start, end = end, end + ptr[owner + 1] - ptr[owner]
            of_relation.append(torch.arange(num_own + start, num_own + end))
        halo_ptr.append(end)
    edges = []
    for handle, of_relation, offset in zip(handles, ids, dst_offsets, strict=True):
        src, dst = handle.ids
        edges.append(torch.stack([torch.cat(of_relation).to(device)[src], dst + offset]))

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
    return ShardEdges(whole, shard)
