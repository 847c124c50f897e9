"""Which attributes nodes and edges have on all ranks, and rows of these.

A tensor with a row for each own node may be an attribute of the nodes, or something else that
happens to be as long here. So it is one if it is so on every rank.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.comm.vote import agree, check_equal
from pyg_sar.rows.align import brought
from pyg_sar.rows.from_data import as_local
from pyg_sar.rows.rows import Rows, plain, plainly
from pyg_sar.rows.sharding import Sharding
from pyg_sar.shard.edges import LocalEdges, ShardEdges
from pyg_sar.shard.format import EdgeKey, NodeKey
from pyg_sar.shard.read_shard import of_whole
from pyg_sar.utils.installed import loops
from pyg_sar.utils.nested import PLAIN
from pyg_sar.utils.tensor_state import as_bytes, version_of
from pyg_sar.utils.unsigned import picked, signed

Values = dict[str, Tensor]


def ends_of(key: EdgeKey) -> tuple[NodeKey, NodeKey]:
    """The types of the ends of a relation."""
    return (None, None) if key is None else (key[0], key[2])


def node_stores(data: Data | HeteroData) -> dict[NodeKey, Any]:
    """Where the attributes of nodes are, by type; of a homogeneous graph under None."""
    if isinstance(data, HeteroData):
        return {key: data[key] for key in data.node_types}
    return {None: data.stores[0]}


def edge_stores(data: Data | HeteroData) -> dict[EdgeKey, Any]:
    """Where the attributes of edges are, by relation; of a homogeneous graph under None."""
    if isinstance(data, HeteroData):
        return {key: data[key] for key in data.edge_types}
    return {None: data.stores[0]}


def check_data(data: object, world_size: int, loader: str) -> None:
    """Raises a ValueError unless data is what load_shard gave for this rank."""
    if not isinstance(data, (Data, HeteroData)):
        raise ValueError(
            f"'data' must be what pyg_sar.load_shard gives (got {type(data).__name__})"
        )
    stores = edge_stores(data)
    if not stores:
        raise ValueError("'data' must have edges (got none)")
    for key, store in stores.items():
        edges = store.get('edge_index')
        if not isinstance(edges, LocalEdges) or not _is_as_loaded(edges.handle):
            raise ValueError(
                f"'data' must have the edge_index{_of(key)} of pyg_sar.load_shard, unchanged (got "
                f'{type(edges).__name__}); leave out edges before partitioning, and sample a graph '
                f'that is not cut with torch_geometric.loader.{loader}'
            )
        if edges.handle.shard.world_size != world_size:
            raise ValueError(
                f"'data' must be a shard of one of {world_size} ranks, as there are (got one of "
                f'{edges.handle.shard.world_size})'
            )
    for stores_of, name in ((node_stores(data), 'n_id'), (stores, 'e_id')):
        for kind, store in stores_of.items():
            if name not in store:
                raise ValueError(
                    f"'data' must have '{name}'{_of(kind)}, as load_shard gives it (got none)"
                )


def own_data(typed: Data | HeteroData) -> Data | HeteroData:
    """Data of own rows, in the order of the own nodes and edges (collective).

    Rows of another order are fetched: row i of the whole is that of node or edge i, as on one
    machine. Rows that are neither of nodes nor of edges stay rows of the whole.
    """
    ordered, others = copy.copy(typed), []
    for store in ordered.stores:
        own = [v._sharding for v in map(store.get, ('n_id', 'edge_index')) if isinstance(v, Rows)]
        for name, value in list(store.items()):
            if not isinstance(value, Rows) or value._sharding in own:
                continue
            sharding = _fitting(typed, store, name, value, own)
            if sharding is None:
                others.append((store._key, name, store.pop(name)))
            else:
                store[name] = brought(f"'{name}' of a loader's data", value, sharding)
    data: Data | HeteroData = as_local(ordered)
    for key, name, value in others:
        (data.stores[0] if key is None else data[key])[name] = value
    return data


def _fitting(data: Any, store: Any, name: str, value: Rows, own: list[Sharding]) -> Sharding | None:
    """The nodes or edges of which rows are an attribute, as PyG tells them by their number."""
    dim = data.__cat_dim__(name, value, store)
    if not isinstance(dim, int) or dim % value.dim() != value._dim:
        return None
    fitting = [sharding for sharding in own if sharding.total == value._sharding.total]
    return (fitting[-1] if 'edge' in name else fitting[0]) if fitting else None


class Unchanged:
    """Data that is not to change, as every attribute is now."""

    def __init__(self, data: Data | HeteroData) -> None:
        self._data, self._before = data, self._now(data)

    @staticmethod
    def _now(data: Data | HeteroData) -> dict[tuple[Any, str], tuple[Any, object]]:
        return {
            (store._key, name): (value, _version(value))
            for store in data.stores
            for name, value in store.items()
        }

    def check(self) -> None:
        """Raises a RuntimeError if an attribute was replaced, or changed in place."""
        now = self._now(self._data)
        for at, (old, version) in self._before.items():  # no rank has sent rows of new ones
            new, newer = now.get(at, (None, None))
            if version != newer or not (old is new or _are_same(old, new)):
                raise RuntimeError(
                    f"expected data that stays as it is while an epoch runs (got another '{at[1]}'"
                    f'{_of(at[0])}): ranks have sent rows of later batches; change data between '
                    'epochs, or keep what changes outside of data and read '
                    'pyg_sar.gather(values)[batch.n_id]'
                )


def _are_same(old: Any, new: Any) -> bool:
    """Whether values are equal, tensors of the same memory, as after ``data.to(device)``."""
    if isinstance(old, (*PLAIN, list, tuple)):
        return type(old) is type(new) and bool(old == new)
    if type(old) is not type(new) or not isinstance(old, Tensor) or old.layout != torch.strided:
        return False
    with plainly():
        of_both = ((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in map(plain, (old, new)))
        return len({*of_both}) == 1


def _version(value: Any) -> object:
    """What torch counts of changes; it counts none of tensors of inference mode."""
    return version_of(value) if isinstance(value, Tensor) and not value.is_inference() else None


def _is_as_loaded(handle: ShardEdges) -> bool:
    has_ids = handle.shard.e_id is not None and handle.shard.n_id is not None
    return has_ids and handle.is_whole and not handle.is_flipped


@dataclass(frozen=True, eq=False)
class AttributeRows:
    """Tensors with a row for every own node, or every edge into own nodes, by type and name.

    Where PyG joins in another dimension (``__cat_dim__``), that dimension is moved to the front.
    """

    nodes: dict[NodeKey, Values]
    edges: dict[EdgeKey, Values]


def find(data: Data | HeteroData) -> AttributeRows:
    """The attributes of nodes and edges as they are now (collective: a small all-gather).

    Raises ValueError on all ranks, if an attribute is not of one dtype and width on all of them, or
    learns.
    """
    seen: dict[tuple[bool, Any], Values] = {}
    kinds: dict[str, Any] = {}
    for is_edge, stores in ((False, node_stores(data)), (True, edge_stores(data))):
        for key, store in stores.items():
            values = seen[is_edge, key] = dict(_rows_of(data, store, is_edge))
            for name, value in values.items():
                form = value.dtype, tuple(value.shape[1:]), value.requires_grad
                kinds[_words(is_edge, key, name)] = form
    answers = agree(kinds)
    for words in sorted(set.intersection(*map(set, answers))):
        check_equal(f'dtype, width and requires_grad of {words}', [form[words] for form in answers])
        if kinds[words][2]:
            raise ValueError(
                f'expected {words} not to require gradients (got one that does): rows of other '
                f'ranks are copies; learn a NodeEmbedding and read it with rows() at batch.n_id'
            )

    def common(is_edge: bool, key: Any) -> Values:
        return {
            name: value
            for name, value in seen[is_edge, key].items()
            if all(_words(is_edge, key, name) in answer for answer in answers)
            and not (key is None and _is_other(is_edge, name, seen, answers))
        }

    return AttributeRows(
        {key: common(False, key) for key in node_stores(data)},
        {key: common(True, key) for key in edge_stores(data)},
    )


def _rows_of(data: Data | HeteroData, store: Any, is_edge: bool) -> Iterable[tuple[str, Tensor]]:
    count = int(store.edge_index.size(1) if is_edge else store.num_nodes)
    for name, value in store.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in 'biufc':
            value = torch.tensor(value)  # a copy: nothing tells when an array is written to
        if name == 'edge_index' or not isinstance(value, Tensor) or value.dim() == 0:
            continue
        if isinstance(value, Rows) or name in of_whole(store):
            continue
        dim = data.__cat_dim__(name, value, store)
        if isinstance(dim, int) and value.size(dim) == count and value.layout == torch.strided:
            yield name, value.as_subclass(Tensor).movedim(dim, 0)


def _is_other(is_edge: bool, name: str, seen: Any, answers: list[dict[str, Any]]) -> bool:
    """Whether an attribute that fits nodes and edges on all ranks is the other's by its name."""
    if any(_words(not is_edge, None, name) not in answer for answer in answers):
        return False
    return is_edge != ('edge' in name or name == 'e_id')


