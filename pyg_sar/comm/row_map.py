"""Rows of other ranks as ordinary differentiable operations: all halo rows, or rows by their ids.

With the halo after the own rows a layer is plain PyG: the one_shot mode. Its memory grows with the
halo.

Of an id a rank does not know the owner. So ids have a home: rank ``id * P // N``, where the owner
is written down once. A rank asks the homes of its ids for their owners, then the owners for the
rows. Homes and answers are kept with the tensors of ids that they belong to: the second call with
the same ids moves rows only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.collectives import (
    all_to_all,
    all_to_all_counts,
    communicates,
    once_differentiable,
)
from pyg_sar.comm.end_of_backward import note_backward_of
from pyg_sar.comm.errors import collective
from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.ranks import cache_of, rank, world_size
from pyg_sar.comm.vote import Agreed, agree, raise_error_on_all, raise_on_all
from pyg_sar.utils.tensor_state import version_of


def with_halo(x: Tensor, exchange: Exchange) -> Tensor:
    """Own rows, then halo rows: what every local source id refers to.

    | forward:  ``out = [x; rows received]``
    | backward: ``grad_x = grad_out[:num_own] + gradients the readers of own rows send back``

    From ``[num_own, ...]`` to ``[num_own + num_halo, ...]``. Collective: one all-to-all, and one in
    backward if x needs a gradient.
    """
    if exchange.shard.world_size == 1:
        return x
    out: Tensor = _Halo.apply(x, exchange, _append_halo, _sum_at_owner)
    return out


def from_halo(values: Tensor, exchange: Exchange) -> Tensor:
    """Sums what every rank holds for a node at the node's owner: the adjoint of `with_halo`.

    | forward:  ``out = values[:num_own] + what the readers of own rows hold for them``
    | backward: ``grad_values = with_halo(grad_out)``

    From ``[num_own + num_halo, ...]`` to ``[num_own, ...]``. Collective: one all-to-all, and one in
    backward.
    """
    if exchange.shard.world_size == 1:
        return values
    out: Tensor = _Halo.apply(values, exchange, _sum_at_owner, _append_halo)
    return out


Move = Callable[[Tensor, Exchange], Tensor]


@communicates
class _Halo(torch.autograd.Function):
    """A move of rows between ranks, with its adjoint."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, move: Move, adjoint: Move) -> Tensor:
        ctx.exchange, ctx.adjoint = exchange, adjoint
        return move(x, exchange)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.adjoint(grads[0], ctx.exchange), None, None, None


def _append_halo(x: Tensor, exchange: Exchange) -> Tensor:
    (halo,) = exchange.fetch_all([x])
    return torch.cat([x, halo])


def _sum_at_owner(values: Tensor, exchange: Exchange) -> Tensor:
    num_own = exchange.shard.num_own
    out = values[:num_own].clone(memory_format=torch.contiguous_format)
    exchange.return_all([values[num_own:]], [out])
    return out


@collective('rows by id', 'one all-to-all in forward, one in backward; a few more for new ids')
def rows(x: Any, ids: Tensor, n_id: Tensor) -> Tensor:
    """The rows of nodes of the whole graph: ``x[ids]``, as if `x` had the rows of all nodes.

    `x` are own rows, or a NodeEmbedding, of which each owner looks up the rows that are asked for.
    `ids` are int64, of any shape, and may differ from rank to rank; `n_id` are those of the own
    nodes. Gradients go back to the owners. A change of `ids` in place is noticed. Raises
    ValueError on all ranks, if one has an id that no rank owns, or `x` and `n_id` do not fit.
    """
    plan = _plan(x, ids, n_id)
    index = plan.send_index
    sent = x.index_select(0, index) if isinstance(x, Tensor) else x.plain_rows(n_id[index])
    out: Tensor = _SendRows.apply(sent, plan)
    if out.requires_grad:
        note_backward_of(out)
    return out.index_select(0, plan.recv_index).view(*ids.shape, *out.shape[1:])


@dataclass(frozen=True, eq=False)
class _Plan:
    """Which rows move between the ranks for some ids."""

    send_index: Tensor  # own rows that are sent, by the rank that reads them
    send_counts: list[int]  # how many each rank reads
    recv_counts: list[int]  # how many come from each rank
    recv_index: Tensor  # which of the rows that come is that of each id


@dataclass(frozen=True, eq=False)
class _Home:
    """The owners of the ids from `first` on: rank and row, -1 for an id that nobody owns."""

    first: int
    num_ids: int
    rank: Tensor
    row: Tensor


