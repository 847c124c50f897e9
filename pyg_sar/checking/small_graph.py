"""A small graph like the one that a model is called with, whole and in two parts.

What the model is called with tells the sets of nodes and the relations between them. A few dozen
rows of each are drawn from this rank's own, with edges at random. Everything else in the arguments
stays as it is. Sizes are different for every set, relation and part, and none is a size of the
model's parameters: so the first size of a tensor tells of what it has rows.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import BaseData

from pyg_sar.checking.view import EdgeKey, Rows, View
from pyg_sar.own_rows import OwnRows, plain
from pyg_sar.partitioner import partition_graph
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.read.read_shard import read_shard

NUM_PARTS = 2
_COUNTS = {'size', 'num_nodes', 'num_edges', 'dim_size'}
"""Arguments that may be numbers of own nodes; ``num_edges`` is that of hyperedges."""
_FEWEST_NODES = 29


class Argument(str):
    """The name of an argument, where the key of a dict would be a type of nodes."""


@dataclass(eq=False)
class SmallGraph:
    """The sets of nodes and relations in a model's arguments, and a small graph of them.

    No set of nodes, relation or part has one of the sizes `taken`. Raises ValueError if there is no
    edge_index of a shard among the arguments.
    """

    arguments: Any
    taken: set[int]
    _sets: dict[str, int] = field(default_factory=dict)
    _relations: dict[EdgeKey, ShardEdgeIndex] = field(default_factory=dict)
    _key_of: dict[int, EdgeKey] = field(default_factory=dict)
    _picked: dict[Any, Tensor] = field(default_factory=dict)
    _jitter: dict[Any, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for value, key in leaves(self.arguments):
            if isinstance(value, ShardEdgeIndex):
                self._add(value, key)
        if not self._relations:
            raise ValueError('it is not called with the edge_index of a shard')
        is_typed = any(name.startswith('type ') for name in self._sets)
        for value, key in leaves(self.arguments):
            is_of_type = isinstance(key, str) and key.startswith('type ')
            if is_of_type and is_typed and isinstance(value, Tensor) and value.dim():
                self._sets.setdefault(key, value.size(0))
        self._generator = torch.Generator().manual_seed(0)
        self.views = self._make()

    @property
    def own_sizes(self) -> set[int]:
        """How many own nodes this rank has, of every set."""
        return {*self._sets.values()}

    def _add(self, handle: ShardEdgeIndex, key: Any) -> None:
        shard = handle.shard
        if isinstance(key, tuple):
            src, relation, dst = f'type {key[0]}', str(key[1]), f'type {key[2]}'
        else:
            src, dst = f'{shard.num_own} rows', f'{shard.num_dst} rows'
            relation = f'relation {len(self._relations)}'
        self._sets[src], self._sets[dst] = shard.num_own, shard.num_dst
        self._relations[src, relation, dst] = handle
        self._key_of[id(handle)] = src, relation, dst

    def _make(self) -> list[View]:
        """The whole small graph, and its parts."""
        free = iter(n for n in range(_FEWEST_NODES, 10**6) if n not in self.taken)
        data, parts = HeteroData(), {}
        for name, num_own in self._sets.items():
            sizes = [next(free) for _ in range(NUM_PARTS)]
            while sum(sizes) in self.taken:
                sizes[-1] = next(free)
            self.taken |= {*sizes, sum(sizes)}
            data[name].num_nodes = sum(sizes)
            part = torch.repeat_interleave(torch.arange(NUM_PARTS), torch.tensor(sizes))
            parts[name] = part[self._permuted(sum(sizes))]
            self._picked[name] = self._pick(num_own, sum(sizes))
        for key, handle in self._relations.items():
            edge_index = self._edges(data[key[0]].num_nodes, data[key[2]].num_nodes, key, parts)
            data[key].edge_index = edge_index
            self._picked[key] = self._pick(handle.size(1), edge_index.size(1))
        whole: dict[Any, Tensor] = {name: torch.arange(data[name].num_nodes) for name in self._sets}
        whole |= {key: torch.arange(data[key].edge_index.size(1)) for key in self._relations}
        # No two rows are equal: which of them is the largest would be a matter of chance.
        self._jitter = {
            key: 1 + 1e-3 * torch.rand(whole[key].numel(), generator=self._generator).double()
            for key in self._picked
        }
        handles = {key: data[key].edge_index for key in self._relations}
        views = [View({key: Rows(ids.numel(), ids) for key, ids in whole.items()}, handles)]
        return views + [self._part(shard, whole) for shard in cut_in_parts(data, parts)]

    def _part(self, data: HeteroData, whole: dict[Any, Tensor]) -> View:
        own: dict[Any, Tensor] = {name: data[name].n_id for name in self._sets}
        own |= {key: data[key].e_id for key in self._relations}
        rows = {key: Rows(whole[key].numel(), ids) for key, ids in own.items()}
        return View(rows, {key: data[key].edge_index for key in self._relations})

    def _edges(self, num_src: int, num_dst: int, key: EdgeKey, parts: dict[str, Tensor]) -> Tensor:
        """Distinct edges at random, a third of them there and back; the last nodes have none."""
        num_edges = 3 * min(num_src, num_dst)
        same = key[0] == key[2]
        src = torch.randint(num_src - 2, (num_edges,), generator=self._generator)
        dst = torch.randint(num_dst - 2, (num_edges,), generator=self._generator)
        if same:
            third = num_edges // 3
            src, dst = torch.cat([src, dst[:third]]), torch.cat([dst, src[:third]])
            src, dst = src[src != dst], dst[src != dst]
        ids = torch.unique(src * num_dst + dst)
        ids = ids[self._permuted(ids.numel())]
        while True:  # until no size is taken
            src, dst = ids // num_dst, ids % num_dst
            counts = torch.bincount(parts[key[2]][dst], minlength=NUM_PARTS).tolist()
            sizes = {*counts, ids.numel()}
            if len(sizes) == NUM_PARTS + 1 and not sizes & self.taken:
                self.taken |= sizes
                order = torch.argsort(dst, stable=True)  # some aggregations need it
                return torch.stack([src, dst])[:, order]
            ids = ids[:-1]

    def _permuted(self, size: int) -> Tensor:
        return torch.randperm(size, generator=self._generator)

    def _pick(self, num_own: int, num_rows: int) -> Tensor:
        """Own rows that stand for those of the small graph, each once if there are enough."""
        rows = self._permuted(num_own)[:num_rows]
        times = -(-num_rows // max(rows.numel(), 1))
        return rows.repeat(times)[:num_rows]

    def cut(self, view: View, dtype: torch.dtype | None) -> Any:
        """The arguments as a run has them, numbers of float32 in another dtype if there is one."""
        known: dict[int, Any] = {}

        def of_run(value: Any, key: Any) -> Any:
            if type(value) is int and isinstance(key, Argument) and key in _COUNTS:
                fitting = [name for name, num_own in self._sets.items() if num_own == value]
                return view.rows[fitting[0]].ids.numel() if fitting else value
            if not isinstance(value, Tensor):
                return value
            if id(value) not in known:
                known[id(value)] = self._tensor(value, key, view, dtype)
            return known[id(value)]

        return _rebuilt(self.arguments, None, of_run)

    def learned(self, rows: OwnRows, view: View) -> OwnRows:
        """The rows of a node embedding as a run has them."""
        key = None if rows.node_type is None else f'type {rows.node_type}'
        if self._rows_of(rows, key) is None:
            raise ValueError('it has a NodeEmbedding of nodes that it is not called with')
        values, n_id = (self._tensor(t, key, view, None) for t in (plain(rows), rows.n_id))
        return rows.of_some(values, n_id)

    def _tensor(self, value: Tensor, key: Any, view: View, dtype: torch.dtype | None) -> Tensor:
        if isinstance(value, ShardEdgeIndex):
            handle = view.handles[self._key_of[id(value)]]
            return handle.flip(0) if value.is_flipped else handle
        out = value.detach().cpu()
        name = self._rows_of(value, key)
        if name is not None:
            picked = self._picked[name]
            if picked.numel():
                out = out[picked]
            else:  # this rank has none
                out = out.new_zeros(view.rows[name].num_rows, *out.shape[1:])
            out = out[view.rows[name].ids]
        if dtype is not None and out.dtype == torch.float32:
            out = out.to(dtype)
        out = out.clone()
        if name is not None and out.is_floating_point():
            out *= self._jitter[name][view.rows[name].ids].view(-1, *[1] * (out.dim() - 1))
        return out.requires_grad_(value.requires_grad)

    def _rows_of(self, value: Tensor, key: Any) -> Any:
        """The set of nodes or the relation that a tensor has rows of."""
        if value.dim() == 0:
            return None
        if isinstance(key, str) and self._sets.get(key) == value.size(0):
            return key
        if isinstance(key, tuple):
            typed = f'type {key[0]}', str(key[1]), f'type {key[2]}'
            if typed in self._relations and self._relations[typed].size(1) == value.size(0):
                return typed
        fitting = [name for name, num_own in self._sets.items() if num_own == value.size(0)]
        edges = [key for key, handle in self._relations.items() if handle.size(1) == value.size(0)]
        is_of_edges = isinstance(key, Argument) and key.startswith('edge_')
        found: list[Any] = [*edges, *fitting] if is_of_edges else [*fitting, *edges]
        return found[0] if found else None


def cut_in_parts(data: Data | HeteroData, parts: Any) -> list[Any]:
    """The shards of NUM_PARTS parts, in memory; `parts` has the part of every node."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / 'parts'
        partition_graph(data, NUM_PARTS, root, method=parts)
        ranks = range(NUM_PARTS)
        return [read_shard(root, rank, NUM_PARTS, verify=False).clone() for rank in ranks]


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """What is in nested containers, each with the type or relation whose key it has."""
    found: list[tuple[Any, Any]] = []

    def note(leaf: Any, key: Any) -> Any:
        found.append((leaf, key))
        return leaf

    _rebuilt(value, None, note)
    yield from found


def _rebuilt(value: Any, key: Any, of_leaf: Callable[[Any, Any], Any]) -> Any:
    """The same containers with other leaves."""
    if isinstance(value, BaseData):
        out = copy.copy(value)
        for store in out.stores:
            name = _key(getattr(store, '_key', None))
            for attribute, each in list(store.items()):
                store[attribute] = _rebuilt(each, name, of_leaf)
        return out
    if isinstance(value, dict):
        rebuilt = {k: _rebuilt(v, _key(k) or key, of_leaf) for k, v in value.items()}
        if type(value) is dict:
            return rebuilt
        out = copy.copy(value)
        out.update(rebuilt)
        return out
    if isinstance(value, (list, tuple)):
        items = [_rebuilt(each, key, of_leaf) for each in value]
        return type(value)(*items) if hasattr(value, '_fields') else type(value)(items)
    return of_leaf(value, key)


def _key(key: Any) -> Any:
    """A node type or a relation, from the key of a dict; or the name of an argument for edges."""
    if isinstance(key, tuple) and len(key) == 3:
        return key
    if isinstance(key, Argument):
        return key
    return f'type {key}' if isinstance(key, str) else None
