"""Matrices of torch: layouts COO, CSR and CSC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from pyg_sar.rows.adjacency import (
    Adjacency,
    Entries,
    by_whole,
    pointers,
    product,
    reader,
    refuse_change,
)
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.registry import bare_name, is_in_place, name_of, names
from pyg_sar.rows.rows import plain, plainly
from pyg_sar.utils.nested import leaves

_READS = names(
    'size dim ndimension numel nelement is_floating_point is_complex element_size '
    'sparse_dim hash format repr is_inference type'
)
_MOVES = names('to cpu cuda double float half bfloat16 type type_as detach clone contiguous')
_PRODUCTS = names('matmul mm mv sparse_mm spmm')
_TURNED = names('T mT H mH')
_LAYOUTS = torch.sparse_coo, torch.sparse_csr, torch.sparse_csc


class AdjacencyTensor(Adjacency, Tensor):
    """A ``torch.sparse`` matrix of a cut graph, of layout COO, CSR or CSC.

    Attributes:
        layout: Its layout.
        is_unique: Whether the entries of a COO matrix are sorted, and none comes twice.
    """

    is_unique: bool
    is_matrix = True
    _layout: torch.layout

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name, bare = kwargs or {}, name_of(func), bare_name(func)
        matrix: Any = args[0] if args else None
        kind = getattr(func, '__name__', '')
        if kind in ('__set__', '__delete__'):
            refuse_change(f'{name} = ...')
        if isinstance(matrix, AdjacencyTensor):
            is_read = name not in _TURNED if kind == '__get__' else bare in _READS
            if is_read and len(args) + len(kwargs) <= 1 + (bare == 'size'):
                with plainly():
                    return func(*args, **kwargs)
            if name == 'requires_grad_':
                matrix.value.requires_grad_(*args[1:], **kwargs)
                return matrix
            if bare == 'coalesced':  # a private method by which PyG says that it is
                matrix.is_unique = bool(args[1])
                return matrix
            if is_in_place(name):
                refuse_change(func)
            if bare in _PRODUCTS and len(args) > 1 and _is_dense(args[1]) and matrix.dim() == 2:
                return product(func, matrix, args[1], *args[2:], *kwargs.values())
            out = _known(matrix, func, name, args[1:], kwargs)
            if out is not None:
                return out
        if any(isinstance(arg, AdjacencyTensor) for arg in leaves(kwargs.get('out'))):
            refuse_change(func)
        return by_whole(func, *args, **kwargs)

    @property
    def requires_grad(self) -> bool:
        """Whether the values take a gradient."""
        return bool(self.value.requires_grad)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.value.requires_grad = value

    layout = property(lambda self: self._layout)
    device = property(lambda self: self.edges.device)
    is_cuda = property(lambda self: self.edges.is_cuda)
    is_meta = False
    is_sparse = property(lambda self: self.layout == torch.sparse_coo)
    is_sparse_csr = property(lambda self: self.layout == torch.sparse_csr)

    def with_value(self, value: Any, edges: EdgeIndex | None = None) -> Any:  # noqa: D102
        return tensor_of(edges or self.edges, value, self.layout, is_unique=self.is_unique)

    def of_entries(self, row: Tensor, col: Tensor, value: Tensor | None) -> Any:  # noqa: D102
        return torch_matrix(self.layout, row, col, value, self.shape, is_unique=self.is_unique)

    def local(self, num_sources: int) -> Any:  # noqa: D102
        # The gradient of the values that torch gives is by their columns.
        order, ptr, col = self.compressed(by_column=self.requires_grad)
        size = ptr.numel() - 1, num_sources
        return torch.sparse_csr_tensor(ptr, col, plain(self.value)[order], size)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return memo.setdefault(id(self), self.with_value(self.value.clone()))

    def __reduce_ex__(self, proto: Any) -> NoReturn:
        raise TypeError(
            'the adjacency matrix of a cut graph cannot be pickled or saved: save that of the '
            'graph before it is cut'
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f'AdjacencyTensor({self.edges._sharding!r}, size={tuple(self.shape)}, {self.layout})'


def _is_dense(x: Any) -> bool:
    """Whether it is a vector or a matrix of numbers."""
    is_tensor = isinstance(x, Tensor) and not isinstance(x, Adjacency)
    return is_tensor and x.layout == torch.strided and x.dim() < 3


def tensor_of(edges: EdgeIndex, value: Any, layout: Any, *, is_unique: bool) -> AdjacencyTensor:
    """The matrix of edges from its columns to its rows, with a value for each."""
    size = edges.ends.dst.total, edges.ends.src.total, *value.shape[1:]
    with plainly():  # no numbers, and the sizes of the whole
        out: Any = torch.empty(size, dtype=value.dtype, device='meta').as_subclass(AdjacencyTensor)
    out.edges, out.value, out._layout, out.is_unique = edges, value, layout, is_unique
    out.results = {}
    return out


def torch_matrix(
    layout: Any, row: Any, col: Any, value: Any, size: Any, *, is_unique: bool
) -> Tensor:
    """A plain matrix of entries in its order."""
    if layout == torch.sparse_coo:
        ids = torch.stack([row, col])
        return torch.sparse_coo_tensor(ids, value, size, is_coalesced=is_unique or None)
    of, others, n = (row, col, size[0]) if layout == torch.sparse_csr else (col, row, size[1])
    ptr = pointers(of, n)
    matrix: Tensor = torch.sparse_compressed_tensor(ptr, others, value, size, layout=layout)
    return matrix


@reader
def _of_torch(matrix: Any) -> Any:
    if not isinstance(matrix, Tensor) or matrix.layout not in _LAYOUTS:
        return None
    if matrix.is_sparse and matrix.requires_grad and not matrix.is_coalesced():
        matrix = matrix.coalesce()  # whose values have a history
    layout, is_unique = matrix.layout, True
    if layout == torch.sparse_coo:
        if matrix.sparse_dim() != 2:
            return None
        is_unique = matrix.is_coalesced()
    elif matrix.dim() != 2:
        return None

    def entries() -> Entries:
        if layout == torch.sparse_coo:
            values = matrix.values() if is_unique else matrix._values()
            return (*matrix._indices(), values)
        is_csr = layout == torch.sparse_csr
        ptr = matrix.crow_indices() if is_csr else matrix.ccol_indices()
        others = matrix.col_indices() if is_csr else matrix.row_indices()
        ids = torch.arange(len(ptr) - 1, device=ptr.device).repeat_interleave(ptr.diff())
        row, col = (ids, others.long()) if is_csr else (others.long(), ids)
        return row, col, matrix.values()

    def make(edges: EdgeIndex, value: Any) -> Any:
        return tensor_of(edges, value, layout, is_unique=is_unique)

    return tuple(matrix.shape[:2]), entries, matrix, make


def _known(matrix: AdjacencyTensor, func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """The result, if it is known without the whole matrix; else None."""
    layout, edges, value = matrix.layout, matrix.edges, matrix.value
    bare = name.strip('_')
    if bare in _MOVES:
        moved = func(value, *args, **kwargs)
        to: Any = None if moved.device == value.device else edges.to(moved.device)
        return matrix.with_value(moved, to)
    if not matrix.is_unique and name in ('values', 'coalesce', 'indices', 'is_coalesced'):
        return False if name == 'is_coalesced' else None
    if bare == 'values':
        return value
    if bare == 'nnz':
        return edges.size(1)
    if layout == torch.sparse_coo:
        known: dict[str, Callable[[], Any]] = {
            'indices': lambda: edges.flip(0),
            'coalesce': lambda: matrix,
            'is_coalesced': lambda: True,
        }
        if bare in known:
            return known[bare]()
        if bare == 'to_sparse_csr' and matrix.is_unique:
            return tensor_of(edges, value, torch.sparse_csr, is_unique=True)
    if (bare, layout) in (('col_indices', torch.sparse_csr), ('row_indices', torch.sparse_csc)):
        return edges[int(layout == torch.sparse_csc)]
    if bare in ('to_sparse_csr', 'to_sparse_csc') and layout == getattr(torch, bare[3:]):
        return matrix
    is_number = len(args) == 1 and isinstance(args[0], (int, float)) and not kwargs
    if bare in ('mul', 'multiply', 'div', 'truediv', 'rmul') and is_number:
        return matrix.with_value(func(value, *args))
    if bare == 'neg':
        return matrix.with_value(-value)
    return None
