"""The items of an index: the one for the rows, and those for other dimensions."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.rows.align import dim_of
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag

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


def _is_one(item: Any) -> bool:
    """Whether an item of an index is one number, so that its dimension goes."""
    is_number = isinstance(item, Tensor) and item.dtype != torch.bool and dim_of(item) == 0
    return is_number or type(item) is int


def index_other_dims(func: Any, values: Rows, items: list[Any], position: int) -> Any:
    """All rows, indexed in their other dimensions."""
    if any(isinstance(item, Rows) for item in items):
        refuse(
            func,
            'by rows in another dimension would pair every row with every row',
            'write x[:, pyg_sar.gather(ids)]',
        )
    position -= sum(map(_is_one, items[:position]))
    many = [item for item in items if not _is_one(item)]
    dim = sum(not isinstance(item, Tensor) for item in many[:position])
    tensors = [i for i, item in enumerate(many) if isinstance(item, Tensor)]
    if tensors:
        wide = max(1 if many[i].dtype == torch.bool else many[i].dim() for i in tensors)
        is_run = tensors == list(range(tensors[0], tensors[-1] + 1))
        # Dimensions of tensors that are apart come first.
        dim += wide if not is_run or tensors[0] < position else 0
    with plainly():
        return tag(plain(values)[tuple(items)], dim, values._space)
