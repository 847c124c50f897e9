"""Rows of a tensor by an index, as fast as a GPU can."""

from __future__ import annotations

import torch
from torch import Tensor

_NARROW_BYTES = 64


def rows_at(values: Tensor, index: Tensor) -> Tensor:
    """``values.index_select(0, index)``.

    On a GPU torch copies rows of a multiple of 16 bytes by a block of threads each: 2.3 million
    rows of 16 bytes take 1.4 ms on an H100, a tenth of its bandwidth. So narrow ones are read
    column by column.
    """
    if values.device.type != 'cpu' and values.dim() > 1:
        row_bytes = values[:1].numel() * values.element_size()
        if 0 < row_bytes <= _NARROW_BYTES and row_bytes % 16 == 0:
            columns = values.reshape(values.size(0), -1).unbind(1)
            out = torch.stack([column.index_select(0, index) for column in columns], 1)
            return out.view(-1, *values.shape[1:])
    return values.index_select(0, index)
