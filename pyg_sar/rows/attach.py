"""Where rows come from, and where they are plain again: data of a shard, and calls of convs."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage, NodeStorage

from pyg_sar.comm import agree, rank
from pyg_sar.rows.align import brought, own_rows
from pyg_sar.rows.edges import EdgeIndex, Ends, edge_index, node_ids
from pyg_sar.rows.rows import Rows, in_nested, plain, plainly, refuse, same_plain, tag
from pyg_sar.rows.space import Space
from pyg_sar.rows.unasked import ask_for_rows
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.shard import Shard

_WHOLE = 'rows of the whole graph'
"""Where a shard keeps the space of its edges and their ends."""


def as_rows_of_graph(data: Any) -> Any:
    """Data of a shard with rows in place of plain tensors, and counts of the whole (collective)."""
    ask_for_rows()
    nodes: dict[Any, Space] = {}
    own = {store._key: store['n_id'].numel() for store in data.node_stores}
    edges = [store['edge_index'].shard.num_edges for store in data.edge_stores]
    totals = [sum(counts) for counts in zip(*agree(edges), strict=True)]
    for store in data.node_stores:
        key, n_id = store._key, store['n_id']
        what = 'nodes' if key is None else f"nodes of type '{key}'"
        nodes[key] = Space(own[key], what=what, ids=n_id, total=store['num_nodes_total'])
    for store, total in zip(data.edge_stores, totals, strict=True):
        _attach_edges(data, store, total, nodes)
    for store in data.node_stores:
        space = nodes[store._key]
        for name, value in list(store.items()):
            if _has_rows(value, space.own) and not isinstance(value, Rows):
                if store._key is None and not data.is_node_attr(name):
                    continue
                store[name] = _ids_or_rows(name, value, space)
        store['num_nodes'] = space.total
    return data


def _has_rows(value: Any, count: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == count


def _ids_or_rows(name: str, value: Tensor, space: Space) -> Any:
    if name == 'n_id':
        places = torch.arange(space.own, device=value.device)
        return node_ids(value.view(-1), 0, space, space, places, None)
    return tag(value.view(value.shape), 0, space)


def _attach_edges(data: Any, store: Any, total: int, nodes: dict[Any, Space]) -> None:
    key, handle = store._key, store['edge_index']
    src, dst = (nodes[None],) * 2 if key is None else (nodes[key[0]], nodes[key[2]])
    what = 'edges' if key is None else f'edges of {key}'
    shard = handle.shard
    space = Space(shard.num_edges, what=what, ids=shard.e_id, total=total)
    space.neighbours = (dst,) if src is dst else (dst, src)
    for name, value in list(store.items()):
        if name == 'edge_index' or not _has_rows(value, shard.num_edges):
            continue
        if key is not None or data.is_edge_attr(name):
            store[name] = tag(value.view(value.shape), 0, space)
    ends = Ends(shard, src, dst)
    shard.cache[_WHOLE] = space, ends
    store['edge_index'] = edge_index(handle, space, ends)


def as_local(value: Any) -> Any:
    """Plain own rows and edges in ids of the rank, also in nested values and in copies of data."""
    return in_nested(value, _local)


def _local(data: Any) -> Any:
    if isinstance(data, EdgeIndex):
        return data.handle
    if isinstance(data, Rows):
        return plain(data)
    stores = data.stores if isinstance(data, (Data, HeteroData)) else [data]
    if not any(isinstance(value, Rows) for each in stores for value in _values_of(each)):
        return data  # what is set later is seen
    if isinstance(data, NodeStorage):
        return _local_of_store(data)
    out = copy.copy(data)
    for store in out.stores:
        _make_local(store)
    return out


def _values_of(store: Any) -> Iterable[Any]:
    return store.values() if isinstance(store, BaseStorage) else ()


def _local_of_store(store: NodeStorage) -> Any:
    out = copy.copy(store)
    _make_local(out)
    return out


def _make_local(store: Any) -> None:
    num_own = None
    for name, value in list(store.items()):
        if name == 'n_id' and isinstance(value, Rows):
            num_own = value._space.own
        if isinstance(value, Rows):
            store[name] = _local(value)
    if num_own is not None:
        store['num_nodes'] = num_own


def space_of_nodes(data: Any) -> Space | None:
    """The nodes of a graph of one type, or of a type, whose rows are typed; None of other data."""
    n_id = data.get('n_id') if hasattr(data, 'get') else getattr(data, 'n_id', None)
    return n_id._space if isinstance(n_id, Rows) else None


def edges_among(values: Any) -> list[EdgeIndex]:
    """The edges of a cut graph among the arguments of a call."""
    found: list[EdgeIndex] = []

    def note(value: Any) -> Any:
        if isinstance(value, EdgeIndex):
            found.append(value)
        return value

    in_nested(values, note)
    return found


def given_to_conv(values: Any, edges: list[EdgeIndex], what: str) -> Any:
    """Arguments of a conv as it computes with them: own rows, and edges in ids of the rank.

    A plain tensor with a row for every node, or every edge, of the whole stands for these.
    """
    nodes = list(dict.fromkeys(s for each in edges for s in (each.ends.src, each.ends.dst)))
    known = [*nodes, *dict.fromkeys(each._space for each in edges)]

    def own(value: Any) -> Any:
        if isinstance(value, EdgeIndex):
            return value.handle
        if isinstance(value, Rows):
            return same_plain(_where_known(value, known))
        if type(value) in (Tensor, torch.nn.Parameter) and value.dim():
            return _own_of_plain(value, known, what)
        return value

    with plainly():
        return in_nested(values, own)


def _where_known(value: Rows, known: list[Space]) -> Any:
    """Rows as those of the nodes or edges that are as many, if these are others."""
    if any(space is value._space for space in known):
        return value
    as_many = [space for space in known if space.total == value._space.total]
    if not as_many or any(space.is_same(value._space) for space in as_many):
        return value
    if len(as_many) > 1:
        refuse('a conv', f'({value._space!r}) may be of {as_many}')
    return brought('a conv', value, as_many[0])


def _own_of_plain(value: Tensor, known: list[Space], what: str) -> Tensor:
    size = value.size(0)
    fitting = [space for space in known if space.total == size]
    if fitting and (value.dim() > 1 or not value.requires_grad):
        if len(fitting) > 1:
            refuse(what, f'and a plain tensor with {size} rows, which may be of {fitting}')
        return own_rows(what, value, 0, fitting[0])
    for space in known:
        if space.own == size != space.total and (value.dim() > 1 or size > 1):
            refuse(what, f'and a plain tensor with {size} rows (these are {space!r})')
    return value


def rows_of_call(values: Mapping[str, Any], node_dim: int) -> dict[str, Any]:
    """Arguments of a conv by name, on the edges and own rows of a rank, as those of the whole."""
    nodes: list[Space] = []
    edges: list[Space] = []
    of_type: dict[Any, Space] = {}

    def whole(handle: ShardEdgeIndex, key: Any = None) -> EdgeIndex:
        space, ends = _graph_of(handle.shard)
        if not handle.is_whole:
            space = derived(space, handle)
        nodes.extend((ends.dst, ends.src))
        edges.append(space)
        if isinstance(key, tuple):
            of_type.update({key: space, key[0]: ends.src, key[-1]: ends.dst})
        return edge_index(handle, space, ends)

    def with_edges(value: Any, key: Any = None) -> Any:
        if isinstance(value, ShardEdgeIndex):
            return whole(value, key)
        if isinstance(value, Mapping):
            return {k: with_edges(each, k) for k, each in value.items()}
        if isinstance(value, (tuple, list)) and not hasattr(value, '_fields'):
            return type(value)(with_edges(each) for each in value)
        return value

    def with_rows(value: Any, name: str, key: Any = None, place: int = 0) -> Any:
        if isinstance(value, Mapping):
            return {k: with_rows(each, name, k) for k, each in value.items()}
        if isinstance(value, (tuple, list)) and not hasattr(value, '_fields'):
            return type(value)(with_rows(v, name, None, i) for i, v in enumerate(value))
        if isinstance(value, Rows) or not isinstance(value, Tensor) or not value.dim():
            return value
        sources_first = nodes[::-1] if place == 0 else nodes
        among = [*edges, *nodes] if name.startswith('edge') else [*sources_first, *edges]
        dim = node_dim % value.dim() if -value.dim() <= node_dim < value.dim() else 0
        for space in [of_type[key]] if key in of_type else among:
            for each in dict.fromkeys((dim, 0)):
                if value.size(each) == space.own:
                    made = tag(value.view_as(value), each, space)
                    if not value.requires_grad:
                        made._own = value  # what is computed from features once is known by it
                    return made
        return value

    found = {name: with_edges(value) for name, value in values.items()}
    return {name: with_rows(value, name) for name, value in found.items()}


def _graph_of(shard: Shard) -> tuple[Space, Ends]:
    """The edges of a shard and the nodes that they run between.

    Those of :func:`pyg_sar.load_shard`; of any other shard, as that of a restricted layer, a graph
    of its own (collective at the first time: a small all-gather).
    """
    known: tuple[Space, Ends] | None = shard.cache.get(_WHOLE)
    if known is not None:
        return known
    counts = agree((shard.num_own, shard.num_dst, shard.num_edges))

    def space(place: int, what: str, ids: Tensor | None) -> Space:
        of_ranks = [each[place] for each in counts]
        first, own = sum(of_ranks[: rank()]), of_ranks[rank()]
        # A derived shard has some of the edges, and their ids are those of all.
        ids = torch.arange(first, first + own) if shard.n_id is None or ids is None else ids
        return Space(own, what=what, ids=ids, total=sum(of_ranks))

    src = dst = space(0, 'nodes', shard.n_id)
    if shard.is_bipartite:
        dst = space(1, 'nodes', shard.dst_id)
        if shard.n_id is None and all(num_dst <= num_own for num_own, num_dst, _ in counts):
            # Of a restricted layer: destinations are the first sources of a rank, so of all ranks.
            others = dst.total + sum(own - num_dst for own, num_dst, _ in counts[: rank()])
            more = torch.arange(others, others + src.own - dst.own)
            ids = torch.cat([dst.ids(more.device), more])
            src = Space(src.own, what='nodes', ids=ids, total=src.total)
    edges, ends = space(2, 'edges', shard.e_id), Ends(shard, src, dst)
    edges.neighbours = (dst,) if src is dst else (dst, src)
    shard.cache[_WHOLE] = edges, ends
    return edges, ends


def rows_by_type(out: Mapping[str, Any], given: Any) -> dict[str, Any]:
    """Own rows by type of node as rows of the spaces that the rows or edges of a call have."""
    spaces: dict[str, Space] = {}

    def note(value: Any) -> None:
        for key, each in value.items() if isinstance(value, Mapping) else ():
            if isinstance(each, EdgeIndex):  # a plain tensor may have stood for the nodes
                spaces.setdefault(key[0], each.ends.src)
                spaces.setdefault(key[-1], each.ends.dst)
            elif isinstance(each, Rows):
                spaces[key] = each._space
        for each in value if isinstance(value, (tuple, list)) else ():
            note(each)

    note([*given[0], *given[1].values()])
    return {k: v if v is None else tag(v, 0, spaces[k]) for k, v in out.items()}


def derived(space: Space, handle: Tensor) -> Space:
    """Edges that were made of those of a space, in an order of their own."""
    out = Space(handle.size(1), what='edges made of others')
    out.neighbours = space.neighbours
    return out
