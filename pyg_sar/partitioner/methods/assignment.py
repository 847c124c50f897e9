"""The part of every node: by a partitioner, at random, or as the caller says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partitioner.methods.balance import Balance, BoolArray, balance_weights
from pyg_sar.partitioner.methods.kahip import kahip_assignment, mtkahypar_assignment
from pyg_sar.partitioner.methods.metis import metis_assignment
from pyg_sar.partitioner.methods.options import MethodOptions
from pyg_sar.partitioner.methods.rebalance import rebalance, refine
from pyg_sar.partitioner.methods.streaming import STREAMING, stream_assignment
from pyg_sar.partitioner.on_disk.csr import IndexArray, symmetric_csr
from pyg_sar.partitioner.on_disk.mapped import trim
from pyg_sar.partitioner.on_disk.rows import edge_chunks
from pyg_sar.partitioner.on_disk.undirected import undirected_csr
from pyg_sar.partitioner.typed import TypedGraph
from pyg_sar.shard.format.file_names import NodeKey
from pyg_sar.shard.format.tensor_file import check_plain

_KWAY_FROM = 9
"""Parts from which METIS's k-way is tried beside recursive bisection, as pymetis does."""

_KWAY_GAIN = 0.98
"""What k-way must leave of the cut to be taken: it balances less well."""

_METIS_SEED = 4321
"""METIS's own default: seed 0 gives what METIS gives when nobody asks for a seed."""


def assign_nodes(
    graph: TypedGraph, num_parts: int, options: MethodOptions
) -> dict[NodeKey, Tensor]:
    """Assigns every node to a part.

    A partitioner sees the nodes of all types in one graph, undirected. A type without edges is
    dealt out evenly.

    Args:
        graph: The graph.
        num_parts: Number of parts P.
        options: The method and its options.

    Returns:
        The part of every node, int32 [N], by type.

    Raises:
        ValueError: If the parts given are not N integers in [0, P).
    """
    parts = _assign(graph, num_parts, options)
    trim()  # What is left of METIS would else be held while shards are written.
    return {key: of_type.to(torch.int32) for key, of_type in parts.items()}


def _assign(graph: TypedGraph, num_parts: int, options: MethodOptions) -> dict[NodeKey, Tensor]:
    method = options.method
    if isinstance(method, dict):
        return _by_type(method, graph, num_parts)
    if isinstance(method, Tensor):
        parts = _checked(method, graph.num_nodes, num_parts, "the tensor 'method'")
    elif method.startswith('file:'):
        path = Path(method.removeprefix('file:'))
        parts = _checked(_read(path), graph.num_nodes, num_parts, f"'{path}'")
    elif method == 'random':
        generator = torch.Generator().manual_seed(options.seed)
        # Every type is dealt out evenly, from the part on where the one before it ended.
        return {
            key: (torch.randperm(nodes.num_nodes, generator=generator) + graph.offsets[key])
            % num_parts
            for key, nodes in graph.nodes.items()
        }
    elif method == 'range':
        ranges = {key: _ranges(nodes.num_nodes, num_parts) for key, nodes in graph.nodes.items()}
        parts = fill_empty_parts(torch.cat(list(ranges.values())), num_parts)
    else:
        parts = _cut(graph, num_parts, options)
    return graph.by_type(parts)


def fill_empty_parts(assignment: Tensor, num_parts: int) -> Tensor:
    """Moves single nodes from the largest parts to empty ones.

    METIS leaves parts empty on graphs of a few nodes per part.
    """
    sizes = torch.bincount(assignment, minlength=num_parts)
    empty = (sizes == 0).nonzero().view(-1).tolist()
    if empty:
        assignment = assignment.clone()
    for part in empty:
        largest = int(sizes.argmax())
        node = int((assignment == largest).nonzero()[-1])
        assignment[node] = part
        sizes[largest] -= 1
        sizes[part] += 1
    return assignment


