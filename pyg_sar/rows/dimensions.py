"""Dimensions that are added, moved, taken away and cut, and tensors that are joined."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.vote import agree
from pyg_sar.rows.align import (
    align,
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
from pyg_sar.rows.edges import EdgeIndex, edge_index
from pyg_sar.rows.made_edges import edges_of, is_in, whole_ids
from pyg_sar.rows.one_loss import for_rows
from pyg_sar.rows.over_ranks import in_one_place, on_all_rows
from pyg_sar.rows.registry import name_of, rule
from pyg_sar.rows.replicated import check_whole
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rowwise import rowwise
from pyg_sar.rows.sharding import Sharding


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
        return tag(func(*args, **kwargs), dim, rows._sharding)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=4096)
def _moved_to(
    func: Callable[..., Tensor], num_dims: int, dim: int, args: Any, kwargs: tuple[Any, ...]
) -> int:
    """Where a dimension goes: that of a tensor without numbers whose sizes all differ."""
    probe = torch.empty([i + 2 for i in range(num_dims)], device='meta')
    return list(func(probe, *args, **dict(kwargs)).shape).index(dim + 2)


@named_rule('squeeze squeeze_copy')
def _squeeze(func: Any, input: Rows, dim: int | tuple[int, ...] | None = None) -> Any:
    """The dimension of the rows stays, unless there is one in the whole."""
    shape, at = whole_shape(input), input._dim
    dims = range(len(shape)) if dim is None else dims_of(dim, len(shape)) or []
    gone = tuple(i for i in dims if shape[i] == 1)
    if at in gone:
        return on_all_rows(func, *([input] if dim is None else [input, dim]))
    with plainly():
        return tag(func(input, gone), at - sum(i < at for i in gone), input._sharding)


@named_rule('narrow narrow_copy')
def _narrow(func: Any, input: Rows, dim: int, start: int, length: int) -> Any:
    dim %= dim_of(input)
    if dim != input._dim:
        with plainly():
            return tag(func(plain(input), dim, start, length), input._dim, input._sharding)
    total = input._sharding.total
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
        return tag(func(plain(input), dim, index), input._dim - (dim < input._dim), input._sharding)


@rule(
    'chunk split tensor_split split_with_sizes unsafe_chunk unsafe_split '
    'unsafe_split_with_sizes unbind unbind_copy'
)
def _pieces(func: Any, args: Any, kwargs: Any) -> Any:
    name = name_of(func)
    rows = argument(args, kwargs, 0, 'input', 'tensor')
    if not isinstance(rows, Rows):
        refuse(func, 'by places that are rows has no meaning')
    num_dims, unbinds = dim_of(rows), name.startswith('unbind')
    dim = argument(args, kwargs, 1 if unbinds else 2, 'dim', default=0) % num_dims
    if dim != rows._dim:
        right = from_right(rows) - (unbinds and dim > rows._dim)
        with plainly():
            return as_rows(func(*args, **kwargs), right, rows._sharding)
    if unbinds:
        return on_all_rows(func, *args, **kwargs)
    # Along the rows, as slices of all of them.
    named = {k: v for k, v in kwargs.items() if k not in ('input', 'tensor', 'dim')}
    cut = getattr(torch, name)
    out = []
    for ids in cut(torch.arange(rows._sharding.total), *args[1:2], **named):
        first = int(ids[0]) if len(ids) else 0
        out.append(rows[(slice(None),) * dim + (slice(first, first + len(ids)),)])
    return tuple(out)


@rule('hsplit')
def _split_columns(func: Any, args: Any, kwargs: Any) -> Any:
    rows, *parts = args
    if len(parts) != 1 or not isinstance(rows, Rows):
        refuse(func, 'with these options is not known to be right')
    return torch.tensor_split(rows, parts[0], dim=min(1, dim_of(rows) - 1))


@named_rule('stack')
def _stack(func: Any, tensors: Any, dim: int = 0) -> Any:
    """Plain tensors among them have the rows of the whole."""
    first = rows_in(tensors)[0]
    at, sharding = first._dim, first._sharding
    tensors = [
        tensor if getattr(tensor, '_dim', at) == at else in_one_place(func, tensor)
        for tensor in tensors
    ]
    shapes = [whole_shape(tensor) for tensor in tensors]
    if any(shape != shapes[0] for shape in shapes):
        raise RuntimeError(f'stack expects each tensor to be equal size, but got {shapes}')
    dim %= len(shapes[0]) + 1
    with plainly():
        own = [own_rows(func, tensor, at, sharding) for tensor in tensors]
        return tag(torch.stack(own, dim), at + (dim <= at), sharding)


_SIDE_BY_SIDE = {'hstack': 1, 'column_stack': 1, 'vstack': 0, 'row_stack': 0, 'dstack': 2}


@named_rule(' '.join(_SIDE_BY_SIDE))
def _stacked(func: Any, tensors: Any) -> Any:
    """Rows of numbers are a column of a table, and else side by side."""
    name, parts = func.__name__, list(tensors)
    dim, least = _SIDE_BY_SIDE[name], min(dim_of(part) for part in parts)
    if name == 'column_stack' and least > 0:
        return torch.cat([p.unsqueeze(1) if dim_of(p) == 1 else p for p in parts], 1)
    if name == 'hstack' and least == 1:
        return torch.cat(parts, 0)
    if least <= dim or (name in ('vstack', 'row_stack') and least < 2):
        refuse(func, 'of so few dimensions is not known to be right', 'use stack or cat')
    return torch.cat(parts, dim)


@named_rule('cat concat concatenate')
def _cat(func: Any, tensors: Any, dim: int = 0) -> Any:
    """Side by side, or rows after rows of another sharding."""
    parts = [
        part for part in tensors if dim_of(part) != 1 or isinstance(part, Rows) or part.numel()
    ]
    first = next(part for part in parts if isinstance(part, Rows))
    dim %= dim_of(first)
    if isinstance(first, EdgeIndex):
        return _more_edges(func, parts, dim)
    if dim != first._dim:
        parts = [in_one_place(func, p) if getattr(p, '_dim', None) == dim else p for p in parts]
        (parts,), _, right, sharding = align(func, (parts,), {})
        parts = [_widened(part, right, sharding) for part in parts]
        with plainly():
            return as_rows(torch.cat([plain(part) for part in parts], dim), right, sharding)
    shardings, own = [], []
    for part in parts:
        if isinstance(part, Rows) and part._dim == dim:
            shardings.append(part._sharding)
            own.append(plain(part))
            continue
        part = in_one_place(func, part)
        sharding = first._sharding.scattered(part.size(dim))
        check_whole(func, part)
        with plainly():
            own.append(for_rows(part).index_select(dim, sharding.ids(part.device)))
        shardings.append(sharding)
    with plainly():
        return tag(torch.cat(own, dim), dim, shardings[0].joined(tuple(shardings[1:])))


def _widened(part: Tensor, right: int, sharding: Sharding) -> Tensor:
    """A plain tensor with one row, with as many as there are own rows."""
    if isinstance(part, Rows):
        return part
    with plainly():
        shape = list(part.shape)
        if shape[-right] == 1:
            shape[-right] = sharding.own
        return part.expand(shape)


def _more_edges(func: Any, parts: list[Any], dim: int) -> Any:
    """Edges and more edges: of the same nodes, self loops, or any ids of nodes."""
    first = next(part for part in parts if isinstance(part, EdgeIndex))
    # Negative edges stay on the ranks that drew them: pairs of ids, and no edges.
    rows = [part for part in parts if isinstance(part, Rows) and not isinstance(part, EdgeIndex)]
    is_drawn = any(not tensor._sharding.has_ids() for tensor in rows)
    if dim != 1 or (is_drawn and not isinstance(parts[-1], EdgeIndex)):
        return torch.cat(
            [part.whole_ids if isinstance(part, EdgeIndex) else part for part in parts], dim
        )
    pairs = [_local(func, part, first) for part in parts if parts[0] is first]
    local = [pair for pair in pairs if pair is not None]
    if len(local) < len(parts):
        return _between_any_nodes(func, parts, first)
    ids, shardings = zip(*local, strict=True)
    joined = first.handle.with_ids(torch.cat(ids, dim=1))
    return edge_index(joined, shardings[0].joined(shardings[1:]), first.ends)


def _local(func: Any, part: Any, first: EdgeIndex) -> tuple[Tensor, Sharding] | None:
    """Edges in ids of the rank, if it owns their ends as it owns those of the first edges."""
    ends, flipped = first.ends, first.handle.is_flipped
    if isinstance(part, EdgeIndex):
        is_like = part.ends is ends and part.handle.is_flipped == flipped
        return (part.handle.ids, part._sharding) if is_like else None
    if isinstance(part, Rows):
        return None
    sharding = first._sharding.scattered(part.size(1))
    check_whole(func, part)
    own = part[:, sharding.ids(part.device)]
    src, dst = own.flip(0) if flipped else own
    if not all(agree(is_in(src, ends.src) and is_in(dst, ends.dst))):
        return None
    local = torch.stack([ends.src.local_index(src), ends.dst.local_index(dst)])
    if not all(agree(bool((local >= 0).all()))):
        return None
    return local.flip(0) if flipped else local, sharding


def _between_any_nodes(func: Any, parts: list[Any], first: EdgeIndex) -> Any:
    """Edges of their own; ids that are of no node stay plain."""
    ids = torch.cat([whole_ids(part) for part in parts], dim=1)
    src, dst = first.ends.src, first.ends.dst
    if first.handle.is_flipped:
        src, dst = dst, src
    if is_in(ids[0], src) and is_in(ids[1], dst):
        return edges_of(func, ids, src, dst)
    return ids


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
