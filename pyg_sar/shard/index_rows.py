"""Reads, adds and writes rows of a tensor by an index, as fast as the device can.

Rows of a few numbers, such as one for every head, are slow in torch. On a CPU it copies every row
by a call, and sorts the index before it adds them. So a row is read and written as one wide number,
and added column by column. On a GPU a block of threads copies each row of a multiple of 16 bytes,
at a tenth of its bandwidth. So such rows are read column by column. Other narrow rows are read by
compiled loops, where numba is installed. Times: docs/speed.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from pyg_sar.utils.installed import loops
from pyg_sar.utils.offload import arrays_of

_NARROW_BYTES = 64
_MAX_COLUMNS = 8
_NUMBERS = {8: torch.complex64, 16: torch.complex128}
"""Numbers by their bytes."""

_ADDED = torch.float32, torch.float64
"""Numbers that loops and columns add; of others torch adds rows."""


def rows_at(values: Tensor, index: Tensor) -> Tensor:
    """``values.index_select(0, index)``, without a gradient."""
    if values.dim() == 1:
        return values.index_select(0, index)
    width = values[:1].numel()
    row_bytes = width * values.element_size()
    if values.device.type == 'cpu':
        values = values.resolve_conj().resolve_neg()
        number = values.dtype if width == 1 else _NUMBERS.get(row_bytes)
        if number is not None and values.storage_offset() % width == 0 and values.is_contiguous():
            wide = values.view(values.size(0), -1).view(number)
            rows = wide.view(-1).index_select(0, index)
            return rows.view(values.dtype).view(-1, *values.shape[1:])
        looped = _by_loop('read_rows', values, index)
        if looped is not None:
            return looped
    elif 0 < row_bytes <= _NARROW_BYTES and row_bytes % 16 == 0:
        columns = values.reshape(values.size(0), -1).unbind(1)
        out = torch.stack([column.index_select(0, index) for column in columns], 1)
        return out.view(-1, *values.shape[1:])
    return values.index_select(0, index)


def add_rows_at(target: Tensor, index: Tensor, rows: Tensor) -> None:
    """``target.index_add_(0, index, rows)``, without a gradient."""
    is_alike = rows.dtype == target.dtype and rows.shape == (*index.shape, *target.shape[1:])
    if is_alike and _by_loop('add_rows', target, index, rows) is not None:
        return
    width = target[:1].numel()
    is_added = target.dtype in _ADDED and target.is_contiguous()
    if target.device.type == 'cpu' and is_added and 0 < width <= _MAX_COLUMNS:
        added = rows.reshape(-1, width).unbind(1)
        for column, of_rows in zip(target.view(-1, width).unbind(1), added, strict=True):
            column.index_add_(0, index, of_rows)
        return
    target.index_add_(0, index, rows)


def add_runs_at(target: Tensor, index: Tensor, rows: Tensor) -> None:
    """:func:`add_rows_at` of an index that ascends."""
    num_rows, num_edges = target.size(0), index.numel()
    is_wide = target[:1].numel() * target.element_size() > _NARROW_BYTES
    is_alike = rows.dtype == target.dtype in _ADDED and target.is_contiguous()
    if not (is_wide and is_alike and target.device.type == 'cpu' and num_rows <= num_edges):
        add_rows_at(target, index, rows)
        return
    # Every run is a segment of rows that follow each other: index_add_ would sort them first.
    ptr = index.new_zeros(num_rows + 1)
    torch.cumsum(torch.bincount(index, minlength=num_rows), 0, out=ptr[1:])
    sums = embedding_bag(
        torch.arange(num_edges),
        rows.detach().reshape(num_edges, -1),
        ptr,
        mode='sum',
        include_last_offset=True,
    )
    target.add_(sums.view(target.shape))


def write_rows_at(target: Tensor, index: Tensor, rows: Tensor) -> None:
    """``target.index_copy_(0, index, rows)``, without a gradient."""
    row_bytes = target[:1].numel() * target.element_size()
    number = _NUMBERS.get(row_bytes) if target.device.type == 'cpu' else None
    if number is not None and rows.numel() > 1:
        own, written = (_seen_as(t, number) for t in (target, rows.contiguous()))
        if own is not None and written is not None:
            own.view(-1).index_copy_(0, index, written.view(-1))
            return
    target.index_copy_(0, index, rows)


def _by_loop(name: str, values: Tensor, index: Tensor, rows: Tensor | None = None) -> Tensor | None:
    """Reads narrow rows of `values`, or adds `rows` of any width; None if there is no loop."""
    width = values[:1].numel()
    fits = (
        values.device.type == 'cpu'
        and values.dtype in _ADDED
        and width > 1
        and (rows is not None or width <= _NARROW_BYTES // values.element_size())
        and values.is_contiguous()
        and index.dim() == 1
    )
    compiled: Any = loops() if fits else None
    if compiled is None:
        return None
    out = values.new_empty(index.numel(), *values.shape[1:]) if rows is None else values
    written, *read = (out, values, index) if rows is None else (values, index, rows)
    if not getattr(compiled, name)(*arrays_of((written,), read), width):
        raise IndexError('expected an index of rows that are there')
    return out


def _seen_as(values: Tensor, number: torch.dtype) -> Tensor | None:
    """The rows ``[n, k]`` as wider numbers in the same memory, if that is possible."""
    factor = number.itemsize // values.element_size()
    is_aligned = values.storage_offset() % factor == 0
    is_fit = is_aligned and values.is_contiguous() and values[:1].numel() % factor == 0
    if not is_fit or values.is_conj() or values.is_neg():
        return None
    return values.view(values.size(0), -1).view(number)
