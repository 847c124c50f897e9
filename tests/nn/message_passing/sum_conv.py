"""What these tests share: a conv to change, and how long ranks may wait in vain."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.nn import MessagePassing


class SumConv(MessagePassing):
    """Sums messages of 6 features."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{'aggr': 'add', **kwargs})

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)
