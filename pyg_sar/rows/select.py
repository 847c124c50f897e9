"""Rows that are chosen: by masks, by their place in the whole, by the ids of nodes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.errors import users_line, warn
from pyg_sar.comm.exchange import exchange_of
from pyg_sar.comm.rows_by_id import with_halo
from pyg_sar.comm.vote import agree
from pyg_sar.rows.align import (
    brought,
    check_range,
    dim_of,
    masked,
    named_rule,
    own_rows,
    whole_shape,
)
from pyg_sar.rows.edges import NodeIds, node_ids
from pyg_sar.rows.index import (
    TWO_DIMENSIONS,
    as_item,
    as_items,
    dims_used,
    index_other_dims,
    is_number,
    position_of_rows,
)
from pyg_sar.rows.one_loss import for_rows
from pyg_sar.rows.over_ranks import fetched, in_one_place
from pyg_sar.rows.pointwise import pointwise
from pyg_sar.rows.registry import rule
from pyg_sar.rows.replicated import note_table
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.slices import remember
from pyg_sar.utils.unsigned import in_dtype, picked, signed

_MANY_READS = 1000
_read_at: dict[tuple[str, int] | None, set[int]] = {}


@rule('__getitem__')
def _getitem(func: Any, args: Any, kwargs: Any) -> Any:
    values, index = args
    if isinstance(values, Rows) and isinstance(index, Rows) and values._dim == 0:
        return select_rows(func, values, as_item(func, index), 0)
    items = as_items(func, index, dim_of(values))
    if not isinstance(values, Rows):
        return _of_plain(func, values, items)
    position = position_of_rows(items, values._dim)
    at = items[position]
    if isinstance(at, slice) and at == slice(None):
        return index_other_dims(func, values, items, position)
    is_view = not any(isinstance(item, Tensor) and not is_number(item) for item in items)
    if any(isinstance(item, Tensor) for i, item in enumerate(items) if i != position):
        out = _number_in_each_row(func, values, items, position)
    else:
        # First the other dimensions, then the rows.
        items[position] = slice(None)
        some = values
        if any(item is None or item != slice(None) for item in items):
            some = index_other_dims(func, values, items, position)
        out = select_rows(func, some, at, some._dim)
    if is_view and out is not values:
        remember(out, values, index)
    return out


def select_rows(func: Any, values: Rows, at: Any, dim: int) -> Any:
    """Some of the rows, in dimension `dim`."""
    sharding = values._sharding
    if isinstance(at, Tensor) and at.dtype == torch.bool:
        return _masked(func, values, at, dim)
    if isinstance(at, Rows):
        return _by_rows(func, values, at, dim)
    if isinstance(at, slice):
        if dim == 0 and at.step in (None, 1) and at.start in (None, 0) and at.stop is None:
            return values
        at = torch.arange(sharding.total, device=values.device)[at]
    if isinstance(at, int):
        if not -sharding.total <= at < sharding.total:
            raise IndexError(f'index {at} is out of bounds for {sharding.total} rows')
        _watch_loop(at)
        with plainly():
            out = fetched(values, torch.tensor([at], device=values.device))
            return out.movedim(0, dim).select(dim, 0)
    if not isinstance(at, Tensor):
        refuse(func)
    ids = at.to(values.device).long()
    check_range(func, ids, sharding)
    with plainly():
        return _in_place_of(fetched(values, ids), ids, dim)


def _watch_loop(at: int) -> None:
    """Warns of a line that reads row after row, each from the rank that has it."""
    read = _read_at.setdefault(users_line(), set())
    if at in read or len(read) == _MANY_READS:
        return
    read.add(at)
    if len(read) == _MANY_READS:
        warn(
            f'{_MANY_READS} rows were read one by one, each sent by the rank that has it: write '
            'x = pyg_sar.gather(x) once before the loop, as in row, col = pyg_sar.gather('
            'edge_index).tolist()'
        )


def _in_place_of(out: Tensor, ids: Tensor, dim: int) -> Tensor:
    """Rows that `ids` have picked, with the dimensions of `ids` where dimension `dim` was."""
    num = ids.dim()
    return out.movedim(tuple(range(num)), tuple(range(dim, dim + num))).contiguous() if dim else out


def _masked(func: Any, values: Rows, mask: Tensor, dim: int) -> Any:
    """Selected rows; a mask of more dimensions selects numbers out of rows."""
    sharding = values._sharding
    if dim_of(mask) > 1:
        if dim == dim_of(mask) - 1 and whole_shape(mask)[:-1] == [1] * dim:
            return _unpadded(func, values, mask, dim)
        if dim:
            refuse(func, 'by a mask of several dimensions is known for rows in the first')
        if not isinstance(mask, Rows) or mask._dim:
            own = own_rows(func, in_one_place(func, mask), 0, sharding)
            mask = tag(own, 0, sharding)
        count = dim_of(mask)
        width = math.prod(mask.shape[1:])
        with plainly():
            flat = plain(values).reshape(sharding.own * width, *values.shape[count:])
            chosen = plain(mask).reshape(-1)
        many = tag(flat, 0, sharding.times(width))
        return _masked(func, many, tag(chosen, 0, sharding.times(width)), 0)
    selected, _ = masked(func, mask, sharding)
    with plainly():
        return tag(picked(plain(values), dim, selected.chosen(values.device)), dim, selected)


def _unpadded(func: Any, values: Rows, mask: Tensor, dim: int) -> Any:
    """The rows of a dense batch of one graph, ``[1, N, ...]``, by its mask ``[1, N]``."""
    rows: Any = values.view(values.shape[dim:])
    own = None if isinstance(mask, Rows) else own_rows(func, mask[(0,) * dim], 0, rows._sharding)
    flat = mask.view(-1) if own is None else own
    with plainly():
        is_full = all(agree(bool(plain(flat).all())))
    return rows if is_full else _masked(func, rows, flat, 0)


def _by_rows(func: Any, values: Rows, ids: Rows, dim: int) -> Any:
    """Rows by ids that are rows themselves: ``x[edge_index[0]]``, ``x[parent]``."""
    with plainly():
        if isinstance(ids, NodeIds) and ids.of is values._sharding:
            x = signed(plain(values).movedim(dim, 0))
            if ids.shard is not None:
                x = with_halo(x, exchange_of(ids.shard))
            out = x.index_select(0, ids.local_index.reshape(-1))
            out = in_dtype(out, values.dtype).view(*ids.local_index.shape, *x.shape[1:])
        elif ids._sharding is values._sharding and all(agree(_are_places(ids))):
            out = plain(values).movedim(dim, 0).clone()  # a permutation that moves nothing
        else:
            out = fetched(values, plain(ids).long(), are_rows=True)
        return tag(_in_place_of(out, ids, dim), dim + ids._dim, ids._sharding)


def _are_places(ids: Rows) -> bool:
    """Whether every row has its own place in the whole (without asking other ranks)."""
    own = plain(ids)
    return (
        own.dim() == 1
        and ids._sharding.has_ids()
        and torch.equal(own, ids._sharding.ids(own.device))
    )


def _number_in_each_row(func: Any, values: Rows, items: list[Any], position: int) -> Any:
    """``p[torch.arange(n), y]``: of every row one number."""
    at, others = items[position], [item for i, item in enumerate(items) if i != position]
    if isinstance(at, (slice, int)):  # ``x[:5, ids]``, ``x[3, ids]``
        items[position : position + 1] = [slice(None)] if isinstance(at, slice) else []
        return select_rows(func, values, at, values._dim)[tuple(items)]
    if not any(isinstance(item, Rows) for item in items) and at.dtype != torch.bool:
        few = select_rows(func, values, at.reshape(-1), values._dim)
        items[position] = torch.arange(at.numel(), device=few.device).view_as(at)
        return few[tuple(items)]
    full = [item for item in others if isinstance(item, slice) and item == slice(None)]
    if values._dim or position or len(others) != 1 + len(full) or others[0] in full:
        refuse(func, *TWO_DIMENSIONS)
    other: Any = others[0]
    sharding = values._sharding
    if at.dtype == torch.bool:
        some = select_rows(func, values, at, 0)
        is_wide = isinstance(other, Tensor) and dim_of(other)
        other = own_rows(func, other, 0, some._sharding) if is_wide else other
        with plainly():
            count = torch.arange(some._sharding.own, device=some.device)
            return tag(plain(some)[count, other], 0, some._sharding)
    if not isinstance(at, Rows):
        at = tag(own_rows(func, at, 0, other._sharding), 0, other._sharding)
    if not isinstance(other, Rows):
        other = tag(own_rows(func, other, 0, at._sharding), 0, at._sharding)
    if dim_of(at) != 1 or dim_of(other) != 1:
        refuse(func, 'by rows of different shardings')
    other = brought(func, other, at._sharding)
    with plainly():
        own = torch.equal(plain(at), sharding.ids(at.device)) if at._sharding is sharding else False
        picked = plain(values if all(agree(own)) else _by_rows(func, values, at, 0))
        count = torch.arange(picked.size(0), device=picked.device)
        return tag(picked[count, plain(other)], 0, at._sharding)


def _of_plain(func: Any, values: Tensor, items: list[Any]) -> Any:
    """A plain tensor by rows: one of the whole by a mask, or a table by numbers in rows."""
    masks = [i for i, e in enumerate(items) if isinstance(e, Rows) and e.dtype == torch.bool]
    if masks:
        position = masks[0]
        if len(masks) > 1 or any(dims_used(item) != 1 for item in items[:position]):
            refuse(func, 'by several masks is not known to be right')
        sharding = items[position]._sharding
        return tag(own_rows(func, values, position, sharding), position, sharding)[tuple(items)]
    numbers = [item for item in items if isinstance(item, Rows)]
    right, sharding = dim_of(numbers[0]) - numbers[0]._dim, numbers[0]._sharding
    if any(dim_of(tensor) - tensor._dim != right for tensor in numbers[1:]):
        refuse(func, 'by rows of different shardings')
    tensors = [i for i, item in enumerate(items) if isinstance(item, Tensor) or type(item) is int]
    if tensors != list(range(tensors[0], tensors[-1] + 1)) or None in items[: tensors[-1]]:
        refuse(func, 'by rows in several places is not known to be right')

    def own(item: Any) -> Any:
        is_wide = isinstance(item, Tensor) and item.dim() >= right
        return own_rows(func, item, item.dim() - right, sharding) if is_wide else item

    with plainly():
        index = tuple(own(item) for item in items)
        read = index  # all of a dimension behind it is read, too
        while type(read[-1]) is slice and read[-1] == slice(None):
            read = read[:-1]
        dims = sum(map(dims_used, read))
        note_table(func, values, lambda places: places[read], dims)
        out = for_rows(values)[index]
        widest = max(dim_of(items[i]) for i in tensors if isinstance(items[i], Tensor))
        return tag(out, tensors[0] + widest - right, sharding)


@named_rule('index_select')
def _index_select(func: Any, input: Any, dim: int, index: Any) -> Any:
    return input[(slice(None),) * (dim % dim_of(input)) + (index,)]


@named_rule('take')
def _take(func: Any, input: Any, index: Any) -> Any:
    if dim_of(input) != 1:
        refuse(func)
    return input[index]


@named_rule('masked_select')
def _masked_select(func: Any, input: Any, mask: Any) -> Any:
    values, mask = torch.broadcast_tensors(input, mask)  # type: ignore[no-untyped-call]
    return values[mask]


@rule('where')
def _where(func: Any, args: Any, kwargs: Any) -> Any:
    """Number by number; of a condition alone the places where it holds."""
    if len(args) + len(kwargs) == 1:
        return nonzero(func, args or tuple(kwargs.values()), {'as_tuple': True})
    return pointwise(func, args, kwargs)


@named_rule('nonzero argwhere')
def nonzero(func: Any, input: Rows, as_tuple: bool = False) -> Any:
    """Places in the whole of what is not zero, as rows of a selection."""
    rows, sharding = input, input._sharding
    if rows._dim or dim_of(rows) > 2 or not sharding.has_ids():
        refuse(func)
    with plainly():
        own = plain(rows) != 0
        if rows.dim() == 1:
            selected = sharding.selected(rows if rows.dtype == torch.bool else own)
            places = own.nonzero().view(-1) if as_tuple else own.nonzero()
            ids = node_ids(sharding.ids(rows.device)[places], 0, selected, sharding, places, None)
            return (ids,) if as_tuple else ids
        selected = sharding.times(rows.size(1)).selected(own.reshape(-1))
        row, column = own.nonzero().unbind(1)
        both = tag(torch.stack([sharding.ids(rows.device)[row], column], dim=1), 0, selected)
    return both.unbind(1) if as_tuple else both
