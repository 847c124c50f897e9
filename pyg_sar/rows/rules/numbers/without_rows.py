"""A rank without rows runs a function on one row, of which nothing is kept.

Some functions of torch refuse empty tensors, and what they give then has no history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.rows import in_nested, plain


def run(
    func: Callable[..., Any], args: Any, kwargs: Any, right: int, right_out: Callable[[Tensor], int]
) -> Any:
    """``func(*args, **kwargs)`` of plain own rows, also where there are none.

    Args:
        func: What to call.
        args: With own rows `right` places from the right.
        kwargs: The same.
        right: 1 for the last dimension.
        right_out: Tells of a result how many places from the right its rows are.
    """
    is_empty = False

    def padded(value: Any) -> Any:
        nonlocal is_empty
        if not isinstance(value, Tensor):
            return value
        value = plain(value)
        if value.dim() < right or value.size(-right) > 0:
            return value
        is_empty = True
        return with_one_row(value, value.dim() - right)

    args, kwargs = in_nested((args, kwargs), padded)
    out = func(*args, **kwargs)
    if not is_empty:
        return out

    def emptied(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.narrow(value.dim() - right_out(value), 0, 0)

    return in_nested(out, emptied)


def with_one_row(value: Tensor, dim: int) -> Tensor:
    """No rows in dimension `dim`, and one behind them that has their history.

    Of numbers that differ, as some norms divide by their variance; of zeros where they may be ids.
    """
    shape = [1 if i == dim else n for i, n in enumerate(value.shape)]
    row = value.new_zeros(shape)
    if value.is_floating_point() or value.is_complex():
        steps = torch.arange(row.numel(), device=value.device) % 5 + 1
        row = steps.view(shape).to(value.dtype)
    return torch.cat([value, row], dim)
