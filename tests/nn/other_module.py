"""Functions that a conv's module imports, defined where no conv is."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.utils import degree


def out_degree(edge_index: Tensor, num_nodes: int) -> Tensor:
    return degree(edge_index[0], num_nodes)
