"""Dense batches of the messages of each node, as wide as in the whole graph.

Aggregations such as LSTM pad the messages of every node to the largest in-degree they are given,
and their result may depend on that width. In a chunk it has to be that of the whole graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import to_dense_batch as pyg_to_dense_batch

from pyg_sar.conv.functions import replaced


class DenseBatches:
    """Notes whether a conv's aggregation makes dense batches, and gives them their width.

    Args:
        conv: The conv.
        width: The largest in-degree of the whole graph.
    """

    def __init__(self, conv: torch.nn.Module, width: int) -> None:
        self.conv = conv
        self.width = width
        self.are_used = False

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """While it lasts, a dense batch without a width of its own has that of the whole graph."""

        def to_dense_batch(
            x: Tensor,
            batch: Tensor | None = None,
            fill_value: float = 0.0,
            max_num_nodes: int | None = None,
            batch_size: int | None = None,
        ) -> Any:
            self.are_used = True
            width = self.width if max_num_nodes is None else max_num_nodes
            return pyg_to_dense_batch(x, batch, fill_value, width, batch_size)

        with replaced(self.conv, {pyg_to_dense_batch: to_dense_batch}):
            yield
