"""Sparse matrices between nodes of a cut graph, as ``adj_t``: a rank has the entries of its rows.

``T.ToSparseTensor`` and PyG's helpers make matrices that torch or torch_sparse define. Of a cut
graph they are an :class:`Adjacency`: edges that run from the columns to the rows, and a value for
each. Convs and products with rows use these edges. Every other function runs on the whole matrix,
which each rank then has for a moment, and matrices that it gives are dealt to the ranks again. So
what a function means is what torch, torch_sparse or PyG say.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pyg_sar.aggregate.halo import with_halo
from pyg_sar.comm import exchange_of, world_size
from pyg_sar.ground.changes import version_of
from pyg_sar.ground.nested import in_nested, leaves
from pyg_sar.rows.align import own_rows
from pyg_sar.rows.edges import EdgeIndex, NodeIds
from pyg_sar.rows.made_edges import edges_of, whole_ids
from pyg_sar.rows.over_ranks import whole
from pyg_sar.rows.registry import bare_name, is_in_place, name_of, names
from pyg_sar.rows.rows import Rows, plain, plainly, tag
from pyg_sar.rows.space import Space
from pyg_sar.shard.edges import kept_on

_MOST_KEPT = 4

Entries = tuple[Tensor, Tensor, Tensor | None]
"""Rows, columns and values of all entries of a whole matrix."""


class Adjacency:
    """A sparse matrix whose entries are edges from its columns to its rows.

    Attributes:
        edges: Row 0 holds columns of the matrix, row 1 its rows; in the order of its entries.
        value: Rows ``[nnz, ...]``, a value for each; None for the ones of a SparseTensor.
        results: Matrices that functions have made of it.
    """

    edges: EdgeIndex
    value: Any
    results: dict[Any, Any]

    def of_entries(self, row: Tensor, col: Tensor, value: Tensor | None) -> Any:
        """The matrix of its kind, plain, with entries of its rows and columns in whole numbers."""
        raise NotImplementedError

    def with_value(self, value: Any, edges: EdgeIndex | None = None) -> Any:
        """The same matrix with other values, or with its edges elsewhere."""
        raise NotImplementedError

    def whole(self) -> Any:
        """The plain matrix with all entries (collective)."""
        col, row = whole_ids(self.edges)
        return self.of_entries(row, col, whole(self.value))

    def local(self, num_sources: int) -> Any:
        """The matrix of own rows, by columns in local ids, for products."""
        raise NotImplementedError

    def compressed(self) -> tuple[Tensor, Tensor, Tensor]:
        """The order of own edges in compressed rows, the pointers of rows, and local columns.

        Without own rows it is of one that is empty: torch_sparse divides by their number.
        """
        handle, space = self.edges.handle, self.edges._space

        def make() -> tuple[Tensor, Tensor, Tensor]:
            device = handle.ids.device
            order = space.ids(device).argsort()
            order = order[handle.ids[1, order].argsort(stable=True)]
            col, row = handle.ids[:, order]
            counts = torch.bincount(row, minlength=max(self.edges.ends.dst.own, 1))
            return order, torch.nn.functional.pad(counts.cumsum(0), (1, 0)), col

        with plainly():
            made: tuple[Tensor, Tensor, Tensor] = kept_on(handle, 'compressed', make, space)
        return made


def product(func: Callable[..., Any], matrix: Adjacency, x: Tensor, *options: Any) -> Any:
    """``func(matrix, x, *options)``, by the own rows of the matrix and the rows of x it reads.

    Collective: an all-to-all, and one in backward.
    """
    ends, dim = matrix.edges.ends, max(x.dim() - 2, 0)
    if x.size(dim) != ends.src.total:
        sizes = f'({ends.dst.total}, {ends.src.total}) @ {tuple(x.shape)}'
        raise RuntimeError(f'{sizes}: the sizes do not fit')
    own = own_rows(func, x, dim, ends.src).movedim(dim, 0)
    with plainly():
        sources = with_halo(own, exchange_of(ends.shard))
        if not sources.size(0):
            sources = torch.cat([sources, sources.new_zeros(1, *sources.shape[1:])])
        sources = sources.movedim(0, dim)
        out = func(matrix.local(sources.size(dim)), sources, *options)
        return tag(out.narrow(dim, 0, ends.dst.own), dim, ends.dst)


def by_whole(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function gives of whole matrices and whole tensors; matrices are dealt again.

    They are kept with the first matrix, while its values take no gradient and are not written to.
    """
    every = leaves((args, kwargs))
    first = next(arg for arg in every if isinstance(arg, Adjacency))
    value = first.value
    is_kept = not any(isinstance(arg, (Tensor, Adjacency)) for arg in every if arg is not first)
    is_kept &= value is None or not (value.requires_grad or value.is_inference())
    others = in_nested((args, kwargs), lambda arg: None if arg is first else arg)
    key = name_of(func), torch.get_default_dtype(), str(others) if is_kept else ''
    state = None if value is None else (id(value), version_of(value))
    if is_kept and key in first.results and first.results[key][0] == state:
        out, versions = first.results[key][1:]
        if versions == _versions(out):
            return out
    ends = first.edges.ends
    args, kwargs = in_nested((args, kwargs), of_whole)
    out = func(*args, **kwargs)
    out = in_nested(out, lambda matrix: dealt_between(matrix, (ends.dst, ends.src)))
    if is_kept and any(isinstance(matrix, Adjacency) for matrix in leaves(out)):
        first.results[key] = state, out, _versions(out)
        for old in [*first.results][:-_MOST_KEPT]:
            del first.results[old]
    return out


