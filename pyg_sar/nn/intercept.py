"""PyG's functions over in-edges, replaced while a message function runs on some of the edges.

A message function and an aggregation look across the in-edges of a node through three functions of
PyG: ``softmax``, ``scatter`` and ``degree``. An :class:`Intercept` replaces them by its own methods
wherever the conv sees them, so PyG's code runs unchanged on one block of edges. Any other use of
the destination index is noticed, and such a conv takes another path.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.aggr import MultiAggregation
from torch_geometric.utils import degree as pyg_degree
from torch_geometric.utils import scatter as pyg_scatter
from torch_geometric.utils import softmax as pyg_softmax

from pyg_sar.nn.patching import Forms, forms, overridden
from pyg_sar.ops.program import SoftmaxFn


class MessageError(ValueError):
    """A message function looks at other edges than its own; the text says how: 'it uses ...'."""


class UnsupportedMessageError(MessageError):
    """It cannot run block by block; it may run on all in-edges of a node at once."""


class WatchedIndex(Tensor):
    """The destinations of the sampled edges; only the intercepted functions may look at them."""

    _error: type[MessageError] = UnsupportedMessageError
    _what = 'the destination index'
    _why = "would see one block's edges only"
    _PROPERTIES: tuple[Any, ...] = (Tensor.shape, Tensor.device, Tensor.dtype)
    _FUNCTIONS = (Tensor.numel, Tensor.size, Tensor.dim, Tensor.__len__)
    _ALLOWED = frozenset({*_FUNCTIONS, *(getter.__get__ for getter in _PROPERTIES)})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in cls._ALLOWED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        name = getattr(func, '__name__', str(func))
        raise cls._error(f"it uses {cls._what} in '{name}', which {cls._why}")


class SourceIndex(WatchedIndex):
    """The sources of some edges: ids that mean nothing on a cut graph, so nothing may read them."""

    _error = MessageError  # there is no way to compute with the ids
    _what = "the source ids 'edge_index_j'"
    _why = 'are local on a cut graph; pass the ids as a node tensor instead (such as n_id)'


class BlockIndex(Tensor):
    """The destinations of a block's edges, as a message function receives them."""

    __torch_function__ = torch.nn.Parameter.__torch_function__  # as for a plain tensor


class Intercept:
    """While entered, replaces PyG's functions over in-edges; a subclass may allow reductions."""

    def __init__(self, conv: torch.nn.Module, softmax: SoftmaxFn | None = None) -> None:
        self.softmax = softmax
        # Fused aggregations use the index by themselves.
        self._fused = [m for m in conv.modules() if isinstance(m, MultiAggregation)]

    def __enter__(self) -> None:
        self._before = forms.value
        # No attribute: an object that holds its own methods lives until garbage is collected.
        own: Forms = {
            pyg_softmax: self._softmax,
            pyg_scatter: self._scatter,
            pyg_degree: self._degree,
        }
        forms.value = {**self._before, **own}
        self._overridden = ExitStack() if self._fused else None
        for module in self._fused:
            assert self._overridden is not None
            self._overridden.enter_context(overridden(module, 'fused_aggr', None))

    def __exit__(self, *error: object) -> None:
        forms.value = self._before
        if self._overridden is not None:
            self._overridden.close()

    def scatter(self, src: Tensor, dst: Tensor, dim: int, reduce: str) -> Tensor:
        """A reduction of ``[num_edges, ...]`` over the in-edges of every destination."""
        raise UnsupportedMessageError('it reduces over in-edges inside the message')

    def degree(self, dst: Tensor, dtype: torch.dtype | None) -> Tensor:
        """The number of in-edges of every destination."""
        raise UnsupportedMessageError('it counts in-edges inside the message')

    def _softmax(
        self,
        src: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        num_nodes: int | None = None,
        dim: int = 0,
    ) -> Tensor:
        dst = _plain_dst(index, 'a softmax')
        if dim not in (0, -src.dim()):
            raise UnsupportedMessageError(f'it computes a softmax in dimension {dim}')
        assert self.softmax is not None
        return self.softmax(src, dst)

    def _scatter(
        self, src: Tensor, index: Tensor, dim: int = 0, dim_size: Any = None, reduce: str = 'sum'
    ) -> Tensor:
        dst = _plain_dst(index, 'a reduction')
        return self.scatter(src, dst, dim if dim >= 0 else dim + src.dim(), reduce)

    def _degree(self, index: Tensor, num_nodes: Any = None, dtype: Any = None) -> Tensor:
        return self.degree(_plain_dst(index, 'degrees'), dtype)


def _plain_dst(index: Tensor | None, what: str) -> Tensor:
    if index is None or not isinstance(index, (WatchedIndex, BlockIndex)):
        raise UnsupportedMessageError(f'it computes {what} over other groups than in-edges')
    with torch._C.DisableTorchFunctionSubclass():
        return index.detach()  # torch 2.5 has no `as_subclass` inside a TorchDispatchMode
