"""Makes rows of the tensors of a shard, and plain tensors of rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage

from pyg_sar.comm.errors import collective, users_line
from pyg_sar.comm.ranks import cache_of
from pyg_sar.comm.vote import agree
from pyg_sar.rows.adjacency import Adjacency, refuse_matrices
from pyg_sar.rows.align import brought, own_rows
from pyg_sar.rows.edges import EdgeIndex, Ends, edge_index, node_ids
from pyg_sar.rows.one_loss import read_alone
from pyg_sar.rows.over_ranks import all_rows
from pyg_sar.rows.replicated import PLAIN
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, same_plain, tag
from pyg_sar.rows.sharding import Sharding
from pyg_sar.rows.stored_matrices import restore_adj_t
from pyg_sar.shard.edges import LocalEdges, refuse_local
from pyg_sar.shard.node_names import NodeNames
from pyg_sar.shard.read_shard import of_whole
from pyg_sar.utils.nested import in_nested
from pyg_sar.utils.scoped import Scoped
from pyg_sar.utils.tensor_state import version_of
from pyg_sar.utils.unsigned import picked


def as_rows_of_graph(data: Any) -> Any:
    """Data of a shard with rows in place of plain tensors, and counts of the whole (collective)."""
    nodes: dict[Any, Sharding] = {}
    edges = [store['edge_index'].handle.shard.num_edges for store in data.edge_stores]
    totals = [sum(counts) for counts in zip(*agree(edges), strict=True)]
    for store in data.node_stores:
        key, n_id = store._key, store['n_id']
        what = 'nodes' if key is None else f"nodes of type '{key}'"
        nodes[key] = Sharding(n_id.numel(), what=what, ids=n_id, total=store['num_nodes_total'])
    for store, total in zip(data.edge_stores, totals, strict=True):
        _attach_edges(store, total, nodes)
    for store in data.node_stores:
        sharding = nodes[store._key]
        _tag_attributes(store, sharding, store.is_node_attr)
        n_id = plain(store['n_id'])
        places = torch.arange(sharding.own, device=n_id.device)
        store['n_id'] = node_ids(n_id, 0, sharding, sharding, places, None)
        if 'num_nodes' in store:
            store['num_nodes'] = sharding.total
    for store in data.edge_stores:
        restore_adj_t(store)
    return data


def _tag_attributes(store: Any, sharding: Sharding, is_of_sharding: Callable[[str], bool]) -> None:
    """Makes the attributes with a row for every own node, or edge, rows."""
    for name, value in list(store.items()):
        if name == 'edge_index' or isinstance(value, Rows) or not isinstance(value, Tensor):
            continue
        has_rows = value.dim() > 0 and value.size(0) == sharding.own and name not in of_whole(store)
        if has_rows and (store._key is not None or is_of_sharding(name)):
            store[name] = tag(value.view(value.shape), 0, sharding)


def _attach_edges(store: Any, total: int, nodes: dict[Any, Sharding]) -> None:
    key, handle = store._key, store['edge_index'].handle
    src, dst = (nodes[None],) * 2 if key is None else (nodes[key[0]], nodes[key[2]])
    what = 'edges' if key is None else f'edges of {key}'
    shard = handle.shard
    sharding = Sharding(shard.num_edges, what=what, ids=shard.e_id, total=total, nodes=(dst, src))
    _tag_attributes(store, sharding, store.is_edge_attr)
    store['edge_index'] = edge_index(handle, sharding, Ends(shard, src, dst))


def as_local(value: Any) -> Any:
    """Plain own rows and edges in ids of the rank, also in nested values and in copies of data."""
    return in_nested(value, _local)


def _local(data: Any) -> Any:
    refuse_matrices('pyg_sar.local', data)
    if isinstance(data, EdgeIndex):
        return LocalEdges.of(data.handle)
    if isinstance(data, Rows):
        return read_alone(plain(data))
    if not isinstance(data, (Data, HeteroData, BaseStorage)):
        return data
    if not any(isinstance(value, Rows) for store in _stores_of(data) for value in store.values()):
        return data  # no copy: what a program sets later is seen
    out = copy.copy(data)
    for store in _stores_of(out):
        n_id = store.get('n_id')
        shardings = [v._sharding for v in (n_id, store.get('edge_index')) if isinstance(v, Rows)]
        for name, value in list(store.items()):
            if isinstance(value, Adjacency):
                del store[name]
                continue
            store[name] = _local_attribute(data, store, name, value, shardings)
        if isinstance(n_id, Rows) and 'num_nodes' in store:
            store['num_nodes'] = n_id._sharding.own
    return out


def _local_attribute(
    data: Any, store: Any, name: str, value: Any, shardings: list[Sharding]
) -> Any:
    """Own rows of an attribute; a plain tensor that a program has set is of the whole graph."""
    if isinstance(value, np.ndarray) and value.dtype.kind in 'biufc':
        value = torch.from_numpy(value)
    is_known = isinstance(value, Rows) or type(value) is not Tensor or not value.dim()
    if is_known or name in of_whole(store) or any(sharding.is_whole for sharding in shardings):
        return _local(value)
    dim = data.__cat_dim__(name, value, store) if hasattr(data, '__cat_dim__') else 0
    if not isinstance(dim, int):
        return value
    size = value.size(dim)
    fitting = [sharding for sharding in shardings if sharding.total == size]
    if len(fitting) > 1:  # as PyG tells nodes from edges
        fitting = fitting[-1:] if 'edge' in name else fitting[:1]
    if fitting:
        return _own_of_whole(value, dim, fitting[0])
    for sharding in shardings:
        if sharding.own == size:
            raise ValueError(
                f"expected rows of the whole graph in '{name}', {sharding.total} of them, or rows "
                f'made of those that load_shard gave (got a plain tensor with {size} rows, as many '
                f'as this rank has of {sharding!r})'
            )
    return value


def _own_of_whole(value: Tensor, dim: int, sharding: Sharding) -> Any:
    """Own rows of a plain tensor of the whole, kept until the program writes to it."""
    key = version_of(value), dim, sharding
    cache = cache_of('own rows')
    old_key, own = cache.get(value, (None, None))
    if old_key != key:
        with torch.inference_mode(False):
            own = picked(value, dim, sharding.ids(value.device))
        cache[value] = key, own
    return own


def _stores_of(data: Any) -> Any:
    return data.stores if isinstance(data, (Data, HeteroData)) else [data]


def check_not_local(what: str, data: Any) -> None:
    """Raises a ValueError for data that :func:`local` gave."""
    stores = _stores_of(data) if isinstance(data, (Data, HeteroData, BaseStorage)) else []
    if any(isinstance(store.get('edge_index'), LocalEdges) for store in stores):
        refuse_local(what)


def sharding_of_nodes(data: Any) -> Sharding | None:
    """The nodes of a graph of one type, or of a type, whose rows are typed; None of other data."""
    n_id = data.get('n_id') if hasattr(data, 'get') else getattr(data, 'n_id', None)
    return n_id._sharding if isinstance(n_id, Rows) else None


def conv_arguments(values: Any, edges: list[EdgeIndex], what: str) -> Any:
    """Arguments of a conv as it computes with them: own rows, and edges in ids of the rank.

    A plain tensor with a row for every node, or every edge, of the whole stands for these.
    """
    refuse_matrices(what, values)
    of_edges = list(dict.fromkeys(index._sharding for index in edges))
    if of_edges[0].is_whole:
        return in_nested(values, lambda v: v.handle if isinstance(v, EdgeIndex) else v)
    ends = dict.fromkeys(end for index in edges for end in (index.ends.src, index.ends.dst))
    shardings = [*ends, *of_edges]

    def own(value: Any) -> Any:
        if isinstance(value, EdgeIndex):
            return value.handle
        if isinstance(value, Rows):
            return same_plain(_of_conv(value, shardings))
        if type(value) in PLAIN and value.dim():
            return _own_of_plain(value, shardings, of_edges, what)
        return value

    with plainly():
        return in_nested(values, own)


def _of_conv(value: Rows, shardings: list[Sharding]) -> Any:
    """Rows of any sharding as rows of the conv's nodes or edges, if these are as many."""
    sharding = value._sharding
    if sharding in shardings:
        return value
    fitting = [other for other in shardings if other.total == sharding.total]
    if not fitting or any(other.is_same(sharding) for other in fitting):
        return value
    if len(fitting) > 1:
        refuse('a conv', f'({sharding!r}) may be of {fitting}')
    return brought('a conv', value, fitting[0])


