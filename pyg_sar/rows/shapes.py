"""Other shapes of the same numbers, of repeated ones and of new ones: sizes are of the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import (
    align,
    argument,
    as_rows,
    dim_of,
    from_right,
    named_rule,
    rows_in,
    sizes_in,
    whole_shape,
)
from pyg_sar.rows.over_ranks import on_all_rows
from pyg_sar.rows.registry import name_of, rule
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.sharding import Sharding, ids_of_repeated


@rule('view reshape view_as reshape_as flatten unflatten ravel')
def _reshape(func: Any, args: Any, kwargs: Any) -> Any:
    name = name_of(func)
    rows = args[0] if args else kwargs.get('input')
    dtype = kwargs.get('dtype', args[1] if len(args) > 1 else None)
    if isinstance(dtype, torch.dtype):
        return _of_dtype(func, rows, dtype)
    if name in ('view', 'reshape'):
        sizes = args[1:] if len(args) > 2 else sizes_in(args[1:], kwargs, 'size', 'shape')
    else:
        sizes = _sizes(name, rows, args, kwargs)
    if not isinstance(rows, Rows):  # plain.view_as(rows)
        with plainly():
            return rows.view(sizes) if name == 'view_as' else rows.reshape(sizes)
    with plainly():
        fit = reshaped(rows, sizes)
        if fit is None:  # would split rows, or mix them with what is before them
            return on_all_rows(Tensor.reshape, rows, [int(size) for size in sizes])
        shape, dim, sharding = fit
        own = Tensor.as_subclass(rows, Tensor)
        out = own.view(shape) if name in ('view', 'view_as') else own.reshape(shape)
        return tag(out, dim, sharding)


def _sizes(name: str, rows: Tensor, args: Any, kwargs: Any) -> list[Any]:
    if name in ('view_as', 'reshape_as'):
        return list(whole_shape(argument(args, kwargs, 1, 'other')))
    shape = whole_shape(rows)
    if name == 'ravel':
        return [math.prod(shape)]
    if name == 'flatten':
        first = argument(args, kwargs, 1, 'start_dim', default=0)
        last = argument(args, kwargs, 2, 'end_dim', default=-1)
        first, last = (_wrapped(dim, len(shape)) for dim in (first, last))
        if first > last:
            raise RuntimeError('flatten() has invalid args: start_dim cannot come after end_dim')
        return [*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]]
    dim = _wrapped(argument(args, kwargs, 1, 'dim'), len(shape))
    parts = list(argument(args, kwargs, 2, 'sizes'))
    rest = math.prod(part for part in parts if part != -1)
    parts = [shape[dim] // max(rest, 1) if part == -1 else part for part in parts]
    if math.prod(parts) != shape[dim]:
        raise RuntimeError(f"unflatten: {parts} don't multiply up to {shape[dim]}")
    return [*shape[:dim], *parts, *shape[dim + 1 :]]


def _wrapped(dim: int, num_dims: int) -> int:
    if not -num_dims <= dim < num_dims:
        raise IndexError(f'Dimension out of range (got {dim} of {num_dims})')
    return dim % num_dims


def _of_dtype(func: Any, rows: Rows, dtype: torch.dtype) -> Any:
    """Numbers of another width are more or fewer in the last dimension."""
    with plainly():
        if rows._dim == rows.dim() - 1 and dtype.itemsize != rows.dtype.itemsize:
            refuse(func, 'with numbers of another width would be other rows')
        return tag(plain(rows).view(dtype), rows._dim, rows._sharding)


def reshaped(rows: Rows, sizes: Sequence[Any]) -> tuple[list[int], int, Sharding] | None:
    """The shape with own rows, where they are and whose, for the sizes of the whole, or None.

    Called where rows are plain. One of the sizes may be -1; if they do not fit, that is an error as
    torch has it. Numbers lie in the order of the dimensions. So rows can take what is in them
    along: of ``[N, 8]`` the shape ``[N * 2, 4]`` has every row twice as two rows, next to each
    other on the same rank; the sharding knows the way back. Rows are not split, or merged with what
    is before them: those lie apart.
    """
    old, sharding = [*rows.size()], rows._sharding
    old[rows._dim] = sharding.total
    new, numbers = [int(size) for size in sizes], math.prod(old)
    rest = math.prod(size for size in new if size != -1)
    if new.count(-1) == 1 and rest and numbers % rest == 0:
        new[new.index(-1)] = numbers // rest
    if -1 in new or math.prod(new) != numbers:
        raise RuntimeError(f"shape '{new}' is invalid for input of size {numbers}")
    base, repeats = sharding.found_by(ids_of_repeated) or (sharding, 1)
    # As many numbers of every row of `base` lie in the rows as in what takes them up.
    per_base = repeats * math.prod(old[rows._dim + 1 :])
    fits: list[tuple[bool, int, int, int]] = []
    for dim, size in enumerate(new):
        after = math.prod(new[dim + 1 :])
        is_known = after or base.total  # else nothing is in the rows, and there are none
        count = (per_base // after if after else size // base.total) if is_known else repeats
        if size == base.total * count and count * after == per_base:
            fits.append((count != repeats, count, abs(dim - rows._dim), dim))
    if not fits:
        return None
    _, count, _, dim = min(fits)  # of a whole of one row several fit
    new_sharding = base.times(count)
    new[dim] = new_sharding.own
    return new, dim, new_sharding


@rule('expand broadcast_to expand_as')
def _expand(func: Any, args: Any, kwargs: Any) -> Any:
    x = args[0] if args else kwargs['input']
    other = argument(args, kwargs, 1, 'other') if name_of(func) == 'expand_as' else None
    if not isinstance(x, Rows):  # plain.expand_as(rows)
        assert other is not None
        (own, like), _, right, sharding = align(func, (x, other), {})
        with plainly():
            return as_rows(own.expand_as(like), right, sharding)
    named = {key: value for key, value in kwargs.items() if key != 'implicit'}
    sizes = sizes_in(args[1:], named, 'size') if other is None else whole_shape(other)
    dim = len(sizes) - from_right(x)
    if dim < 0:
        raise RuntimeError(f"expand: {sizes} has fewer dimensions than the tensor's {dim_of(x)}")
    if sizes[dim] not in (-1, x._sharding.total):
        refuse(func, f'to {sizes[dim]} rows has no meaning ({x._sharding!r})')
    if isinstance(other, Rows):
        align(func, (x, other), {})  # of the same rows
    with plainly():
        sizes[dim] = x._sharding.own
        return tag(plain(x).expand(sizes), dim, x._sharding)


@rule('repeat tile')
def _repeat(func: Any, args: Any, kwargs: Any) -> Any:
    """Along the rows all of them come a second time after the first."""
    rows = args[0] if args else kwargs['input']
    counts = sizes_in(args[1:], kwargs, 'repeats', 'dims')
    if name_of(func) == 'tile':
        counts = [1] * (dim_of(rows) - len(counts)) + counts
    dim = len(counts) - from_right(rows)
    if 0 in counts:
        return on_all_rows(func, *args, **kwargs)
    times = counts[dim] if dim >= 0 else 1
    counts[dim] = counts[dim] // times
    with plainly():
        once = tag(plain(rows).repeat(counts), dim, rows._sharding)
    return once if times == 1 else torch.cat([once] * times, dim)


@named_rule('repeat_interleave')
def _repeat_interleave(func: Any, input: Rows, repeats: Any, dim: int | None = None) -> Any:
    if dim is None:
        return torch.repeat_interleave(input.reshape(-1), repeats, 0)
    is_along = dim % dim_of(input) == input._dim
    if isinstance(repeats, Rows) or (is_along and not isinstance(repeats, int)):
        return on_all_rows(func, input, repeats, dim)
    sharding = input._sharding.times(repeats) if is_along else input._sharding
    with plainly():
        return tag(torch.repeat_interleave(plain(input), repeats, dim), input._dim, sharding)


def sharding_of_size(rows: Rows, size: Sequence[int]) -> Sharding | None:
    """The only known sharding with as many rows as a new tensor of a size; None without one."""
    if not size:
        return None
    near = (rows._sharding, *rows._sharding.nodes)
    fitting = {sharding for sharding in near if sharding.known_total == size[0]}
    return fitting.pop() if len(fitting) == 1 else None


@rule('new_zeros new_ones new_full new_empty')
def _new(func: Any, args: Any, kwargs: Any) -> Any:
    """With as many rows as the whole: own rows, all of one number, so no one sees a difference.

    One that takes a gradient is a leaf of the user's, and stays plain.
    """
    rows, *rest = args
    named = dict(kwargs)
    if name_of(func) == 'new_full':
        size = named.pop('size') if 'size' in named else rest.pop(0)
        size = [size] if isinstance(size, int) else list(size)
    else:
        size, rest = sizes_in(rest, named, 'size'), []
        named.pop('size', None)
    sharding = None if named.get('requires_grad') else sharding_of_size(rows, size)
    with plainly():
        if sharding is None:
            return func(plain(rows), size, *rest, **named)
        size[0] = sharding.own
        return tag(func(plain(rows), size, *rest, **named), 0, sharding)


@rule('new_tensor')
def _new_tensor(func: Any, args: Any, kwargs: Any) -> Any:
    rows, *rest = args
    if rows_in(rest, kwargs):
        refuse(func, 'would copy them as those of the whole')
    with plainly():
        return func(plain(rows), *rest, **kwargs)
