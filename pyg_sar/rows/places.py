"""Functions that count, compare or order the rows of all ranks, or give their places in the whole.

Of equal numbers the first in the order of the whole is taken, as one process on a CPU does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_sar.comm.collectives import all_gather_alike, all_to_all
from pyg_sar.comm.vote import agree
from pyg_sar.rows.align import align, argument, dim_of, named_rule, rows_in, whole_shape
from pyg_sar.rows.edges import node_ids
from pyg_sar.rows.one_loss import for_rows, sum_of_ranks, widened
from pyg_sar.rows.over_ranks import (
    fetched,
    largest_here,
    largest_of_ranks,
    on_all_rows,
)
from pyg_sar.rows.reduce import Reduction, by_place
from pyg_sar.rows.registry import bare_name, name_of, rule
from pyg_sar.rows.replicated import note_table
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rowwise import (
    dims_acted_on,
    of_all_rows,
    over_rows,
    rowwise,
)


@rule('bucketize searchsorted isin')
def _looked_up(func: Any, args: Any, kwargs: Any) -> Any:
    """Rows among values that are the same for all of them."""
    name = name_of(func)
    asks = argument(args, kwargs, int(name == 'searchsorted'), 'input', 'elements', 'self')
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    is_a_list = name == 'isin' or all(dim_of(arg) <= 1 for arg in tensors if arg is not asks)
    if not isinstance(asks, Rows) or len(rows_in(tensors)) > 1 or not is_a_list:
        refuse(func, 'takes rows and one list of values')
    with plainly():
        return tag(func(*args, **kwargs), asks._dim, asks._sharding)


@named_rule('bincount')
def _bincount(func: Any, input: Any, weights: Any = None, minlength: int = 0) -> Any:
    (values, weights), _, _, _ = align(func, (input, weights), {})
    with plainly():
        values, weights = plain(values), plain(weights)
        size = max(minlength, *agree(int(values.max()) + 1 if values.numel() else 0))
        counts = torch.bincount(values, weights, size)
        if weights is not None and not values.numel():  # of none torch gives whole numbers
            counts = counts.to(weights.dtype if weights.dtype == torch.float32 else torch.float64)
        return sum_of_ranks(counts)


@named_rule('histc')
def _histc(func: Any, input: Rows, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    with plainly():
        values = plain(input).detach()
        if min == max:
            dims = list(range(values.dim()))
            min, max = (
                largest_of_ranks(values, dims, keepdim=False, least=least).item()
                for least in (True, False)
            )
        if min == max:  # torch then widens the range itself
            min, max = min - 1, max + 1
        return sum_of_ranks(torch.histc(values, bins, min, max))


@named_rule('one_hot')
def _one_hot(func: Any, input: Rows, num_classes: int = -1) -> Any:
    with plainly():
        own = plain(input)
        if num_classes < 0:
            num_classes = max(agree(int(own.max()) + 1 if own.numel() else 0))
        return tag(F.one_hot(own, num_classes), input._dim, input._sharding)


@rule('unique unique_dim')
def _unique(func: Any, args: Any, kwargs: Any) -> Any:
    """The values of all ranks, sorted; where each of the own ones is; how many there are."""
    names = ('input', 'sorted', 'return_inverse', 'return_counts', 'dim')
    named = dict(zip(names, args, strict=False)) | kwargs
    rows, dim = named['input'], named.get('dim')
    is_over_rows = dim is None or (dim % dim_of(rows) == rows._dim == 0)
    if bare_name(func) != 'unique' or not is_over_rows:
        return on_all_rows(func, *args, **kwargs)
    with plainly():
        own, places, counts = torch.unique(
            plain(rows).detach(), return_inverse=True, return_counts=True, dim=dim
        )
        sizes = agree(own.size(0))
        every = all_to_all(torch.cat([own] * len(sizes)), [own.size(0)] * len(sizes), sizes)
        first = sum(sizes[: rows._sharding.comm.rank])
        values, at = torch.unique(every, return_inverse=True, dim=dim)
        at = at[first : first + own.size(0)]  # those of the own values
        out = [values]
        if named.get('return_inverse'):
            out.append(tag(at[places] if own.numel() else places, rows._dim, rows._sharding))
        if named.get('return_counts'):
            out.append(sum_of_ranks(counts.new_zeros(values.size(0)).index_add(0, at, counts)))
        return out[0] if len(out) == 1 else tuple(out)


@rule('equal allclose')
def _equal(func: Any, args: Any, kwargs: Any) -> Any:
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    if name_of(func) == 'equal' and whole_shape(tensors[0]) != whole_shape(tensors[1]):
        return False
    if len({dim_of(tensor) for tensor in tensors}) > 1:
        refuse(func, 'and tensors of other dimensions is not known to be right')
    args, kwargs, _, _ = align(func, args, kwargs)
    with plainly():
        return all(agree(bool(func(*args, **kwargs))))


@named_rule('gather')
def _gather(func: Any, input: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    """Along a dimension that is not the rows': every row has its own places."""
    num_dims = dim_of(input)
    dim, places = dim % num_dims, {tensor._dim for tensor in rows_in((input, index))}
    if dim_of(index) != num_dims or dim in places:
        if dim_of(index) == num_dims and places == {dim}:
            return _by_places(func, input, index, dim)
        refuse(func, _BY_PLACES, _ONE_PLACE)
    plain_ones = [tensor for tensor in (input, index) if not isinstance(tensor, Rows)]
    if any(tensor.size(at) == 1 for tensor in plain_ones for at in places):
        refuse(func, 'of one row alone is not known to be right')
    return rowwise(func, (input, dim, index), {}, [dim], pads=False)


