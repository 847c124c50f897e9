"""``torch_sparse.SparseTensor`` of a cut graph.

Methods and functions of torch_sparse run on the whole matrix, but for sizes, entries and products
with rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch_geometric.typing import SparseTensor, torch_sparse

from pyg_sar.rows.adjacency import (
    Adjacency,
    by_whole,
    dealt_between,
    pointers,
    product,
    reader,
    refuse_change,
    shardings_in,
)
from pyg_sar.rows.adjacency_tensors import AdjacencyTensor, tensor_of
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.over_ranks import whole
from pyg_sar.rows.registry import is_in_place, names
from pyg_sar.rows.rows import Rows, plain
from pyg_sar.utils.nested import in_nested, leaves

_PRODUCTS = ('matmul', 'spmm', '__matmul__')
_OF_NUMBERS = names(
    'nnz size dim numel density sparsity avg_row_length avg_col_length is_quadratic sparse_size '
    'requires_grad device is_cuda dtype is_floating_point has_value cpu cuda to device_as type_as '
    'bfloat16 bool byte char half float double short int long detach'
)
"""Methods that need no entries: those of torch_sparse run on what the others here give."""


class _Storage:
    """``adj_t.storage``, to be read."""

    def __init__(self, matrix: AdjacencySparseTensor) -> None:
        vars(self)['_matrix'] = matrix

    def __getattr__(self, name: str) -> Any:
        matrix = self._matrix
        if name.endswith('_') and not name.startswith('_'):
            refuse_change(name)
        known: dict[str, Callable[[], Any]] = {
            'row': lambda: matrix.edges[1],
            'col': lambda: matrix.edges[0],
            'value': lambda: matrix.value,
            'rowptr': lambda: matrix.csr()[0],
            'has_value': lambda: matrix.value is not None,
            'sparse_sizes': matrix.sparse_sizes,
        }
        return known[name] if name in known else getattr(matrix.whole().storage, name)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        refuse_change(f'storage.{name} = ...')


class AdjacencySparseTensor(Adjacency, SparseTensor):
    """A ``torch_sparse.SparseTensor`` of a cut graph; its constructor makes it of rows."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Nothing: it was made by `sparse_tensor_of`."""

    @property
    def storage(self) -> Any:
        """Entries and what follows from them."""
        return _Storage(self)

    @storage.setter
    def storage(self, value: Any) -> None:
        refuse_change('storage = ...')

    def of_entries(self, row: Tensor, col: Tensor, value: Tensor | None) -> Any:  # noqa: D102
        return SparseTensor(
            row=row,
            col=col,
            value=value,
            sparse_sizes=self.sparse_sizes(),
            is_sorted=True,
            trust_data=True,
        )

    def with_value(self, value: Any, edges: EdgeIndex | None = None) -> Any:  # noqa: D102
        return sparse_tensor_of(edges or self.edges, value)

    def local(self, num_sources: int) -> Any:  # noqa: D102
        order, ptr, col = self.compressed()
        return SparseTensor(
            rowptr=ptr,
            col=col,
            value=None if self.value is None else plain(self.value)[order],
            sparse_sizes=(ptr.numel() - 1, num_sources),
            is_sorted=True,
            trust_data=True,
        )

    def sparse_sizes(self) -> tuple[int, int]:  # noqa: D102
        return self.edges.ends.dst.total, self.edges.ends.src.total

    def sizes(self) -> list[int]:  # noqa: D102
        return [*self.sparse_sizes(), *(() if self.value is None else self.value.shape[1:])]

    def coo(self) -> tuple[Any, Any, Any]:  # noqa: D102
        return self.edges[1], self.edges[0], self.value

    def csr(self) -> tuple[Any, Any, Any]:  # noqa: D102
        rowptr = pointers(whole(self.edges[1]), self.sparse_sizes()[0])
        return rowptr, self.edges[0], self.value

    def copy(self) -> Any:  # noqa: D102
        return self.with_value(self.value)

    def clone(self) -> Any:  # noqa: D102
        return self.with_value(None if self.value is None else self.value.clone())

    def fill_cache_(self) -> Any:  # noqa: D102
        return self

    def requires_grad_(self, requires_grad: bool = True, dtype: Any = None) -> Any:  # noqa: D102
        if requires_grad and self.value is None:
            self.value = self.fill_value(1.0, dtype).value
        if self.value is not None:
            self.value.requires_grad_(requires_grad)
        return self

    def set_value(self, value: Any, layout: Any = None) -> Any:  # noqa: D102
        is_rows = isinstance(value, Rows) and value._sharding.is_same(self.edges._sharding)
        if value is None or (is_rows and layout != 'csc'):
            return sparse_tensor_of(self.edges, value)
        return by_whole(SparseTensor.set_value, self, value, layout)

    def fill_value(self, fill_value: float, dtype: Any = None) -> Any:  # noqa: D102
        value = torch.full_like(self.edges[1], fill_value, dtype=dtype or torch.get_default_dtype())
        return self.with_value(value)

    def type(self, dtype: Any, non_blocking: bool = False) -> Any:  # noqa: D102
        is_same = self.value is None or dtype == self.value.dtype
        return self if is_same else self.with_value(self.value.to(dtype, non_blocking))

    def to_device(self, device: Any, non_blocking: bool = False) -> Any:  # noqa: D102
        if device == self.edges.device:
            return self
        value = None if self.value is None else self.value.to(device, non_blocking=non_blocking)
        edges: Any = self.edges.to(device, non_blocking=non_blocking)
        return self.with_value(value, edges)

    def to_torch_sparse_csr_tensor(self, dtype: Any = None) -> Any:  # noqa: D102
        value = self.fill_value(1, dtype).value if self.value is None else self.value
        return tensor_of(self.edges, value, torch.sparse_csr, is_unique=True)

    def __repr__(self) -> str:
        return f'AdjacencySparseTensor({self.edges._sharding!r}, size={tuple(self.sizes())})'

    def __deepcopy__(self, memo: Any) -> Any:
        value = None if self.value is None else self.value.clone()
        return memo.setdefault(id(self), self.with_value(value))

    __reduce_ex__ = AdjacencyTensor.__reduce_ex__


