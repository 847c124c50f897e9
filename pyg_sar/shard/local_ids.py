"""Ids of a rank's own and halo nodes, and what may be computed with them.

The id of a source is local to its rank. What is counted, compared or looked up with it is an answer
of this rank alone, mostly without an error. So tensors of such ids have a class of their own. It
lets through what is known to be right (operations that do not read the ids, selections of edges)
and refuses everything else by its name. Destinations are own nodes, with all their in-edges here,
so row 1 of an edge_index is a plain tensor.

Rows of nodes read at the sources, ``x[edge_index[0]]``, need the rows of other ranks. This room
cannot fetch them. A room that can says so for a time: see :func:`sources_read_by`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


READS_NO_IDS = names(
    'dim numel nelement ndimension size stride storage_offset element_size is_contiguous '
    'is_floating_point is_complex is_inference is_pinned is_shared is_same_size '
    'data_ptr get_device requires_grad requires_grad_ __len__ __repr__ __format__ __hash__ __dir__ '
    'new_empty new_full new_ones new_zeros empty_like full_like ones_like rand_like randn_like '
    'zeros_like share_memory_ record_stream untyped_storage _is_view _base _typed_storage '
    'is_conj is_neg'
)
"""Operations by name whose result does not depend on the ids."""

KEEPS_ALL = names('to cpu cuda clone detach contiguous pin_memory long type_as')
"""Operations by name after which every edge is where it was."""

_READS_ROWS = names('__getitem__ index_select gather take take_along_dim embedding')
_GROUPS = names(
    'scatter_ scatter_add_ scatter_add scatter_reduce scatter_reduce_ index_add index_add_ '
    'index_put index_put_ __setitem__ bincount one_hot'
)
_LARGEST = names('max min amax amin aminmax')


class SourceReader(Protocol):
    """Reads rows of nodes at the sources of edges, with those of other ranks."""

    def with_sources(self, values: Tensor, sources: SourceRow, dim: int) -> Tensor:
        """Node rows in dimension `dim`, own ones, with those of the halo behind them."""


_reader: ContextVar[SourceReader | None] = ContextVar('reader', default=None)


@contextmanager
def sources_read_by(reader: SourceReader) -> Iterator[None]:
    """While it lasts, ``x[edge_index[0]]`` reads by `reader`; inside another one, its own time."""
    token = _reader.set(reader)
    try:
        yield
    finally:
        _reader.reset(token)


class LocalIds(Tensor):
    """A tensor that holds ids of sources; see the module."""

    _what = ''

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = name_of(func)
        is_getter = getattr(func, '__name__', '') == '__get__'  # shape, device, is_cuda ...
        if is_getter or name in READS_NO_IDS:
            with torch._C.DisableTorchFunctionSubclass():
                value = func(*args, **(kwargs or {}))
            if name in READS_NO_IDS or not isinstance(value, Tensor):
                return value
        return cls._compute(func, name, args, kwargs or {})

    @classmethod
    def _compute(
        cls, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Computes what is known to be right; the rest it refuses."""
        refuse(cls, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        out = memo[id(self)] = self.clone()
        return out


class SourceRow(LocalIds):
    """The source of every edge, int64 ``[num_edges]``, in local ids."""

    _what = "the sources in a shard's edge_index"
    edges: Any  # the ShardEdgeIndex with these sources, which makes them

    @staticmethod
    def wrap(sources: Tensor, edges: Any) -> SourceRow:
        """Attaches the edges."""
        out = sources.as_subclass(SourceRow)
        out.edges = edges
        return out

    @property
    def edge_index(self) -> Any:
        """The edges with sources in row 0."""
        return self.edges.flip(0) if self.edges.is_flipped else self.edges

    @classmethod
    def _compute(
        cls, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if name in ('__getitem__', '__setitem__') and not isinstance(args[0], cls):
            return _read_or_written(func, name, args)
        # By name, as PyG replaces `torch.index_select` by a function of its own.
        if name == 'index_select':
            values, dim, index = _index_select_arguments(*args, **kwargs)
            if isinstance(index, cls) and not isinstance(values, cls):
                return _with_sources(values, index, dim, name).index_select(dim, plain(index))
        if name == 'stack':
            return _stacked(*args, **kwargs)
        if name in ('eq', 'ne', '__eq__', '__ne__') and len(args) == 2:
            sources, other = args if isinstance(args[0], cls) else args[::-1]
            # Own nodes have one id each: source and destination of an edge may be compared.
            if isinstance(other, Tensor) and _is_a_row_of(other, sources):
                return func(plain(args[0]), plain(args[1]))
        sources, *rest = args or (None,)
        if not isinstance(sources, cls) or any(isinstance(each, cls) for each in rest):
            refuse(cls, name)
        is_kept = name in KEEPS_ALL or name in ('view', 'reshape', 'flatten')
        if not is_kept and name not in ('__getitem__', 'index_select', 'narrow', 'masked_select'):
            refuse(cls, name)
        out = func(plain(sources), *rest, **kwargs)
        if out.dim() != 1 or out.dtype != torch.int64:
            refuse(cls, name)
        edges = sources.edges
        if not is_kept:
            places = torch.arange(sources.numel(), device=sources.device)
            edges = edges[:, func(places, *rest, **kwargs)]
        elif edges.device != out.device:
            edges = edges.to(out.device)
        return cls.wrap(out, edges)

    def __reduce_ex__(self, proto: Any) -> Any:
        # Plain numbers, once they are saved.
        return self.as_subclass(Tensor).__reduce_ex__(proto)  # type: ignore[no-untyped-call]


def name_of(func: Callable[..., Any]) -> str:
    """What refusals call an operation; of an attribute its name."""
    name: str = getattr(func, '__name__', str(func))
    if name in ('__get__', '__set__'):
        name = func.__self__.__name__  # type: ignore[attr-defined]
    return name


def plain(value: Any) -> Any:
    """The plain tensor, if it is one of local ids."""
    return value.as_subclass(Tensor) if isinstance(value, LocalIds) else value


def refuse(cls: type[LocalIds], name: str) -> NoReturn:
    """Raises a ValueError that names an operation and says what to do instead."""
    if name in _READS_ROWS:
        way = (
            'wrap the model before it runs (pyg_sar.DistributedDataParallel; lazy layers get their '
            'shapes at its first forward); rows of sources are read as x[edge_index[0]] in the '
            'forward of a MessagePassing conv that SARConv has, or as x_j in its message'
        )
    elif name in _LARGEST:
        way = (
            'give add_self_loops num_nodes=data.num_nodes and convs the edge_index itself, not '
            'a sparse matrix of it; sort and check edges before partitioning'
        )
    elif name in _GROUPS and _reader.get() is not None:
        way = (
            'group by sources with scatter, softmax or degree of torch_geometric.utils, called in '
            'the module that defines the conv'
        )
    elif 'csr' in name or 'sparse' in name or name in ('matmul', 'mm', '__matmul__'):
        way = 'give convs the edge_index itself, as a sparse matrix of it lacks the halo'
    else:
        way = (
            'select edges with edge_index[:, mask], count in-edges with degree(edge_index[1]), '
            'compute what concerns other nodes before partitioning and store it with nodes or '
            'edges, or take the ids as they are with .as_subclass(torch.Tensor)'
        )
    name = 'indexing' if name == '__getitem__' else name.strip('_')
    raise ValueError(
        f"'{name}' of {cls._what} means nothing on a cut graph, as it holds ids of this rank's own "
        f'and halo nodes; {way}'
    )


def _read_or_written(func: Callable[..., Any], name: str, args: tuple[Any, ...]) -> Any:
    """``values[sources]`` and ``values[sources] = ...``."""
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    ids = tuple(plain(each) for each in index)
    found = [(i, each) for i, each in enumerate(index) if isinstance(each, SourceRow)]
    if name == '__setitem__' or not found:
        if not found or not all(_are_loops(each) for _, each in found):
            refuse(SourceRow, name)
        return func(args[0], ids, *args[2:])
    return _with_sources(args[0], found[0][1], found[0][0], name)[ids]


def _index_select_arguments(input: Tensor, dim: int, index: Tensor) -> tuple[Tensor, int, Tensor]:
    return input, dim, index


def _with_sources(values: Any, sources: SourceRow, dim: int, name: str) -> Any:
    reader = _reader.get()
    if reader is not None:
        return reader.with_sources(values, sources, dim)
    if not _are_loops(sources):
        refuse(SourceRow, name)
    return values


def _are_loops(sources: SourceRow) -> bool:
    """Whether every edge starts where it ends, at an own node, as self loops that are masked."""
    if sources.edges.shard.is_bipartite:
        return False
    src, dst = plain(sources.edges)
    return torch.equal(src, dst)


def _is_a_row_of(other: Tensor, sources: SourceRow) -> bool:
    shares_memory = other.untyped_storage().data_ptr() == sources.untyped_storage().data_ptr()
    is_one_set = not sources.edges.shard.is_bipartite
    return shares_memory and other.shape == sources.shape and is_one_set


def _stacked(tensors: Any, dim: int = 0) -> Any:
    """``torch.stack([sources, destinations])``, or the other way round."""
    rows = [row for row in tensors if isinstance(row, SourceRow)]
    if dim != 0 or len(tensors) != 2 or len(rows) != 1:
        refuse(SourceRow, 'stack')
    is_flipped = tensors[1] is rows[0]
    edges = rows[0].edges
    stacked = torch.stack([plain(row) for row in tensors])
    return edges.wrap(stacked, edges.shard, is_whole=False, is_flipped=is_flipped)
