"""Checks of a graph before any work is done on it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_num_parts(num_parts: object) -> int:
    """Raises ValueError unless `num_parts` is an int >= 1."""
    if isinstance(num_parts, bool) or not isinstance(num_parts, int) or num_parts < 1:
        raise ValueError(f"'num_parts' must be an int >= 1 (got {num_parts!r})")
    return num_parts


def check_seed(seed: object) -> int:
    """Raises ValueError unless `seed` is an int in [0, 2**31)."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise ValueError(f"'seed' must be an int in [0, 2**31) (got {seed!r})")
    return seed


def checked_edge_index(data: Data) -> Tensor:
    """The plain ``edge_index`` of `data`, int64 [2, E] in main memory.

    Raises:
        ValueError: If `data` is no homogeneous graph with an integer `edge_index` of shape [2, E].
    """
    if not isinstance(data, Data):
        raise ValueError(
            f"'data' must be a torch_geometric.data.Data (got {type(data).__name__}; "
            'heterogeneous graphs are not supported)'
        )
    edge_index = data.get('edge_index')
    if edge_index is None and ('adj_t' in data or 'adj' in data):
        raise ValueError(
            "expected 'edge_index' in 'data' (got a sparse adjacency matrix; "
            "convert it, for 'adj_t': row, col, _ = data.adj_t.t().coo(); "
            'data.edge_index = torch.stack([row, col]))'
        )
    if not isinstance(edge_index, Tensor):
        raise ValueError(
            f"expected a tensor 'edge_index' in 'data' (got {type(edge_index).__name__})"
        )
    edge_index = edge_index.detach().as_subclass(Tensor)
    if edge_index.layout is not torch.strided or edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ValueError(
            f"'edge_index' must be a dense tensor of shape [2, E] (got shape "
            f'{list(edge_index.shape)})'
        )
    if edge_index.dtype not in _INTEGERS:
        raise ValueError(f"'edge_index' must hold integers (got {edge_index.dtype})")
    return edge_index.to('cpu', torch.int64).contiguous()


def check_ids(edge_index: Tensor, num_nodes: int) -> None:
    """Raises ValueError unless every id in `edge_index` is in [0, num_nodes)."""
    if edge_index.numel() == 0:
        return
    low, high = (int(bound) for bound in edge_index.aminmax())
    if low < 0:
        raise ValueError(f"'edge_index' must hold ids >= 0 (got {low})")
    if high >= num_nodes:
        raise ValueError(
            f"'edge_index' must hold ids below the number of nodes, {num_nodes} (got {high})"
        )


def check_no_nan(x: Tensor | None) -> None:
    """Raises ValueError if a feature is NaN."""
    if x is None or not (x.is_floating_point() or x.is_complex()):
        return
    values = x if x.layout is torch.strided else x.values()
    count = sum(
        int(values[start : start + _CHECKED_ROWS].isnan().sum())
        for start in range(0, values.size(0), _CHECKED_ROWS)
    )
    if count:
        raise ValueError(f"expected no NaN in 'x' (got {count:,} NaN values)")


_CHECKED_ROWS = 65536
"""Rows checked at a time, so that the check needs no mask as large as the features."""
