"""Derives a shard from another one: other edges between the nodes of the same ranks.

Meanwhile rows have *positions*: the rows of part 0, then those of part 1, and so on, one numbering
for all ranks. So a position tells the part, and a halo is in the order of positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pyg_sar.comm.collectives import all_to_all, all_to_all_counts
from pyg_sar.comm.exchange import exchange_of, lent_to_another
from pyg_sar.comm.vote import agree
from pyg_sar.shard.edges import ShardEdges
from pyg_sar.shard.shard import Shard, Step, make_steps


def all_part_ptr(shard: Shard, own_ptr: Sequence[int]) -> list[int]:
    """The position of every part's first row, ``num_parts + 1`` (collective: one small all-gather).

    `own_ptr` are ``parts_per_rank + 1`` offsets of the own parts' rows.
    """
    part_ptr = [0]
    for ptr in agree(tuple(own_ptr)) if shard.world_size > 1 else [own_ptr]:
        start = part_ptr[-1]
        part_ptr.extend(start + n for n in ptr[1:])
    return part_ptr


def positions(shard: Shard, part_ptr: Sequence[int], device: torch.device) -> Tensor:
    """The position of every local source id, int64 ``[num_own + num_halo]`` (one all-to-all)."""
    first = part_ptr[shard.parts.start]
    own = torch.arange(first, first + shard.num_own, device=device)
    (halo,) = exchange_of(shard).fetch_all([own])
    return torch.cat([own, halo])


@torch.inference_mode(False)  # a shard outlives the caller's mode
def derive_shard(
    base: Shard,
    part_ptr: Sequence[int],
    src: Tensor,
    dst: Tensor,
    *,
    name: str,
    dst_rows: int | None = None,
) -> tuple[ShardEdges, Tensor]:
    """A shard for other edges into own nodes (collective: two all-to-alls).

    Ranks and number of parts are those of `base`. `part_ptr` are ``num_parts + 1`` positions of
    every part's first row, `name` is added to the fingerprint; both are equal on all ranks. `src`
    are positions, `dst` own rows, int64 ``[num_edges]``; `dst_rows` is the number of own
    destinations if the shard is to be bipartite.

    Gives the edges in local ids and block order, with their shard; and the index of every one in
    `src` and `dst`, int64 ``[num_edges]``.
    """
    own = base.parts
    first, end = part_ptr[own.start], part_ptr[own.stop]
    num_own = end - first
    num_dst = num_own if dst_rows is None else dst_rows
    starts = torch.tensor(part_ptr, device=src.device)

    is_own = (src >= first) & (src < end)
    halo = torch.unique(src[~is_own])
    halo_ptr = torch.searchsorted(halo, starts)
    local = torch.where(is_own, src - first, torch.searchsorted(halo, src) + num_own)
    part = torch.searchsorted(starts[1:], src, right=True)
    order = torch.argsort(part * max(num_dst, 1) + dst, stable=True)
    block_ptr = torch.bincount(part, minlength=base.num_parts).cumsum(0)
    shard = replace(
        base,
        fingerprint=f'{base.fingerprint} {name}',
        num_nodes=part_ptr[-1],
        own_ptr=tuple(p - first for p in part_ptr[own.start : own.stop + 1]),
        halo_ptr=tuple(halo_ptr.tolist()),
        block_ptr=(0, *block_ptr.tolist()),
        steps=_make_steps(base, halo, halo_ptr, first),
        dst_rows=dst_rows,
        e_id=None,
        n_id=None,
        dst_id=None,
        cut=None,
        kept=lent_to_another(base),
    )
    edge_index = torch.stack([local[order], dst[order]])
    return ShardEdges(edge_index, shard, is_whole=True), order


def _make_steps(base: Shard, halo: Tensor, halo_ptr: Tensor, first: int) -> tuple[Step, ...]:
    """The exchange of the halo: every rank tells the owners which of their rows it reads."""
    if base.world_size == 1:
        return ()
    read = halo_ptr.diff().view(base.world_size, base.parts_per_rank)
    sent = all_to_all_counts(read)
    rows = all_to_all(halo, read.sum(1).tolist(), sent.sum(1).tolist())
    send_index = torch.split(rows - first, sent.view(-1).tolist())
    return make_steps(
        base.rank,
        base.world_size,
        halo_ptr.tolist(),
        lambda reader, i: send_index[reader * base.parts_per_rank + i],
    )
