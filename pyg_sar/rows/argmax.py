"""Functions that give places in the whole, such as that of the largest row of all ranks.

Of equal numbers the first in the order of the whole is taken, as one process on a CPU does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.collectives import all_gather_alike
from pyg_sar.comm.ranks import rank, world_size
from pyg_sar.comm.vote import agree
from pyg_sar.rows.align import argument, dim_of
from pyg_sar.rows.edges import node_ids
from pyg_sar.rows.over_ranks import all_rows, fetched, largest_here, sum_of_ranks, widened
from pyg_sar.rows.reduce import Reduction, by_place
from pyg_sar.rows.registry import name_of
from pyg_sar.rows.rows import Rows, plain, refuse, tag
from pyg_sar.rows.rowwise import dims_acted_on, needs_all_rows, not_empty, of_a_vector, over_rows
from pyg_sar.utils.nested import in_nested


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
        places = places * shape[dim] + torch.arange(shape[dim], device=rows.device).view(shape)
    return places


def _winner(over: Reduction) -> tuple[Tensor, Tensor]:
    """The first place of the largest number, and whether own ones are it; dimensions are kept."""
    values = over.values.detach()
    top = over.largest(values, least=over.name.endswith('min'), keepdim=True)
    places = _places(over.func, over.rows, over.dims)
    none = torch.iinfo(torch.int64).max
    own = torch.where((values == top) | values.isnan(), places, none)
    first = _gathered(largest_here(own, over.dims, least=True)).amin(0)
    return first, places.expand_as(values) == first


def _argmax(over: Reduction) -> Tensor:
    first, _ = _winner(over)
    return first if over.keepdim else first.squeeze(over.dims)


def _max_and_place(over: Reduction) -> Any:
    first, is_first = _winner(over)
    picked = torch.where(is_first, over.values, 0).sum(over.dims, keepdim=True)
    both = [sum_of_ranks(picked).to(over.values.dtype), first]
    if not over.keepdim:
        both = [tensor.squeeze(over.dims) for tensor in both]
    return getattr(torch.return_types, over.name)(both)


def _prod(over: Reduction) -> Tensor:
    """The product of the ranks' products, which are put side by side."""
    own = over.values.to(widened(over.values.dtype))
    for dim in sorted(over.dims, reverse=True):
        own = own.prod(dim, keepdim=over.keepdim)
    of_ranks = [own if i == rank() else torch.zeros_like(own) for i in range(world_size())]
    return sum_of_ranks(torch.stack(of_ranks)).prod(0)


def _of_all_rows(over: Reduction) -> Any:
    """Runs a reduction that needs numbers in order on all rows, gathered on every rank."""
    everything = all_rows(over.rows)
    args, kwargs = in_nested(over.arguments, lambda arg: everything if arg is over.rows else arg)
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
    # All ranks' candidates side by side: sorted by place, then by number, then padding last.
    best, ids = (torch.cat(list(_gathered(tensor)), dim) for tensor in (best, ids))
    for by, descending in ((0, False), (1, largest), (2, False)):
        key = (ids, best, (ids == total).byte())[by]
        order = torch.argsort(key, dim=dim, descending=descending, stable=True)
        best, ids = best.gather(dim, order), ids.gather(dim, order)
    ids = ids.narrow(dim, 0, k)
    own = rows._space.places(ids)
    there = not_empty(plain(rows), dim)
    picked = torch.where(own >= 0, there.gather(dim, own.clamp(min=0)), 0)
    return torch.return_types.topk((sum_of_ranks(picked).to(there.dtype), ids))


def _in_other_order(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    """Rows one after another, or from the last to the first: each rank gets its own ones."""
    name, space, dim = name_of(func), rows._space, rows._dim
    if [*dims_acted_on(func, dim_of(rows), args, kwargs)] != [dim]:
        needs_all_rows(func)
    places = torch.arange(space.total, device=rows.device)
    moved = places.roll(argument(args, kwargs, 1, 'shifts')) if name == 'roll' else places.flip(0)
    if not space.has_ids():
        refuse(func, f'is not known where the rows lie ({space!r})')
    return tag(fetched(rows, moved[space.ids(rows.device)]).movedim(0, dim), dim, space)


def _sorted(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    """Equal numbers stay where they are, as the ``batch`` of one graph; others are gathered."""
    name, space = name_of(func), rows._space
    if dim_of(rows) == 1 and space.has_ids() and _are_equal(rows):
        ids = space.ids(rows.device)
        places = torch.arange(space.own, device=rows.device)
        order = node_ids(ids.clone(), 0, space, space, places, None)
        values = tag(plain(rows).clone(), 0, space)
        return order if name == 'argsort' else torch.return_types.sort((values, order))
    return of_a_vector(func, rows, args, kwargs)


def _are_equal(rows: Rows) -> bool:
    own = plain(rows)
    first = own[:1].tolist() if bool((own == own[:1]).all()) else [None, None]
    firsts = [number for number in agree(first) if number]
    return all(number == firsts[0] and len(number) == 1 for number in firsts)


_IN_ORDER = ('median', 'nanmedian', 'quantile', 'nanquantile', 'kthvalue', 'mode')
by_place.update(argmax=_argmax, argmin=_argmax, max=_max_and_place, min=_max_and_place, prod=_prod)
by_place.update(dict.fromkeys(_IN_ORDER, _of_all_rows))
over_rows.update(topk=_topk, sort=_sorted, argsort=_sorted)
over_rows.update(roll=_in_other_order, flip=_in_other_order)