def sparse_tensor_of(edges: EdgeIndex, value: Any) -> Any:
    """The matrix of edges from its columns to its rows, with a value for each, or None."""
    out: Any = object.__new__(AdjacencySparseTensor)
    out.edges, out.value, out.results = edges, value, {}
    return out


@reader
def _of_torch_sparse(matrix: Any) -> Any:
    if not isinstance(matrix, SparseTensor) or isinstance(matrix, Adjacency):
        return None
    return matrix.sparse_sizes(), matrix.coo, matrix.storage, sparse_tensor_of


def _run(function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    """A function of torch_sparse, of any matrices."""
    every = leaves((args, kwargs))
    matrix = next((arg for arg in every if isinstance(arg, Adjacency)), None)
    rows = next((arg for arg in every if isinstance(arg, Rows)), None)
    if matrix is None and rows is None:
        return function(*args, **kwargs)
    if is_in_place(name) and isinstance(args[0], Adjacency):
        refuse_change(name)
    if name in _PRODUCTS and isinstance(args[0], SparseTensor) and len(args) > 1:
        values: list[Any] = [*args, *kwargs.values()]
        src, x, *options = values
        if isinstance(x, Rows) and not isinstance(src, Adjacency):
            src = dealt_between(src, [x._sharding])
        if isinstance(src, Adjacency) and isinstance(x, Tensor) and not isinstance(x, Adjacency):
            return product(function, src, x, *options)
    if matrix is not None:
        return by_whole(function, *args, **kwargs)
    out = function(*in_nested(args, whole), **in_nested(kwargs, whole))
    return in_nested(out, lambda made: dealt_between(made, shardings_in(every)))


def _call(*args: Any, _run: Any, **kwargs: Any) -> Any:
    return _run(args, kwargs)


def _let_ask(function: Any) -> None:
    """Lets a function of torch_sparse ask for the classes of its arguments, however imported.

    TorchScript and ``inspect`` see what it was.
    """
    form = FunctionType(function.__code__, function.__globals__, function.__name__)
    form.__defaults__, form.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    form.__annotations__ = function.__annotations__
    name = function.__name__
    function.__wrapped__ = form
    function.__kwdefaults__ = {'_run': lambda args, kwargs: _run(form, name, args, kwargs)}
    function.__defaults__, function.__code__ = None, _call.__code__


def ask() -> None:
    """Lets the functions of torch_sparse, and its constructor, ask."""
    own = vars(AdjacencySparseTensor)
    for name, method in [*vars(SparseTensor).items()]:
        if name in own or name in _OF_NUMBERS:
            continue
        if isinstance(method, FunctionType) and (name[:2] != '__' or name in _OPERATORS):
            setattr(AdjacencySparseTensor, name, _method(method, name))
    for name, function in vars(torch_sparse).items():
        if isinstance(function, FunctionType) and name in torch_sparse.__all__:
            _let_ask(function)
    SparseTensor.__new__ = staticmethod(_new)
    SparseTensor.__init__ = _of_all_rows(SparseTensor.__init__)


_OPERATORS = ('__getitem__', '__mul__', '__rmul__', '__add__', '__radd__', '__matmul__', '__eq__')


def _method(method: Any, name: str) -> Any:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _run(method, name, args, kwargs)

    return call


def _of_all_rows(make: Any) -> Any:
    @functools.wraps(make)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *in_nested(args, whole), **in_nested(kwargs, whole))

    return call


def _new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """``SparseTensor(row=rows, ...)`` is scattered to the ranks; of plain entries it is plain."""
    out = object.__new__(cls)
    every = [*args, *kwargs.values()]
    if cls is not SparseTensor or not any(isinstance(arg, Rows) for arg in every):
        return out
    out.__init__(*args, **kwargs)
    return dealt_between(out, shardings_in(every))
