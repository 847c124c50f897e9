"""Rows of other ranks as ordinary differentiable operations: all halo rows, or rows by their ids.

With the halo after the own rows a layer is plain PyG: the one_shot mode. Its memory grows with the
halo.

Of an id a rank does not know the owner. So ids have a home: rank ``id * P // N``, where the owner
is written down once. A rank asks the homes of its ids for their owners, then the owners for the
rows. Homes and answers are kept with the tensors of ids that they belong to: the second call with
the same ids moves rows only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.errors import collective
from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.ranks import cache_of, rank, world_size
from pyg_sar.comm.row_map import RowMap, linear
from pyg_sar.comm.vote import Agreed, agree, raise_error_on_all, raise_on_all
from pyg_sar.utils.tensor_state import version_of
from pyg_sar.utils.unsigned import in_dtype, signed


def with_halo(x: Tensor, exchange: Exchange) -> Tensor:
    """Own rows, then halo rows: what every local source id refers to.

    | forward:  ``out = [x; rows received]``
    | backward: ``grad_x = grad_out[:num_own] + gradients the readers of own rows send back``

    From ``[num_own, ...]`` to ``[num_own + num_halo, ...]``. Collective: one all-to-all, and one in
    backward if x needs a gradient.
    """
    if exchange.shard.world_size == 1:
        return x
    return linear(x, partial(_append_halo, exchange), partial(_sum_at_owner, exchange))


def from_halo(values: Tensor, exchange: Exchange) -> Tensor:
    """Sums what every rank holds for a node at the node's owner: the adjoint of `with_halo`.

    | forward:  ``out = values[:num_own] + what the readers of own rows hold for them``
    | backward: ``grad_values = with_halo(grad_out)``

    From ``[num_own + num_halo, ...]`` to ``[num_own, ...]``. Collective: one all-to-all, and one in
    backward.
    """
    if exchange.shard.world_size == 1:
        return values
    return linear(values, partial(_sum_at_owner, exchange), partial(_append_halo, exchange))


def _append_halo(exchange: Exchange, x: Tensor) -> Tensor:
    (halo,) = exchange.fetch([x])
    return torch.cat([x, halo])


def _sum_at_owner(exchange: Exchange, values: Tensor) -> Tensor:
    num_own = exchange.shard.num_own
    out = values[:num_own].clone(memory_format=torch.contiguous_format)
    exchange.give_back([values[num_own:]], [out])
    return out


@collective('rows by id', 'one all-to-all in forward, one in backward; a few more for new ids')
def rows(x: Any, ids: Tensor, n_id: Tensor) -> Tensor:
    """The rows of nodes of the whole graph: ``x[ids]``, as if `x` had the rows of all nodes.

    `x` are own rows, or a NodeEmbedding, of which each owner looks up the rows that are asked for.
    `ids` are int64, of any shape, and may differ from rank to rank; `n_id` are those of the own
    nodes. Gradients go back to the owners. A change of `ids` in place is noticed. Raises
    ValueError on all ranks, if one has an id that no rank owns, or `x` and `n_id` do not fit.
    """
    row_map = _by_ids(x, ids, n_id)
    if isinstance(x, Tensor):
        out = in_dtype(row_map.forward(signed(x)), x.dtype)
    else:
        picked = x.plain_rows(n_id[row_map.send_index])
        out = linear(picked, row_map.move, row_map.move_back)
    return out.view((*ids.shape, *out.shape[1:]))


@dataclass(frozen=True, eq=False)
class _Homes:
    """The owners of the ids whose home this rank is."""

    num_ids: int  # of all homes
    owners: Tensor  # rank and row of each id, int64 ``[ids here, 2]``; -1: nobody owns it

    def of(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The home of each id, and the place of the id there."""
        home = ids * world_size() // max(self.num_ids, 1)
        return home, ids - _first_id(home, self.num_ids)


def _by_ids(x: Any, ids: Tensor, n_id: Tensor) -> RowMap:
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
    cache: Agreed[tuple[Tensor, RowMap]] = cache_of('row maps').setdefault(ids, Agreed())
    key = version_of(ids), id(n_id)
    pair, are_right = cache.find(key, error is None)
    if not are_right:
        raise_error_on_all(None if error is None else ValueError(error))
    if pair is None:
        unique, inverse = torch.unique(ids.reshape(-1).to(n_id.device), return_inverse=True)
        row_map = RowMap.from_ranks(*owners_of(unique, n_id, 'ids'))
        assert row_map.recv_index is not None
        row_map = replace(row_map, recv_index=row_map.recv_index[inverse])
        pair = cache.keep(key, (n_id, row_map))  # with `n_id`, whose id() stays its own so
    return pair[1]


def _homes(n_id: Tensor) -> _Homes:
    """Makes this rank the home of its share of all ids (collective)."""
    cache: Agreed[_Homes] = cache_of('homes').setdefault(n_id, Agreed())
    return cache.get(version_of(n_id), lambda: _new_homes(n_id))


def _new_homes(n_id: Tensor) -> _Homes:
    num_ids = max(agree(int(n_id.max()) + 1 if n_id.numel() else 0))
    num_here = _first_id(rank() + 1, num_ids) - _first_id(rank(), num_ids)
    homes = _Homes(num_ids, n_id.new_full((num_here, 2), -1))
    home, place = homes.of(n_id)
    own = torch.arange(n_id.numel(), device=n_id.device)
    to_homes = RowMap.to_ranks(home)
    places, rows = to_homes.fetch(torch.stack([place, own], dim=1)).unbind(1)
    owner = torch.repeat_interleave(torch.tensor(to_homes.recv_counts, device=n_id.device))
    homes.owners[places] = torch.stack([owner, rows], dim=1)
    return homes


def _first_id(home: Any, num_ids: int) -> Any:
    """The first id of a home."""
    return -(-home * num_ids // world_size())


def owners_of(ids: Tensor, n_id: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The ranks that own nodes, and the nodes' rows there (collective: a few all-to-alls).

    Their ids in the whole graph, int64 ``[N]``, may differ from rank to rank; `n_id` are those of
    the own nodes. Raises ValueError on all ranks, if no rank owns an id; it calls them by `name`.
    """
    homes = _homes(n_id)
    is_right = (ids >= 0) & (ids < homes.num_ids)
    answers = ids.new_full((ids.numel(), 2), -1)
    answers[is_right] = RowMap.from_ranks(*homes.of(ids[is_right])).fetch(homes.owners)
    owner, row = answers.unbind(dim=1)

    def check() -> None:
        missing = ids[owner < 0]
        if missing.numel():
            text = f"'{name}' has {missing.min()}, which is no node's id in 'n_id' of any rank"
            raise ValueError(text)

    raise_on_all(check)
    return owner, row


def places_of(ids: Tensor, num_ids: int) -> Tensor:
    """The place of each id among the ids of all ranks in ascending order, int64 ``[N]``.

    The ids ``[N]`` are from 0 to `num_ids` - 1. Collective: three all-to-alls, and two small
    all-gathers.
    """
    to_homes = RowMap.to_ranks(ids * world_size() // max(num_ids, 1))
    here, places = torch.unique(to_homes.fetch(ids), return_inverse=True)
    num_before = sum(agree(here.numel())[: rank()])
    return to_homes.inverse(places + num_before)
