"""Rows into groups: by the ends of edges, by a batch vector, by any numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.exchange import exchange_of
from pyg_sar.comm.rows_by_id import from_halo
from pyg_sar.rows.align import argument, dim_of, named_rule, own_rows, rows_in, whole_shape
from pyg_sar.rows.edges import NodeIds
from pyg_sar.rows.one_loss import for_rows, sum_of_ranks
from pyg_sar.rows.over_ranks import (
    fetched,
    largest_here,
    largest_of_ranks,
    whole,
    zeros_of,
)
from pyg_sar.rows.pointwise import into_plain, pointwise
from pyg_sar.rows.registry import bare_name, hint, name_of, rule
from pyg_sar.rows.replicated import PLAIN
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rowwise import of_all_rows
from pyg_sar.shard.shard import Shard
from pyg_sar.utils.nested import in_nested

_WAYS = {'add': 'sum', 'sum': 'sum', 'mean': 'mean', 'amax': 'amax', 'amin': 'amin'}

hint(
    'scatter_sum scatter_mean segment_sum_csr segment_mean_csr segment_min_csr segment_max_csr '
    'segment_sum_coo segment_mean_coo segment_min_coo segment_max_coo',
    "write torch_geometric.utils.scatter(x, index, dim=0, reduce='sum'), or 'mean', 'min', 'max', "
    'with the group of every row as index',
)
hint(
    'scatter_max scatter_min',
    "write top = torch_geometric.utils.scatter(x, index, dim=0, reduce='max'); a logsumexp is "
    'top + scatter((x - top[index]).exp(), index, dim=0).log()',
)
hint('gather_csr gather_coo', 'write table[index] with the group of every row as index')


@rule('scatter_add index_add scatter_reduce index_reduce scatter')
def _grouped(func: Any, args: Any, kwargs: Any) -> Any:
    name, in_place = bare_name(func), name_of(func).endswith('_')
    if kwargs.get('alpha', 1) != 1:  # of index_add
        source = argument(args, kwargs, 3, 'source') * kwargs['alpha']
        others = {key: value for key, value in kwargs.items() if key not in ('alpha', 'source')}
        return func(*args[:3], source=source, **others)
    out, dim = args[0], argument(args, kwargs, 1, 'dim') % dim_of(args[0])
    index = argument(args, kwargs, 2, 'index')
    values = argument(args, kwargs, 3, 'src', 'source', 'value')
    if all(rows._dim != dim for rows in rows_in((out, index, values))):  # each row within itself
        if isinstance(out, Rows):
            return _along_other(func, out, index, args, kwargs)
        if 'index' not in name:  # a plain tensor with a row for each of them
            return (into_plain if in_place else pointwise)(func, args, kwargs)
    reduce = 'sum' if name.endswith('_add') else argument(args, kwargs, 4, 'reduce')
    if reduce is None and dim_of(out) == 1 and name == 'scatter':
        if isinstance(values, Tensor) and values.shape != index.shape:
            refuse(func, 'with more values than ids is not known to be right')
        target = out if in_place else out.clone()
        target[index] = values
        return target
    way = _WAYS.get(reduce or '', '')
    if not way:
        return of_all_rows(func, None, args, kwargs)
    rows = rows_in((index, values))
    if isinstance(out, Rows) and (not rows or out._dim != dim):
        return _plain_into_rows(func, args, kwargs, dim)
    keeps = bool(argument(args, kwargs, 5, 'include_self', default=True))
    before = out.clone() if in_place else out  # what was there is kept for backward
    sharding, is_flat = rows[0]._sharding, 'index' in name
    at = own_rows(func, index, 0 if is_flat else dim, sharding)
    shaped = values if isinstance(values, Tensor) else torch.full_like(at, values)
    own = own_rows(func, shaped, dim, sharding)
    with plainly():
        if shaped.dtype != out.dtype:  # torch has an error for most of these
            one = [1] * out.dim()
            few = {id(v): v.new_zeros(one) for v in (out, values) if isinstance(v, Tensor)}
            few[id(index)] = index.new_zeros([1] if is_flat else one)
            few_args, few_kwargs = in_nested((args, kwargs), lambda arg: few.get(id(arg), arg))
            func(*few_args, **few_kwargs)
        groups = _GroupedValues(func, dim, _wide(at, own, dim) if is_flat else at, own)
        if isinstance(out, Rows):
            hint = index if isinstance(index, NodeIds) else None
            content: Any = _into_rows(func, before, hint, groups, way, keeps)
        else:
            content = groups.into(before, way, keeps)
        if in_place:
            return out.copy_(content)
        return tag(content, out._dim, out._sharding) if isinstance(out, Rows) else content


def _along_other(func: Any, out: Rows, index: Any, args: Any, kwargs: Any) -> Any:
    if 'index' not in name_of(func) or isinstance(index, Rows):
        return pointwise(func, args, kwargs)

    def own(value: Any) -> Any:
        if type(value) in PLAIN and value is not index and dim_of(value):
            return own_rows(func, value, out._dim, out._sharding)
        return plain(value)

    with plainly():
        args, kwargs = in_nested((args, kwargs), own)
        return tag(func(*args, **kwargs), out._dim, out._sharding)


def _plain_into_rows(func: Any, args: Any, kwargs: Any, dim: int) -> Any:
    """Plain numbers into rows: every rank has all of these, and keeps its own rows."""
    out: Rows = args[0]
    if out._dim != dim or not out._sharding.has_ids():
        refuse(func, f'into {out._sharding!r} by plain numbers is not known to be right')
    ids = out._sharding.ids(out.device)

    def of_all(value: Any) -> Any:
        if value is not out:
            return for_rows(value)
        before = plain(out).clone()  # kept for backward
        return before.new_zeros(whole_shape(out)).index_copy(dim, ids, before)

    with plainly():
        new = func(*in_nested(args, of_all), **in_nested(kwargs, of_all)).index_select(dim, ids)
        return out.copy_(new) if name_of(func).endswith('_') else tag(new, dim, out._sharding)


def _into_rows(
    func: Any, out: Rows, ids: NodeIds | None, groups: Any, way: str, keeps: bool
) -> Any:
    """Own rows of `out`, in which own values are grouped, by ids of nodes or by numbers."""
    dim, sharding, own = groups.dim, out._sharding, plain(out)
    shard = None if ids is None else ids.shard
    is_far = shard is not None and shard.world_size > 1
    if ids is None or ids.of is not sharding or (is_far and way not in ('sum', 'mean')):
        whole = groups.into(fetched(out, torch.arange(sharding.total)).movedim(0, dim), way, keeps)
        return for_rows(whole).index_select(dim, sharding.ids(whole.device))
    places = ids.local_index
    if places.dim() == 1 and groups.index.dim() > 1:
        places = _wide(places, groups.index, dim)
    if shard is not None and is_far:
        return _AtSources(func, dim, places, groups.values, shard).into(own, way, keeps)
    if way == 'sum' and keeps:
        return own.scatter_add(dim, places, groups.values)
    return own.scatter_reduce(dim, places, groups.values, way, include_self=keeps)


class _GroupedValues:
    """Own values with a group each, of groups that every rank has."""

    counts: torch.dtype | None = torch.int64

    def __init__(self, func: Any, dim: int, index: Tensor, values: Tensor) -> None:
        self.func, self.dim, self.index, self.values = func, dim, index, values

    def zeros(self, out: Tensor) -> Tensor:
        """A number for each group."""
        return torch.zeros_like(out, requires_grad=False)

    def added(self, values: Tensor, out: Tensor) -> Tensor:
        """The sums of all ranks."""
        zeros = self.zeros(out).to(values.dtype)
        return sum_of_ranks(zeros.scatter_add(self.dim, self.index, values))

    def into(self, out: Tensor, way: str, keeps: bool) -> Tensor:
        """The new content of `out`; groups without a value keep theirs."""
        if way == 'sum' and keeps:
            return out + self.added(self.values, out).to(out.dtype)
        count = self.added(torch.ones_like(self.values, dtype=self.counts), out)
        if way in ('sum', 'mean'):
            new = self.added(self.values, out)
            if way == 'mean':
                new, per = new + out * int(keeps), (count + int(keeps)).clamp(min=1)
                is_float = new.is_floating_point()
                new = new / per if is_float else new.div(per, rounding_mode='floor')
        else:
            new = self._top(out, way, keeps)
        return torch.where(count > 0, new.to(out.dtype), out)

    def _top(self, out: Tensor, way: str, keeps: bool) -> Tensor:
        """The largest or least value of every group, which `out` may belong to.

        Equal ones share a gradient evenly. As in torch `out` counts among them in any case, and the
        share of NaN, which equals nothing, is 0 / 0.
        """
        values, before = self.values.detach(), out.detach()
        worst = largest_here(values.reshape(-1)[:0], [0], least=way == 'amin')
        start = before if keeps else self.zeros(out) + worst
        local = start.scatter_reduce(self.dim, self.index, values, way)
        top = largest_of_ranks(local.unsqueeze(0), [0], keepdim=False, least=way == 'amin')
        if not (values.is_floating_point() and torch.is_grad_enabled()):
            return top
        is_top, is_before = values == top.gather(self.dim, self.index), before == top
        share = self.added(is_top.to(values.dtype), out) + is_before
        total = self.added(zeros_of(self.values) * is_top, out)
        total = total + zeros_of(out) * is_before if keeps else total
        return top + total / share if total.requires_grad else top


class _AtSources(_GroupedValues):
    """Groups by the sources of edges: the values of a node are summed at its owner."""

    counts = None  # of the type of the values, as they travel

    def __init__(self, func: Any, dim: int, index: Tensor, values: Tensor, shard: Shard) -> None:
        super().__init__(func, dim, index, values)
        self.shard, self.exchange = shard, exchange_of(shard)

    def zeros(self, out: Tensor) -> Tensor:
        shape = list(out.shape)
        shape[self.dim] = self.shard.num_own + self.shard.num_halo
        return self.values.new_zeros(shape)

    def added(self, values: Tensor, out: Tensor) -> Tensor:
        local = self.zeros(out).scatter_add(self.dim, self.index, values).movedim(self.dim, 0)
        return from_halo(local, self.exchange).movedim(0, self.dim)


def _wide(index: Tensor, values: Tensor, dim: int) -> Tensor:
    """A vector of groups for every number of some values."""
    shape = [1] * values.dim()
    shape[dim] = -1
    return index.view(shape).expand_as(values)


@named_rule('index_put')
def _index_put(func: Any, input: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """``table.index_put_((y, pred), ones, accumulate=True)`` is what rows add to a table."""
    out = input if name_of(func).endswith('_') else input.clone()
    if not accumulate:
        out[tuple(indices)] = values
        return out
    if isinstance(out, Rows) and len(indices) == 1 and not out._dim and dim_of(indices[0]) == 1:
        return out.index_add_(0, indices[0], values)
    rows = rows_in((*indices, values))
    if isinstance(out, Rows) or any(tensor._dim or dim_of(tensor) > 1 for tensor in rows):
        refuse(func, 'with accumulate is known for vectors of rows into a plain tensor')
    sharding = rows[0]._sharding

    def own(value: Tensor) -> Tensor:
        return own_rows(func, value, 0, sharding) if dim_of(value) else for_rows(value)

    with plainly():
        zeros = torch.zeros_like(out, requires_grad=False)
        sums = zeros.index_put(tuple(own(ids) for ids in indices), own(values), accumulate=True)
        return out.add_(sum_of_ranks(sums))


@rule('index_copy index_fill')
def _index_copy(func: Any, args: Any, kwargs: Any) -> Any:
    """Computed as ``out[index] = values``."""
    out = args[0] if name_of(func).endswith('_') else args[0].clone()
    dim = argument(args, kwargs, 1, 'dim') % dim_of(out)
    index = argument(args, kwargs, 2, 'index')
    if bare_name(func) == 'index_fill':  # a gradient of the value counts every place once
        index = whole(index).unique()
    out[(slice(None),) * dim + (index,)] = argument(args, kwargs, 3, 'source', 'value')
    return out
