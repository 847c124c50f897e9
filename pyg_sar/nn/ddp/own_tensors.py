"""Tensors outside of the model that need a gradient: inputs, or leaves behind them.

Each belongs to one rank, so there is nothing to add up; its gradient, that of the sum of all
losses, is divided by the number of ranks. A hook divides it at the leaf and not where the tensor
enters the model, as a loss may read the leaf in another way, too.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from pyg_sar.comm.end_of_backward import running
from pyg_sar.comm.ranks import world_size
from pyg_sar.rows.rows import Rows


def divide_gradients(leaves: Iterable[Tensor]) -> None:
    """Divides gradients of leaves in every backward that comes to a model or a global loss.

    Leaves in torch's own DistributedDataParallel stay: it takes their mean.
    """
    elsewhere: set[Tensor] | None = None
    for leaf in leaves:
        if isinstance(leaf, Rows):  # they divide by themselves
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
    models = (m for m in gc.get_objects() if issubclass(type(m), kind))
    return {p for model in models for p in model.parameters()}


def leaves_behind(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """The leaves among tensors, and those from which tensors were computed."""
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
