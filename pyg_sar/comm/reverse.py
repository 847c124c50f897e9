"""The edges out of the own nodes: every edge goes to the rank that owns its source.

A rank holds the edges into its own nodes. Messages against the direction of the edges need those
out of them; these lie with their destinations, on other ranks, and come over once for a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyg_sar.comm.exchange import Exchange
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.shard import Shard, Step

_ID_BITS = 40


@dataclass(frozen=True, eq=False)
class Reversed:
    """The edges of a graph, each turned round, with the ranks that own their new destinations.

    Attributes:
        edge_index: The turned edges into own nodes, a handle of a shard of its own.
        local: Edges that stay on the rank: their places before, int64.
        sent: Edges that go to other ranks, by rank: their places before, int64.
        send_counts: How many go to each rank.
        recv_counts: How many come from each rank; they follow the local ones.
        group: The group of the exchanges; None on one rank.
    """

    edge_index: ShardEdgeIndex
    local: Tensor
    sent: Tensor
    send_counts: list[int]
    recv_counts: list[int]
    group: dist.ProcessGroup | None

    def to_reversed(self, values: Tensor) -> Tensor:
        """Brings one row per edge ``[num_edges, ...]`` to the turned edges (collective)."""
        out: Tensor = _Move.apply(values, self, True)  # type: ignore[no-untyped-call]
        return out

    def to_forward(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`to_reversed` (collective)."""
        out: Tensor = _Move.apply(values, self, False)  # type: ignore[no-untyped-call]
        return out


