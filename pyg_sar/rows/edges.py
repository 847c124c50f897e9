"""The edge_index of a cut graph as a program sees it: edges of the whole, with ids of the whole.

Convs compute with the ids of their rank (:class:`pyg_sar.shard.edge_index.ShardEdgeIndex`). A
program means those of the whole graph. :class:`EdgeIndex` shows these and keeps the others for
convs. Its rows, ``edge_index[0]`` and ``[1]``, are :class:`NodeIds`: rows of edges, with the ids of
nodes, which remember where these nodes are. So ``x[edge_index[0]]`` is one exchange of halo rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm import Exchange
from pyg_sar.rows.align import brought, dim_of, own_rows
from pyg_sar.rows.over_ranks import all_rows, whole
from pyg_sar.rows.registry import bare, name_of, rule_of
from pyg_sar.rows.replicated import check_whole
from pyg_sar.rows.rows import Rows, in_nested, plain, plainly, refuse, tag
from pyg_sar.rows.space import Space
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.shard import Shard

_KEEPS_EDGES = frozenset(
    ['to', 'cpu', 'cuda', 'clone', 'detach', 'contiguous', 'pin_memory', 'long', 'type_as']
)
_KEEPS_IDS = _KEEPS_EDGES | frozenset(
    [
        'view',
        'reshape',
        'unsqueeze',
        'squeeze',
        'expand',
        'expand_as',
        'view_as',
        'flatten',
        '__getitem__',
        'index_select',
        'narrow',
        'masked_select',
        'broadcast_to',
        'movedim',
        'transpose',
        't',
    ]
)
_READS = frozenset(
    [
        'size',
        'len',
        'numel',
        'nelement',
        'dim',
        'ndimension',
        'is_floating_point',
        'is_complex',
        'get_device',
        'is_contiguous',
        'element_size',
        'is_pinned',
        'type',
        'hash',
        'repr',
        'format',
        'requires_grad_',
        'is_same_size',
    ]
)


@dataclass(frozen=True, eq=False)
class Ends:
    """The nodes that the edges of a shard run between."""

    shard: Shard
    src: Space
    dst: Space

    def on(self, shard: Shard) -> Ends:
        """These nodes as ends of the edges of a shard that was moved to another device."""
        if shard is self.shard:
            return self
        found: Ends = shard.cache.setdefault('ends', Ends(shard, self.src, self.dst))
        return found

    def source_ids(self, device: torch.device) -> Tensor:
        """Ids of the whole graph of all local sources, halo included (collective, once)."""
        cache = self.shard.cache
        if 'source ids' not in cache:
            own = self.src.ids(device)
            halo = (
                Exchange(self.shard).fetch_all([own])[0] if self.shard.world_size > 1 else own[:0]
            )
            cache['source ids'] = torch.cat([own, halo])
        if cache['source ids'].device != device:
            cache['source ids'] = cache['source ids'].to(device)
        found: Tensor = cache['source ids']
        return found


class NodeIds(Rows):
    """Rows of ids of nodes, which remember where the nodes are.

    Attributes:
        of: The nodes.
        places: Places of own rows, then of halo rows, of the shape of the own rows.
        shard: Whose halo it is; None if all are own nodes.
    """

    of: Space
    places: Tensor
    shard: Shard | None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        first = args[0] if args else None
        if isinstance(first, NodeIds):
            if _writes(name):
                first.__class__ = Rows  # type: ignore[assignment]  # what it remembers is no longer so
            elif name in _KEEPS_IDS or bare(name) in _KEEPS_EDGES:
                return _moved(func, first, args, kwargs)
        if any(isinstance(each, EdgeIndex) for each in args):
            return EdgeIndex.__torch_function__(func, types, args, kwargs)
        return rule_of(func)(func, args, kwargs)


def node_ids(ids: Tensor, dim: int, space: Space, of: Space, places: Tensor, shard: Any) -> Any:
    """Ids of nodes, whose places are known."""
    out = tag(ids, dim, space)
    out.__class__ = NodeIds
    out.of, out.places, out.shard = of, places, shard
    return out


def _writes(name: str) -> bool:
    is_operator = name.startswith('__i') and name not in ('__invert__', '__index__')
    return (
        (name.endswith('_') and not name.startswith('__')) or is_operator or name == '__setitem__'
    )


def _moved(func: Any, ids: NodeIds, args: Any, kwargs: Any) -> Any:
    """A function that moves or selects rows, of the ids and of the places alike."""
    rule = rule_of(func)
    out = rule(func, args, kwargs)
    if type(out) is not Rows or out.dtype != torch.int64:
        return out
    with plainly():
        places = tag(ids.places.view(ids.places.shape), ids._dim, ids._space)
    there = rule(func, (places, *args[1:]), kwargs)
    return node_ids(out, out._dim, out._space, ids.of, plain(there), ids.shard)


class EdgeIndex(Rows):
    """The edges of a cut graph, int64 ``[2, num_edges]``, with ids of the whole graph.

    Made by :func:`pyg_sar.load_shard`. ``size(1)`` is the number of edges of the whole. Edges that
    are selected from it, or turned by ``flip(0)``, are an EdgeIndex too.

    Attributes:
        handle: The own edges in ids of this rank, for convs.
        ends: The nodes that they run between.
    """

    handle: ShardEdgeIndex
    ends: Ends
    _whole_ids: Rows | None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        first = args[0] if args else None
        if getattr(func, '__name__', '') == '__get__' or bare(name) in _READS:
            return rule_of(func)(func, args, kwargs)
        if isinstance(first, EdgeIndex):
            if name in _KEEPS_EDGES and not isinstance(kwargs.get('dtype'), torch.dtype):
                moved = func(first.handle, *args[1:], **kwargs)
                if isinstance(moved, ShardEdgeIndex):
                    return edge_index(moved, first._space, first.ends.on(moved.shard))
            if name == '__getitem__':
                out = _taken(first, args[1])
                if out is not None:
                    return out
            if name in ('flip', 'flipud'):
                turned = func(first.handle, *args[1:], **kwargs)
                if name == 'flipud' or _is_dim_0(kwargs.get('dims', args[1:])):
                    return edge_index(turned, first._space, first.ends)
            if name == 'unbind' and kwargs.get('dim', args[1] if len(args) > 1 else 0) == 0:
                return first._row(0), first._row(1)
            if name == 'index_select':
                dim = kwargs.get('dim', args[1] if len(args) > 1 else None)
                index = kwargs.get('index', args[2] if len(args) > 2 else None)
                return first[index] if dim in (0, -2) else first[:, index]
            if name in ('view', 'reshape', 'flatten', 'ravel'):
                ids = all_rows(first).contiguous()
                out = func(ids, *args[1:], **kwargs)
                return first if out.shape == ids.shape else out
            if _writes(name):
                refuse(func, "cannot change a graph's edges in place")
        if name in ('cat', 'concat', 'concatenate', 'hstack'):
            return rule_of(func)(func, args, kwargs)
        values = in_nested((args, kwargs), _values_of)
        return rule_of(func)(func, *values)

    @property
    def whole_ids(self) -> Rows:
        """The ids of the whole graph as ordinary rows."""
        if self._whole_ids is None:
            rows = [plain(self._row(i)) for i in (0, 1)]
            self._whole_ids = tag(torch.stack(rows), 1, self._space)
        return self._whole_ids

    def _row(self, row: int) -> Any:
        """Sources or destinations."""
        is_src = row == self.handle.is_flipped
        with plainly():
            local = self.handle.as_subclass(Tensor)[row]
            if is_src:
                ids = self.ends.source_ids(local.device)[local]
                shard = self.ends.shard
                return node_ids(ids, 0, self._space, self.ends.src, local, shard)
            ids = self.ends.dst.ids(local.device)[local]
            return node_ids(ids, 0, self._space, self.ends.dst, local, None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        memo[id(self)] = made = edge_index(self.handle.clone(), self._space, self.ends)
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f'EdgeIndex({self._space!r})'


def edge_index(handle: Any, space: Space, ends: Ends) -> EdgeIndex:
    """The edges of a handle, whose rows are those of `space`."""
    with plainly():
        out: Any = handle.as_subclass(Tensor).view(handle.shape).as_subclass(EdgeIndex)
    out._dim, out._space, out.handle, out.ends, out._whole_ids = 1, space, handle, ends, None
    return out


def _values_of(value: Any) -> Any:
    return value.whole_ids if isinstance(value, EdgeIndex) else value


def _is_dim_0(dims: Any) -> bool:
    while isinstance(dims, (tuple, list)) and len(dims) == 1:
        dims = dims[0]
    return dims in (0, -2)


def _taken(edges: EdgeIndex, index: Any) -> Any:
    """One of the rows, or a selection of edges; None for anything else."""
    items = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [each for each in items if not isinstance(each, Tensor)]:
        place = next(i for i, each in enumerate(items) if each is Ellipsis)
        items[place : place + 1] = [slice(None)] * (3 - len(items))
    first, *rest = items
    if type(first) is int and -2 <= first < 2:
        row = edges._row(first % 2)
        return row[tuple(rest)] if rest else row
    if (first.tolist() if type(first) is Tensor else first) in ([1, 0], (1, 0)):
        turned = edge_index(edges.handle.flip(0), edges._space, edges.ends)
        return turned[:, rest[0]] if rest else turned
    if not (isinstance(first, slice) and first == slice(None)):
        return None
    if not rest or (isinstance(rest[0], slice) and rest[0] == slice(None)):
        return edges
    return _selected(edges, rest[0]) if len(rest) == 1 else None


def _selected(edges: EdgeIndex, index: Any) -> Any:
    """Edges by a mask of rows or of the whole, or by their places in the whole."""
    space = edges._space
    if isinstance(index, slice):
        index = torch.arange(space.total)[index]
    if not isinstance(index, Tensor) or index.dtype == torch.uint8 or dim_of(index) != 1:
        return None
    if isinstance(index, NodeIds) and index.of is space:
        return edge_index(edges.handle[:, index.places], index._space, edges.ends)
    if index.dtype != torch.bool:
        return _listed(edges, whole(index))
    if isinstance(index, Rows):
        index = brought('indexing', index, space)
    with plainly():
        mask = own_rows('indexing', index, 0, space)
    key = index if isinstance(index, Rows) else mask
    return edge_index(edges.handle[:, mask], space.selected(key), edges.ends)


def _listed(edges: EdgeIndex, ids: Tensor) -> EdgeIndex:
    """Edges by their places in the whole, in the order of a list that is equal on all ranks."""
    check_whole('indexing', ids)
    ids = torch.where(ids < 0, ids + edges._space.total, ids)
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < edges._space.total:
        raise IndexError(f'index out of range: expected ids from 0 to {edges._space.total - 1}')
    places = edges._space.places(ids)
    is_own = places >= 0
    space = Space(
        int(is_own.sum()),
        what=f'listed {edges._space.what}',
        ids=is_own.nonzero().view(-1),
        total=ids.numel(),
    )
    space.neighbours = edges._space.neighbours
    return edge_index(edges.handle[:, places[is_own]], space, edges.ends)
