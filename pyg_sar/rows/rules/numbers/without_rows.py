"""A rank without rows runs a function on one row, of which nothing is kept.

Some functions of torch refuse empty tensors, and what they give then has no history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyg_sar.ground.nested import in_nested
from pyg_sar.rows.rows import plain, tag
from pyg_sar.rows.space import Space


def run(
    func: Callable[..., Any],
    args: Any,
    kwargs: Any,
    space: Space,
    right: int,
    dim_of_result: Callable[[Tensor], int],
) -> Any:
    """``func(*args, **kwargs)`` of own rows, `right` places from the right; results are rows.

    To be called where rows are plain. The last dimension is 1 from the right.
    """

    def padded(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() < right or value.size(-right) > 0:
            return value
        return with_one_row(plain(value), value.dim() - right)

    if not space.own:
        args, kwargs = in_nested((args, kwargs), padded)

    def as_rows(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        dim = dim_of_result(value)
        return tag(value if space.own else value.narrow(dim, 0, 0), dim, space)

    made = func(*args, **kwargs)
    if space.own and isinstance(made, Tensor):
        return tag(made, dim_of_result(made), space)
    return in_nested(made, as_rows)


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
