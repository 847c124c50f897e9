"""Checks of a graph before any work is done on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_sar.partition.row_files import smallest_and_largest

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch hardly computes with these


def check_positive(name: str, value: object) -> int:
    """Raises ValueError unless the argument of this name is an int >= 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"'{name}' must be an int >= 1 (got {value!r})")
    return int(value)


def check_seed(seed: object) -> int:
    """Raises ValueError unless `seed` is an int in [0, 2**31)."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**31:
        raise ValueError(f"'seed' must be an int in [0, 2**31) (got {seed!r})")
    return int(seed)


def odd_kind(value: Tensor) -> str | None:
    """The kind of a tensor that has no plain numbers, dense or sparse; None of any other."""
    kinds = {
        'nested': value.is_nested,
        'quantized': value.is_quantized,
        'MKL-DNN': value.is_mkldnn,
        'meta': value.is_meta,
    }
    return next((kind for kind, is_so in kinds.items() if is_so), None)


def checked_edge_index(data: Data | Mapping[str, Any], relation: str = '') -> Tensor:
    """The plain ``edge_index`` of a graph, or of what a HeteroData holds of one relation.

    It is of its own integer type, [2, E], in main memory or mapped.
    """
    of, where = (f' of {relation}', relation) if relation else ('', "'data'")
    edge_index = data.get('edge_index')
    if edge_index is None and ('adj_t' in data or 'adj' in data):
        matrix = 'data.adj_t.t()' if 'adj_t' in data else 'data.adj'
        raise ValueError(
            f"expected 'edge_index' in {where} (got a sparse adjacency matrix; convert it: "
            f'data.edge_index, data.edge_weight = torch_geometric.utils.to_edge_index({matrix}))'
        )
    if not isinstance(edge_index, Tensor):
        raise ValueError(
            f"expected a tensor 'edge_index' in {where} (got {type(edge_index).__name__})"
        )
    kind = odd_kind(edge_index)
    if kind is None and edge_index.layout is not torch.strided:
        kind = 'sparse'
    got = f'a {kind} tensor' if kind else f'shape {list(edge_index.shape)}'
    if kind or edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ValueError(f"'edge_index'{of} must be a dense tensor of shape [2, E] (got {got})")
    edge_index = edge_index.detach().as_subclass(Tensor)
    if edge_index.dtype not in (*INTEGERS, *UNSIGNED):
        raise ValueError(f"'edge_index'{of} must hold integers (got {edge_index.dtype})")
    return edge_index.cpu()


def check_ids(edge_index: Tensor, num_nodes: tuple[int, int], relation: str = '') -> None:
    """Raises ValueError unless ids are below the numbers of nodes at both ends."""
    if edge_index.numel() == 0:
        return
    of = f' of {relation}' if relation else ''
    for ids, count in zip(edge_index, num_nodes, strict=True):
        low, high = smallest_and_largest(ids)
        if low < 0:
            raise ValueError(f"'edge_index'{of} must hold ids >= 0 (got {low})")
        if high >= count:
            raise ValueError(
                f"'edge_index'{of} must hold ids below the number of nodes, {count} (got {high})"
            )
