"""The factor of a message ``factor * x_j``, computed without x_j.

Attention weights rows by numbers that it makes of other tensors. Such a message is the sum of
:mod:`pyg_sar.ops.weighted_sum` once its factor is known: nothing with a row of x_j for every
edge is made. So the message runs with a stand-in for x_j, which notes what it is multiplied by. A
sum over heads comes after the sum over edges then.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.nn.intercept import MessageError

_GETTERS: tuple[Any, ...] = (Tensor.shape, Tensor.device, Tensor.dtype, Tensor.ndim)
_ASKED = {Tensor.size, Tensor.dim, Tensor.numel, *(getter.__get__ for getter in _GETTERS)}
_RESHAPES = {Tensor.view, Tensor.reshape, Tensor.unsqueeze, Tensor.squeeze, Tensor.flatten}
_LEAST_CHANNELS = 4  # of a head: a gate for every channel takes as much memory as x_j
_SUMS = {Tensor.sum, torch.sum}
_PRODUCTS = {Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.mul}


RowSum = tuple[tuple[int, ...], int]
"""The shape of a row, and which of its dimensions is summed."""


class SourceRows(Tensor):
    """Stands for x_j: it may be multiplied once by a plain tensor, summed once, and reshaped.

    It holds one number; any other function of it raises a MessageError.

    Attributes:
        factor: What it was multiplied by: a number for every edge, or for every edge and head.
        summed: The shape of a row that was summed then, and the dimension of its sum.
    """

    factor: Tensor | None
    summed: RowSum | None

    @staticmethod
    def like(rows: Tensor, num_edges: int) -> SourceRows:
        """A stand-in for a row of `rows` for every edge."""
        return _noted(rows.new_zeros(1).expand(num_edges, *rows.shape[1:]), None)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func in _ASKED:
                return func(*args, **(kwargs or {}))
            if func in _RESHAPES:
                return _noted(func(*args, **(kwargs or {})), args[0].factor, args[0].summed)
            if func in _SUMS and isinstance(args[0], SourceRows):
                dim = _summed_dim(*args, **(kwargs or {}))
                if dim is not None:
                    rows = args[0]
                    summed = tuple(rows.shape[1:]), dim
                    return _noted(rows.select(dim + 1, 0), rows.factor, summed)
            if func in _PRODUCTS and len(args) == 2 and not kwargs:
                rows, factor = args if isinstance(args[0], SourceRows) else args[::-1]
                is_known = type(factor) is Tensor and rows.factor is None
                if is_known and factor.dtype == rows.dtype and _is_by_head(factor, rows):
                    return _noted(rows.view(rows.shape), factor)
        raise MessageError(f"it uses x_j in '{getattr(func, '__name__', func)}'")


def _noted(values: Tensor, factor: Tensor | None, summed: RowSum | None = None) -> SourceRows:
    out = values.as_subclass(SourceRows)
    out.factor, out.summed = factor, summed
    return out


def _summed_dim(rows: SourceRows, dim: Any = None, **options: Any) -> int | None:
    """The dimension of a row that is summed, if that is known to be right."""
    if options or type(dim) is not int or rows.factor is None or rows.summed is not None:
        return None
    dim %= rows.dim()
    return dim - 1 if dim > 0 else None


def _is_by_head(factor: Tensor, rows: Tensor) -> bool:
    """Whether the factor is ``[num_edges, heads, 1]`` of rows ``[num_edges, heads, channels]``.

    There may be several dimensions of heads, or none.
    """
    heads = list(factor.shape)
    while len(heads) > 1 and heads[-1] == 1:
        heads.pop()
    is_narrow = _LEAST_CHANNELS * factor[:1].numel() <= rows[:1].numel()
    return factor.dim() == rows.dim() and heads == list(rows.shape[: len(heads)]) and is_narrow
