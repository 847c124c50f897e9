"""PyG's functions over edges, replaced by other forms while a conv runs on a cut graph.

Users import ``softmax`` or ``gcn_norm`` under any name. So functions are found by identity, among
the globals of the modules that define a conv's classes, and of the libraries' modules. There a
dispatcher replaces each for good: it calls the form in force in its thread, or the function itself.

A message function and an aggregation look across the in-edges of a node through three functions:
``softmax``, ``scatter`` and ``degree``. An :class:`Intercept` replaces them by its own methods
wherever the conv sees them, so PyG's code runs unchanged on one block of edges. Any other use of
the destination index is noticed, and such a conv takes another path.

Some aggregations (LSTM) pad the messages of every node to the largest in-degree they see, and their
result may depend on that width. Others divide by the number of nodes. In a chunk of destinations
they get these numbers of the whole graph (:class:`WholeGraphSizes`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.aggr import (
    EquilibriumAggregation,
    MultiAggregation,
    PatchTransformerAggregation,
)
from torch_geometric.utils import degree as pyg_degree
from torch_geometric.utils import scatter as pyg_scatter
from torch_geometric.utils import softmax as pyg_softmax
from torch_geometric.utils import to_dense_batch as pyg_to_dense_batch

from pyg_sar.ops.program import SoftmaxFn
from pyg_sar.rows.sharding import Sharding
from pyg_sar.utils.installed import find_or_none
from pyg_sar.utils.scoped import Scoped

_qualified_name = find_or_none('torch._jit_internal._qualified_name')

AnyFn = Callable[..., Any]
Forms = Mapping[AnyFn, AnyFn]

_FUNCTIONS = {
    'torch_geometric.utils.laplacian': 'get_laplacian',
    'torch_geometric.utils': 'softmax scatter degree to_dense_batch '
    'remove_self_loops add_self_loops add_remaining_self_loops to_edge_index',
    'torch_geometric.nn.conv.gcn_conv': 'gcn_norm',
    'torch_geometric.nn.conv.hgt_conv': 'construct_bipartite_edge_index',
}
"""Functions that may have another form, by the modules from which convs import them."""

forms: Scoped[Forms] = Scoped({})


def _dispatcher(module: str, name: str) -> tuple[AnyFn, AnyFn]:
    """A function, and the dispatcher that calls its form in force."""
    here, function = forms, getattr(import_module(module), name)

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        return here.value.get(function, function)(*args, **kwargs)

    # TorchScript takes the wrapped code, with the overloads of that name and the globals of this.
    namespace = getattr(function, '__globals__', globals())
    dispatcher: Any = FunctionType(dispatch.__code__, namespace, name, None, dispatch.__closure__)
    functools.update_wrapper(dispatcher, function)
    if _qualified_name is not None:
        dispatcher._jit_override_qualname = _qualified_name(function)
    dispatcher.__module__, dispatcher.__qualname__ = module, name  # by which it is pickled
    return function, dispatcher


_dispatchers = dict(
    _dispatcher(module, name) for module, names in _FUNCTIONS.items() for name in names.split()
)
_by_id = {id(function): dispatcher for function, dispatcher in _dispatchers.items()}
_bound: set[type] = set()


def bind_functions(cls: type) -> None:
    """Puts dispatchers where code of `cls` and its bases finds the functions; lasts for good."""
    if cls in _bound:
        return
    modules = {base.__module__ for base in cls.__mro__}.difference(_FUNCTIONS)
    modules = {name for name in modules if not name.startswith('torch.')}
    for module in modules if _bound else modules.union(_FUNCTIONS):
        names = vars(sys.modules[module]) if module in sys.modules else {}
        for name, value in list(names.items()):
            if id(value) in _by_id:
                names[name] = _by_id[id(value)]
    _bound.add(cls)


def replaced(others: Forms) -> AbstractContextManager[None]:
    """While it lasts, code of bound classes runs these forms, and the outer ones of the rest."""
    assert others.keys() <= _dispatchers.keys()
    return forms.set({**forms.value, **others})


@contextmanager
def overridden(owner: object, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute of one object, in front of what its class has, while it lasts."""
    attributes = vars(owner)
    missing = object()
    before = attributes.get(name, missing)
    attributes[name] = value
    try:
        yield
    finally:
        if before is missing:
            del attributes[name]
        else:
            attributes[name] = before


