"""PyG's softmax over in-edges, handed over to the blocks; other uses of the index are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import softmax as pyg_softmax

from pyg_sar.conv.functions import replaced


class UnsupportedMessageError(ValueError):
    """A message function cannot be computed block by block."""


class WatchedIndex(Tensor):
    """The destinations of the sampled edges; only a softmax may look at them."""

    _PROPERTIES: tuple[Any, ...] = (Tensor.shape, Tensor.device, Tensor.dtype)
    _ALLOWED = frozenset(
        {
            Tensor.numel,
            Tensor.size,
            Tensor.dim,
            Tensor.__len__,
            *(getter.__get__ for getter in _PROPERTIES),
        }
    )

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in cls._ALLOWED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        name = getattr(func, '__name__', str(func))
        raise UnsupportedMessageError(
            f"it uses the destination index in '{name}', which would see one block's edges only"
        )


class _BlockIndex(Tensor):
    """The destinations of a block's edges, as a message function receives them."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def block_index(dst: Tensor) -> Tensor:
    """The ``index`` argument of a block: ``[num_edges]``, known to the replaced softmax."""
    return dst.as_subclass(_BlockIndex)


@contextmanager
def softmax_replaced(
    conv: torch.nn.Module, softmax: Callable[[Tensor, Tensor], Tensor]
) -> Iterator[None]:
    """While it lasts, PyG's softmax over in-edges is `softmax` wherever `conv` sees it."""

    def replacement(
        src: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        num_nodes: int | None = None,
        dim: int = 0,
    ) -> Tensor:
        if index is None or not isinstance(index, (WatchedIndex, _BlockIndex)):
            raise UnsupportedMessageError('it computes a softmax over other groups than in-edges')
        if dim not in (0, -src.dim()):
            raise UnsupportedMessageError(f'it computes a softmax in dimension {dim}')
        return softmax(src, index.as_subclass(Tensor))

    with replaced(conv, {pyg_softmax: replacement}):
        yield