def _cut(graph: TypedGraph, num_parts: int, options: MethodOptions) -> Tensor:
    """By a partitioner, the types one after another, int64 [N]."""
    if num_parts == 1:
        return torch.zeros(graph.num_nodes, dtype=torch.int64)
    connected = _connected(graph)
    balance = balance_weights(graph, options.balance, connected)
    edge_index = graph.homogeneous_edge_index()
    if options.method in STREAMING:
        indptr, index = symmetric_csr(edge_index, graph.num_nodes)
        streamed = stream_assignment(
            indptr,
            index,
            balance,
            num_parts,
            method=options.name,
            passes=options.passes,
            seed=options.seed,
        )
        found = [streamed]
    else:
        indptr, index = undirected_csr(edge_index, graph.num_nodes, scratch=graph.scratch)
        if index.size == 0:  # Nothing to cut.
            found = [_deal(balance.weights.sum(axis=1), num_parts)]
        else:
            found = _candidates(indptr, index, balance, num_parts, options)
    if options.method in STREAMING or not balance.is_single:
        found = [_evened(indptr, index, parts, balance, num_parts) for parts in found]
    parts = _least(found, graph, options.objective)
    for key, start in graph.offsets.items():
        nodes = slice(start, start + graph.nodes[key].num_nodes)
        if graph.is_hetero and not connected[nodes].any():
            parts[nodes] = _ranges(graph.nodes[key].num_nodes, num_parts)
    return fill_empty_parts(parts, num_parts)


def _candidates(
    indptr: IndexArray,
    index: IndexArray,
    balance: Balance,
    num_parts: int,
    options: MethodOptions,
) -> list[Tensor]:
    """What the method finds; more than one attempt where none is always the best."""
    volume, seed = options.objective == 'volume', options.seed
    weight = np.maximum(balance.weights[:, 0], 1)  # Neither package promises to bear zeros.
    if options.method == 'kahip':
        return [kahip_assignment(indptr, index, weight, num_parts, seed=seed)]
    if options.method == 'mtkahypar':
        goals = (False, True) if volume else (False,)
        return [
            mtkahypar_assignment(indptr, index, weight, num_parts, seed=seed, volume=goal)
            for goal in goals
        ]
    # A graph of equal weights is given to METIS as one without any.
    weights = None if balance.is_equal else balance.for_metis

    def metis(recursive: bool, volume: bool = False) -> Tensor:
        return metis_assignment(
            indptr,
            index,
            num_parts,
            backend=options.backend,
            seed=_METIS_SEED + seed,
            weights=weights,
            recursive=recursive,
            volume=volume,
        )

    if options.recursive is not None:
        return [metis(options.recursive)]
    found = [metis(True)]
    if options.backend in ('auto', 'pymetis'):
        if volume:
            # METIS's volume objective is at times worse in volume than its cut objective.
            found.append(metis(False, volume=True))
        elif num_parts >= _KWAY_FROM and balance.is_single:
            found.append(metis(False))
    return found


def _evened(
    indptr: IndexArray, index: IndexArray, parts: Tensor, balance: Balance, num_parts: int
) -> Tensor:
    """No part above its caps, then as few cut edges as single moves within them can reach."""
    moved = rebalance(indptr, index, parts.numpy(), balance, num_parts)
    return torch.from_numpy(refine(indptr, index, moved, balance, num_parts))


def _least(found: list[Tensor], graph: TypedGraph, objective: str) -> Tensor:
    """The first of some assignments, unless a later one is better by the objective."""
    if len(found) == 1:
        return found[0]
    if objective == 'volume':
        return min(found, key=lambda parts: _communication_volume(graph, parts))
    cuts = [_edge_cut(graph, parts) for parts in found]
    return found[1] if cuts[1] < _KWAY_GAIN * cuts[0] else found[0]


def _edge_cut(graph: TypedGraph, parts: Tensor) -> int:
    """Directed edges between parts."""
    by_type = graph.by_type(parts)
    return sum(
        int((by_type[relation.src][src] != by_type[relation.dst][dst]).sum())
        for relation in graph.relations.values()
        for _, src, dst in edge_chunks(relation.edge_index)
    )