def _versions(out: Any) -> list[object]:
    values = [each.value if isinstance(each, Adjacency) else each for each in leaves(out)]
    return [version_of(value) for value in values if isinstance(value, Tensor)]


def of_whole(value: Any) -> Any:
    """The whole matrix, or the whole tensor, if it is spread over the ranks."""
    if isinstance(value, Adjacency):
        return value.whole()
    return whole_ids(value) if isinstance(value, EdgeIndex) else whole(value)


def dealt_between(matrix: Any, spaces: Iterable[Space]) -> Any:
    """A plain sparse matrix as an Adjacency, if its sizes tell which rows it runs between."""
    sizes = sizes_of(matrix)
    if sizes is None or world_size() == 1:
        return matrix
    fitting = [[s for s in dict.fromkeys(spaces) if s.total == n and s.has_ids()] for n in sizes]
    if any(len(found) != 1 for found in fitting):
        return matrix
    return dealt('a sparse matrix', matrix, fitting[0][0], fitting[1][0])


def spaces_in(args: Iterable[Any]) -> list[Space]:
    """The rows of nodes that ids of edges among arguments run between."""
    spaces: list[Space] = []
    for arg in args:
        if isinstance(arg, NodeIds):
            spaces.append(arg.of)
        if isinstance(arg, Rows) and arg.dtype == torch.int64:
            spaces += arg._space.neighbours
    return spaces


_READERS: list[Callable[[Any], Any]] = []
"""For each kind of plain matrix: its sizes, entries, what they are kept with, and how to make an
Adjacency; or None."""


