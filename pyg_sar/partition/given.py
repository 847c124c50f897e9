"""Parts without a look at the edges: at random, in runs of ids, or as the caller says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.graph import TypedGraph
from pyg_sar.partition.options import MethodLike
from pyg_sar.shard.files import is_of_system, load_plain


def fill_empty_parts(assignment: Tensor, num_parts: int) -> Tensor:
    """Moves single nodes from the largest parts to empty ones, which METIS leaves on few nodes."""
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


def equal_runs(num_nodes: int, num_parts: int) -> Tensor:
    """Contiguous runs of nodes, equally many in every part."""
    return torch.arange(num_nodes) * num_parts // max(num_nodes, 1)


def range_parts(graph: TypedGraph, num_parts: int) -> Tensor:
    """Equal runs of ids, of every type."""
    runs = [equal_runs(nodes.num_nodes, num_parts) for nodes in graph.nodes.values()]
    return fill_empty_parts(torch.cat(runs), num_parts)


def random_parts(graph: TypedGraph, num_parts: int, seed: int) -> Tensor:
    """Every type is dealt out evenly, from the part on where the one before it ended."""
    generator = torch.Generator().manual_seed(seed)
    deals = [
        torch.randperm(nodes.num_nodes, generator=generator) + graph.offsets[key]
        for key, nodes in graph.nodes.items()
    ]
    return torch.cat(deals) % num_parts


def given_parts(graph: TypedGraph, num_parts: int, method: MethodLike) -> Tensor:
    """The parts of a tensor, of one for every type, or of a file; checked."""
    if isinstance(method, dict):
        if method.keys() != graph.nodes.keys():
            raise ValueError(
                f"expected parts of the node types {list(graph.nodes)} in 'method' (got "
                f'{list(method)})'
            )
        parts = []
        for key, nodes in graph.nodes.items():
            of_type = torch.as_tensor(method[str(key)])
            parts.append(_checked(of_type, nodes.num_nodes, num_parts, f"'method' of '{key}'"))
        return torch.cat(parts)
    if isinstance(method, Tensor):
        return _checked(method, graph.num_nodes, num_parts, "the tensor 'method'")
    path = Path(method.removeprefix('file:'))
    return _checked(_read(path), graph.num_nodes, num_parts, f"'{path}'")


def _read(path: Path) -> Tensor:
    if not path.is_file():
        raise ValueError(f"expected a file of part ids at '{path}' (got no file)")
    readers: dict[str, Callable[[Path], Any]] = {
        '.npy': lambda path: np.load(path, allow_pickle=False),
        '.pt': load_plain,
        '.txt': lambda path: np.loadtxt(path, dtype=np.int64, ndmin=1),
    }
    if path.suffix not in readers:
        raise ValueError(f"expected a .npy, .pt or .txt file of part ids (got '{path}')")
    try:
        return torch.as_tensor(readers[path.suffix](path))
    except Exception as error:
        if is_of_system(error):
            raise
        raise ValueError(f"expected one part id per node in '{path}' (got {error})") from error


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
