"""What a rank knows of the graph while it samples: its own nodes, and all edges into them.

A node is known by its *position*: nodes are numbered part after part, so those of a rank follow one
another and a node's owner is found among ``world_size + 1`` numbers. The sources of edges are such
positions: of own nodes they are known, of the halo their owners tell them once. So no rank holds
anything of the size of the graph, and any node can be asked for. A position takes 4 bytes where a
type has fewer than 2^31 nodes.

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

from pyg_sar.comm import Exchange, agree, raise_together, rank
from pyg_sar.sampling.attributes import (
    Attributes,
    EdgeKey,
    NodeKey,
    Values,
    edge_stores,
    ends_of,
    node_stores,
)
from pyg_sar.sampling.draw.choose import cumulated


@dataclass(frozen=True, eq=False)
class Nodes:
    """The nodes of one type.

    Attributes:
        rank: This rank.
        rank_ptr: Positions of every rank's first node, and how many there are: P + 1 numbers.
        own_ptr: Own rows of every own part; empty for a type without edges.
        n_id: Original ids of the own nodes, int64 ``[num_own]``.
    """

    rank: int
    rank_ptr: tuple[int, ...]
    own_ptr: tuple[int, ...]
    n_id: Tensor

    @property
    def first(self) -> int:
        """The position of the first own node."""
        return self.rank_ptr[self.rank]

    @property
    def total(self) -> int:
        """How many nodes of this type all ranks have."""
        return self.rank_ptr[-1]

    @property
    def wire(self) -> torch.dtype:
        """What positions travel as."""
        return torch.int32 if self.total < 2**31 else torch.int64


@dataclass(frozen=True, eq=False)
class InEdges:
    """The edges of one relation into own nodes, node after node.

    Attributes:
        src: The type of their sources.
        dst: The type of their destinations.
        ptr: Places of each own node's first edge, and how many edges there are, int64.
        source: Positions of their sources, int32 or int64 ``[num_edges]``.
        row: Where their attributes are among those of the shard, int64 ``[num_edges]``.
        time: When they begin to be, or their sources do, int64 or float64; None for always.
        weight: float64, or None.
        cdf: What :func:`pyg_sar.sampling.draw.choose.cumulated` makes of the weights, or None.
    """

    src: NodeKey
    dst: NodeKey
    ptr: Tensor
    source: Tensor
    row: Tensor
    time: Tensor | None
    weight: Tensor | None
    cdf: Tensor | None


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes by type and in-edges by relation; of a homogeneous graph both are known as None.

    Attributes:
        nodes: By type.
        edges: By relation.
        times: The times of own nodes by type, where nodes have times.
        time_dtype: Of all times: int64, or float64 where some are no whole numbers.
        parts_per_rank: Own parts.
        first_part: The first of them.
        world_size: Number of ranks.
    """

    nodes: dict[NodeKey, Nodes]
    edges: dict[EdgeKey, InEdges]
    times: dict[NodeKey, Tensor]
    time_dtype: torch.dtype
    parts_per_rank: int
    first_part: int
    world_size: int