def _own_of_plain(
    value: Tensor, shardings: list[Sharding], of_edges: list[Sharding], what: str
) -> Tensor:
    size = value.size(0)
    fitting = [sharding for sharding in shardings if sharding.total == size]
    # A vector that learns may be one of weights of a layer, as wide as there are nodes.
    is_of_layer = value.dim() == 1 and value.requires_grad and not set(fitting) & set(of_edges)
    if fitting and not is_of_layer:
        if len(fitting) > 1:
            refuse(what, f'and a plain tensor with {size} rows, which may be of {fitting}')
        return own_rows(what, value, 0, fitting[0])
    # A parameter has no rows: it is equal on all ranks.
    if not isinstance(value, torch.nn.Parameter) and (value.dim() > 1 or size > 1):
        for sharding in shardings:
            if sharding.own == size != sharding.total:
                refuse(what, f'and a plain tensor with {size} rows (these are {sharding!r})')
    return value


def rows_by_type(out: Mapping[str, Any], arguments: Any) -> dict[str, Any]:
    """Own rows by type of node as rows of the shardings that the rows or edges of a call have."""
    shardings: dict[str, Sharding] = {}

    def note(value: Any) -> None:
        for key, rows in value.items() if isinstance(value, Mapping) else ():
            if isinstance(rows, EdgeIndex):  # a plain tensor may have stood for the nodes
                shardings.setdefault(key[0], rows.ends.src)
                shardings.setdefault(key[-1], rows.ends.dst)
            elif isinstance(rows, Rows):
                shardings[key] = rows._sharding
        for item in value if isinstance(value, (tuple, list)) else ():
            note(item)

    note([*arguments[0], *arguments[1].values()])
    return {k: v if v is None else tag(v, 0, shardings[k]) for k, v in out.items()}


