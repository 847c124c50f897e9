"""Sparse matrices between nodes of a cut graph, as ``adj_t``: a rank has the entries of its rows.

``T.ToSparseTensor`` and PyG's helpers make matrices that torch or torch_sparse define. Of a cut
graph they are an :class:`Adjacency`: edges that run from the columns to the rows, and a value for
each. Convs and products with rows use these edges. Every other function runs on the whole matrix,
which each rank then has for a moment, and matrices that it gives are scattered again. So
what a function means is what torch, torch_sparse or PyG say.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor

from pyg_sar.comm.exchange import exchange_of
from pyg_sar.comm.ranks import cache_of, world_size
from pyg_sar.comm.rows_by_id import with_halo
from pyg_sar.rows.align import own_rows
from pyg_sar.rows.edges import EdgeIndex, NodeIds
from pyg_sar.rows.made_edges import edges_of, whole_ids
from pyg_sar.rows.over_ranks import whole
from pyg_sar.rows.registry import name_of
from pyg_sar.rows.rows import Rows, plain, plainly, tag
from pyg_sar.rows.sharding import Sharding
from pyg_sar.shard.edges import kept_on
from pyg_sar.utils.nested import in_nested, leaves
from pyg_sar.utils.tensor_state import version_of

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

    def compressed(self, *, by_column: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """The order of own edges in compressed rows, the pointers of rows, and local columns.

        In a row they are in the order of the matrix, or by their local columns.
        """
        handle, sharding = self.edges.handle, self.edges._sharding

        def make() -> tuple[Tensor, Tensor, Tensor]:
            device = handle.ids.device
            keys = handle.ids[0] if by_column else sharding.ids(device)
            order = keys.argsort(stable=True)
            order = order[handle.ids[1, order].argsort(stable=True)]
            col, row = handle.ids[:, order]
            return order, pointers(row, self.edges.ends.dst.own), col

        with plainly():
            made: tuple[Tensor, Tensor, Tensor] = kept_on(
                handle, ('compressed', by_column), make, sharding
            )
        return made


def pointers(ids: Tensor, count: int) -> Tensor:
    """Where each of so many rows begins, int64 ``[count + 1]``, by the rows of all entries."""
    return torch.nn.functional.pad(torch.bincount(ids, minlength=count).cumsum(0), (1, 0))


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
        sources = with_halo(own, exchange_of(ends.shard)).movedim(0, dim)
        if matrix.edges.handle.num_edges:
            out = func(matrix.local(sources.size(dim)), sources, *options)
        else:  # zeros; this rank, too, has to enter the backward of what they are made of
            out = sources.narrow(dim, 0, 0).sum(dim, keepdim=True)
            if matrix.value is not None and matrix.value.requires_grad:
                out = out + plain(matrix.value).sum()
            out = out.expand(*x.shape[:dim], ends.dst.own, *x.shape[dim + 1 :])
        return tag(out, dim, ends.dst)


def by_whole(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function gives of whole matrices and whole tensors; matrices are scattered again.

    They are kept with the first matrix, while its values take no gradient and are not written to.
    """
    every = leaves((args, kwargs))
    first = next(arg for arg in every if isinstance(arg, Adjacency))
    value = first.value
    is_kept = not any(isinstance(arg, (Tensor, Adjacency)) for arg in every if arg is not first)
    is_kept &= value is None or not (value.requires_grad or value.is_inference())
    others = in_nested((args, kwargs), lambda arg: None if arg is first else arg)
    key = func, torch.get_default_dtype(), str(others) if is_kept else ''
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


def dealt_between(matrix: Any, shardings: Iterable[Sharding]) -> Any:
    """A plain sparse matrix as an Adjacency, if its sizes tell which rows it runs between."""
    sizes = sizes_of(matrix)
    if sizes is None or world_size() == 1:
        return matrix
    fitting = [[s for s in dict.fromkeys(shardings) if s.total == n and s.has_ids()] for n in sizes]
    if any(len(found) != 1 for found in fitting):
        return matrix
    return scattered('a sparse matrix', matrix, fitting[0][0], fitting[1][0])


def shardings_in(args: Iterable[Any]) -> list[Sharding]:
    """The rows of nodes that ids of edges among arguments run between."""
    shardings: list[Sharding] = []
    for arg in args:
        if isinstance(arg, NodeIds):
            shardings.append(arg.of)
        if isinstance(arg, Rows) and arg.dtype == torch.int64:
            shardings += arg._sharding.nodes
    return shardings


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


def scattered(func: Any, matrix: Any, rows: Sharding, cols: Sharding) -> Any:
    """A plain sparse matrix, equal on all ranks, as an Adjacency (collective).

    Its edges are kept with it until it is written to.
    """
    _, entries, key, make = _read(matrix)
    row, col, value = entries()
    edges = _edges_of_entries(func, row, col, rows, cols, key)
    if value is not None:
        value = tag(own_rows(func, value, 0, edges._sharding), 0, edges._sharding)
    out = make(edges, value)
    out.results = {}
    return out


def _edges_of_entries(
    func: Any, row: Tensor, col: Tensor, rows: Sharding, cols: Sharding, key: Any
) -> EdgeIndex:
    is_tensor = isinstance(key, Tensor)
    kept = cache_of('matrices') if is_tensor else cache_of('matrices', weakref.WeakKeyDictionary)
    versions = [version_of(each) for each in (row, col, key) if isinstance(each, Tensor)]
    state = versions, rows, cols
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


def refuse_matrices(what: str, values: Any) -> None:
    """Raises a ValueError if an Adjacency is among values."""
    if any(isinstance(leaf, Adjacency) for leaf in leaves(values)):
        raise ValueError(
            f'expected edges for {what} (got the adjacency matrix of a cut graph): give it '
            "'edge_index', which T.ToSparseTensor(remove_edge_index=False) keeps; "
            'pyg_sar.gather(adj_t) is the whole matrix'
        )


NO_MATRICES = {Rows, EdgeIndex, NodeIds, type(None), bool, int, float, str}
"""Types of arguments that :func:`adjacencies` leaves as they are."""


def adjacencies(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments of a conv, with plain sparse matrices between its rows as Adjacencies."""
    if world_size() == 1:
        return args, kwargs
    every = [*args, *kwargs.values()]
    if all(sizes_of(arg) is None for arg in every):
        return args, kwargs
    shardings = [arg._sharding for arg in leaves(every) if isinstance(arg, Rows) and arg._dim == 0]
    return in_nested((args, kwargs), lambda arg: dealt_between(arg, shardings))