def _communication_volume(graph: TypedGraph, parts: Tensor) -> int:
    """Rows exchanged per layer: a node's row goes once to every other part, per relation."""
    by_type, volume = graph.by_type(parts), 0
    num_parts = int(parts.max()) + 1
    for relation in graph.relations.values():
        of_src, of_dst = by_type[relation.src], by_type[relation.dst]
        is_read = torch.zeros(of_src.numel(), num_parts, dtype=torch.bool)
        for _, src, dst in edge_chunks(relation.edge_index):
            is_read[src, of_dst[dst]] = True
        is_read[torch.arange(of_src.numel()), of_src] = False
        volume += int(is_read.sum())
    return volume


def _connected(graph: TypedGraph) -> BoolArray:
    """The nodes of types with edges, bool [N]; all nodes if no type has any."""
    used = {end for r in graph.relations.values() if r.edge_index.numel() for end in (r.src, r.dst)}
    sizes = [nodes.num_nodes for nodes in graph.nodes.values()]
    return np.repeat([key in used or not used for key in graph.nodes], sizes)


def _ranges(num_nodes: int, num_parts: int) -> Tensor:
    """Contiguous runs of nodes, equally many in every part."""
    return torch.arange(num_nodes) * num_parts // max(num_nodes, 1)


def _deal(weight: IndexArray, num_parts: int) -> Tensor:
    """Contiguous runs of nodes of about equal weight."""
    middle = np.cumsum(weight) - weight / 2
    parts = (middle * num_parts / max(int(weight.sum()), 1)).astype(np.int64)
    return torch.from_numpy(parts.clip(max=num_parts - 1))


def _by_type(method: dict[str, Tensor], graph: TypedGraph, num_parts: int) -> dict[NodeKey, Tensor]:
    if method.keys() != graph.nodes.keys():
        raise ValueError(
            f"expected parts of the node types {list(graph.nodes)} in 'method' (got {list(method)})"
        )
    return {
        key: _checked(
            torch.as_tensor(method[str(key)]), nodes.num_nodes, num_parts, f"'method' of '{key}'"
        )
        for key, nodes in graph.nodes.items()
    }


def _read(path: Path) -> Tensor:
    if not path.is_file():
        raise ValueError(f"expected a file of part ids at '{path}' (got no file)")
    try:
        if path.suffix == '.npy':
            return torch.from_numpy(np.load(path, allow_pickle=False))
        if path.suffix == '.pt':
            check_plain(path)
            parts = torch.load(path, map_location='cpu', weights_only=True)
            if not isinstance(parts, Tensor):
                raise ValueError(f'a {type(parts).__name__}')
            return parts
        if path.suffix == '.txt':
            return torch.from_numpy(np.loadtxt(path, dtype=np.int64, ndmin=1))
    except Exception as error:
        raise ValueError(f"expected one part id per node in '{path}' (got {error})") from error
    raise ValueError(f"expected a .npy, .pt or .txt file of part ids (got '{path}')")


def _checked(parts: Tensor, num_nodes: int, num_parts: int, where: str) -> Tensor:
    if list(parts.shape) != [num_nodes]:
        raise ValueError(
            f'expected one part id per node, shape [{num_nodes}], in {where} '
            f'(got shape {list(parts.shape)})'
        )
    if parts.is_floating_point() or parts.is_complex() or parts.dtype is torch.bool:
        raise ValueError(f'expected integer part ids in {where} (got {parts.dtype})')
    parts = parts.detach().cpu().to(torch.int64)
    if num_nodes and not 0 <= int(parts.min()) <= int(parts.max()) < num_parts:
        raise ValueError(
            f'expected part ids from 0 to {num_parts - 1} in {where} '
            f'(got {int(parts.min())} to {int(parts.max())})'
        )
    return parts
