"""Rows into groups: by the ends of edges, by a batch vector, by any numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.aggregate.halo import extreme_from_halo, from_halo, with_halo
from pyg_sar.comm import Exchange
from pyg_sar.rows.align import argument, dim_of, found, own_rows
from pyg_sar.rows.edges import NodeIds
from pyg_sar.rows.over_ranks import all_rows, fetched, largest_here, largest_of_ranks, sum_of_ranks
from pyg_sar.rows.registry import bare, name_of, rule
from pyg_sar.rows.replicated import met
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rules.numbers.pointwise import into_plain, pointwise
from pyg_sar.rows.space import Space

_PLAIN = (Tensor, torch.nn.Parameter)
_WAYS = {'add': 'sum', 'sum': 'sum', 'mean': 'mean', 'amax': 'amax', 'amin': 'amin', 'prod': 'prod'}


@rule('scatter_add index_add scatter_reduce index_reduce scatter index_copy index_fill index_put')
def _grouped(func: Any, args: Any, kwargs: Any) -> Any:
    name = bare(name_of(func))
    if name in ('index_copy', 'index_fill', 'index_put'):
        return _put(func, name, args, kwargs)
    out, dim = args[0], argument(args, kwargs, 1, 'dim')
    index = argument(args, kwargs, 2, 'index')
    values = argument(args, kwargs, 3, 'src', 'source', 'value')
    dim %= dim_of(out)
    if _is_along(out, index, values, dim):
        if isinstance(out, Rows):
            return _along_other(func, args, kwargs)
        if 'index' not in name:  # a plain tensor with a row for each of them
            is_in_place = name_of(func).endswith('_')
            return (into_plain if is_in_place else pointwise)(func, args, kwargs)
    given = {'index_add': 'sum', 'scatter_add': 'sum'}.get(name)
    way = _WAYS.get(given or argument(args, kwargs, 4, 'reduce', default=''), '')
    if not way or kwargs.get('alpha', 1) != 1:
        refuse(func, 'over the rows of all ranks is known for sums, means and extrema')
    keeps = bool(argument(args, kwargs, 5, 'include_self', default=True))
    in_place = name_of(func).endswith('_')
    before = out.clone() if in_place else out  # what was there is kept for backward
    made = _Groups(func, before, dim, index, values, 'index' in name).reduced(way, keeps=keeps)
    if not in_place:
        return made
    with plainly():
        return out.copy_(made)


def _is_along(out: Any, index: Any, values: Any, dim: int) -> bool:
    """Whether every row is grouped within itself."""
    return all(each._dim != dim for each in found((out, index, values)))


def _along_other(func: Any, args: Any, kwargs: Any) -> Any:
    out = args[0]
    index = argument(args, kwargs, 2, 'index')
    if 'index' in name_of(func) and not isinstance(index, Rows):
        space, place = out._space, out._dim

        def own(value: Any) -> Any:
            if type(value) in _PLAIN and value is not index and dim_of(value):
                return own_rows(func, value, place, space)
            return plain(value)

        with plainly():
            made = func(*(own(each) for each in args), **{k: own(v) for k, v in kwargs.items()})
            return tag(made, place, space)
    return pointwise(func, args, kwargs)


class _Groups:
    """Values with a group each, and what the groups have already."""

    def __init__(
        self, func: Any, out: Tensor, dim: int, index: Any, values: Any, is_flat: bool
    ) -> None:
        self.func, self.out, self.dim = func, out, dim
        rows = found((index, values))
        if not rows:
            # Plain values, equal on all ranks, into rows: each rank takes the groups that it has.
            self.is_replicated = True
            self.index, self.values, self.hint = plain(index), values, None
            return
        self.is_replicated = False
        space = rows[0]._space
        at = 0 if is_flat else dim
        self.hint = index if isinstance(index, NodeIds) else None
        self.index = self._own(index, at, space)
        shaped = values if isinstance(values, Tensor) else torch.full_like(self.index, values)
        self.values = self._own(shaped, dim, space)
        if is_flat:
            self.index = _wide(self.index, self.values, dim)

    def _own(self, value: Any, dim: int, space: Space) -> Tensor:
        return own_rows(self.func, value, dim, space)

    def reduced(self, way: str, *, keeps: bool) -> Tensor:
        """The groups of all ranks: rows if there are rows for them, else a plain tensor."""
        with plainly():
            made = self._reduced(way, keeps)
        if isinstance(self.out, Rows):
            return tag(made, self.out._dim, self.out._space)
        return made

    def _reduced(self, way: str, keeps: bool) -> Tensor:
        out = plain(self.out)
        if self.is_replicated or (isinstance(self.out, Rows) and self.out._dim != self.dim):
            refuse(self.func, 'into rows by plain numbers is not known to be right')
        if not isinstance(self.out, Rows):
            return self._into_whole(met(out), way, keeps)
        space = self.out._space
        hint = self.hint
        is_far = hint is not None and hint.shard is not None and hint.shard.world_size > 1
        if hint is None or hint.of is not space or (is_far and way not in ('sum', 'mean')):
            shape = list(out.shape)
            shape[self.dim] = space.total
            start = fetched(self.out, torch.arange(space.total)).movedim(0, self.dim)
            whole = self._into_whole(start, way, keeps)
            return whole.index_select(self.dim, space.ids(whole.device))
        places = _like(hint.places, self.index, self.dim)
        if not is_far:
            if way == 'sum' and keeps:
                return out.scatter_add(self.dim, places, self.values)
            return out.scatter_reduce(self.dim, places, self.values, way, include_self=keeps)
        return self._at_sources(out, places, way, keeps, hint.shard)

    def _at_sources(self, out: Tensor, places: Tensor, way: str, keeps: bool, shard: Any) -> Tensor:
        """Groups by the sources of edges: what is known of a node is brought to its owner."""
        shape = list(out.shape)
        shape[self.dim] = shard.num_own + shard.num_halo
        zeros = self.values.new_zeros(shape)
        exchange = Exchange(shard)

        def at_owner(values: Tensor) -> Tensor:
            local = zeros.scatter_add(self.dim, places, values).movedim(self.dim, 0)
            return from_halo(local, exchange).movedim(0, self.dim)

        if way == 'sum':
            total = at_owner(self.values)
            return out + total if keeps else total
        count = at_owner(torch.ones_like(self.values)) + float(keeps)
        if way == 'mean':
            return (at_owner(self.values) + out * float(keeps)) / count.clamp(min=1)
        if way not in ('amax', 'amin'):
            refuse(self.func, f'of kind {way!r} by the sources of edges is not known to be right')
        values, dim = self.values.detach(), self.dim
        start = zeros + largest_here(values.reshape(-1)[:0], [0], least=way == 'amin')
        local = start.scatter_reduce(dim, places, values, way).movedim(dim, 0)
        top = extreme_from_halo(local, exchange, way)
        if self.values.is_floating_point() and torch.is_grad_enabled():
            is_top = values == with_halo(top, exchange).movedim(0, dim).gather(dim, places)
            share = at_owner(is_top.to(values.dtype)).clamp(min=1)
            total = at_owner(torch.where(is_top, self.values, 0)) / share
            top = top.movedim(0, dim) + (total - total.detach())
        else:
            top = top.movedim(0, dim)
        if keeps:
            top = (torch.minimum if way == 'amin' else torch.maximum)(top, out)
        return torch.where(count > 0, top, out)

    def _into_whole(self, out: Tensor, way: str, keeps: bool) -> Tensor:
        """Into a plain tensor with all groups, on every rank."""
        zeros = torch.zeros_like(out, requires_grad=False)

        def over_ranks(values: Tensor) -> Tensor:
            return sum_of_ranks(zeros.to(values.dtype).scatter_add(self.dim, self.index, values))

        if way == 'sum' and keeps:
            return out + over_ranks(self.values).to(out.dtype)
        count = over_ranks(torch.ones_like(self.values, dtype=torch.int64))
        if way in ('sum', 'mean'):
            total = over_ranks(self.values)
            if way == 'mean':
                total = total + out * float(keeps)
                count = count + int(keeps)
                total = _divided(total, count.clamp(min=1))
            return torch.where(count > 0, total.to(out.dtype), out)
        if way not in ('amax', 'amin'):
            refuse(self.func, f'of kind {way!r} over all ranks is not known to be right')
        made = self._extreme(zeros, least=way == 'amin')
        if keeps:
            other = torch.minimum if way == 'amin' else torch.maximum
            return torch.where(count > 0, other(made, out), out)
        return torch.where(count > 0, made, out)

    def _extreme(self, zeros: Tensor, *, least: bool) -> Tensor:
        values = self.values.detach()
        start = zeros + largest_here(values.reshape(-1)[:0], [0], least=least)
        way = 'amin' if least else 'amax'
        local = start.scatter_reduce(self.dim, self.index, values, way)
        top = largest_of_ranks(local.unsqueeze(0), [0], keepdim=False, least=least)
        if not (self.values.is_floating_point() and torch.is_grad_enabled()):
            return top
        is_top = values == top.gather(self.dim, self.index)
        ones = is_top.to(values.dtype)
        share = sum_of_ranks(zeros.scatter_add(self.dim, self.index, ones)).clamp(min=1)
        chosen = torch.where(is_top, self.values, 0)
        total = sum_of_ranks(zeros.scatter_add(self.dim, self.index, chosen)) / share
        return top + (total - total.detach()) if total.requires_grad else top


def _divided(total: Tensor, count: Tensor) -> Tensor:
    if total.is_floating_point():
        return total / count
    return torch.div(total, count, rounding_mode='floor')


def _wide(index: Tensor, values: Tensor, dim: int) -> Tensor:
    """A vector of groups for every number of some values."""
    shape = [1] * values.dim()
    shape[dim] = -1
    return index.view(shape).expand_as(values)


def _like(places: Tensor, index: Tensor, dim: int) -> Tensor:
    return _wide(places, index, dim) if places.dim() == 1 and index.dim() > 1 else places


def _added_up(func: Any, out: Tensor, args: Any, kwargs: Any) -> Tensor:
    """``table.index_put_((y, pred), ones, accumulate=True)``: what rows add to a table."""
    index, values = argument(args, kwargs, 1, 'indices'), argument(args, kwargs, 2, 'values')
    rows = found((*index, values))
    if isinstance(out, Rows) or any(each._dim or dim_of(each) > 1 for each in rows):
        refuse(func, 'with accumulate is known for vectors of rows into a plain tensor')
    space = rows[0]._space

    def own(value: Tensor) -> Tensor:
        return own_rows(func, value, 0, space) if dim_of(value) else met(value)

    with plainly():
        zeros = torch.zeros_like(out, requires_grad=False)
        made = zeros.index_put(tuple(own(each) for each in index), own(values), accumulate=True)
        return out.add_(sum_of_ranks(made))


def _put(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """``index_put_``, ``index_copy_``, ``index_fill_``: as items are set."""
    out = args[0]
    if not name_of(func).endswith('_'):
        out = out.clone()
    if name == 'index_put':
        if argument(args, kwargs, 3, 'accumulate', default=False):
            return _added_up(func, out, args, kwargs)
        out[tuple(argument(args, kwargs, 1, 'indices'))] = argument(args, kwargs, 2, 'values')
        return out
    dim = argument(args, kwargs, 1, 'dim') % dim_of(out)
    index = argument(args, kwargs, 2, 'index')
    if name == 'index_fill':  # a gradient of the value counts every place once
        index = (all_rows(index) if isinstance(index, Rows) else index).unique()
    out[(slice(None),) * dim + (index,)] = argument(args, kwargs, 3, 'source', 'value')
    return out
