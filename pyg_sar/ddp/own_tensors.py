"""Tensors outside of the model that need a gradient: inputs, or what they were computed from.

Where rows are plain tensors of one rank, each is of one rank's own, so there is nothing to add up;
its gradient, that of the sum of all losses, is divided by the number of ranks. The hook that does
it stands at the leaf and not where the tensor enters the model, as a loss may read the leaf by
another way too.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from weakref import ref

import torch
from torch import Tensor

from pyg_sar.comm import world_size
from pyg_sar.over_all_nodes.backward import is_accumulated, is_inside_a_function, running
from pyg_sar.own_rows import OwnRows
from pyg_sar.rows import Rows
from pyg_sar.rows.replicated import is_averaged, mean_of_ranks


def divide_gradients(leaves: Iterable[Tensor]) -> None:
    """Has the gradients of leaves divided in every backward that comes to a model or a global loss.

    Those in torch's own DistributedDataParallel stay as they are: their mean is taken there.
    """
    elsewhere: set[Tensor] | None = None
    for leaf in leaves:
        if isinstance(leaf, Rows):  # they divide theirs by themselves
            continue
        if any(isinstance(hook, _Divide) for hook in (leaf._backward_hooks or {}).values()):
            continue
        if isinstance(leaf, torch.nn.Parameter) and elsewhere is None:
            elsewhere = _in_torchs_own()
        is_elsewhere = elsewhere is not None and leaf in elsewhere
        divide = _Divide(1 if is_elsewhere else world_size())
        leaf.register_hook(divide)  # type: ignore[no-untyped-call]


class _Divide:
    __torch_unserializable__ = True

    def __init__(self, divisor: int) -> None:
        self.divisor = divisor

    def __call__(self, grad: Tensor) -> Tensor | None:
        return None if running() is None or self.divisor == 1 else grad / self.divisor


def _in_torchs_own() -> set[Tensor]:
    kind = torch.nn.parallel.DistributedDataParallel
    found = [m for m in gc.get_objects() if issubclass(type(m), kind)]
    return {p for module in found for p in module.parameters()}


def average_gradients(tensors: Iterable[Tensor]) -> None:
    """Has the gradients averaged of what stands in for parameters, as in ``functional_call``.

    Layers take their parameters as they are: what comes back is the share of a rank.
    """
    for tensor in tensors:
        is_plain = not isinstance(tensor, (OwnRows, Rows))
        if tensor.requires_grad and is_plain and not is_averaged(tensor):
            tensor.register_hook(_Average(tensor))  # type: ignore[no-untyped-call]


class _Average:
    __torch_unserializable__ = True
    averages = True

    def __init__(self, tensor: Tensor) -> None:
        self._leaf = ref(tensor) if tensor.is_leaf else None

    def __call__(self, grad: Tensor) -> Tensor | None:
        leaf = None if self._leaf is None else self._leaf()
        if is_inside_a_function() and not (leaf is not None and is_accumulated(leaf)):
            return None  # a part of that Function's gradient
        return mean_of_ranks(grad)


def leaves_behind(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """The leaves that tensors were computed from, and those among them."""
    tensors = list(tensors)
    leaves = {tensor for tensor in tensors if tensor.is_leaf}
    yield from leaves
    todo = [tensor.grad_fn for tensor in tensors]
    seen = set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, 'variable', None)
        if leaf is not None and leaf not in leaves:
            yield leaf
        todo += [behind for behind, _ in node.next_functions]