def _plan(x: Any, ids: Tensor, n_id: Tensor) -> _Plan:
    error = None
    if ids.dtype != torch.int64:
        error = f"expected int64 'ids' (got {ids.dtype})"
    elif not isinstance(x, Tensor):
        own = getattr(x, 'n_id', None)
        if own is None or not torch.equal(own, n_id.cpu()):
            error = (
                "expected rows or a NodeEmbedding of the nodes in 'n_id' as 'x' "
                f'(got a {type(x).__name__} of others)'
            )
    elif x.shape[:1] != n_id.shape:
        error = (
            f"expected one row of 'x' for each of {tuple(n_id.shape)} ids in 'n_id' "
            f'(got shape {tuple(x.shape)})'
        )
    cache: Agreed[tuple[Tensor, _Plan]] = cache_of('plans').setdefault(ids, Agreed())
    key = version_of(ids), id(n_id)
    pair, are_right = cache.find(key, error is None)
    if not are_right:
        raise_error_on_all(None if error is None else ValueError(error))
    if pair is None:
        plan = _new_plan(ids.reshape(-1).to(n_id.device), _home(n_id))
        pair = cache.keep(key, (n_id, plan))  # with `n_id`, whose id() stays its own so
    return pair[1]


def _home(n_id: Tensor) -> _Home:
    """Makes this rank the home of its share of all ids (collective)."""
    cache: Agreed[_Home] = cache_of('homes').setdefault(n_id, Agreed())
    return cache.get(version_of(n_id), lambda: _new_home(n_id))


def _new_home(n_id: Tensor) -> _Home:
    own_end = int(n_id.max()) + 1 if n_id.numel() else 0
    num_ids, ranks = max(agree(own_end)), world_size()
    order, send_counts = _by_home(n_id, num_ids)
    recv_counts = all_to_all_counts(send_counts)
    pairs = torch.stack([n_id[order], order], dim=1)
    ids, rows = all_to_all(pairs, send_counts.tolist(), recv_counts.tolist()).unbind(1)
    first, end = (-(-own * num_ids // ranks) for own in (rank(), rank() + 1))
    home = _Home(first, num_ids, *(n_id.new_full((end - first,), -1) for _ in range(2)))
    owners = torch.arange(ranks, device=n_id.device)
    home.rank[ids - first] = torch.repeat_interleave(owners, recv_counts)
    home.row[ids - first] = rows
    return home


def _by_home(ids: Tensor, num_ids: int) -> tuple[Tensor, Tensor]:
    """An order of ids by their homes, and how many each has."""
    home = ids * world_size() // max(num_ids, 1)
    return torch.argsort(home, stable=True), torch.bincount(home, minlength=world_size())


def owners_of(ids: Tensor, n_id: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The ranks that own nodes, and the nodes' rows there (collective: a few all-to-alls).

    Their ids in the whole graph, int64 ``[N]``, may differ from rank to rank; `n_id` are those of
    the own nodes. Raises ValueError on all ranks, if no rank owns an id; it calls them by `name`.
    """
    unique, inverse = torch.unique(ids, return_inverse=True)
    owner, row = _owners_of(unique, _home(n_id), name)
    return owner[inverse], row[inverse]


def _owners_of(unique: Tensor, home: _Home, name: str) -> tuple[Tensor, Tensor]:
    is_right = (unique >= 0) & (unique < home.num_ids)
    order, counts = _by_home(unique[is_right], home.num_ids)
    sent, received = counts.tolist(), all_to_all_counts(counts).tolist()
    questions = all_to_all(unique[is_right][order], sent, received)
    pairs = torch.stack([home.rank, home.row], dim=1)[questions - home.first]
    answers = unique.new_full((unique.numel(), 2), -1)
    answers[is_right.nonzero().view(-1)[order]] = all_to_all(pairs, received, sent)
    owner, row = answers.unbind(dim=1)

    def check() -> None:
        missing = unique[owner < 0]
        if missing.numel():
            text = f"'{name}' has {int(missing[0])}, which is no node's id in 'n_id' of any rank"
            raise ValueError(text)

    raise_on_all(check)
    return owner, row


def _new_plan(ids: Tensor, home: _Home) -> _Plan:
    """Finds the owners of ids, and tells them which rows to send (collective)."""
    unique, inverse = torch.unique(ids, return_inverse=True)
    owner, row = _owners_of(unique, home, 'ids')
    order = torch.argsort(owner, stable=True)
    counts = torch.bincount(owner, minlength=world_size())
    recv_counts, send_counts = counts.tolist(), all_to_all_counts(counts).tolist()
    send_index = all_to_all(row[order], recv_counts, send_counts)
    position = torch.empty_like(order)
    position[order] = torch.arange(order.numel(), device=order.device)
    return _Plan(send_index, send_counts, recv_counts, position[inverse])


@communicates
class _SendRows(torch.autograd.Function):
    """Rows that other ranks own, each once."""

    @staticmethod
    def forward(ctx: Any, sent: Tensor, plan: _Plan) -> Tensor:
        ctx.plan = plan
        return all_to_all(sent, plan.send_counts, plan.recv_counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        plan = ctx.plan
        return all_to_all(grads[0].contiguous(), plan.recv_counts, plan.send_counts), None