_BY_PLACES = 'over the rows by several places in a row is not known to be right'
_ONE_PLACE = 'write x[index], with one place for a row'


def _by_places(func: Any, values: Any, index: Any, dim: int) -> Any:
    """``table.gather(0, ids)`` of a plain table, or of rows by one place for a whole row."""
    with plainly():
        if not isinstance(values, Rows):
            note_table(func, values, lambda places: places.gather(dim, plain(index)))
            out = for_rows(values).gather(dim, plain(index))
            return tag(out, dim, index._sharding)
        others = [i for i in range(index.dim()) if i != dim]
        is_one = not any(index.stride(i) and index.size(i) != 1 for i in others)
        if not is_one or any(index.size(i) != values.size(i) for i in others):
            return on_all_rows(func, values, dim, index)
    place = index[tuple(0 if i in others else slice(None) for i in range(dim_of(index)))]
    return values[(slice(None),) * dim + (place,)]


def _ids(func: Any, rows: Rows) -> Tensor:
    sharding = rows._sharding
    if not sharding.has_ids():
        refuse(func, f'tells places in the whole, which are not known ({sharding!r})')
    shape = [1] * dim_of(rows)
    shape[rows._dim] = sharding.own
    return sharding.ids(rows.device).view(shape)


def _places(func: Any, rows: Rows, dims: list[int]) -> Tensor:
    """The place in the whole of every own number along `dims`."""
    places = torch.zeros((), dtype=torch.int64, device=rows.device)
    for dim in dims:
        if dim == rows._dim:
            places = places * rows._sharding.total + _ids(func, rows)
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
    first = all_gather_alike(largest_here(own, over.dims, least=True)).amin(0)
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
    comm = over.rows._sharding.comm
    of_ranks = [own if i == comm.rank else torch.zeros_like(own) for i in range(comm.size)]
    return sum_of_ranks(torch.stack(of_ranks)).prod(0)


def _in_order(over: Reduction) -> Any:
    """A reduction that needs numbers in order."""
    return on_all_rows(over.func, *over.arguments[0], **over.arguments[1])


def _in_other_order(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    """Rows one after another, or from the last to the first: each rank gets its own ones."""
    name, sharding, dim = name_of(func), rows._sharding, rows._dim
    if [*dims_acted_on(func, dim_of(rows), args, kwargs)] != [dim]:
        return on_all_rows(func, *args, **kwargs)
    places = torch.arange(sharding.total, device=rows.device)
    moved = places.roll(argument(args, kwargs, 1, 'shifts')) if name == 'roll' else places.flip(0)
    if not sharding.has_ids():
        refuse(func, f'is not known where the rows lie ({sharding!r})')
    own = fetched(rows, moved[sharding.ids(rows.device)], are_rows=True)
    return tag(own.movedim(0, dim), dim, sharding)


def _sorted(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    """Equal numbers stay where they are, as the ``batch`` of one graph; others are gathered."""
    name, sharding = name_of(func), rows._sharding
    if dim_of(rows) == 1 and sharding.has_ids() and _are_equal(rows):
        ids = sharding.ids(rows.device)
        places = torch.arange(sharding.own, device=rows.device)
        order = node_ids(ids.clone(), 0, sharding, sharding, places, None)
        values = tag(plain(rows).clone(), 0, sharding)
        return order if name == 'argsort' else torch.return_types.sort((values, order))
    return of_all_rows(func, rows, args, kwargs)


def _are_equal(rows: Rows) -> bool:
    own = plain(rows)
    first = own[:1].tolist() if bool((own == own[:1]).all()) else [None, None]
    firsts = [number for number in agree(first) if number]
    return all(number == firsts[0] and len(number) == 1 for number in firsts)


_IN_ORDER = ('median', 'nanmedian', 'quantile', 'nanquantile', 'kthvalue', 'mode')
by_place.update(argmax=_argmax, argmin=_argmax, max=_max_and_place, min=_max_and_place, prod=_prod)
by_place.update(dict.fromkeys(_IN_ORDER, _in_order))
over_rows.update(sort=_sorted, argsort=_sorted)
over_rows.update(roll=_in_other_order, flip=_in_other_order)
