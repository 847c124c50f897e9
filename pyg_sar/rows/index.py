"""Indices: what their items stand for, and rows that are written to by one."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.rows.align import brought, dim_of, listed, masked, own_rows, whole_shape
from pyg_sar.rows.edges import NodeIds
from pyg_sar.rows.one_loss import for_rows
from pyg_sar.rows.over_ranks import in_one_place, whole
from pyg_sar.rows.registry import rule
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.sharding import Sharding
from pyg_sar.utils.nested import in_nested

TWO_DIMENSIONS = (
    'in two dimensions at once is not known to be right',
    'write torch.sparse_coo_tensor(edge_index, values, (n, n)) for an adjacency matrix, or '
    'torch.where(mask, value, x) with a mask of rows, [N, F]',
)
"""Why ``x[i, j]`` with numbers for both is refused, and what to write."""


def as_items(func: Any, index: Any, num_dims: int) -> list[Any]:
    """An index as a list with one item for every dimension, None for new ones; no ``...``."""
    items = [as_item(func, item) for item in (index if isinstance(index, tuple) else [index])]
    fill = [slice(None)] * (num_dims - sum(map(dims_used, items)))
    dots = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
    items[dots : dots + 1] = fill
    return items


def as_item(func: Any, item: Any) -> Any:
    """Numbers of lists and of NumPy as tensors; bytes are a mask, as torch has it."""
    if isinstance(item, bool):
        refuse(func, 'by one bool is not known to be right')
    if isinstance(item, np.integer):
        return int(item)
    is_list = isinstance(item, (list, range)) and all(isinstance(i, (int, bool)) for i in item)
    if is_list or isinstance(item, np.ndarray):
        item = torch.as_tensor(item)
    return item.bool() if isinstance(item, Tensor) and item.dtype == torch.uint8 else item


def dims_used(item: Any) -> int:
    """How many dimensions an item of an index stands for."""
    if item is None or item is Ellipsis:
        return 0
    return dim_of(item) if isinstance(item, Tensor) and item.dtype == torch.bool else 1


def position_of_rows(items: list[Any], dim: int) -> int:
    """The position of the item for the rows."""
    ends = list(accumulate(map(dims_used, items)))
    if dim >= ends[-1]:
        raise IndexError('too many indices')
    return next(position for position, end in enumerate(ends) if dim < end)


def is_number(item: Any) -> bool:
    """Whether an item of an index is one number, so that its dimension goes."""
    is_tensor = isinstance(item, Tensor) and item.dtype != torch.bool and dim_of(item) == 0
    return is_tensor or type(item) is int


def index_other_dims(func: Any, values: Rows, items: list[Any], position: int) -> Any:
    """All rows, indexed in their other dimensions."""
    items = [in_one_place(func, item) for item in items]
    position -= sum(map(is_number, items[:position]))
    many = [item for item in items if not is_number(item)]
    dim = sum(not isinstance(item, Tensor) for item in many[:position])
    tensors = [i for i, item in enumerate(many) if isinstance(item, Tensor)]
    if tensors:
        wide = max(1 if many[i].dtype == torch.bool else many[i].dim() for i in tensors)
        is_run = tensors == list(range(tensors[0], tensors[-1] + 1))
        # Dimensions of tensors that are apart come first.
        dim += wide if not is_run or tensors[0] < position else 0
    with plainly():
        return tag(plain(values)[tuple(items)], dim, values._sharding)


@rule('__setitem__')
def _setitem(func: Any, args: Any, kwargs: Any) -> None:
    values, index, new = args
    items = as_items(func, index, dim_of(values))
    if not isinstance(values, Rows):
        _set_in_plain(values, index, new)
        return
    position = position_of_rows(items, values._dim)
    at = items[position]
    if isinstance(at, slice) and at == slice(None):
        items = [in_one_place(func, item) for item in items]
        with plainly():
            like = index_other_dims(func, values, items, position)
            behind = like.dim() - like._dim
        _write(func, values, items, new, behind, values._sharding)
        return
    if any(isinstance(item, Tensor) for i, item in enumerate(items) if i != position):
        _set_entries(func, values, items, position, new)
        return
    _set_rows(func, values, items, position, new)


def _write(
    func: Any, values: Rows, items: list[Any], new: Any, right: int, chosen: Sharding
) -> None:
    """Into own rows; the rows of `new` are its dimension `right` from the right, 1 for the last."""
    if isinstance(new, Tensor):
        dim = dim_of(new) - right
        is_wide = dim >= 0 or isinstance(new, Rows)
        new = own_rows(func, new, dim, chosen) if is_wide else for_rows(new)
    with plainly():
        plain(values)[tuple(items)] = new


def _set_rows(func: Any, values: Rows, items: list[Any], position: int, new: Any) -> None:
    at, sharding = items[position], values._sharding
    if isinstance(new, Tensor) and not isinstance(at, Tensor):
        new = new.to(values.dtype)  # torch copies into a view
    with plainly():
        if isinstance(at, Tensor) and at.dtype == torch.bool:
            if dim_of(at) > 1:
                _set_numbers(func, values, items, position, new)
                return
            chosen, items[position] = masked(func, at, sharding)
        elif isinstance(at, NodeIds) and at.of is sharding and at.shard is None:
            items[position], chosen = at.local_index, at._sharding
        else:
            at = whole(at)
            if isinstance(at, slice):
                at = torch.arange(sharding.total, device=values.device)[at]
            ids = torch.as_tensor(at, device=values.device)
            chosen, items[position] = listed(func, ids.reshape(-1), sharding)
    behind = items[position + 1 :]
    right = 1 + sum(map(dims_used, behind)) - sum(type(item) is int for item in behind)
    if isinstance(at, Tensor) and dim_of(at) > 1 and isinstance(new, Tensor):
        new = _in_a_list(func, new, at, right)
    _write(func, values, items, new, right, chosen)


def _in_a_list(func: Any, new: Tensor, ids: Tensor, right: int) -> Tensor:
    """What is written by a table of ids, as what is written by their list: ids in one dimension."""
    if isinstance(new, Rows):
        refuse(func, 'by a table of ids', 'write x[ids.flatten()] = values.flatten(0, 1)')
    if new.dim() < right:
        return new
    behind = new.shape[new.dim() - right + 1 :]
    first = new.dim() - right + 1 - ids.dim()
    shape = (*new.shape[: max(first, 0)], *ids.shape, *behind)
    return new.expand(shape).flatten(max(first, 0), len(shape) - right)


def _set_entries(func: Any, values: Rows, items: list[Any], position: int, new: Any) -> None:
    """Numbers into single entries, ``x[ids, columns] = 0``."""
    if any(item is None or isinstance(item, slice) or dims_used(item) > 1 for item in items):
        refuse(func, *TWO_DIMENSIONS)
    with plainly():
        lists = [torch.as_tensor(whole(item), device=values.device) for item in items]
        lists = [each.nonzero().view(-1) if each.dtype == torch.bool else each for each in lists]
        shape = torch.broadcast_shapes(*(each.shape for each in lists))  # type: ignore[no-untyped-call]
        lists = [each.expand(shape).reshape(-1) for each in lists]
        chosen, places = listed(func, lists[position].long(), values._sharding)
        mine = chosen.ids(values.device)
        if isinstance(new, Tensor):
            new = for_rows(whole(new)).expand(shape).reshape(-1)[mine]
            new = new.to(values.dtype) if not shape else new
        at = tuple(places if i == position else each[mine] for i, each in enumerate(lists))
        plain(values)[at] = new


def _set_numbers(func: Any, values: Rows, items: list[Any], position: int, new: Any) -> None:
    """Into numbers out of rows, by a mask of several dimensions."""
    mask, is_number = items[position], not isinstance(new, Tensor) or not dim_of(new)
    if position or any(item != slice(None) for item in items[1:]):
        instead = 'write x[..., column][mask] = value'
        refuse(func, 'by a mask of several dimensions takes no index beside the mask', instead)
    if not isinstance(mask, Rows):
        shape = whole_shape(values)[: mask.dim()]
        if list(mask.shape) != shape:
            raise IndexError(f'expected a mask of shape {shape} (got {list(mask.shape)})')
        own = own_rows(func, mask, values._dim, values._sharding)
        mask = tag(own, values._dim, values._sharding)
    if mask._dim != values._dim or (mask._dim and not is_number):
        refuse(func, 'by a mask of several dimensions is known for rows in the first')
    key: Rows = brought(func, mask, values._sharding)
    chosen = values._sharding if is_number else numbers_of(key, values._sharding)
    _write(func, values, [plain(key)], new, 1 + values.dim() - key.dim(), chosen)


def _set_in_plain(values: Tensor, index: Any, new: Any) -> None:
    """Into a tensor of the whole: all ranks write what the rows of all say."""
    index, new = in_nested(index, whole), in_nested(new, whole)
    with plainly():
        values[index] = new


def numbers_of(mask: Rows, sharding: Sharding) -> Sharding:
    """The numbers that a mask of several dimensions selects out of rows, one after another."""
    many = sharding.times(math.prod(mask.shape[1:]))
    with plainly():
        chosen = plain(mask).reshape(-1)
    return many.selected(tag(chosen, 0, many))