class _Move(torch.autograd.Function):
    """Rows of edges to the other end's rank; the adjoint is the way back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, edges: Reversed, turn: bool) -> Tensor:
        ctx.edges, ctx.turn = edges, turn
        return _turn(values, edges) if turn else _turn_back(values, edges)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        back = _turn_back if ctx.turn else _turn
        return back(grads[0].contiguous(), ctx.edges), None, None


def _turn(values: Tensor, edges: Reversed) -> Tensor:
    received = _all_to_all(
        values.index_select(0, edges.sent), edges.send_counts, edges.recv_counts, edges.group
    )
    return torch.cat([values.index_select(0, edges.local), received])


def _turn_back(values: Tensor, edges: Reversed) -> Tensor:
    num_local, num_sent = edges.local.numel(), edges.sent.numel()
    received = _all_to_all(
        values[num_local:].contiguous(), edges.recv_counts, edges.send_counts, edges.group
    )
    out = values.new_empty(num_local + num_sent, *values.shape[1:])
    out[edges.local] = values[:num_local]
    out[edges.sent] = received
    return out


def reverse(edge_index: Tensor, shard: Shard) -> Reversed:
    """Turns the edges of a graph round (collective: seven all-to-alls).

    Args:
        edge_index: Edges into own nodes in local ids of `shard`: its own, or derived from it.
        shard: The shard, of one set of nodes.

    Raises:
        ValueError: If the edges run between two sets of nodes.
    """
    if shard.is_bipartite:
        raise ValueError('edges between two sets of nodes cannot be passed in reverse')
    exchange = Exchange(shard)
    src, dst = edge_index.as_subclass(Tensor)
    num_own, device = shard.num_own, src.device
    is_own = src < num_own
    local = is_own.nonzero().view(-1)
    sent = (~is_own).nonzero().view(-1)
    ptr = torch.tensor(shard.halo_ptr[:: shard.parts_per_rank], device=device)
    halo = src[sent] - num_own
    owner = torch.bucketize(halo, ptr[1:], right=True)
    order = torch.argsort(owner, stable=True)
    sent, halo, owner = sent[order], halo[order], owner[order]
    send_counts = torch.bincount(owner, minlength=shard.world_size).tolist()
    recv_counts = _counts(send_counts, exchange.group, device)

    def move(values: Tensor) -> Tensor:
        return _all_to_all(values, send_counts, recv_counts, exchange.group)

    # What the owner of the source is told: which of the rows that it sends here, and which node of
    # which part the edge went into.
    part = torch.bucketize(dst, torch.tensor(shard.own_ptr[1:], device=device), right=True)
    offset = move(halo - ptr[owner])
    node = move(((part + shard.parts.start) << _ID_BITS | dst)[sent])
    rows = exchange.rows_sent()
    first = torch.tensor([0, *[t.numel() for t in rows][:-1]], device=device).cumsum(0)
    reader = torch.repeat_interleave(torch.tensor(recv_counts, device=device))
    new_dst = torch.cat(rows)[first[reader] + offset] if rows else offset
    nodes, place = torch.unique(node, return_inverse=True)
    new_shard = _shard_of(nodes, shard, exchange)
    turned = torch.stack(
        [torch.cat([dst[local], num_own + place]), torch.cat([src[local], new_dst])]
    )
    handle = ShardEdgeIndex.wrap(turned, new_shard, is_whole=False)
    return Reversed(handle, local, sent, send_counts, recv_counts, exchange.group)


def _shard_of(nodes: Tensor, shard: Shard, exchange: Exchange) -> Shard:
    """The shard of the same own nodes whose halo is `nodes`, ascending by part and node."""
    part, row = nodes >> _ID_BITS, nodes & ((1 << _ID_BITS) - 1)
    counts = torch.bincount(part, minlength=shard.num_parts).tolist()
    ptr = [0, *torch.tensor(counts).cumsum(0).tolist()]
    # Every owner is told which rows of which of its parts are read here.
    per_rank = shard.parts_per_rank
    wanted = [sum(counts[r * per_rank : (r + 1) * per_rank]) for r in range(shard.world_size)]
    asked = _counts(wanted, exchange.group, nodes.device)
    by_reader = torch.split(_all_to_all(row, wanted, asked, exchange.group), asked)
    own_ptr = torch.tensor(shard.own_ptr, device=nodes.device)
    steps: list[Step] = []
    for step in shard.steps:
        # Rows of one reader ascend, so those of one part lie together.
        i = len(steps) % per_rank
        rows = by_reader[step.send_rank]
        is_of_part = (rows >= own_ptr[i]) & (rows < own_ptr[i + 1])
        recv_rows = ptr[step.part + 1] - ptr[step.part]
        steps.append(Step(step.part, step.recv_rank, recv_rows, step.send_rank, rows[is_of_part]))
    return Shard(
        root=shard.root,
        fingerprint=f'{shard.fingerprint} reversed',
        rank=shard.rank,
        world_size=shard.world_size,
        num_parts=shard.num_parts,
        num_nodes=shard.num_nodes,
        own_ptr=shard.own_ptr,
        halo_ptr=tuple(ptr),
        block_ptr=(*[0] * shard.num_parts, shard.num_edges),
        steps=tuple(steps),
    )


def _counts(
    counts: Sequence[int], group: dist.ProcessGroup | None, device: torch.device
) -> list[int]:
    """How many rows come from each rank, from how many go there (collective)."""
    if group is None:
        return list(counts)
    ours = torch.tensor(counts, device=device)
    theirs = torch.empty_like(ours)
    dist.all_to_all_single(theirs, ours, group=group)
    out: list[int] = theirs.tolist()
    return out


def _all_to_all(
    values: Tensor,
    send_counts: Sequence[int],
    recv_counts: Sequence[int],
    group: dist.ProcessGroup | None,
) -> Tensor:
    """Rows ``[sum of send_counts, ...]``, by rank, to the other ranks (collective)."""
    if group is None:
        return values
    out = values.new_empty(sum(recv_counts), *values.shape[1:])
    row_bytes = values.element_size()
    for size in values.shape[1:]:
        row_bytes *= size
    # As bytes: every dtype goes through every backend.
    dist.all_to_all_single(
        out.view(-1).view(torch.uint8),
        values.contiguous().view(-1).view(torch.uint8),
        [n * row_bytes for n in recv_counts],
        [n * row_bytes for n in send_counts],
        group=group,
    )
    return out
