"""Joins the parts of one rank, one relation at a time."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from pyg_sar.shard.bags import check_block_edges
from pyg_sar.shard.format.file_names import EdgeKey, type_name
from pyg_sar.shard.format.meta import Meta
from pyg_sar.shard.read.parts import Part, rows_of
from pyg_sar.shard.shard import Shard, make_steps


def ptr_of(sizes: list[int]) -> list[int]:
    """Where runs of these sizes start and end, one after another."""
    return [0, *accumulate(sizes)]


def join(
    parts: list[Part], key: EdgeKey, meta: Meta, root: Path, rank: int, world_size: int
) -> tuple[Shard, Tensor, Tensor | None]:
    """Puts together what a rank's parts hold of one relation.

    Args:
        parts: The rank's parts.
        key: The relation.
        meta: What META.json says.
        root: The partition folder.
        rank: The rank.
        world_size: Number of ranks.

    Returns:
        The shard, its edge_index, and the place of every edge among the parts' edges one after
        another (None where that is their order already).

    Raises:
        ValueError: If a block has more than 2^31 - 1 edges.
    """
    num_parts, info = meta.num_parts, meta.edges[key]
    per_rank = num_parts // world_size
    own = range(rank * per_rank, (rank + 1) * per_rank)
    indices = [part.index[key] for part in parts]
    own_ptr = ptr_of([part.n_id[info.src].numel() for part in parts])
    dst_ptr = ptr_of([part.n_id[info.dst].numel() for part in parts])
    num_own = own_ptr[-1]

    # Halo rows: two own parts may read the same remote row; it is fetched once.
    halo_pos = [
        _unique([rows_of(p, 'halo', q) for p in indices], q in own) for q in range(num_parts)
    ]
    halo_ptr = ptr_of([pos.numel() for pos in halo_pos])

    src, dst, place, block_ptr = [], [], [], [0]
    edge_start = ptr_of([p['e_id'].numel() for p in indices])
    for q in range(num_parts):
        check_block_edges(sum(int(p['block_ptr'][q : q + 2].diff()) for p in indices))
        for i, p in enumerate(indices):
            start, end = p['block_ptr'][q : q + 2].tolist()
            src_q = p['src'][start:end].long()
            if own[i] == q:
                src_q = src_q + own_ptr[i]
            else:
                first = own_ptr[i + 1] - own_ptr[i] + int(p['halo_ptr'][q])
                pos = rows_of(p, 'halo', q)[src_q - first].long()
                if q in own:
                    src_q = pos + own_ptr[q - own.start]
                else:
                    src_q = torch.searchsorted(halo_pos[q], pos) + (num_own + halo_ptr[q])
            src.append(src_q)
            dst.append(p['dst'][start:end].long() + dst_ptr[i])
            place.append(torch.arange(start, end) + edge_start[i])
        block_ptr.append(block_ptr[-1] + sum(t.numel() for t in src[-len(parts) :]))
    edge_index = torch.stack([torch.cat(src), torch.cat(dst)])

    def sent(reader: int, i: int) -> Tensor:
        readers = range(reader * per_rank, (reader + 1) * per_rank)
        return own_ptr[i] + _unique([rows_of(indices[i], 'boundary', r) for r in readers], False)

    shard = Shard(
        root=str(root),
        # A layer that is used for two relations agrees with the other ranks about each.
        fingerprint=meta.fingerprint if key is None else f'{meta.fingerprint} {type_name(key)}',
        rank=rank,
        world_size=world_size,
        num_parts=num_parts,
        num_nodes=meta.nodes[info.src].num_nodes,
        own_ptr=tuple(own_ptr),
        halo_ptr=tuple(halo_ptr),
        block_ptr=tuple(block_ptr),
        steps=make_steps(rank, world_size, halo_ptr, sent),
        dst_rows=None if info.src == info.dst else dst_ptr[-1],
    )
    return shard, edge_index, None if len(parts) == 1 else torch.cat(place)


def _unique(groups: list[Tensor], is_empty: bool) -> Tensor:
    """The ascending union, int64."""
    if is_empty:
        return torch.empty(0, dtype=torch.int64)
    return torch.unique(torch.cat(groups).long()) if len(groups) > 1 else groups[0].long()
