"""Values that are counted, looked up or compared with those of all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_sar.comm import agree, rank
from pyg_sar.rows.align import align, argument, as_rows, dim_of, found
from pyg_sar.rows.over_ranks import largest_of_ranks, sum_of_ranks
from pyg_sar.rows.registry import bare, name_of, rule
from pyg_sar.rows.replicated import met, own_draws
from pyg_sar.rows.rows import Rows, in_nested, plain, plainly, refuse, tag
from pyg_sar.rows.rules.numbers.pointwise import is_in_place


@rule('bucketize searchsorted isin')
def _looked_up(func: Any, args: Any, kwargs: Any) -> Any:
    """Rows among values that are the same for all of them."""
    name = name_of(func)
    place = 1 if name == 'searchsorted' else 0
    rows = argument(args, kwargs, place, 'elements' if name == 'isin' else 'input', 'self')
    values = argument(args, kwargs, 1 - place, *_LOOKED_UP_IN[name])
    is_a_list = not isinstance(values, Tensor) or dim_of(values) <= 1 or name == 'isin'
    if not isinstance(rows, Rows) or isinstance(values, Rows) or not is_a_list:
        refuse(func, 'takes rows and one list of values')
    if kwargs.get('out') is not None or isinstance(kwargs.get('sorter'), Rows):
        refuse(func)
    with plainly():
        return tag(func(*args, **kwargs), rows._dim, rows._space)


_LOOKED_UP_IN = {
    'bucketize': ('boundaries',),
    'searchsorted': ('sorted_sequence',),
    'isin': ('test_elements',),
}


@rule('bincount')
def _bincount(func: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs, _, _ = align(func, args, kwargs)
    values = argument(args, kwargs, 0, 'input', 'self')
    weights = argument(args, kwargs, 1, 'weights')
    least = argument(args, kwargs, 2, 'minlength', default=0)
    with plainly():
        values, weights = plain(values), plain(weights)
        size = max(least, *agree(int(values.max()) + 1 if values.numel() else 0))
        counts = torch.bincount(values, weights, size)
        if weights is not None and not values.numel():  # of none torch gives whole numbers
            counts = counts.to(weights.dtype if weights.dtype == torch.float32 else torch.float64)
        return sum_of_ranks(counts)


@rule('histc')
def _histc(func: Any, args: Any, kwargs: Any) -> Any:
    rows = argument(args, kwargs, 0, 'input', 'self')
    bins = argument(args, kwargs, 1, 'bins', default=100)
    low, high = (argument(args, kwargs, i, n, default=0) for i, n in ((2, 'min'), (3, 'max')))
    if not isinstance(rows, Rows) or kwargs.get('out') is not None:
        refuse(func)
    with plainly():
        values = plain(rows).detach()
        if low == high:
            dims = list(range(values.dim()))
            low, high = (
                largest_of_ranks(values, dims, keepdim=False, least=least).item()
                for least in (True, False)
            )
        if low == high:  # torch then widens the range itself
            low, high = low - 1, high + 1
        return sum_of_ranks(torch.histc(values, bins, low, high))


@rule('one_hot')
def _one_hot(func: Any, args: Any, kwargs: Any) -> Any:
    rows = argument(args, kwargs, 0, 'input', 'tensor')
    size = argument(args, kwargs, 1, 'num_classes', default=-1)
    with plainly():
        own = plain(rows)
        if size < 0:
            size = max(agree(int(own.max()) + 1 if own.numel() else 0))
        return tag(F.one_hot(own, size), rows._dim, rows._space)


@rule('unique _unique2 unique_dim')
def _unique(func: Any, args: Any, kwargs: Any) -> Any:
    """The values of all ranks, sorted; where each of the own ones is; how many there are."""
    rows, *rest = args
    names = ('sorted', 'return_inverse', 'return_counts', 'dim')
    given = dict(zip(names, rest, strict=False)) | kwargs
    if not isinstance(rows, Rows) or bare(name_of(func)) != 'unique':
        refuse(func, 'along a dimension needs all rows in one place')
    dim = given.get('dim')
    if dim is not None and (dim % dim_of(rows) != rows._dim or rows._dim):
        refuse(func, 'along a dimension beside the rows needs all rows in one place')
    with plainly():
        own, places, counts = torch.unique(
            plain(rows).detach(), return_inverse=True, return_counts=True, dim=dim
        )
        every = torch.cat([each.to(own.device) for each in agree(own)])
        values, at = torch.unique(every, return_inverse=True, dim=dim)
        first = sum(agree(own.size(0))[: rank()])
        at = at[first : first + own.size(0)]  # those of the own values
        out = [values]
        if given.get('return_inverse'):
            inverse = at[places] if own.numel() else places
            out.append(tag(inverse, rows._dim, rows._space))
        if given.get('return_counts'):
            total = counts.new_zeros(values.size(0)).index_add(0, at, counts)
            out.append(sum_of_ranks(total))
        return out[0] if len(out) == 1 else tuple(out)


@rule('equal allclose')
def _equal(func: Any, args: Any, kwargs: Any) -> Any:
    first, second = argument(args, kwargs, 0, 'input'), argument(args, kwargs, 1, 'other')
    if dim_of(first) != dim_of(second):
        refuse(func, 'and tensors of other dimensions is not known to be right')
    args, kwargs, _, _ = align(func, args, kwargs)
    with plainly():
        return all(agree(bool(func(*args, **kwargs))))


@rule('multinomial')
def _multinomial(func: Any, args: Any, kwargs: Any) -> Any:
    rows = argument(args, kwargs, 0, 'input', 'self')
    if not isinstance(rows, Rows) or rows._dim != 0 or dim_of(rows) != 2:
        refuse(func, 'of the rows of all ranks needs all rows in one place')
    if kwargs.get('out') is not None or kwargs.get('generator') is not None:
        refuse(func)
    with plainly(), own_draws(rows.device):
        return tag(func(*args, **kwargs), 0, rows._space)


@rule('tril triu')
def _triangle(func: Any, args: Any, kwargs: Any) -> Any:
    """A row knows its place in the whole."""
    name, rows = name_of(func), argument(args, kwargs, 0, 'input', 'self')
    diagonal = argument(args, kwargs, 1, 'diagonal', default=0)
    num_dims = dim_of(rows)
    if rows._dim < num_dims - 2:
        with plainly():
            out = func(*args, **kwargs)
            return tag(out, rows._dim, rows._space)
    if not rows._space.has_ids() or kwargs.get('out') is not None:
        refuse(func)
    with plainly():
        values = plain(rows)
        ids = rows._space.ids(values.device)
        others = [torch.arange(values.size(d), device=values.device) for d in (-2, -1)]
        others[rows._dim - num_dims + 2] = ids
        distance = others[1].unsqueeze(0) - others[0].unsqueeze(1)
        is_in = distance <= diagonal if bare(name) == 'tril' else distance >= diagonal
        if is_in_place(name):
            rows.masked_fill_(~is_in, 0)
            return rows
        return tag(torch.where(is_in, values, 0), rows._dim, rows._space)


@rule('gather take_along_dim')
def _gathered(func: Any, args: Any, kwargs: Any) -> Any:
    """Along a dimension that is not the rows': every row has its own places."""
    is_gather = name_of(func) == 'gather'
    rows = argument(args, kwargs, 0, 'input', 'self')
    index = argument(args, kwargs, 2 if is_gather else 1, 'index', 'indices')
    dim = argument(args, kwargs, 1 if is_gather else 2, 'dim')
    if dim is None or kwargs.get('out') is not None:
        refuse(func, 'of all numbers as one')
    num_dims = dim_of(rows)
    places = {each._dim for each in found((rows, index))}
    if dim_of(index) != num_dims or dim % num_dims in places:
        refuse(func, 'over the rows is not known to be right: use x[index]')
    if is_gather and any(
        not isinstance(each, Rows) and each.size(at) == 1 for each in (rows, index) for at in places
    ):
        refuse(func, 'of one row alone is not known to be right')
    (own, at), _, right, space = align(func, (rows, index), {})
    with plainly():
        return as_rows(func(plain(own), dim, at) if is_gather else func(own, at, dim), right, space)


@rule('pad constant_pad_nd')
def _pad(func: Any, args: Any, kwargs: Any) -> Any:
    """Beside the rows."""
    rows, sizes = argument(args, kwargs, 0, 'input'), argument(args, kwargs, 1, 'pad')
    if not isinstance(rows, Rows) or dim_of(rows) - 1 - rows._dim < len(sizes) // 2:
        refuse(func, 'over the rows of all ranks needs all rows in one place')
    with plainly():
        args, kwargs = in_nested((args, kwargs), lambda v: met(v) if type(v) is Tensor else v)
        return tag(func(*args, **kwargs), rows._dim, rows._space)
