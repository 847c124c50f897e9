"""The part of every node: the options are checked, and the method is run."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.balance import BALANCES, node_weights
from pyg_sar.partition.given import (
    equal_runs,
    fill_empty_parts,
    given_parts,
    random_parts,
    range_parts,
)
from pyg_sar.partition.kaminpar import kaminpar_parts
from pyg_sar.partition.ldg import ldg_parts
from pyg_sar.partition.mapped import BoolArray, Int64Array, trim
from pyg_sar.partition.method import METHODS, OBJECTIVES, CutOptions, Problem
from pyg_sar.partition.metis import PACKAGES, first_installed, metis_parts
from pyg_sar.partition.neighbours import neighbours
from pyg_sar.partition.typed import TypedGraph
from pyg_sar.shard.format import NodeKey


def check_options(options: CutOptions) -> None:
    """Raises ValueError if there is no such method or option, or they do not go together."""
    method, name = options.method, options.name
    has_parts = isinstance(method, (Tensor, dict)) or name.startswith('file:')
    if not has_parts and (name == 'tensor' or name not in METHODS):
        raise ValueError(f"'method' must be one of {list(METHODS)} (got {method!r})")
    if options.objective not in OBJECTIVES:
        raise ValueError(
            f"'objective' must be one of {list(OBJECTIVES)} (got {options.objective!r})"
        )
    if options.balance not in BALANCES:
        raise ValueError(f"'balance' must be one of {list(BALANCES)} (got {options.balance!r})")
    if options.balance != 'nodes' and not options.reads_edges:
        raise ValueError(
            f"'balance' does not apply to method={name!r}, which reads no edges "
            f'(got {options.balance!r})'
        )
    if name == 'metis' and first_installed(PACKAGES) is None:
        raise ValueError("method 'metis' needs the package 'pymetis'; pip install pymetis")
    if options.objective == 'volume' and (name != 'metis' or first_installed(PACKAGES[:1]) is None):
        raise ValueError(
            f"objective='volume' needs method='metis' by the package 'pymetis' (got {name!r})"
        )
    if name == 'kaminpar':
        try:
            import_module(name)
        except ImportError as error:
            raise ValueError(
                f"method 'kaminpar' needs the package 'kaminpar' (got: {error}); install it with "
                "pip install 'pyg_sar[kaminpar]'"
            ) from error


def assign_nodes(graph: TypedGraph, num_parts: int, options: CutOptions) -> dict[NodeKey, Tensor]:
    """The part of every node, int32 [N], by type.

    A partitioner sees the nodes of all types in one graph, undirected. A type without edges is
    dealt out evenly. Raises ValueError if the parts given are not N integers in [0, P).
    """
    if options.reads_edges and num_parts == 1:
        parts = torch.zeros(graph.num_nodes, dtype=torch.int64)
    elif options.reads_edges:
        parts = _cut(graph, num_parts, options)
    elif options.name == 'random':
        parts = random_parts(graph, num_parts, options.seed)
    elif options.name == 'range':
        parts = range_parts(graph, num_parts)
    else:
        parts = given_parts(graph, num_parts, options.method)
    trim()  # Else METIS's memory would stay while shards are written.
    return graph.by_type(parts.to(torch.int32))


def _cut(graph: TypedGraph, num_parts: int, options: CutOptions) -> Tensor:
    """Parts by a method that reads edges, of the types one after another, int64 [N]."""
    connected = _connected(graph)
    weights = node_weights(graph, options.balance, connected, num_parts)
    is_streaming = options.name == 'ldg'
    # METIS takes 64 bits, and what keeps duplicates has more to read.
    dtype = np.int32 if is_streaming and graph.num_nodes < 2**31 else np.int64
    near = neighbours(
        graph.homogeneous_edge_index(),
        graph.num_nodes,
        graph.scratch,
        keep_duplicates=is_streaming,
    )
    indptr, index = near.csr(dtype=dtype)
    del near
    problem = Problem(indptr, index, weights, num_parts, options, graph.scratch.folder)
    if not index.size:  # nothing to cut
        parts = _deal(graph, weights, num_parts)
    elif is_streaming:
        parts = ldg_parts(problem)
    else:
        parts = kaminpar_parts(problem) if options.name == 'kaminpar' else metis_parts(problem)
    for key, start in graph.offsets.items():
        nodes = slice(start, start + graph.nodes[key].num_nodes)
        if graph.is_hetero and not connected[nodes].any():
            parts[nodes] = equal_runs(graph.nodes[key].num_nodes, num_parts)
    return fill_empty_parts(parts, num_parts)


def _connected(graph: TypedGraph) -> BoolArray:
    """The nodes of types with edges, bool [N]; all nodes if no type has any."""
    used = {end for r in graph.relations.values() if r.edge_index.numel() for end in (r.src, r.dst)}
    sizes = [nodes.num_nodes for nodes in graph.nodes.values()]
    return np.repeat([key in used or not used for key in graph.nodes], sizes)


def _deal(graph: TypedGraph, weights: Int64Array | None, num_parts: int) -> Tensor:
    """Contiguous runs of the nodes of a type, of about equal weight."""
    if weights is None:
        weights = np.ones(graph.num_nodes, dtype=np.int64)
    dealt = []
    for weight in map(Tensor.numpy, graph.by_type(torch.from_numpy(weights)).values()):
        middle = np.cumsum(weight) - weight / 2
        parts = (middle * num_parts / max(int(weight.sum()), 1)).astype(np.int64)
        dealt.append(torch.from_numpy(parts.clip(max=num_parts - 1)))
    return torch.cat(dealt)
