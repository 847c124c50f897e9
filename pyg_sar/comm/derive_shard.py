"""Derives a shard from another one: other edges between the nodes of the same ranks.

Meanwhile rows have *positions*: the rows of part 0, then those of part 1, and so on, one numbering
for all ranks. So a position tells the part, and a halo is in the order of positions.

The reversed edges are such a shard, for messages against the direction of the edges. A shard holds
the edges into own nodes, and a reversed edge belongs to the rank of its old source. So every edge
moves there once, and edge tensors follow by a differentiable all-to-all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from pyg_sar.comm.collectives import all_to_all, all_to_all_counts
from pyg_sar.comm.exchange import exchange_of, lent_to_another
from pyg_sar.comm.row_map import RowMap, linear
from pyg_sar.comm.rows_by_id import with_halo
from pyg_sar.comm.vote import agree, raise_on_all
from pyg_sar.shard.blocks import check_ids
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


@dataclass(frozen=True, eq=False)
class EdgeMove:
    """Carries edge tensors to the reversed edges and back: a bijection, so back is the adjoint."""

    edges: RowMap  # from the edges ``[E]`` to the reversed ones ``[E_rev]``, each to one

    def to_reversed(self, values: Tensor) -> Tensor:
        """Edge values ``[E, ...]`` in the order of the reversed edges, ``[E_rev, ...]``.

        | forward:  every row goes to the rank of its edge's source
        | backward: ``grad_values = to_forward(grad_out)``

        Collective: one all-to-all, and one in backward if the values need a gradient; they must
        need one on all ranks or on none. Raises ValueError if there is not one row per edge.
        """
        _check_rows(values, sum(self.edges.send_counts))
        return linear(values, self.edges.fetch, self.edges.inverse)

    def to_forward(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`to_reversed`: ``[E_rev, ...]`` to ``[E, ...]`` (collective)."""
        _check_rows(values, sum(self.edges.recv_counts))
        return linear(values, self.edges.inverse, self.edges.fetch)


def _check_rows(values: Tensor, num_edges: int) -> None:
    if values.dim() == 0 or values.size(0) != num_edges:
        shape = tuple(values.shape)
        raise ValueError(f'expected one row per edge: {num_edges} rows (got shape {shape})')


@dataclass(frozen=True, eq=False)
class Reversed:
    """The edges out of the own nodes of a rank, turned around."""

    # In local ids of `shard` and its block order. Row 0: the old destinations, own or in the halo
    # of `shard`. Row 1: the old sources, own.
    edge_index: ShardEdges
    # The same own nodes and parts, with a halo of old destinations. Of a bipartite shard a
    # bipartite one, from its destinations to its sources, where each rank is one part.
    shard: Shard
    edges: EdgeMove  # carries edge tensors over


@torch.inference_mode(False)  # it outlives the caller's mode
def reverse(ids: Tensor, shard: Shard, e_id: Tensor | None = None) -> Reversed:
    """Turns every edge of the graph around (collective: a few all-to-alls; keep the result).

    `ids` are int64 ``[2, E]`` in local ids of `shard`: its own edges, or derived from them.
    Original ids `e_id` ``[E]`` are there on all ranks or on none. Raises ValueError on all ranks,
    if an id is out of range on one of them.
    """
    check = partial(check_ids, ids, shard)
    raise_on_all(check) if shard.world_size > 1 else check()
    src, dst = ids.unbind()
    part_ptr = all_part_ptr(shard, shard.own_ptr)
    first = part_ptr[shard.parts.start]
    own = torch.arange(first, first + shard.num_own, device=src.device)
    src = with_halo(own, exchange_of(shard))[src]
    base, dst_ptr, dst_rows = shard, part_ptr, None
    if shard.is_bipartite:
        # Nothing tells where the destinations of a part start: a rank counts as one part.
        base = replace(shard, num_parts=shard.world_size, own_ptr=(0, shard.num_dst))
        dst_ptr, dst_rows = all_part_ptr(base, base.own_ptr), shard.num_own
    dst = dst + dst_ptr[base.parts.start]

    ends = torch.tensor(part_ptr[shard.parts_per_rank :: shard.parts_per_rank], device=src.device)
    owner = torch.searchsorted(ends, src, right=True)
    to_owners = RowMap.to_ranks(owner)
    new_dst, new_src = to_owners.fetch(torch.stack([src, dst], dim=1)).t().contiguous()
    handle, recv_perm = derive_shard(
        base, dst_ptr, new_src, new_dst - first, name='reversed', dst_rows=dst_rows
    )
    move = EdgeMove(replace(to_owners, recv_index=recv_perm))
    if e_id is not None:
        handle.shard = replace(handle.shard, e_id=move.to_reversed(e_id))
    return Reversed(handle, handle.shard, move)
