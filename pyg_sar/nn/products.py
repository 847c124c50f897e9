"""Recognises messages ``factor * x_j``, by the operations that make them or by a stand-in for x_j.

A factor that is an edge tensor is recognised by the operations below autograd, through any
reshaping, so no conv has to be named.

Attention computes the factor from other tensors. Such a message is the sum of
:mod:`pyg_sar.ops.weighted_sum` once its factor is known: nothing with a row of x_j for every edge
is made. So the message runs with a stand-in for x_j, which notes what it is multiplied by. A sum
over heads comes after the sum over edges then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pyg_sar.nn.intercept import MessageError

_aten = torch.ops.aten


def operations(text: str) -> frozenset[Any]:
    """The operations with these names, such as ``squeeze.dim``, of those that this torch has."""
    names = (name.split('.') for name in text.split())
    overloads = (getattr(getattr(_aten, name, None), kind, None) for name, kind in names)
    return frozenset(overloads) - {None}


_VIEWS = operations(
    'view.default _unsafe_view.default unsqueeze.default squeeze.default squeeze.dim squeeze.dims '
    'select.int slice.Tensor alias.default'
)
"""Views that keep the order of the elements where they keep all of them, in one piece."""


@dataclass(frozen=True)
class WeightedRows:
    """A weight times the rows that messages read."""

    index: int  # of the weight among the edge tensors
    out: Tensor  # the product, or a reshaped one
    weight_shape: torch.Size  # the weight's shape where it was multiplied
    rows_shape: torch.Size  # the rows' shape there
    is_reshaped: bool  # whether rows or product have other shapes than x_j

    def is_by_head(self, node_dim: int) -> bool:
        """Whether the weight is one for every edge, or for every edge and head.

        The heads are dimensions of x_j right behind `node_dim`, that of the edges: then the message
        is ``weight[e, h] * x_j[e, h]`` with all of `x_j` flattened to ``[num_edges, H, C]``.
        """
        num_edges = self.rows_shape[node_dim]
        weight = (1,) * (len(self.rows_shape) - len(self.weight_shape)) + self.weight_shape
        if len(weight) != len(self.rows_shape) or weight[node_dim] != num_edges:
            return False
        if weight.count(1) == len(weight) - 1:
            return node_dim == 0 or not self.is_reshaped
        if node_dim != 0:
            return False
        heads = list(weight[1:])
        while heads and heads[-1] == 1:
            heads.pop()
        return heads == list(self.rows_shape[1 : 1 + len(heads)])


class ProductRecorder(TorchDispatchMode):
    """Notes the operations on the source tensor, if it is the only one, and on edge tensors.

    Attributes:
        is_pure: Whether there were only reshapes and at most one product.
        product: That product; its `out` may be reshaped since.
        edge_bytes: What the largest tensor with a row per edge takes for each.
    """

    def __init__(self, rows: Tensor | None, edge: tuple[Tensor, ...], num_edges: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._num_edges = num_edges
        self.is_pure = True
        self.edge_bytes = 0
        # The tensors are kept, so that no other one gets their ids.
        self._rows = {} if rows is None else {id(rows): rows}
        self._weights = {id(t): (i, t) for i, t in enumerate(edge)}
        self.product: WeightedRows | None = None
        self._is_reshaped = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():  # torch 2.5 asks them again
            out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.dim() and out.size(0) == self._num_edges:
            # A view may have more entries than memory.
            held = min(out.numel() * out.element_size(), out.untyped_storage().nbytes())
            self.edge_bytes = max(self.edge_bytes, held // self._num_edges)
        is_known = (func in _VIEWS and self._reshape(args[0], out)) or (
            func is _aten.mul.Tensor and self._multiply(args[0], args[1], out)
        )
        self.is_pure = self.is_pure and is_known
        return out

    def _reshape(self, before: Tensor, out: Tensor) -> bool:
        if out.numel() != before.numel() or not before.is_contiguous() or not out.is_contiguous():
            return False
        if id(before) in self._weights:
            self._weights[id(out)] = self._weights[id(before)][0], out
        elif id(before) in self._rows:
            self._rows[id(out)] = out
            self._is_reshaped = True
        elif self.product is not None and before is self.product.out:
            p = self.product
            self.product = WeightedRows(p.index, out, p.weight_shape, p.rows_shape, True)
        else:
            return False
        return True

    def _multiply(self, a: Any, b: Any, out: Tensor) -> bool:
        for weight, rows in ((a, b), (b, a)):
            entry = self._weights.get(id(weight))
            if entry is None or id(rows) not in self._rows or self.product is not None:
                continue
            # Under autocast rows may be narrower than weights, which come from a softmax.
            if out.shape != rows.shape or weight.dtype != out.dtype:
                return False
            self.product = WeightedRows(entry[0], out, weight.shape, rows.shape, self._is_reshaped)
            return True
        return False


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