def reader(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Enters a kind of plain sparse matrix."""
    _READERS.append(function)
    return function


def _read(matrix: Any) -> Any:
    found = (read(matrix) for read in _READERS) if not isinstance(matrix, Adjacency) else ()
    return next((each for each in found if each is not None), None)


def sizes_of(matrix: Any) -> tuple[int, int] | None:
    """The numbers of rows and columns of a plain sparse matrix; None of anything else."""
    found = _read(matrix)
    sizes: tuple[int, int] | None = None if found is None else found[0]
    return sizes


def dealt(func: Any, matrix: Any, rows: Space, cols: Space) -> Any:
    """A plain sparse matrix, equal on all ranks, as an Adjacency (collective).

    Its edges are kept with it until it is written to.
    """
    _, entries, key, make = _read(matrix)
    row, col, value = entries()
    edges = _edges_of_entries(func, row, col, rows, cols, key)
    if value is not None:
        value = tag(own_rows(func, value, 0, edges._space), 0, edges._space)
    out = make(edges, value)
    out.results = {}
    return out


_dealt = WeakTensorKeyDictionary(), weakref.WeakKeyDictionary[Any, Any]()


def _edges_of_entries(
    func: Any, row: Tensor, col: Tensor, rows: Space, cols: Space, key: Any
) -> EdgeIndex:
    kept: Any = _dealt[not isinstance(key, Tensor)]
    state = version_of(row), version_of(col), rows, cols
    old_state, edges = kept.get(key, (None, None))
    if old_state != state:
        edges = edges_of(func, torch.stack([col, row]), cols, rows)
        kept[key] = state, edges
    made: EdgeIndex = edges
    return made


def refuse_change(func: Any) -> NoReturn:
    """Raises a ValueError for a function that writes into a matrix."""
    name = func if isinstance(func, str) else name_of(func)
    raise ValueError(
        f"'{name}' cannot change the adjacency matrix of a cut graph in place: use the function "
        "that gives a new one, or change 'edge_index' and its weights before T.ToSparseTensor"
    )


_READS = names(
    'size dim ndimension numel nelement is_floating_point is_complex element_size get_device '
    'sparse_dim hash format repr is_inference is_pinned type'
)
_MOVES = names('to cpu cuda double float half bfloat16 type type_as detach clone contiguous')
_PRODUCTS = names('matmul mm mv sparse_mm spmm')
_TURNED = names('T mT H mH')
_LAYOUTS = {torch.sparse_coo: 'coo', torch.sparse_csr: 'csr', torch.sparse_csc: 'csc'}


class AdjacencyTensor(Adjacency, Tensor):
    """A ``torch.sparse`` matrix of a cut graph, of layout COO, CSR or CSC.

    Attributes:
        layout: Its layout.
        is_unique: Whether the entries of a COO matrix are sorted, and none comes twice.
    """

    is_unique: bool
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
    is_sparse = property(lambda self: self.layout == torch.sparse_coo)
    is_sparse_csr = property(lambda self: self.layout == torch.sparse_csr)

    def with_value(self, value: Any, edges: EdgeIndex | None = None) -> Any:  # noqa: D102
        return _tensor(edges or self.edges, value, self.layout, is_unique=self.is_unique)

    def of_entries(self, row: Tensor, col: Tensor, value: Tensor | None) -> Any:  # noqa: D102
        return _of_layout(self.layout, row, col, value, self.shape, self.is_unique)

    def local(self, num_sources: int) -> Any:  # noqa: D102
        order, ptr, col = self.compressed()
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
        return f'AdjacencyTensor({self.edges._space!r}, size={tuple(self.shape)}, {self.layout})'

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if 'detach' in str(func):
            return args[0]
        raise ValueError(f"'{func}' of the adjacency matrix of a cut graph would see no entries")


def _is_dense(x: Any) -> bool:
    """Whether it is a vector or a matrix of numbers."""
    is_tensor = isinstance(x, Tensor) and not isinstance(x, Adjacency)
    return is_tensor and x.layout == torch.strided and x.dim() < 3


def _tensor(edges: EdgeIndex, value: Any, layout: Any, *, is_unique: bool) -> AdjacencyTensor:
    size = edges.ends.dst.total, edges.ends.src.total, *value.shape[1:]
    make: Any = Tensor._make_wrapper_subclass
    out: AdjacencyTensor = make(AdjacencyTensor, size, dtype=value.dtype, device=value.device)
    out.edges, out.value, out._layout, out.is_unique = edges, value, layout, is_unique
    out.results = {}
    return out


def _of_layout(layout: Any, row: Any, col: Any, value: Any, size: Any, is_unique: bool) -> Tensor:
    """A plain matrix of entries in its order."""
    if layout == torch.sparse_coo:
        ids = torch.stack([row, col])
        return torch.sparse_coo_tensor(ids, value, size, is_coalesced=is_unique or None)
    of, others, n = (row, col, size[0]) if layout == torch.sparse_csr else (col, row, size[1])
    make = getattr(torch, f'sparse_{_LAYOUTS[layout]}_tensor')
    matrix: Tensor = make(torch._convert_indices_from_coo_to_csr(of, n), others, value, size)
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
        ids = torch._convert_indices_from_csr_to_coo(ptr, others)[0].long()
        row, col = (ids, others.long()) if is_csr else (others.long(), ids)
        return row, col, matrix.values()

    def make(edges: EdgeIndex, value: Any) -> Any:
        return _tensor(edges, value, layout, is_unique=is_unique)

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
            return _tensor(edges, value, torch.sparse_csr, is_unique=True)
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


def adjacencies(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments of a conv, with plain sparse matrices between its rows as Adjacencies."""
    every = [*args, *kwargs.values()]
    if all(sizes_of(arg) is None for arg in every):
        return args, kwargs
    spaces = [arg._space for arg in leaves(every) if isinstance(arg, Rows) and arg._dim == 0]
    return in_nested((args, kwargs), lambda arg: dealt_between(arg, spaces))