lines_of_local: Scoped[list[tuple[str, int] | None] | None] = Scoped(None)
"""Where a program calls `local`, while somebody collects it."""


def local(x: Any) -> Any:
    """The plain tensor of this rank's own rows, on purpose; anything else as it is.

    Its results belong to this rank alone. Not collective.

    For the ids of the own nodes, and a count of this rank::

        ids = pyg_sar.local(data.n_id)
        print(len(ids), 'of', data.num_nodes)

    Args:
        x: Rows ``[num_total, ...]``; data of :func:`pyg_sar.load_shard`, or a store of it; tuples,
            lists and dicts of these; or any other value.

    Returns:
        ``[num_own, ...]`` in the order of the rank, with its history. Of data a copy, whose
        ``edge_index`` has numbers of the rank, a ``LocalEdges``: all edges into own nodes; own
        sources are ``0 .. num_own - 1``, those of other ranks follow. ``num_nodes_total`` is the
        number of nodes of the whole graph.

    Raises:
        Nothing.
    """
    if lines_of_local.value is not None:
        lines_of_local.value.append(users_line())
    return as_local(x)


@collective('gather', 'one all-to-all in forward and one in backward')
def gather(x: Any) -> Any:
    """All rows in the order of the whole graph, as a plain tensor on every rank.

    For what needs all rows in one place, such as NumPy, scikit-learn or a metric::

        scores = pyg_sar.gather(out).softmax(dim=-1).numpy(force=True)

    Every rank then holds all rows.

    Args:
        x: Rows ``[num_total, ...]``, an ``adj_t``, or ``data.node_names``; a plain tensor is given
            back as it is.

    Returns:
        ``[num_total, ...]``, with its history; of names a list.

    Raises:
        ValueError: If it is not known where the rows lie, as of numbers that a mask of several
            dimensions selects.
    """
    if isinstance(x, Adjacency):
        return x.whole()
    if isinstance(x, NodeNames):
        return x[:]
    if not isinstance(x, Rows):
        return x
    with plainly():
        return all_rows(x)
