"""A graph of two types of nodes."""

from __future__ import annotations

import torch
from torch_geometric.data import HeteroData


def two_types(
    sizes: tuple[int, int] = (17, 12),
    widths: tuple[int, int] = (6, 6),
    num_edges: int = 60,
    *,
    turned: bool = True,
) -> HeteroData:
    """Types a and b, edges from a to b, and with `turned` the same ones from b to a; float64."""
    data, draw = HeteroData(), torch.Generator().manual_seed(0)
    for name, size, width in zip('ab', sizes, widths, strict=True):
        data[name].x = torch.randn(size, width, generator=draw, dtype=torch.float64)
    edge_index = torch.stack([torch.randint(n, (num_edges,), generator=draw) for n in sizes])
    data['a', 'to', 'b'].edge_index = edge_index
    if turned:
        data['b', 'of', 'a'].edge_index = edge_index.flip(0)
    return data
