"""Messages ``factor * x_j``, by what happens to x_j.

Such a message is the sum of :mod:`pyg_sar.ops.weighted_sum`: nothing with a row of x_j for every
edge is made. x_j may be reshaped, multiplied once by a number for every edge, or for every edge and
head, and summed over heads: that comes after the sum over edges then. Anything else reads x_j.

An analysis follows x_j itself (:class:`SourceRows`). Afterwards the message runs with a stand-in
(:class:`StandIn`), which has no numbers, and gives the factor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.nn.intercept import MessageError
from pyg_sar.rows.rows import Rows, plainly
from pyg_sar.utils.nested import leaves

_GETTERS: tuple[Any, ...] = (Tensor.shape, Tensor.device, Tensor.dtype, Tensor.ndim)
_ASKED = {Tensor.size, Tensor.dim, Tensor.numel, *(getter.__get__ for getter in _GETTERS)}
_ASKED |= {Tensor.requires_grad.__get__}  # type: ignore[attr-defined]
_RESHAPES = {Tensor.view, Tensor.reshape, Tensor.unsqueeze, Tensor.squeeze, Tensor.flatten}
SUMS = {Tensor.sum, torch.sum}
PRODUCTS = {Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.mul}

RowSum = tuple[tuple[int, ...], int]
"""The shape of a row, and which of its dimensions is summed."""

LEAST_CHANNELS = 4
"""Of a head: a computed gate for every channel takes as much memory as x_j."""


class _Followed(Tensor):
    """x_j, or what became of it.

    Attributes:
        factor: What it was multiplied by.
        summed: The shape of a row that was summed then, and the dimension of its sum.
    """

    factor: Tensor | None
    summed: RowSum | None

    @classmethod
    def _next(cls, func: Any, args: Any, kwargs: Any) -> tuple[_Followed, Any, Any] | None:
        """The tensor that is followed, and the factor and sum of what the function makes of it."""
        first = args[0] if args else None
        if func in _RESHAPES and isinstance(first, cls):
            return first, first.factor, first.summed
        if func in SUMS and isinstance(first, cls):
            dim = _summed_dim(*args, **kwargs)
            if dim is not None:
                return first, first.factor, (tuple(first.shape[1:]), dim)
        if func in PRODUCTS and len(args) == 2 and not kwargs:
            rows, factor = args if isinstance(first, cls) else args[::-1]
            is_known = isinstance(factor, Tensor) and not isinstance(factor, _Followed)
            if is_known and isinstance(rows, cls) and rows.factor is None:
                with plainly():
                    if is_by_head(factor, rows, rows._edge_dim()):
                        return rows, factor, rows.summed
        return None

    def _edge_dim(self) -> int:
        return 0


class StandIn(_Followed):
    """Stands for x_j: it holds one number; any other function of it raises a MessageError."""

    @staticmethod
    def like(rows: Tensor, num_edges: int) -> StandIn:
        """A stand-in for a row of `rows` for every edge."""
        return _noted(rows.new_zeros(1).expand(num_edges, *rows.shape[1:]), None, None)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with plainly():
            if func in _ASKED:
                return func(*args, **kwargs)
            found = cls._next(func, args, kwargs)
            if found is None:
                raise MessageError(f"it uses x_j in '{getattr(func, '__name__', func)}'")
            rows, factor, summed = found
            if func in _RESHAPES:
                return _noted(func(*args, **kwargs), factor, summed)
            if func in SUMS:
                return _noted(rows.select(summed[1] + 1, 0), factor, summed)
            return _noted(rows.view(rows.shape), factor, summed)


def _noted(values: Tensor, factor: Tensor | None, summed: RowSum | None) -> StandIn:
    out = values.as_subclass(StandIn)
    out.factor, out.summed = factor, summed
    return out


class SourceRows(_Followed, Rows):
    """x_j on the edges of a block, while it is followed.

    Attributes:
        source: The name of the argument.
        read: The names of all that were used otherwise.
    """

    source: str
    read: set[str]

    @staticmethod
    def follow(rows: Rows, source: str, read: set[str]) -> SourceRows:
        """Makes rows such ones; gives the same object."""
        rows.__class__ = SourceRows
        followed: Any = rows
        followed.source, followed.read = source, read
        followed.factor = followed.summed = None
        return followed

    def _edge_dim(self) -> int:
        return self._dim

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = super().__torch_function__(func, types, args, kwargs)
        if func in _ASKED:
            return out
        found: Any = cls._next(func, args, kwargs)
        if found is not None and type(out) is Rows and out._sharding is found[0]._sharding:
            rows, factor, summed = found
            has_gradient = any(t.requires_grad for t in args if isinstance(t, Tensor))
            if out.requires_grad == has_gradient:  # no part of it is computed without
                followed = SourceRows.follow(out, rows.source, rows.read)
                followed.factor, followed.summed = factor, summed
                return followed
        for value in leaves((args, kwargs)):
            if isinstance(value, SourceRows):
                value.read.add(value.source)
        return out


def _summed_dim(rows: _Followed, dim: Any = None, **options: Any) -> int | None:
    """The dimension of a row that is summed, if that is known to be right."""
    if options or type(dim) is not int or rows.factor is None or rows.summed is not None:
        return None
    dim %= rows.dim()
    return dim - 1 if dim > 0 and rows._edge_dim() == 0 else None


def is_by_head(factor: Tensor, rows: Tensor, dim: int) -> bool:
    """Whether the factor is one number for every edge, or for every edge and head.

    That is ``[num_edges, heads, 1]`` of rows ``[num_edges, heads, channels]``. There may be several
    dimensions of heads, or none. Edges in another dimension `dim` have one number each.
    """
    heads = [1] * (rows.dim() - factor.dim()) + list(factor.shape)
    if len(heads) != rows.dim() or heads[dim] != rows.size(dim):
        return False
    if dim != 0:
        return all(size == 1 for i, size in enumerate(heads) if i != dim)
    while len(heads) > 1 and heads[-1] == 1:
        heads.pop()
    return heads == list(rows.shape[: len(heads)])
