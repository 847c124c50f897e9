"""Rows that are written to: by masks, by their place in the whole, by the ids of nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import brought, dim_of, listed, own_rows
from pyg_sar.rows.edges import NodeIds
from pyg_sar.rows.index import (
    TWO_DIMENSIONS,
    as_items,
    dims_used,
    index_other_dims,
    position_of_rows,
)
from pyg_sar.rows.over_ranks import whole
from pyg_sar.rows.registry import rule
from pyg_sar.rows.replicated import mean_gradient_if_plain, with_mean_gradient
from pyg_sar.rows.rows import Rows, plain, plainly, refuse
from pyg_sar.rows.select import numbers_of
from pyg_sar.rows.sharding import Space
from pyg_sar.utils.nested import in_nested


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
        with plainly():
            like = index_other_dims(func, values, items, position)
            behind = like.dim() - like._dim
        _write(func, values, items, new, behind, values._space)
        return
    if any(isinstance(item, Tensor) for i, item in enumerate(items) if i != position):
        _set_entries(func, values, items, position, new)
        return
    _set_rows(func, values, items, position, new)


def _write(func: Any, values: Rows, items: list[Any], new: Any, right: int, chosen: Space) -> None:
    """Into own rows; the rows of `new` are its dimension `right` from the right, 1 for the last."""
    if isinstance(new, Tensor):
        dim = dim_of(new) - right
        is_wide = dim >= 0 or isinstance(new, Rows)
        new = own_rows(func, new, dim, chosen) if is_wide else with_mean_gradient(new)
    with plainly():
        plain(values)[tuple(items)] = new


def _set_rows(func: Any, values: Rows, items: list[Any], position: int, new: Any) -> None:
    at, space = items[position], values._space
    with plainly():
        if isinstance(at, Tensor) and at.dtype == torch.bool:
            if dim_of(at) > 1:
                _set_numbers(func, values, at, new)
                return
            key = brought(func, at, space) if isinstance(at, Rows) else own_rows(func, at, 0, space)
            items[position], chosen = plain(key), space.selected(key)
        elif isinstance(at, NodeIds) and at.of is space and at.shard is None:
            items[position], chosen = at.places, at._space
        else:
            at = whole(at)
            if isinstance(at, slice):
                at = torch.arange(space.total, device=values.device)[at]
            ids = torch.as_tensor(at, device=values.device)
            chosen, items[position] = listed(func, ids.reshape(-1), space)
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
    """One number into single entries, ``x[ids, columns] = 0``."""
    is_list = all(isinstance(item, Tensor) and item.dtype == torch.int64 for item in items)
    if not is_list or isinstance(new, Tensor):
        refuse(func, *TWO_DIMENSIONS)
    with plainly():
        lists = [whole(item).to(values.device) for item in items]
        shape = torch.broadcast_shapes(*(each.shape for each in lists))  # type: ignore[no-untyped-call]
        lists = [each.expand(shape).reshape(-1) for each in lists]
        chosen, places = listed(func, lists[position], values._space)
        mine = chosen.ids(values.device)
        plain(values)[tuple(places if i == position else e[mine] for i, e in enumerate(lists))] = (
            new
        )


def _set_numbers(func: Any, values: Rows, mask: Tensor, new: Any) -> None:
    """Into numbers out of rows, by a mask of several dimensions."""
    is_number = not isinstance(new, Tensor) or not dim_of(new)
    if not isinstance(mask, Rows) or mask._dim != values._dim or (mask._dim and not is_number):
        refuse(func, 'by a mask of several dimensions is known for masks of rows only')
    key: Rows = brought(func, mask, values._space)
    if isinstance(new, Rows):
        new = brought(func, new, numbers_of(key, values._space))
    elif isinstance(new, Tensor) and dim_of(new):
        refuse(func, 'by a mask of several dimensions takes a number, or what it has selected')
    plain(values)[plain(key)] = plain(new) if isinstance(new, Rows) else mean_gradient_if_plain(new)


def _set_in_plain(values: Tensor, index: Any, new: Any) -> None:
    """Into a tensor of the whole: all ranks write what the rows of all say."""
    index, new = in_nested(index, whole), in_nested(new, whole)
    with plainly():
        values[index] = new
