"""The edge_index of a cut graph as a program sees it: edges of the whole, with ids of the whole.

Convs compute with the ids of their rank (:class:`pyg_sar.shard.edges.ShardEdges`). A
program means those of the whole graph. :class:`EdgeIndex` shows these and keeps the others for
convs. Its rows, ``edge_index[0]`` and ``[1]``, are :class:`NodeIds`: rows of edges, with the ids of
nodes, which remember where these nodes are. So ``x[edge_index[0]]`` is one exchange of halo rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex as edges_of_pyg

from pyg_sar.comm.exchange import with_halo_ids
from pyg_sar.comm.ranks import check_lives
from pyg_sar.rows.align import argument, dim_of, listed, masked, sizes_in
from pyg_sar.rows.over_ranks import all_rows, whole
from pyg_sar.rows.registry import bare_name, is_in_place, name_of, names
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.sharding import Sharding
from pyg_sar.rows.slices import check_slices, remember, slices_read
from pyg_sar.shard.edges import ShardEdges
from pyg_sar.shard.shard import Cached, Shard
from pyg_sar.utils.nested import in_nested, leaves

_KEEPS_EDGES = names('to cpu cuda clone detach contiguous pin_memory long type_as')
_KEEPS_IDS = _KEEPS_EDGES | names(
    'view reshape unsqueeze squeeze expand expand_as view_as flatten __getitem__ index_select '
    'narrow masked_select broadcast_to movedim transpose t'
)
_COPIES = names('clone index_select masked_select')
_READS = names(
    'size len numel nelement dim ndimension is_floating_point is_complex get_device is_contiguous '
    'element_size is_pinned type hash repr format requires_grad_'
)
_MOVES = names('T mT H mH real')
_JOINS = names('cat concat concatenate')
_NEW_EDGES = 'write edge_index[:, mask], or torch.stack([row, col]) of new ids'
_IN_PLACE = "cannot change a graph's edges in place"
_MOVED: Cached[Ends] = Cached()


@dataclass(frozen=True, eq=False)
class Ends:
    """The nodes that the edges of a shard run between."""

    shard: Shard
    src: Sharding
    dst: Sharding

    def on(self, shard: Shard) -> Ends:
        """These nodes as ends of the edges of a shard that was moved to another device."""
        if shard is self.shard:
            return self
        return _MOVED.of(shard, lambda: Ends(shard, self.src, self.dst))

    def source_ids(self, device: torch.device) -> Tensor:
        """Ids of the whole graph of all local sources, halo included (collective, once)."""
        return with_halo_ids(self.shard, self.src.ids(device))


class NodeIds(Rows):
    """Rows of ids of nodes, which remember where the nodes are.

    Attributes:
        of: The nodes.
        local_index: Places of own rows, then of halo rows, of the shape of the own rows.
        shard: Whose halo it is; None if all are own nodes.
        view_of: The edges that torch would write into, or None.
    """

    of: Sharding
    local_index: Tensor
    shard: Shard | None
    view_of: EdgeIndex | None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = name_of(func)
        ids: Any = args[0] if args else None
        if any(isinstance(arg, EdgeIndex) for arg in args):
            return EdgeIndex.__torch_function__(func, types, args, kwargs)
        if isinstance(ids, NodeIds) and is_in_place(name):
            if ids.view_of is not None:
                refuse(func, _IN_PLACE, 'write edge_index[0].clone(), which changes no edges')
            ids.__class__ = Rows  # type: ignore[assignment]  # what it remembers is no longer so
        out = super().__torch_function__(func, types, args, kwargs)
        is_moved = isinstance(ids, NodeIds) and name in _KEEPS_IDS
        if is_moved and type(out) is Rows and out.dtype == torch.int64:
            with plainly():
                places = tag(ids.local_index.view(ids.local_index.shape), ids._dim, ids._sharding)
            there = func(places, *args[1:], **kwargs or {})
            moved = node_ids(out, out._dim, out._sharding, ids.of, plain(there), ids.shard)
            moved.view_of = None if name in _COPIES else ids.view_of
            return moved
        return out


def node_ids(
    ids: Tensor, dim: int, sharding: Sharding, of: Sharding, places: Tensor, shard: Any
) -> Any:
    """Ids of nodes, whose places are known."""
    out = tag(ids, dim, sharding)
    if sharding.is_whole:
        return out
    out.__class__ = NodeIds
    out.of, out.local_index, out.shard, out.view_of = of, places, shard, None
    return out


class EdgeIndex(Rows):
    """The edges of a cut graph, int64 ``[2, num_edges]``, with ids of the whole graph.

    Made by :func:`pyg_sar.load_shard`. ``size(1)`` is the number of edges of the whole. Edges that
    are selected from it, or turned by ``flip(0)``, are an EdgeIndex too.

    Attributes:
        ends: The nodes that they run between.
    """

    ends: Ends
    _handle: ShardEdges
    _whole_ids: Rows | None

    @property
    def handle(self) -> ShardEdges:
        """The own edges in ids of this rank, for convs; not if a copy of them was changed."""
        if slices_read.value:
            check_slices()
        with plainly():
            copied = self._whole_ids
            if copied is not None and not copied.is_inference() and copied._version:
                refuse('a view', _IN_PLACE, _NEW_EDGES)
        return self._handle

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, edges, kwargs = name_of(func), args[0] if args else None, kwargs or {}
        is_getter = getattr(func, '__name__', '') == '__get__'
        is_read = name not in _MOVES if is_getter else bare_name(func) in _READS
        is_read = is_read and not (bare_name(func) == 'type' and len(args) + len(kwargs) > 1)
        if isinstance(edges, EdgeIndex) and is_read and name == 'data':
            return edges
        if getattr(func, '__name__', '') in ('__set__', '__delete__'):
            if (name, *args[1:]) not in (('grad', None), ('requires_grad', False)):
                refuse(func, _IN_PLACE, _NEW_EDGES)
            return None  # no gradient, as ever
        if isinstance(edges, EdgeIndex) and not is_read:
            check_lives(edges._sharding.comm)
            if is_in_place(name):
                refuse(func, _IN_PLACE, _NEW_EDGES)
            out = _kept(edges, func, args[1:], kwargs)
            if out is not None:
                return out
        one: Any = edges  # a list of edges may come first, or a plain tensor
        if not isinstance(edges, EdgeIndex):
            one = next(e for e in leaves((args, kwargs)) if isinstance(e, EdgeIndex))
        is_whole = one._sharding.is_whole
        if not is_read and (name not in _JOINS or is_whole):
            args, kwargs = in_nested((args, kwargs), _values_of)
        if is_whole:
            with plainly():
                return func(*args, **kwargs)
        return super().__torch_function__(func, types, args, kwargs)

    @property
    def whole_ids(self) -> Rows:
        """The ids of the whole graph as ordinary rows."""
        if self._sharding.is_whole:
            return plain(self)
        check_lives(self._sharding.comm)
        if self._whole_ids is None:
            rows = [plain(self._row(i)) for i in (0, 1)]
            self._whole_ids = tag(torch.stack(rows), 1, self._sharding)
        return self._whole_ids

    def _row(self, row: int) -> Any:
        ends, is_src = self.ends, row == self.handle.is_flipped
        with plainly():
            local = self.handle.ids[row]
            ids = (ends.source_ids if is_src else ends.dst.ids)(local.device)[local]
            of, shard = (ends.src, ends.shard) if is_src else (ends.dst, None)
            row_ids = node_ids(ids, 0, self._sharding, of, local, shard)
        if isinstance(row_ids, NodeIds):
            row_ids.view_of = self
        else:
            remember(row_ids, self, row)
        return row_ids

    def __getattr__(self, name: str) -> Any:
        if name in vars(edges_of_pyg) and not name.startswith('_'):
            sizes = self.ends.src.total, self.ends.dst.total
            return getattr(edges_of_pyg(all_rows(self), sparse_size=sizes), name)
        raise AttributeError(f"'EdgeIndex' object has no attribute '{name}'")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        handle = self.handle.with_ids(self.handle.ids.clone(), is_whole=self.handle.is_whole)
        memo[id(self)] = copy = edge_index(handle, self._sharding, self.ends)
        return copy

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f'EdgeIndex({self._sharding!r})'


def edge_index(handle: ShardEdges, sharding: Sharding, ends: Ends) -> EdgeIndex:
    """The edges of a handle, whose rows are those of `sharding`."""
    with plainly():
        out = handle.ids.as_subclass(EdgeIndex)
    out._dim, out._sharding, out.ends, out._handle, out._whole_ids = 1, sharding, ends, handle, None
    return out


def _values_of(value: Any) -> Any:
    return value.whole_ids if isinstance(value, EdgeIndex) else value


def _kept(edges: EdgeIndex, func: Any, args: Any, kwargs: Any) -> Any:
    """The result, if it still is edges of the graph or one of their rows; else None."""
    name, dim = name_of(func), argument(args, kwargs, 0, 'dim')
    handle = edges.handle
    if name in _KEEPS_EDGES:
        with plainly():
            if func(handle.ids.new_empty(0), *args, **kwargs).dtype == torch.int64:
                ids = func(handle.ids, *args, **kwargs)
                moved = handle.with_ids(ids, is_whole=handle.is_whole)
                return edge_index(moved, edges._sharding, edges.ends.on(moved.shard))
    if name == '__getitem__':
        return _taken(edges, args[0])
    if name == 'flip' and sizes_in(args, kwargs, 'dims') in ([0], [-2]):
        return edge_index(handle.flip(), edges._sharding, edges.ends)
    if name == 'unbind' and dim in (None, 0):
        return edges._row(0), edges._row(1)
    if name == 'index_select':
        index = argument(args, kwargs, 1, 'index')
        return edges[index] if dim in (0, -2) else edges[:, index]
    if name in ('view', 'reshape', 'flatten', 'ravel'):
        ids = all_rows(edges).contiguous()
        out = func(ids, *args, **kwargs)
        if (out.shape, out.dtype) == (ids.shape, ids.dtype):
            return edges
        if not edges._sharding.is_whole:
            remember(out, edges, None)
        return out
    return None


def _taken(edges: EdgeIndex, index: Any) -> Any:
    """One of the rows, or a selection of edges; None for anything else."""
    items = list(index) if isinstance(index, tuple) else [index]
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if dots:
        items[dots[0] : dots[0] + 1] = [slice(None)] * (3 - len(items))
    first, *rest = items
    if type(first) is int and -2 <= first < 2:
        row = edges._row(first % 2)
        return row[tuple(rest)] if rest else row
    if (first.tolist() if type(first) is Tensor else first) in ([1, 0], (1, 0)):
        turned = edges.flip(0)
        return turned[:, rest[0]] if rest else turned
    if not (isinstance(first, slice) and first == slice(None)):
        return None
    if not rest or (isinstance(rest[0], slice) and rest[0] == slice(None)):
        return edges
    return _selected(edges, rest[0]) if len(rest) == 1 else None


def _selected(edges: EdgeIndex, index: Any) -> Any:
    """Edges by a mask of rows or of the whole, or by their places in the whole."""
    sharding = edges._sharding
    if isinstance(index, slice):
        index = torch.arange(sharding.total)[index]
    if not isinstance(index, Tensor) or index.dtype == torch.uint8 or dim_of(index) != 1:
        return None
    if isinstance(index, NodeIds) and index.of is sharding:
        chosen, which = index._sharding, index.local_index
    elif index.dtype != torch.bool:
        chosen, which = listed('indexing', whole(index), sharding)
    else:
        chosen, which = masked('indexing', index, sharding)
    with plainly():
        handle = edges.handle.with_ids(edges.handle.ids[:, which])
    return edge_index(handle, chosen, edges.ends)
