"""Values that are counted, looked up or compared with those of all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_sar.comm.collectives import all_to_all
from pyg_sar.comm.ranks import rank
from pyg_sar.comm.vote import agree
from pyg_sar.rows.align import align, argument, dim_of, named_rule, rows_in
from pyg_sar.rows.over_ranks import largest_of_ranks, sum_of_ranks
from pyg_sar.rows.registry import bare_name, name_of, rule
from pyg_sar.rows.replicated import with_mean_gradient
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rowwise import rowwise


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
        return tag(func(*args, **kwargs), asks._dim, asks._space)


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
        return tag(F.one_hot(own, num_classes), input._dim, input._space)


@rule('unique unique_dim')
def _unique(func: Any, args: Any, kwargs: Any) -> Any:
    """The values of all ranks, sorted; where each of the own ones is; how many there are."""
    names = ('input', 'sorted', 'return_inverse', 'return_counts', 'dim')
    named = dict(zip(names, args, strict=False)) | kwargs
    rows, dim = named['input'], named.get('dim')
    if not isinstance(rows, Rows) or bare_name(func) != 'unique':
        refuse(func, 'along a dimension needs all rows in one place')
    if dim is not None and (dim % dim_of(rows) != rows._dim or rows._dim):
        refuse(func, 'along a dimension beside the rows needs all rows in one place')
    with plainly():
        own, places, counts = torch.unique(
            plain(rows).detach(), return_inverse=True, return_counts=True, dim=dim
        )
        sizes = agree(own.size(0))
        every = all_to_all(torch.cat([own] * len(sizes)), [own.size(0)] * len(sizes), sizes)
        first = sum(sizes[: rank()])
        values, at = torch.unique(every, return_inverse=True, dim=dim)
        at = at[first : first + own.size(0)]  # those of the own values
        out = [values]
        if named.get('return_inverse'):
            out.append(tag(at[places] if own.numel() else places, rows._dim, rows._space))
        if named.get('return_counts'):
            out.append(sum_of_ranks(counts.new_zeros(values.size(0)).index_add(0, at, counts)))
        return out[0] if len(out) == 1 else tuple(out)


@rule('equal allclose')
def _equal(func: Any, args: Any, kwargs: Any) -> Any:
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    if len({dim_of(tensor) for tensor in tensors}) > 1:
        refuse(func, 'and tensors of other dimensions is not known to be right')
    args, kwargs, _, _ = align(func, args, kwargs)
    with plainly():
        return all(agree(bool(func(*args, **kwargs))))


@rule('gather take_along_dim')
def _gathered(func: Any, args: Any, kwargs: Any) -> Any:
    """Along a dimension that is not the rows': every row has its own places."""
    is_gather = name_of(func) == 'gather'
    values, dim = argument(args, kwargs, 0, 'input'), argument(args, kwargs, 2 - is_gather, 'dim')
    index = argument(args, kwargs, 1 + is_gather, 'index', 'indices')
    if dim is None:
        refuse(func, 'of all numbers as one')
    num_dims = dim_of(values)
    places = {tensor._dim for tensor in rows_in((values, index))}
    if dim_of(index) != num_dims or dim % num_dims in places:
        if is_gather and dim_of(index) == num_dims and places == {dim % num_dims}:
            return _by_places(func, values, index, dim % num_dims)
        refuse(func, _BY_PLACES, _ONE_PLACE)
    if is_gather and any(
        not isinstance(tensor, Rows) and tensor.size(at) == 1
        for tensor in (values, index)
        for at in places
    ):
        refuse(func, 'of one row alone is not known to be right')
    return rowwise(func, args, kwargs, [dim % num_dims], pads=False)


_BY_PLACES = 'over the rows by several places in a row is not known to be right'
_ONE_PLACE = 'write x[index], with one place for a row'


def _by_places(func: Any, values: Any, index: Any, dim: int) -> Any:
    """``table.gather(0, ids)`` of a plain table, or of rows by one place for a whole row."""
    with plainly():
        if not isinstance(values, Rows):
            out = with_mean_gradient(values).gather(dim, plain(index))
            return tag(out, dim, index._space)
        others = [i for i in range(index.dim()) if i != dim]
        if any(index.stride(i) and index.size(i) != 1 for i in others):
            refuse(func, _BY_PLACES, _ONE_PLACE)
        if any(index.size(i) != values.size(i) for i in others):
            refuse(func, _BY_PLACES, _ONE_PLACE)
    place = index[tuple(0 if i in others else slice(None) for i in range(dim_of(index)))]
    return values[(slice(None),) * dim + (place,)]


@rule(
    'pad constant_pad_nd',
    'add the node to the graph before the cut, as by torch_geometric.transforms.VirtualNode; pad '
    'other dimensions by F.pad',
)
def _pad(func: Any, args: Any, kwargs: Any) -> Any:
    """In other dimensions than that of the rows."""
    num_dims = dim_of(argument(args, kwargs, 0, 'input'))
    first = num_dims - len(argument(args, kwargs, 1, 'pad')) // 2
    return rowwise(func, args, kwargs, range(first, num_dims))
