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
    from_right,
    named_rule,
    own_rows,
    rows_in,
    whole_shape,
)
from pyg_sar.rows.over_ranks import all_rows
from pyg_sar.rows.registry import name_of, rule
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag


@rule(
    'transpose t permute movedim moveaxis swapaxes swapdims adjoint unsqueeze '
    'transpose_copy t_copy permute_copy unsqueeze_copy .T .H .mT .mH'
)
def _move(func: Any, args: Any, kwargs: Any) -> Any:
    rows = args[0] if args else kwargs.get('input')
    rest = tuple(_hashable(arg) for arg in args[1:])
    named = tuple((key, _hashable(value)) for key, value in kwargs.items() if key != 'input')
    with plainly():
        dim = _moved_to(func, rows.dim(), rows._dim, rest, named)
        return tag(func(*args, **kwargs), dim, rows._space)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=4096)
def _moved_to(
    func: Callable[..., Tensor], num_dims: int, dim: int, args: Any, kwargs: tuple[Any, ...]
) -> int:
    """Where a dimension goes: that of a tensor without numbers whose sizes all differ."""
    probe = torch.empty([i + 2 for i in range(num_dims)], device='meta')
    return list(func(probe, *args, **dict(kwargs)).shape).index(dim + 2)


@rule('squeeze squeeze_copy')
def _squeeze(func: Any, args: Any, kwargs: Any) -> Any:
    """The dimension of the rows stays, as one own row is not all of them."""
    rows = args[0] if args else kwargs.get('input')
    shape = whole_shape(rows)
    named = argument(args, kwargs, 1, 'dim')
    dims = range(len(shape)) if named is None else dims_of(named, len(shape)) or []
    gone = [dim for dim in dims if shape[dim] == 1]
    if rows._dim in gone:
        refuse(func, 'of a whole of one row would drop the dimension of the rows')
    with plainly():
        dim = rows._dim - sum(dim < rows._dim for dim in gone)
        return tag(func(rows, tuple(gone)), dim, rows._space)


@named_rule('narrow narrow_copy')
def _narrow(func: Any, input: Rows, dim: int, start: int, length: int) -> Any:
    dim %= dim_of(input)
    if dim != input._dim:
        with plainly():
            return tag(func(plain(input), dim, start, length), input._dim, input._space)
    total = input._space.total
    begin = int(start) + (total if start < 0 else 0)
    if not 0 <= begin <= begin + length <= total:
        raise RuntimeError(f'narrow: {length} rows from {start} on, of {total}')
    some = slice(None) if length == total else slice(begin, begin + length)
    return input[(slice(None),) * dim + (some,)]


@named_rule('select select_copy')
def _select(func: Any, input: Rows, dim: int, index: int) -> Any:
    dim %= dim_of(input)
    if dim == input._dim:
        return input[(slice(None),) * dim + (index,)]
    with plainly():
        return tag(func(plain(input), dim, index), input._dim - (dim < input._dim), input._space)


@rule(
    'chunk split tensor_split split_with_sizes unsafe_chunk unsafe_split unsafe_split_with_sizes '
    'hsplit vsplit dsplit'
)
@rule('unbind unbind_copy', 'write x[3] for one row, or for row in pyg_sar.gather(x)')
def _pieces(func: Any, args: Any, kwargs: Any) -> Any:
    name = name_of(func)
    rows = argument(args, kwargs, 0, 'input', 'tensor')
    if not isinstance(rows, Rows):
        refuse(func, 'by places that are rows has no meaning')
    num_dims, unbinds = dim_of(rows), name.startswith('unbind')
    dim = argument(args, kwargs, 1 if unbinds else 2, 'dim', default=0) % num_dims
    if name in ('hsplit', 'vsplit', 'dsplit'):
        dim = {'hsplit': int(num_dims > 1), 'vsplit': 0, 'dsplit': 2}[name]
    if dim != rows._dim:
        right = from_right(rows) - (unbinds and dim > rows._dim)
        with plainly():
            return as_rows(func(*args, **kwargs), right, rows._space)
    if unbinds and num_dims == 1:  # numbers, as with tolist
        with plainly():
            return all_rows(rows).unbind(0)
    if unbinds:
        refuse(func, 'along the rows would give each of them to every rank')
    # Along the rows, as slices of all of them.
    named = {k: v for k, v in kwargs.items() if k not in ('input', 'tensor', 'dim')}
    cut = torch.tensor_split if name in ('hsplit', 'vsplit', 'dsplit') else getattr(torch, name)
    out = []
    for ids in cut(torch.arange(rows._space.total), *args[1:2], **named):
        first = int(ids[0]) if len(ids) else 0
        out.append(rows[(slice(None),) * dim + (slice(first, first + len(ids)),)])
    return tuple(out)


@named_rule('stack')
def _stack(func: Any, tensors: Any, dim: int = 0) -> Any:
    """Plain tensors among them have the rows of the whole."""
    first = rows_in(tensors)[0]
    at, space = first._dim, first._space
    shapes = [whole_shape(tensor) for tensor in tensors]
    if any(shape != shapes[0] for shape in shapes):
        raise RuntimeError(f'stack expects each tensor to be equal size, but got {shapes}')
    dim %= len(shapes[0]) + 1
    with plainly():
        own = [own_rows(func, tensor, at, space) for tensor in tensors]
        return tag(torch.stack(own, dim), at + (dim <= at), space)
