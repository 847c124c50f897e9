"""Dimensions are merged, split, moved and made; sizes that are given are those of the whole."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import argument, dim_of, own_shape, whole_shape
from pyg_sar.rows.registry import bare, name_of, rule
from pyg_sar.rows.rows import Rows, plainly, refuse, tag
from pyg_sar.rows.rules.pointwise import pointwise
from pyg_sar.rows.space import Space


def sizes_given(args: Any, kwargs: Any) -> list[Any]:
    """Sizes that are given one by one, or as a list."""
    given = args[1:] if len(args) > 1 else tuple(kwargs.values())
    if len(given) == 1 and not isinstance(given[0], int):
        return list(given[0])
    return [each for each in given if isinstance(each, int)]


@rule('view reshape view_as reshape_as flatten unflatten ravel')
def _view(func: Any, args: Any, kwargs: Any) -> Any:
    name, rows = name_of(func), args[0]
    if not isinstance(rows, Rows):
        return func(rows, torch.Size(whole_shape(args[1])))  # view_as
    if name == 'view' and len(args) == 2 and isinstance(args[1], torch.dtype):
        if rows._dim == dim_of(rows) - 1 and args[1].itemsize != rows.element_size():
            refuse(func, 'in the dimension of the rows')
        return pointwise(func, args, kwargs)
    old = whole_shape(rows)
    new = _new_sizes(name, old, args, kwargs)
    dim, space = _place_of_rows(func, old, new, rows)
    new[dim] = space.own
    with plainly():
        out = rows.view(new) if name.startswith('view') else rows.reshape(new)
        return tag(out, dim, space)


def _new_sizes(name: str, old: list[int], args: Any, kwargs: Any) -> list[int]:
    if name.endswith('_as'):
        return whole_shape(argument(args, kwargs, 1, 'other'))
    if name == 'ravel':
        return [math.prod(old)]
    if name == 'flatten':
        start = argument(args, kwargs, 1, 'start_dim', default=0) % len(old)
        end = argument(args, kwargs, 2, 'end_dim', default=-1) % len(old)
        return [*old[:start], math.prod(old[start : end + 1]), *old[end + 1 :]]
    if name == 'unflatten':
        dim = argument(args, kwargs, 1, 'dim') % len(old)
        sizes = _inferred(list(argument(args, kwargs, 2, 'sizes')), old[dim])
        return [*old[:dim], *sizes, *old[dim + 1 :]]
    return _inferred(sizes_given(args, kwargs), math.prod(old))


def _inferred(sizes: list[int], count: int) -> list[int]:
    if -1 in sizes:
        known = -math.prod(sizes)
        sizes[sizes.index(-1)] = count // known if known else 0
    if math.prod(sizes) != count:
        raise RuntimeError(f"shape '{sizes}' is invalid for input of size {count}")
    return sizes


def _place_of_rows(func: Any, old: list[int], new: list[int], rows: Rows) -> tuple[int, Space]:
    """Where the rows are among new sizes: as many numbers stand before them as before."""
    space, before, seen = rows._space, math.prod(old[: rows._dim]), 1
    for dim, size in enumerate(new):
        if seen == before:
            if size == old[rows._dim]:
                if size == 1 and 1 in new[dim + 1 :] and rows._dim != dim:
                    refuse(func, 'of one row is not known to be right')
                return dim, space
            count, rest = divmod(size, max(old[rows._dim], 1))
            if size > 1 and not rest and count > 1:  # what is in a row becomes rows
                return dim, space.times(count)
            if space.base is not None and size == space.base.total:
                return dim, space.base
        seen *= size
    refuse(func, 'would mix the rows with what is beside them')


@rule('expand expand_as broadcast_to repeat tile')
def _expand(func: Any, args: Any, kwargs: Any) -> Any:
    name, rows = name_of(func), args[0]
    if not isinstance(rows, Rows):  # plain.expand_as(rows)
        other = args[1]
        shape = whole_shape(other)
        if dim_of(rows) >= dim_of(other) - other._dim and rows.size(other._dim - dim_of(other)) > 1:
            return rows.expand(shape)
        made = own_shape(other)
        from pyg_sar.rows.replicated import met

        return tag(met(rows).expand(made), other._dim, other._space)
    old, space = whole_shape(rows), rows._space
    sizes = whole_shape(args[1]) if name == 'expand_as' else sizes_given(args, kwargs)
    dim = len(sizes) - (len(old) - rows._dim)
    if dim < 0:
        refuse(func, 'with fewer sizes than dimensions')
    if name in ('repeat', 'tile'):
        if sizes[dim] != 1:
            refuse(func, 'over the rows is not known to be right')
        with plainly():
            return tag(rows.repeat(sizes), dim, space)
    if sizes[dim] not in (-1, old[rows._dim]):
        refuse(func, 'over the rows')
    sizes[dim] = space.own
    with plainly():
        return tag(rows.expand(sizes), dim, space)


@rule('unsqueeze')
def _unsqueeze(func: Any, args: Any, kwargs: Any) -> Any:
    rows = args[0]
    dim = argument(args, kwargs, 1, 'dim') % (dim_of(rows) + 1)
    with plainly():
        return tag(func(*args, **kwargs), rows._dim + (dim <= rows._dim), rows._space)


@rule('squeeze')
def _squeeze(func: Any, args: Any, kwargs: Any) -> Any:
    rows = args[0]
    shape, num_dims = whole_shape(rows), dim_of(rows)
    given = argument(args, kwargs, 1, 'dim')
    dims = range(num_dims) if given is None else (given,) if isinstance(given, int) else given
    gone = sorted({d % num_dims for d in dims if shape[d] == 1})
    if rows._dim in gone:
        refuse(func, 'would drop the dimension of the rows')
    with plainly():
        kept = rows.squeeze(tuple(gone)) if gone else rows.view(rows.shape)
        return tag(kept, rows._dim - sum(d < rows._dim for d in gone), rows._space)


@rule('transpose swapaxes swapdims t permute movedim moveaxis adjoint numpy_T')
def _moved(func: Any, args: Any, kwargs: Any) -> Any:
    """Dimensions that change their places: found by what they do with a small tensor."""
    rows = args[0]
    # Every dimension has a size of its own: that of the rows tells where they went.
    probe = torch.empty(tuple(range(2, dim_of(rows) + 2)), device='meta')
    moved = func(probe, *args[1:], **kwargs)
    with plainly():
        out = func(*args, **kwargs)
        return tag(out, list(moved.shape).index(rows._dim + 2), rows._space)


@rule('chunk split split_with_sizes tensor_split unsafe_chunk unsafe_split narrow select unbind')
def _along_other(func: Any, args: Any, kwargs: Any) -> Any:
    """Pieces of another dimension."""
    rows, name = args[0], name_of(func)
    place = 2 if name not in ('narrow', 'select', 'unbind') else 1
    dim = argument(args, kwargs, place, 'dim', default=0) % dim_of(rows)
    if dim == rows._dim:
        if name == 'select':
            return rows[(slice(None),) * dim + (argument(args, kwargs, 2, 'index'),)]
        if name == 'narrow':
            start, length = argument(args, kwargs, 2, 'start'), argument(args, kwargs, 3, 'length')
            return rows[(slice(None),) * dim + (slice(int(start), int(start) + length),)]
        refuse(func, 'into pieces of rows needs all rows in one place')
    is_gone = name in ('select', 'unbind') and dim < rows._dim
    with plainly():
        out = func(*args, **kwargs)
        if isinstance(out, Tensor):
            return tag(out, rows._dim - is_gone, rows._space)
        return type(out)(tag(each, rows._dim - is_gone, rows._space) for each in out)


@rule('stack')
def _stack(func: Any, args: Any, kwargs: Any) -> Any:
    parts = list(argument(args, kwargs, 0, 'tensors'))
    shapes = {tuple(whole_shape(each)) for each in parts}
    if len(shapes) > 1:
        raise RuntimeError(f'stack expects each tensor to be equal size (got {sorted(shapes)})')
    dim = argument(args, kwargs, 1, 'dim', default=0) % (dim_of(parts[0]) + 1)
    return torch.cat([each.unsqueeze(dim) for each in parts], dim)


@rule('atleast_1d atleast_2d atleast_3d')
def _atleast(func: Any, args: Any, kwargs: Any) -> Any:
    rows = args[0]
    if len(args) > 1 or not isinstance(rows, Rows):
        refuse(func)
    if name_of(func) == 'atleast_1d' or dim_of(rows) > 2:
        return rows
    if dim_of(rows) == 1:
        rows = rows.unsqueeze(0)
    return rows if name_of(func) == 'atleast_2d' else rows.unsqueeze(-1)


@rule('new_zeros new_ones new_full new_empty new_tensor')
def _new(func: Any, args: Any, kwargs: Any) -> Any:
    """A constant with a row for each of the rows, or of the nodes of edges, is made of own rows."""
    rows, name = args[0], bare(name_of(func))
    if name == 'new_tensor':
        refuse(func, 'is a copy: use clone() or detach()')
    rest = dict(kwargs)
    size = rest.pop('size', None)
    if size is None:
        size, more = (args[1:], ()) if isinstance(args[1], int) else (args[1], args[2:])
    else:
        more = args[1:]
    size = list(size) if not isinstance(size, int) else [size]
    space = space_of_size(rows, size[0]) if size else None
    if space is not None:
        size[0] = space.own
    with plainly():
        out = func(rows, size, *more, **rest)
        return out if space is None else tag(out, 0, space)


def space_of_size(rows: Rows, size: int) -> Space | None:
    """The one space of so many rows that is known where `rows` are."""
    spaces = (rows._space, *rows._space.neighbours)
    fitting = [each for each in spaces if each.known_total == size]
    return fitting[0] if len(fitting) == 1 else None


@rule('repeat_interleave')
def _repeat_interleave(func: Any, args: Any, kwargs: Any) -> Any:
    rows = args[0]
    count = argument(args, kwargs, 1, 'repeats')
    dim = argument(args, kwargs, 2, 'dim')
    if not isinstance(rows, Rows) or not isinstance(count, int):
        refuse(func, 'by numbers that differ is not known to be right')
    if dim is None:
        if dim_of(rows) > 1:
            return func(rows.flatten(), count, 0)
        dim = 0
    dim %= dim_of(rows)
    space = rows._space.times(count) if dim == rows._dim else rows._space
    with plainly():
        return tag(func(rows, count, dim), rows._dim, space)
