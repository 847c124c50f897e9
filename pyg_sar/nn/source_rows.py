"""Messages ``factor * x_j``, by what happens to x_j, and dots ``(x_i * x_j).sum(-1)`` in messages.

Such a message is the sum of :mod:`pyg_sar.ops.weighted_sum`, such dots are those of
:mod:`pyg_sar.ops.end_dots`: nothing with a row of x_j for every edge is made. x_j may be reshaped,
multiplied once by a number for every edge, or for every edge and head, and summed over heads: that
comes after the sum over edges then. Anything else reads x_j.

An analysis follows both ends themselves (:class:`SourceRows`, :class:`OwnRows`). Afterwards the
message runs with a stand-in (:class:`StandIn`), which has no numbers, and gives the factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from pyg_sar.nn.intercept import MessageError
from pyg_sar.rows.rows import Rows, plainly
from pyg_sar.utils.nested import leaves

_GETTERS: tuple[Any, ...] = (Tensor.shape, Tensor.device, Tensor.dtype, Tensor.ndim)
_ASKED = {Tensor.size, Tensor.dim, Tensor.numel, *(getter.__get__ for getter in _GETTERS)}
_ASKED |= {Tensor.requires_grad.__get__}  # type: ignore[attr-defined]
_ASKED |= {Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_empty}
_RESHAPES = {Tensor.view, Tensor.reshape, Tensor.unsqueeze, Tensor.squeeze, Tensor.flatten}
SUMS = {Tensor.sum, torch.sum}
PRODUCTS = {Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.mul}

RowSum = tuple[tuple[int, ...], int]
"""The shape of a row, and which of its dimensions is summed."""

LEAST_CHANNELS = 4
"""Of a head: a computed gate for every channel takes as much memory as x_j."""

Ends = tuple[str, str]
"""The names of an argument ``x_j`` and of one ``x_i``."""


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
    """Stands for x_j or x_i: it holds one number; other functions of it raise a MessageError.

    Attributes:
        dots: Of both ends, if it stands for one of two whose products are summed.
        is_product: Whether it stands for these products.
    """

    dots: Tensor | None
    is_product: bool

    @staticmethod
    def like(rows: Tensor, num_edges: int, dots: Tensor | None = None) -> StandIn:
        """A stand-in for a row of `rows` for every edge."""
        out = _noted(rows.new_zeros(1).expand(num_edges, *rows.shape[1:]), None, None)
        out.dots = dots
        return out

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with plainly():
            if func in _ASKED:
                return func(*args, **kwargs)
            if func in SUMS and args and args[0].is_product:
                dots = args[0].dots.clone()  # which the message may change in place
                return dots.unsqueeze(-1) if kwargs.get('keepdim') else dots
            of_ends = [arg.dots for arg in args if isinstance(arg, cls)]
            if func in PRODUCTS and len(of_ends) == 2 and all(t is not None for t in of_ends):
                out = StandIn.like(args[0], args[0].size(0), of_ends[0])
                out.is_product = True
                return out
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
    out.factor, out.summed, out.dots, out.is_product = factor, summed, None, False
    return out


class _EndRows(Rows):
    """Rows of one end of the edges of a block, while they are followed.

    Attributes:
        source: The name of the argument.
        uses: What becomes of all arguments.
    """

    source: str
    uses: Uses

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = super().__torch_function__(func, types, args, kwargs)
        if func in _ASKED:
            return out
        rows = [value for value in leaves((args, kwargs)) if isinstance(value, _EndRows)]
        has_gradient = any(t.requires_grad for t in args if isinstance(t, Tensor))
        # No part of it is computed without a gradient, nor of other rows.
        is_whole = type(out) is Rows and out.requires_grad == has_gradient
        if is_whole and rows and rows[0].uses.note_ends(func, rows, args, kwargs, out):
            return out
        found: Any = SourceRows._next(func, args, kwargs) if is_whole else None
        if found is not None and out._sharding is found[0]._sharding:
            first, factor, summed = found
            out = SourceRows.follow(out, first.source, first.uses, is_argument=False)
            out.factor, out.summed = factor, summed
            rows = [value for value in rows if value is not first]
        for value in rows:
            value.uses.read.update(value.names())
        return out

    def names(self) -> tuple[str, ...]:
        """The names of the arguments that it is made of."""
        return (self.source,)


class SourceRows(_Followed, _EndRows):
    """x_j, or what became of it.

    Attributes:
        is_argument: Whether it is x_j itself.
    """

    is_argument: bool

    @staticmethod
    def follow(rows: Rows, source: str, uses: Uses, *, is_argument: bool = True) -> SourceRows:
        """Makes rows such ones; gives the same object."""
        rows.__class__ = SourceRows
        followed: Any = rows
        followed.source, followed.uses, followed.is_argument = source, uses, is_argument
        followed.factor = followed.summed = None
        return followed

    def _edge_dim(self) -> int:
        return self._dim


class OwnRows(_EndRows):
    """x_i."""

    @staticmethod
    def follow(rows: Rows, source: str, uses: Uses) -> OwnRows:
        """Makes rows such ones; gives the same object."""
        rows.__class__ = OwnRows
        followed: Any = rows
        followed.source, followed.uses = source, uses
        return followed


class EndProducts(_EndRows):
    """The products of x_j and x_i."""

    own: str

    def names(self) -> Ends:
        """The names of x_j and x_i."""
        return self.source, self.own


class Uses:
    """What a message makes of the rows of both ends.

    Attributes:
        read: The names of all that are used otherwise than for a factor or for dots.
        ends: The names of those whose products are summed.
        product_bytes: What the largest of these products take for each edge.
    """

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.ends: set[Ends] = set()
        self.product_bytes = 0

    def note_ends(self, func: Any, rows: list[Any], args: Any, kwargs: Any, out: Any) -> bool:
        """Notes products of both ends, and sums of them; whether a function makes one of these."""
        with plainly():
            if func in SUMS and type(rows[0]) is EndProducts:
                options = dict(zip(('dim',), args[1:], strict=False), **kwargs)
                is_last = options.pop('dim', None) in (-1, rows[0].dim() - 1)
                is_sum = is_last and options.keys() <= {'keepdim'} and len(args) <= 2
                if is_sum:
                    self.ends.add(rows[0].names())
                return is_sum
            if func not in PRODUCTS or len(rows) != 2 or kwargs:
                return False
            source, own = rows if isinstance(rows[1], OwnRows) else rows[::-1]
            is_of_both = type(source) is SourceRows and source.is_argument and type(own) is OwnRows
            is_fit = is_of_both and source.shape == own.shape and source.dtype == own.dtype
            if not is_fit or source._dim or source.dim() < 2 or source.size(-1) < LEAST_CHANNELS:
                return False
            num_bytes = out.numel() // out.size(0) * out.element_size()
            self.product_bytes = max(self.product_bytes, num_bytes)
        out.__class__ = EndProducts
        out.source, out.own, out.uses = source.source, own.source, self
        return True

    def settle(
        self, kept: Iterable[Any], is_allowed: Callable[[Ends], bool]
    ) -> tuple[Ends | None, set[str]]:
        """The ends of which a message reads dots alone, and the names of all that it reads.

        That are one pair at most, and none of which it has `kept` rows or products.
        """
        names = (value.names() for value in kept if isinstance(value, _EndRows))
        read, ends = self.read.union(*names), next(iter(self.ends), None)
        if ends and len(self.ends) == 1 and read.isdisjoint(ends) and is_allowed(ends):
            return ends, read
        return None, read.union(*self.ends)


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
