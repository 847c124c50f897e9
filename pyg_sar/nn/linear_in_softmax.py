"""Finds out whether a conv only weights by its softmax, so that one pass computes it.

The operations on the result of the softmax are followed below autograd. Every tensor that is linear
in the softmax has a companion of the same shape: it holds, for each entry, the entry of the softmax
that it is proportional to. A reshape applies to both. A product with a tensor that does not depend
on the softmax leaves the companion as it is. The terms of a sum must have equal companions. Any
other operation takes the general way. A detached tensor or a hook changes only the gradient, so
gradients are compared once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pyg_sar.nn.call import Call
from pyg_sar.nn.products import operations
from pyg_sar.nn.sample_edges import UndoneSideEffects, samples_of
from pyg_sar.ops.program import Program, no_autocast_cache
from pyg_sar.utils.installed import find_or_none
from pyg_sar.utils.nested import leaves

_TO_COPY = find_or_none('torch.ops.aten._to_copy.default')

_VIEWS = operations('view.default _unsafe_view.default')
_RESHAPES = operations(
    'unsqueeze.default squeeze.default squeeze.dim squeeze.dims expand.default permute.default '
    'transpose.int t.default alias.default clone.default'
)
_PRODUCTS = operations('mul.Tensor mul.Scalar mul_.Tensor mul_.Scalar')
_QUOTIENTS = operations('div.Tensor div.Scalar div_.Tensor div_.Scalar')
_SUMS = operations('add.Tensor sub.Tensor')
_SAME_ENTRIES = operations('neg.default native_dropout.default')
_UNREAD = operations(
    'empty_like.default zeros_like.default ones_like.default rand_like.default new_empty.default '
    'new_zeros.default new_ones.default'
)
_RELATIVE = 1e-3
"""In float32 the two gradients agree up to rounding; a detached part differs by far more."""


class SoftmaxUse(TorchDispatchMode):
    """Follows tensors that are computed from the result of a softmax."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights: Tensor | None = None
        # By id; the tensors are kept, or their ids and memory would be used again.
        self._linear: dict[int, tuple[Tensor, Tensor]] = {}
        self._memory: set[int] = set()
        self._spoiled: set[int] = set()
        self._kept: list[Tensor] = []
        self._is_lost = False

    def begin(self, weights: Tensor) -> None:
        """Follows the result ``[num_edges, ...]`` of the only softmax; a second one is too many."""
        if self.weights is not None:
            self._is_lost = True
            return
        self.weights = weights
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
            if entries is None or tensor.size(0) != num_edges or tensor.dtype == torch.float16:
                return False  # sums of weights up to 1 may overflow in float16
            if entries.numel() == 0 or entries[0].numel() % num_weights:
                return False
            if not bool((entries.reshape(num_edges, num_weights, -1) == expected).all()):
                return False
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
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
        entries = self._result(func, args, out)
        if entries is not None:
            result = out[0] if isinstance(out, tuple) else out
            self._note(result, entries.expand(result.shape))
            return
        outputs = _tensors(out)
        # It gives a number, or a tensor that code outside of torch may read.
        self._is_lost |= not outputs or func is torch.ops.aten.detach.default
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
        self._linear[id(tensor)] = tensor, entries
        self._memory.add(_memory_of(tensor))

    def _entries(self, value: Any) -> Tensor | None:
        if not isinstance(value, Tensor) or _memory_of(value) in self._spoiled:
            return None
        noted = self._linear.get(id(value))
        return None if noted is None else noted[1]

    def _depends(self, value: Any) -> bool:
        if not isinstance(value, Tensor):
            return False
        memory = _memory_of(value)
        return memory in self._memory or memory in self._spoiled


def _memory_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operation changes."""
    return [
        args[i] if i < len(args) else kwargs.get(argument.name)
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in leaves(values) if isinstance(value, Tensor)]


@no_autocast_cache()
def has_gradient_of_use(call: Call, program: Program) -> bool:
    """Whether autograd agrees that everything is linear in the softmax.

    Then ``alpha * d_alpha`` is the sum of ``t * d_t`` over all t proportional to alpha. The program
    is that of the call.
    """
    samples, edge_index = samples_of(call)
    edge_index[1] = 0
    leaves: list[Tensor] = []

    def softmax(logits: Tensor, _: Tensor) -> Tensor:
        leaves.append(torch.softmax(logits.detach(), 0).requires_grad_())
        return leaves[0].clone()

    with UndoneSideEffects(call.conv, call.arguments), torch.enable_grad():
        messages, edge_outputs = program.run(samples, edge_index, softmax)
    outputs = [*messages, *edge_outputs]
    if len(leaves) != 1 or not all(t.requires_grad for t in outputs):
        return False
    alpha = leaves[0]
    for output in outputs:
        # Any gradient whose entries differ will do.
        gradient = torch.linspace(0.5, 1.5, output.numel()).to(output).view(output.shape)
        (d_alpha,) = torch.autograd.grad(
            output, alpha, gradient, retain_graph=True, allow_unused=True
        )
        if d_alpha is None:
            return False
        terms = (output.detach() * gradient).reshape(alpha.numel(), -1).double()
        difference = (alpha.detach() * d_alpha).double().flatten() - terms.sum(1)
        if bool((difference.abs() > _RELATIVE * terms.abs().sum(1)).any()):  # no NaN decides
            return False
    return True