def _words(is_edge: bool, key: Any, name: str) -> str:
    return f"attribute '{name}' of {'edges' if is_edge else 'nodes'}{_of(key)}"


def _of(key: Any) -> str:
    return '' if key is None else f' of {key}'


def take(own: Tensor, row: Tensor, came: Sequence[Tensor]) -> Tensor:
    """Rows ``[N, ...]`` of this rank, or of what came from others, on the device of `own`.

    Row i of all that `came`, one after another, is number ``-1 - i``.
    """
    row, first = row.to(own.device), 0
    compiled = loops() if all(map(_is_plain, (own, *came))) else None
    if compiled is not None:
        out = own.new_empty(row.numel(), *own.shape[1:])
        to, *sources = _seen_as_words(out, own, *came)
        width = to.size // max(row.numel(), 1)
        compiled.copy_rows(to, sources[0], row.numpy(), 0, 1, width)
        for values, words in zip(came, sources[1:], strict=True):
            compiled.copy_rows(to, words, row.numpy(), -1 - first, -1, width)
            first += values.size(0)
        return out
    if own.size(0):  # a row where others come is written twice, which costs less than a second pass
        out = picked(own, 0, row.clamp(min=0))
    else:
        out = own.new_empty(row.numel(), *own.shape[1:])
    for values in came:
        index = -1 - row - first
        at = ((index >= 0) & (index < values.size(0))).nonzero().view(-1)
        rows = index.index_select(0, at).to(values.device)
        signed(out).index_copy_(0, at, signed(values).index_select(0, rows).to(own.device))
        first += values.size(0)
    return out


def _is_plain(values: Tensor) -> bool:
    """Whether its rows are bytes of the host, one row after another."""
    is_view = values.is_conj() or values.is_neg()
    return values.device.type == 'cpu' and values.is_contiguous() and not is_view


def _seen_as_words(*tensors: Tensor) -> list[npt.NDArray[Any]]:
    """Rows of as many bytes as the widest whole numbers that they all are made of."""
    sizes = [math.prod(tensors[0].shape[1:]) * tensors[0].element_size()]
    sizes += [values.data_ptr() for values in tensors]
    word = math.gcd(8, *sizes)
    return [as_bytes(values).numpy().view(f'i{word}') for values in tensors]