def build(
    data: Data | HeteroData,
    attributes: Attributes,
    time_attr: str | None,
    weight_attr: str | None,
    *,
    replace: bool,
) -> Graph:
    """Sorts the edges into own nodes, and has the positions of the halo told (collective).

    Raises:
        ValueError: On all ranks, if times or weights are missing or wrong on one.
    """
    nodes = _nodes(data)
    shards = {key: store.edge_index.shard for key, store in edge_stores(data).items()}
    errors: list[str] = []
    times, edge_times = _times(attributes, time_attr, errors)
    weights = _weights(attributes, weight_attr, errors)
    raise_together(ValueError(errors[0]) if errors else None)
    every = [*times.values(), *edge_times.values()]
    is_real = any(t.is_floating_point() for t in every)
    time_dtype = torch.float64 if is_real else torch.int64
    times = {key: time.to(time_dtype) for key, time in times.items()}
    edge_times = {key: time.to(time_dtype) for key, time in edge_times.items()}
    edges = {}
    for key, shard in shards.items():
        src, dst = ends_of(key)
        own = torch.arange(nodes[src].first, nodes[src].first + shard.num_own)
        told = [own] if src not in times else [own, times[src]]
        if shard.world_size > 1:
            # The halo lies on the device of the shard.
            there = [t.to(shard.n_id.device) for t in told]
            halo = Exchange(shard).fetch_all(there)
            told = [torch.cat([t, h.to(t.device)]) for t, h in zip(told, halo, strict=True)]
        at = data[key].edge_index if isinstance(data, HeteroData) else data.edge_index
        src_row, dst_row = at.as_subclass(Tensor).cpu()
        time = told[1][src_row] if src in times else edge_times.get(key)
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
            told[0].to(nodes[src].wire)[src_row[row]],
            row,
            None if time is None else time[row],
            weight,
            cumulated(weight, ptr) if weight is not None and replace else None,
        )
    first = next(iter(shards.values()))
    per_rank, size = first.parts_per_rank, first.world_size
    return Graph(nodes, edges, times, time_dtype, per_rank, first.parts.start, size)


def _nodes(data: Data | HeteroData) -> dict[NodeKey, Nodes]:
    """The nodes of every type (collective: a small all-gather)."""
    own_ptr: dict[NodeKey, tuple[int, ...]] = {}
    for key, store in edge_stores(data).items():
        shard = store.edge_index.shard
        src, dst = ends_of(key)
        own_ptr[src] = shard.own_ptr
        if shard.dst_ptr is not None:
            own_ptr[dst] = shard.dst_ptr
    stores = node_stores(data)
    counts = agree([int(store.num_nodes) for store in stores.values()])
    out = {}
    for i, (name, store) in enumerate(stores.items()):
        rank_ptr = tuple(accumulate((count[i] for count in counts), initial=0))
        out[name] = Nodes(rank(), rank_ptr, own_ptr.get(name, ()), store.n_id.cpu())
    return out


def _times(
    attributes: Attributes, name: str | None, errors: list[str]
) -> tuple[dict[NodeKey, Tensor], dict[EdgeKey, Tensor]]:
    """The times of own nodes by type, or of edges by relation."""
    if name is None:
        return {}, {}
    of_nodes = _numbers(attributes.nodes, name, 'time_attr', errors)
    of_edges = _numbers(attributes.edges, name, 'time_attr', errors)
    if not of_nodes and not of_edges:
        errors.append(f"'time_attr' must name an attribute of nodes or edges (got '{name}')")
    if of_nodes and of_edges:
        errors.append(f"'time_attr' must be of nodes or of edges (got '{name}', which both have)")
    return of_nodes, of_edges


def _weights(attributes: Attributes, name: str | None, errors: list[str]) -> dict[EdgeKey, Tensor]:
    if name is None:
        return {}
    weights = _numbers(attributes.edges, name, 'weight_attr', errors)
    if not weights:
        errors.append(f"'weight_attr' must name an attribute of edges (got '{name}')")
    for weight in weights.values():
        if not bool((weight.isfinite() & (weight >= 0)).all()):
            errors.append(f"'weight_attr' must be finite and at least 0 (got '{name}' with others)")
    return {key: weight.double() for key, weight in weights.items()}


def _numbers(
    values: dict[Any, Values], name: str, argument: str, errors: list[str]
) -> dict[Any, Tensor]:
    """One number for every node or edge that has the attribute, int64 or float64, on the CPU."""
    out = {}
    for key, each in values.items():
        if name in each:
            value = each[name].cpu()
            if value.dim() != 1 or value.is_complex() or bool(value.isnan().any()):
                errors.append(
                    f"'{argument}' must have one number for each node or edge, not NaN (got "
                    f"'{name}' of {value.dtype} {tuple(value.shape)})"
                )
            out[key] = value.double() if value.is_floating_point() else value.long()
    return out
