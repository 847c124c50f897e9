"""A conv for tests to change; PyG compiles its propagate, as its forward names every argument."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.nn import MessagePassing


class SumConv(MessagePassing):
    """Sums x_j."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)
