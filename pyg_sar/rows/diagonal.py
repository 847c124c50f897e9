"""Diagonals of square matrices of rows, such as ``q @ k.t()``: row i meets column i."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import dim_of, named_rule, whole_shape
from pyg_sar.rows.over_ranks import on_all_rows
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.slices import remember


@named_rule('diag')
def _diag(func: Any, input: Rows, diagonal: int = 0) -> Any:
    """Of a matrix a vector, of a vector a matrix."""
    if diagonal or not input._sharding.has_ids():
        return on_all_rows(func, input, diagonal)
    if dim_of(input) == 2:
        return torch.diagonal(input).clone()
    with plainly():
        own = plain(input).unsqueeze(1)
        wide = own.new_zeros(own.size(0), input._sharding.total)
        return tag(wide.scatter(1, _columns(input), own), 0, input._sharding)


@named_rule('diagonal')
def _diagonal(func: Any, input: Rows, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    if not _is_square(input) or offset or {dim1 % 2, dim2 % 2} != {0, 1}:
        return on_all_rows(func, input, offset, dim1, dim2)
    with plainly():
        own = plain(input).movedim(input._dim, 0)
        out = tag(own.gather(1, _columns(input)).squeeze(1), 0, input._sharding)
        remember(out, input, None)
        return out


@named_rule('trace')
def _trace(func: Any, input: Rows) -> Any:
    return torch.diagonal(input).sum()


@named_rule('fill_diagonal_')
def _fill_diagonal(func: Any, input: Rows, fill_value: Any, wrap: bool = False) -> Any:
    if not _is_square(input):
        refuse(func, 'is known for square matrices')
    with plainly():
        plain(input).movedim(input._dim, 0).scatter_(1, _columns(input), fill_value)
    return input


def _is_square(rows: Rows) -> bool:
    shape = whole_shape(rows)
    return len(shape) == 2 and shape[0] == shape[1] and rows._sharding.has_ids()


def _columns(rows: Rows) -> Tensor:
    """``[n, 1]``: the place in the whole of every own row."""
    return rows._sharding.ids(rows.device).unsqueeze(1)
