"""Dimensions that are added, moved, taken away and cut: where the rows are then."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import (
    argument,
    as_rows,
    dim_of,
    dims_of,
    found,
    from_right,
    own_rows,
    whole_shape,
)
from pyg_sar.rows.registry import name_of, rule
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag


@rule(
    'transpose t permute movedim moveaxis swapaxes swapdims adjoint unsqueeze '
    'transpose_copy t_copy permute_copy unsqueeze_copy'
)
def _move(func: Any, args: Any, kwargs: Any) -> Any:
    rows = args[0] if args else kwargs.get('input')
    rest = tuple(_hashable(each) for each in args[1:])
    named = tuple((key, _hashable(each)) for key, each in kwargs.items() if key != 'input')
    with plainly():
        dim = _moved_to(func, rows.dim(), rows._dim, rest, named)
        return tag(func(*args, **kwargs), dim, rows._space)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=4096)
def _moved_to(
    func: Callable[..., Tensor], num_dims: int, dim: int, args: Any, kwargs: tuple[Any, ...]
) -> int:
    """Where a dimension goes, found with a tensor without numbers whose sizes all differ."""
    probe = torch.empty([i + 2 for i in range(num_dims)], device='meta')
    return list(func(probe, *args, **dict(kwargs)).shape).index(dim + 2)


@rule('squeeze squeeze_copy')
def _squeeze(func: Any, args: Any, kwargs: Any) -> Any:
    """The dimension of the rows stays, as one own row is not all of them."""
    rows = args[0] if args else kwargs.get('input')
    shape = whole_shape(rows)
    given = argument(args, kwargs, 1, 'dim')
    asked = list(range(len(shape))) if given is None else dims_of(given, len(shape)) or []
    gone = [dim for dim in asked if shape[dim] == 1]
    if rows._dim in gone:
        refuse(func, 'of a whole of one row would drop the dimension of the rows')
    with plainly():
        dim = rows._dim - sum(each < rows._dim for each in gone)
        return tag(func(rows, tuple(gone)), dim, rows._space)


@rule('atleast_1d atleast_2d atleast_3d')
def _atleast(func: Any, args: Any, kwargs: Any) -> Any:
    given = args[0] if len(args) == 1 else args
    if isinstance(given, Tensor):
        return _atleast_of(func, given)
    return tuple(_atleast_of(func, each) for each in given)


def _atleast_of(func: Any, tensor: Tensor) -> Any:
    with plainly():
        if not isinstance(tensor, Rows):
            return func(tensor)
        dim = _moved_to(func, tensor.dim(), tensor._dim, (), ())
        return tag(plain(func(plain(tensor))), dim, tensor._space)


@rule('narrow narrow_copy')
def _narrow(func: Any, args: Any, kwargs: Any) -> Any:
    rows = args[0] if args else kwargs.get('input')
    dim = argument(args, kwargs, 1, 'dim') % dim_of(rows)
    start, length = argument(args, kwargs, 2, 'start'), argument(args, kwargs, 3, 'length')
    if dim == rows._dim:
        begin = int(start) + (rows._space.total if start < 0 else 0)
        if not 0 <= begin <= begin + length <= rows._space.total:
            raise RuntimeError(f'narrow: {length} rows from {start} on, of {rows._space.total}')
        some = slice(None) if length == rows._space.total else slice(begin, begin + length)
        return rows[(slice(None),) * dim + (some,)]
    with plainly():
        return tag(func(plain(rows), dim, start, length), rows._dim, rows._space)


@rule('select select_copy')
def _select(func: Any, args: Any, kwargs: Any) -> Any:
    rows = args[0] if args else kwargs['input']
    dim = argument(args, kwargs, 1, 'dim') % dim_of(rows)
    index = argument(args, kwargs, 2, 'index')
    if dim == rows._dim:
        return rows[(slice(None),) * dim + (index,)]
    with plainly():
        return tag(func(plain(rows), dim, index), rows._dim - (dim < rows._dim), rows._space)


@rule(
    'chunk split tensor_split split_with_sizes unsafe_chunk unsafe_split unsafe_split_with_sizes '
    'hsplit vsplit dsplit unbind unbind_copy'
)
def _pieces(func: Any, args: Any, kwargs: Any) -> Any:
    name = name_of(func)
    rows = args[0] if args else kwargs.get('input', kwargs.get('tensor'))
    if not isinstance(rows, Rows):
        refuse(func, 'by places that are rows has no meaning')
    num_dims = dim_of(rows)
    given = argument(args, kwargs, 1 if name.startswith('unbind') else 2, 'dim', default=0)
    if name in ('hsplit', 'vsplit', 'dsplit'):
        given = {'hsplit': int(num_dims > 1), 'vsplit': 0, 'dsplit': 2}[name]
    dim = given % num_dims
    if dim == rows._dim:
        return _pieces_of_all(func, rows, args, kwargs)
    right = from_right(rows)
    if name.startswith('unbind') and dim > rows._dim:
        right -= 1
    with plainly():
        return as_rows(func(*args, **kwargs), right, rows._space)


def _pieces_of_all(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    """Along the rows, as slices of all of them."""
    if name_of(func).startswith('unbind'):
        refuse(func, 'along the rows would give each of them to every rank')
    places = torch.arange(rows._space.total)
    named = {k: v for k, v in kwargs.items() if k not in ('input', 'tensor', 'dim')}
    name = name_of(func)
    cut = torch.tensor_split if name in ('hsplit', 'vsplit', 'dsplit') else getattr(torch, name)
    before, out = (slice(None),) * rows._dim, []
    for each in cut(places, *args[1:2], **named):
        first = int(each[0]) if len(each) else 0
        place = [*before, slice(first, first + len(each))]
        out.append(rows[tuple(place)])
    return tuple(out)


@rule('unfold')
def _windows(func: Any, args: Any, kwargs: Any) -> Any:
    """Windows of a dimension, or, as a function of ``torch.nn``, of pictures."""
    rows = args[0] if args else kwargs['input']
    if func is torch.nn.functional.unfold:
        if rows._dim != 0 or dim_of(rows) != 4:
            refuse(func, 'over the rows of all ranks needs all rows in one place')
    elif argument(args, kwargs, 1, 'dimension') % dim_of(rows) == rows._dim:
        refuse(func, 'along the rows of all ranks needs all rows in one place')
    with plainly():
        return tag(func(*args, **kwargs), rows._dim, rows._space)


@rule('stack')
def _stack(func: Any, args: Any, kwargs: Any) -> Any:
    """Plain tensors among them have the rows of the whole."""
    if kwargs.get('out') is not None:
        refuse(func, "with 'out' is not known to be right")
    tensors = list(argument(args, kwargs, 0, 'tensors'))
    rows = found(tensors)
    at, space = rows[0]._dim, rows[0]._space
    new = argument(args, kwargs, 1, 'dim', default=0) % (dim_of(rows[0]) + 1)
    shapes = [whole_shape(each) for each in tensors]
    if any(each != shapes[0] for each in shapes):
        raise RuntimeError(f'stack expects each tensor to be equal size, but got {shapes}')
    with plainly():
        own = [own_rows(func, each, at, space) for each in tensors]
        return tag(torch.stack(own, new), at + (new <= at), space)