class MessageError(ValueError):
    """A message function looks at other edges than its own; the text says how: 'it uses ...'."""


class UnsupportedMessageError(MessageError):
    """It cannot run block by block; it may run on all in-edges of a node at once."""


class WatchedIndex(Tensor):
    """The destinations of a block's edges in an analysis, to which known functions may look."""

    _sharding: Sharding  # whose destinations they are
    own: Tensor  # the plain index

    @staticmethod
    def of(index: Tensor, sharding: Sharding) -> WatchedIndex:
        """The destinations ``[num_edges]`` of the edges of a sharding."""
        self = index.as_subclass(WatchedIndex)
        self._sharding, self.own = sharding, index
        return self


class SourceIndex(Tensor):
    """The sources of some edges: ids that mean nothing on a cut graph, so nothing may read them."""

    _PROPERTIES: tuple[Any, ...] = (Tensor.shape, Tensor.device, Tensor.dtype)
    _FUNCTIONS = (Tensor.numel, Tensor.size, Tensor.dim, Tensor.__len__)
    _ALLOWED = frozenset({*_FUNCTIONS, *(getter.__get__ for getter in _PROPERTIES)})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in cls._ALLOWED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        # There is no way to compute with the ids.
        raise MessageError(
            f"it uses the source ids 'edge_index_j' in '{getattr(func, '__name__', func)}', which "
            'are local on a cut graph; pass the ids as a node tensor instead (such as n_id)'
        )


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
    if not isinstance(index, BlockIndex):
        raise UnsupportedMessageError(f'it computes {what} over other groups than in-edges')
    with torch._C.DisableTorchFunctionSubclass():
        return index.detach()  # torch 2.5 has no `as_subclass` inside a TorchDispatchMode


@dataclass
class WholeGraphSizes:
    """Gives a conv's aggregation sizes of the whole graph, and notes which it asks for."""

    conv: torch.nn.Module
    width: int  # the largest in-degree
    num_nodes: int  # destinations
    is_sample: bool = False  # whether the edges are made up, so that any size will do
    is_dense: bool = field(default=False, init=False)  # whether dense batches were made
    are_read: bool = field(default=False, init=False)  # whether any size was asked for

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """While it lasts, the aggregations of the conv see the sizes of the whole graph."""

        def to_dense_batch(
            x: Tensor,
            batch: Tensor | None = None,
            fill_value: float = 0.0,
            max_num_nodes: int | None = None,
            batch_size: int | None = None,
        ) -> Any:
            self.is_dense = self.are_read = True
            width = self.width if max_num_nodes is None else max_num_nodes
            return pyg_to_dense_batch(x, batch, fill_value, width, batch_size)

        with ExitStack() as stack:
            stack.enter_context(replaced({pyg_to_dense_batch: to_dense_batch}))
            for module in self.conv.modules():
                if isinstance(module, PatchTransformerAggregation):
                    stack.enter_context(overridden(module, 'forward', self._patches(module)))
                elif isinstance(module, EquilibriumAggregation):
                    stack.enter_context(overridden(module, 'reg', self._regularisation(module)))
            yield

    def _patches(self, module: Any) -> Callable[..., Any]:
        """PatchTransformerAggregation counts one more than the largest in-degree."""
        forward = module.forward

        def with_width(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get('max_num_elements') is None:
                kwargs['max_num_elements'] = max(self.width + 1, module.patch_size * self.is_sample)
            return forward(*args, **kwargs)

        return with_width

    def _regularisation(self, module: Any) -> Callable[..., Any]:
        """EquilibriumAggregation regularises by a mean over all nodes."""

        def reg(y: Tensor) -> Any:
            self.are_read = True
            return module.softplus(module.lamb) * y.square().sum() / max(self.num_nodes, 1)

        return reg
