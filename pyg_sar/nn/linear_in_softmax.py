"""Finds out whether a conv only weights by its softmax, so that one pass computes it.

The operations on the result of the softmax are followed below autograd. Every tensor that is linear
in the softmax has a companion of the same shape: it holds, for each entry, the entry of the softmax
that it is proportional to. A reshape applies to both. A product with a tensor that does not depend
on the softmax leaves the companion as it is. The terms of a sum must have equal companions. Any
other operation takes the general way. So does what has no gradient where the softmax has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pyg_sar.nn.counts import is_count
from pyg_sar.nn.intercept import MessageError
from pyg_sar.utils.installed import find_or_none
from pyg_sar.utils.nested import leaves

_aten = torch.ops.aten


def _operations(text: str) -> frozenset[Any]:
    """The operations with these names, such as ``squeeze.dim``, of those that this torch has."""
    names = (name.split('.') for name in text.split())
    overloads = (getattr(getattr(_aten, name, None), kind, None) for name, kind in names)
    return frozenset(overloads) - {None}


_TO_COPY = find_or_none('torch.ops.aten._to_copy.default')

_VIEWS = _operations('view.default _unsafe_view.default')
_RESHAPES = _operations(
    'unsqueeze.default squeeze.default squeeze.dim squeeze.dims expand.default permute.default '
    'transpose.int t.default alias.default clone.default'
)
_PRODUCTS = _operations('mul.Tensor mul.Scalar mul_.Tensor mul_.Scalar')
_QUOTIENTS = _operations('div.Tensor div.Scalar div_.Tensor div_.Scalar')
_SUMS = _operations('add.Tensor sub.Tensor')
_SAME_ENTRIES = _operations('neg.default native_dropout.default')
_UNREAD = _operations(
    'empty_like.default zeros_like.default ones_like.default rand_like.default new_empty.default '
    'new_zeros.default new_ones.default'
)


class SoftmaxUse(TorchDispatchMode):
    """Follows tensors that are computed from the result of a softmax."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights: Tensor | None = None
        # By their place in memory; the tensors are kept, or it would be used again.
        self._linear: dict[Any, tuple[Tensor, Tensor]] = {}
        self._memory: set[int] = set()
        self._spoiled: set[int] = set()
        self._kept: list[Tensor] = []
        self._is_lost = self._has_gradient = False

    def begin(self, weights: Tensor) -> None:
        """Follows the result ``[num_edges, ...]`` of the only softmax; a second one is too many."""
        if self.weights is not None:
            self._is_lost = True
            return
        self.weights, self._has_gradient = weights, torch.is_grad_enabled()
        self._note(weights, torch.arange(weights.numel()).view(weights.shape))

    def is_linear(self, tensors: Sequence[Tensor]) -> bool:
        """Whether all are linear in the softmax: every row alike, in groups of its entries.

        That is, with the weights flattened to ``[num_edges, W]``, they are ``[num_edges, W, k]``
        flattened, and row e and group w are proportional to the weight of e and w.
        """
        if self.weights is None or self._is_lost or self.weights.numel() == 0:
            return False
        num_edges, num_weights = self.weights.size(0), prod(self.weights.shape[1:])
        expected = torch.arange(self.weights.numel()).view(num_edges, num_weights, 1)
        for tensor in tensors:
            entries = self._entries(tensor)
            if entries is None or tensor.size(0) != num_edges or tensor.is_complex():
                return False
            if tensor.dtype == torch.float16:
                return False  # sums of weights up to 1 may overflow
            if entries.numel() == 0 or entries[0].numel() % num_weights:
                return False
            if not bool((entries.reshape(num_edges, num_weights, -1) == expected).all()):
                return False
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for arg in args:
            sizes = arg if type(arg) is list else (arg,)
            if any(isinstance(size, int) and is_count(size) for size in sizes):
                raise MessageError(f"'{func}' would make as many rows as there are edges")
        with torch._C.DisableTorchFunctionSubclass():  # torch 2.5 asks them again
            out = func(*args, **kwargs)
        if self.weights is not None and any(
            self._depends(t) for t in _tensors((*args, *kwargs.values()))
        ):
            self._follow(func, args, kwargs, out)
        return out

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if func in _UNREAD:
            return
        self._is_lost |= torch.is_grad_enabled() != self._has_gradient
        entries = self._result(func, args, out)
        if entries is not None:
            result = out[0] if isinstance(out, tuple) else out
            self._note(result, entries.expand(result.shape))
            return
        outputs = _tensors(out)
        # It gives a number, or a tensor that code outside of torch may read.
        self._is_lost |= not outputs or func is _aten.detach.default
        written = _tensors(_written(func, args, kwargs))
        for tensor in outputs:
            # Noted memory is followed already; any other now holds values that are not linear.
            if _memory_of(tensor) not in self._memory:
                written.append(tensor)
        self._kept += written
        self._spoiled.update(_memory_of(t) for t in written)

    def _result(self, func: Any, args: tuple[Any, ...], out: Any) -> Tensor | None:
        """The entries that the result is proportional to, or None if it is not."""
        first = self._entries(args[0]) if args else None
        if func in _VIEWS:
            return None if first is None else first.reshape(args[1])
        if func in _RESHAPES:
            return None if first is None else func(first, *args[1:])
        if func is _TO_COPY:
            return first if out.is_floating_point() else None
        if func in _SAME_ENTRIES:
            return first
        if func in _PRODUCTS or func in _QUOTIENTS:
            other = args[1]
            if first is not None and not self._depends(other):
                return first
            if func in _QUOTIENTS or func._schema.is_mutable or self._depends(args[0]):
                return None
            return self._entries(other)
        if func in _SUMS:
            second = self._entries(args[1])
            if first is None or second is None:
                return None
            first, second = first.expand(out.shape), second.expand(out.shape)
            return first if torch.equal(first, second) else None
        return None

    def _note(self, tensor: Tensor, entries: Tensor) -> None:
        self._linear[_place_of(tensor)] = tensor, entries
        self._memory.add(_memory_of(tensor))

    def _entries(self, value: Any) -> Tensor | None:
        if not isinstance(value, Tensor) or _memory_of(value) in self._spoiled:
            return None
        noted = self._linear.get(_place_of(value))
        return None if noted is None else noted[1]

    def _depends(self, value: Any) -> bool:
        if not isinstance(value, Tensor):
            return False
        memory = _memory_of(value)
        return memory in self._memory or memory in self._spoiled


def _memory_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _place_of(tensor: Tensor) -> Any:
    shape = tuple(tensor.shape), tensor.stride(), tensor.dtype
    return _memory_of(tensor), tensor.storage_offset(), *shape


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operation changes."""
    return [
        args[i] if i < len(args) else kwargs.get(argument.name)
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in leaves(values) if isinstance(value, Tensor)]
