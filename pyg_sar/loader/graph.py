"""The graph of a rank that samples: its own nodes, and all edges into them.

A node is known by its *position*: nodes are numbered part after part, so those of a rank follow one
another, and ``world_size + 1`` numbers tell the owner of every node. The sources of edges are
positions, too; owners send those of the halo once. So no rank holds anything of the size of the
graph, and any node can be asked for. A position takes 4 bytes where a type has fewer than 2^31
nodes.

The edges into a node lie in an order that no partition changes: by time, if there is one, and then
by original id.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.comm.exchange import exchange_of
from pyg_sar.comm.ranks import rank
from pyg_sar.comm.vote import agree, raise_on_all
from pyg_sar.loader.arguments import Options
from pyg_sar.loader.attributes import AttributeRows, Values, edge_stores, ends_of, node_stores
from pyg_sar.loader.choose import cumulated
from pyg_sar.shard.format import EdgeKey, NodeKey


class Nodes:
    """The nodes of one type, by position: part after part.

    Attributes:
        rank_ptr: Positions of every rank's first node, and how many there are: P + 1 numbers.
        own_ptr: Where every own part begins among the own nodes, and how many there are; empty for
            a type without edges.
        n_id: Original ids of the own nodes, int64 ``[num_own]``.
        first: The position of the first own node.
        num_own: How many there are.
        total: How many nodes of this type all ranks have.
        wire: What positions travel as.
    """

    def __init__(
        self, rank_ptr: list[int], own_ptr: tuple[int, ...], n_id: Tensor, rows: Tensor | None
    ) -> None:
        # Where one process holds the whole graph, its rows stand in another order than positions.
        self._rows, self._positions = rows, None if rows is None else torch.argsort(rows)
        self.rank_ptr, self.own_ptr, self.n_id = rank_ptr, own_ptr, self.by_position(n_id)
        self.first, self.num_own, self.total = rank_ptr[rank()], n_id.numel(), rank_ptr[-1]
        self.wire = torch.int32 if self.total < 2**31 else torch.int64

    def by_position(self, values: Tensor) -> Tensor:
        """Values of own rows, in the order of positions."""
        return values if self._rows is None else values[self._rows]

    def positions(self, row: Tensor) -> Tensor:
        """The positions of own rows."""
        return self.first + row if self._positions is None else self._positions[row]

    def rows(self, position: Tensor) -> Tensor:
        """The own rows at positions of own nodes."""
        return position - self.first if self._rows is None else self._rows[position]

    def owner(self, position: Tensor) -> Tensor:
        """The ranks that own nodes, int64."""
        owners = np.searchsorted(np.asarray(self.rank_ptr[1:]), position.numpy(), side='right')
        return torch.from_numpy(owners.astype(np.int64, copy=False))

    def is_own(self, position: Tensor) -> Tensor:
        """Which nodes are own ones, bool."""
        return (position >= self.first) & (position < self.first + self.num_own)


@dataclass(frozen=True, eq=False)
class InEdges:
    """The edges of one relation into own nodes, node after node."""

    src: NodeKey  # the type of their sources
    dst: NodeKey
    ptr: Tensor  # numbers of every own node's first edge, and how many edges there are, int64
    source: Tensor  # positions of their sources, int32 or int64 ``[num_edges]``
    row: Tensor  # where their attributes are among those of the shard, int64 ``[num_edges]``
    time: Tensor | None  # when they begin to be, or their sources do; None for always
    weight: Tensor | None  # float64
    cdf: Tensor | None  # of the weights, by :func:`choose.cumulated`


@dataclass(frozen=True, eq=False)
class LocalGraph:
    """Nodes by type and in-edges by relation; of a homogeneous graph both are known as None."""

    nodes: dict[NodeKey, Nodes]
    edges: dict[EdgeKey, InEdges]
    times: dict[NodeKey, Tensor]  # of own nodes by type, where nodes have times
    time_dtype: torch.dtype  # of all times: int64, or float64 where some are no whole numbers
    parts_per_rank: int
    first_part: int  # of the own ones
    world_size: int

    def as_times(self, values: Tensor) -> Tensor:
        """Times of seeds as those of the graph are."""
        # Times of edges are whole numbers: at most 2.5 is at most 2.
        is_whole = self.time_dtype == torch.int64 and values.is_floating_point()
        return (values.floor() if is_whole else values).to(self.time_dtype)


def build(data: Data | HeteroData, attributes: AttributeRows, options: Options) -> LocalGraph:
    """Sorts the edges into own nodes, and fetches the positions of the halo (collective).

    Raises ValueError on all ranks, if times or weights are missing or wrong on one.
    """
    nodes, time_attr, weight_attr = _nodes(data), options.time_attr, options.weight_attr
    shards = {key: store.edge_index.handle.shard for key, store in edge_stores(data).items()}
    (times, edge_times), weights = raise_on_all(
        lambda: (
            ({}, {}) if time_attr is None else _times(attributes, time_attr),
            {} if weight_attr is None else _weights(attributes, weight_attr),
        )
    )
    every = (*times.values(), *edge_times.values())
    time_dtype = torch.float64 if any(t.is_floating_point() for t in every) else torch.int64
    times = {key: time.to(time_dtype) for key, time in times.items()}
    edge_times = {key: time.to(time_dtype) for key, time in edge_times.items()}
    edges = {}
    for key, shard in shards.items():
        src, dst = ends_of(key)
        own = nodes[src].positions(torch.arange(shard.num_own))
        columns = [own] if src not in times else [own, times[src]]
        if shard.world_size > 1:
            # The halo lies on the device of the shard.
            halo = exchange_of(shard).fetch([t.to(shard.n_id.device) for t in columns])
            columns = [torch.cat([t, h.to(t.device)]) for t, h in zip(columns, halo, strict=True)]
        src_row, dst_row = edge_stores(data)[key].edge_index.handle.ids.cpu()
        time = columns[1][src_row] if src in times else edge_times.get(key)
        dst_row = nodes[dst].positions(dst_row) - nodes[dst].first
        e_id = shard.e_id.cpu().numpy()
        by = (e_id, dst_row.numpy()) if time is None else (e_id, time.numpy(), dst_row.numpy())
        row = torch.from_numpy(np.lexsort(by))
        ptr = torch.zeros(shard.num_dst + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(dst_row, minlength=shard.num_dst), 0, out=ptr[1:])
        weight = None if key not in weights else weights[key][row]
        edges[key] = InEdges(
            src,
            dst,
            ptr,
            columns[0].to(nodes[src].wire)[src_row[row]],
            row,
            None if time is None else time[row],
            weight,
            cumulated(weight, ptr) if weight is not None and options.replace else None,
        )
    first = next(iter(shards.values()))
    per_rank = first.parts_per_rank if first.cut is None else first.cut[0].num_parts
    by_position = {key: nodes[key].by_position(time) for key, time in times.items()}
    own_part, size = first.parts.start, first.world_size
    return LocalGraph(nodes, edges, by_position, time_dtype, per_rank, own_part, size)


def _nodes(data: Data | HeteroData) -> dict[NodeKey, Nodes]:
    """The nodes of every type (collective: a small all-gather)."""
    own: dict[NodeKey, tuple[tuple[int, ...], Tensor | None]] = {}
    for key, store in edge_stores(data).items():
        shard = store.edge_index.handle.shard
        src, dst = ends_of(key)
        if shard.cut is not None:
            own[src], own[dst] = ((end.ptr, end.nodes) for end in shard.cut)
            continue
        own[src] = shard.own_ptr, None
        if shard.dst_ptr is not None:
            own[dst] = shard.dst_ptr, None
    stores, out = node_stores(data), {}
    counts = agree([int(store.num_nodes) for store in stores.values()])
    for (name, store), of_ranks in zip(stores.items(), zip(*counts, strict=True), strict=True):
        ptr, rows = own.get(name, ((), None))
        out[name] = Nodes([0, *accumulate(of_ranks)], ptr, store.n_id.cpu(), rows)
    return out


def _times(
    attributes: AttributeRows, name: str
) -> tuple[dict[NodeKey, Tensor], dict[EdgeKey, Tensor]]:
    """The times of own nodes by type, or of edges by relation."""
    of_nodes = _numbers(attributes.nodes, name, 'time_attr')
    of_edges = _numbers(attributes.edges, name, 'time_attr')
    if not of_nodes and not of_edges:
        raise ValueError(f"'time_attr' must name an attribute of nodes or edges (got '{name}')")
    if of_nodes and of_edges:
        raise ValueError(
            f"'time_attr' must be of nodes or of edges (got '{name}', which both have)"
        )
    return of_nodes, of_edges


def _weights(attributes: AttributeRows, name: str) -> dict[EdgeKey, Tensor]:
    weights = _numbers(attributes.edges, name, 'weight_attr')
    if not weights:
        raise ValueError(f"'weight_attr' must name an attribute of edges (got '{name}')")
    for weight in weights.values():
        if not bool((weight.isfinite() & (weight >= 0)).all()):
            raise ValueError(
                f"'weight_attr' must be finite and at least 0 (got '{name}' with others)"
            )
    return {key: weight.double() for key, weight in weights.items()}


def _numbers(values: dict[Any, Values], name: str, argument: str) -> dict[Any, Tensor]:
    """One number for every node or edge that has the attribute, int64 or float64, on the CPU."""
    out = {}
    for key, attributes in values.items():
        if name in attributes:
            value = attributes[name].cpu()
            if value.dim() != 1 or value.is_complex() or bool(value.isnan().any()):
                raise ValueError(
                    f"'{argument}' must have one number for each node or edge, not NaN (got "
                    f"'{name}' of {value.dtype} {tuple(value.shape)})"
                )
            out[key] = value.double() if value.is_floating_point() else value.long()
    return out
