"""Which row is the largest of all ranks', and others that tell places in the whole.

Of equal numbers the first in the order of the whole is taken, as one process on a CPU does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm import all_gather_alike, rank, world_size
from pyg_sar.rows.align import argument, dim_of
from pyg_sar.rows.over_ranks import all_rows, largest_of_ranks, sum_of_ranks
from pyg_sar.rows.rows import Rows, in_nested, plain, refuse
from pyg_sar.rows.rules.numbers.along import over_rows
from pyg_sar.rows.rules.numbers.reduce import by_place


def _gathered(values: Tensor) -> Tensor:
    return all_gather_alike(values.contiguous()) if world_size() > 1 else values.unsqueeze(0)


def _ids(func: Any, rows: Rows) -> Tensor:
    space = rows._space
    if not space.has_ids():
        refuse(func, f'tells places in the whole, which are not known ({space!r})')
    shape = [1] * dim_of(rows)
    shape[rows._dim] = space.own
    return space.ids(rows.device).view(shape)


def _places(func: Any, rows: Rows, dims: list[int]) -> Tensor:
    """The place in the whole of every own number along `dims`."""
    places = torch.zeros((), dtype=torch.int64, device=rows.device)
    for dim in dims:
        if dim == rows._dim:
            places = places * rows._space.total + _ids(func, rows)
            continue
        shape = [1] * dim_of(rows)
        shape[dim] = plain(rows).size(dim)
        steps = torch.arange(shape[dim], device=rows.device).view(shape)
        places = places * shape[dim] + steps
    return places


def _winner(over: Any, *, least: bool) -> tuple[Tensor, Tensor]:
    """The first place of the largest number, and whether own ones are it; dimensions are kept."""
    over.check_not_empty()
    values = over.values.detach()
    is_nan = (
        values.isnan() if values.is_floating_point() else torch.zeros_like(values, dtype=torch.bool)
    )
    top = largest_of_ranks(values, over.dims, keepdim=True, least=least)
    places = _places(over.func, over.rows, over.dims)
    none = torch.iinfo(torch.int64).max
    own = torch.where((values == top) | is_nan, places, none)
    first = own.amin(over.dims, keepdim=True) if own.numel() else _full(own, over.dims, none)
    first = _gathered(first).amin(0)
    return first, places.expand_as(values) == first


def _full(like: Tensor, dims: list[int], number: int) -> Tensor:
    shape = [1 if i in dims else size for i, size in enumerate(like.shape)]
    return like.new_full(shape, number)


def _argmax(over: Any) -> Tensor:
    first, _ = _winner(over, least=over.name == 'argmin')
    return first if over.keepdim else first.squeeze(over.dims)


def _max_and_place(over: Any) -> Any:
    first, is_first = _winner(over, least=over.name == 'min')
    values = over.values
    if values.dtype == torch.bool:
        total = sum_of_ranks((values & is_first).sum(over.dims, keepdim=True)) > 0
    else:
        total = sum_of_ranks(torch.where(is_first, values, 0).sum(over.dims, keepdim=True))
        total = total.to(values.dtype)
    if not over.keepdim:
        total, first = total.squeeze(over.dims), first.squeeze(over.dims)
    return getattr(torch.return_types, over.name)((total, first))


def _prod(over: Any) -> Tensor:
    """The product of the ranks' products, which are put side by side."""
    values = over.values
    own = values
    for dim in sorted(over.dims, reverse=True):
        own = own.prod(dim, keepdim=True)
    own = own if over.keepdim else own.squeeze(over.dims)
    of_ranks = [own if i == rank() else torch.zeros_like(own) for i in range(world_size())]
    return sum_of_ranks(torch.stack(of_ranks)).prod(0)


def _of_all_rows(over: Any) -> Any:
    """Of numbers in order: every rank has all rows for it."""
    everything = all_rows(over.rows)
    args, kwargs = in_nested(
        (over.args, over.kwargs), lambda each: everything if each is over.rows else each
    )
    return over.func(*args, **kwargs)


def _topk(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    """The largest of the largest of every rank."""
    k = argument(args, kwargs, 1, 'k')
    largest = argument(args, kwargs, 3, 'largest', default=True)
    values, dim, total = plain(rows).detach(), rows._dim, rows._space.total
    if k > total:
        raise RuntimeError(f'selected index k out of range (k = {k}, {total} rows)')
    num_own = min(k, rows._space.own)
    best, at = values.topk(num_own, dim, largest)
    ids = _ids(func, rows).expand_as(values).gather(dim, at)
    missing = list(values.shape)
    missing[dim] = k - num_own
    best = torch.cat([best, best.new_zeros(missing)], dim)
    ids = torch.cat([ids, ids.new_full(missing, total)], dim)
    # All ranks' candidates side by side; first by place, then by number, those that are none last.
    best, ids = (torch.cat(list(_gathered(each)), dim) for each in (best, ids))
    for by, descending in ((0, False), (1, largest), (2, False)):
        key = (ids, best, (ids == total).byte())[by]
        order = torch.argsort(key, dim=dim, descending=descending, stable=True)
        best, ids = best.gather(dim, order), ids.gather(dim, order)
    ids = ids.narrow(dim, 0, k)
    own = rows._space.places(ids)
    there = plain(rows)
    if not rows._space.own:  # one row of zeros has the history of those that there are not
        shape = [1 if i == dim else n for i, n in enumerate(there.shape)]
        there = torch.cat([there, there.new_zeros(shape)], dim)
    picked = torch.where(own >= 0, there.gather(dim, own.clamp(min=0)), 0)
    found = sum_of_ranks(picked).to(there.dtype)
    return torch.return_types.topk((found, ids))


by_place.update(
    argmax=_argmax,
    argmin=_argmax,
    max=_max_and_place,
    min=_max_and_place,
    prod=_prod,
    median=_of_all_rows,
    nanmedian=_of_all_rows,
    quantile=_of_all_rows,
    nanquantile=_of_all_rows,
    kthvalue=_of_all_rows,
    mode=_of_all_rows,
)
over_rows['topk'] = _topk
