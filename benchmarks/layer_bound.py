"""What forward and backward of a layer cannot do without, and how long the machine takes for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from machine_limits import PRODUCTS, gather_bytes
from torch_geometric.nn import GATConv, Linear


@dataclass(frozen=True)
class Needs:
    """What no program can do without in forward and backward of one layer.

    Attributes:
        products: Of matrices: widths of input and output, and which of ``PRODUCTS``.
        gathered_bytes: That sums over edges and dots of edges move.
        exponentials: Of a softmax.
    """

    products: tuple[tuple[tuple[int, int], str], ...]
    gathered_bytes: int
    exponentials: int

    def operations(self, num_rows: int) -> int:
        """Multiplications and additions of the products, of so many nodes."""
        return sum(2 * num_rows * width * columns for (width, columns), _ in self.products)

    def seconds(self, fastest: dict[str, Any]) -> dict[str, float]:
        """By the seconds of one, as of :func:`machine_limits.limits`."""
        return {
            'products': sum(fastest['products'][widths][kind] for widths, kind in self.products),
            'gathers': self.gathered_bytes * fastest['triad'],
            'exponentials': self.exponentials * fastest['exponential'],
        }


def needs(conv: torch.nn.Module, is_first: bool, num_nodes: int, num_edges: int) -> Needs:
    """Of a SAGEConv or a GATConv; the features of the first layer take no gradient."""
    linears = [(m.in_channels, m.out_channels) for m in conv.modules() if isinstance(m, Linear)]
    kinds = PRODUCTS[:2] if is_first else PRODUCTS
    products = tuple((widths, kind) for widths in linears for kind in kinds)
    if isinstance(conv, GATConv):
        num_edges += num_nodes  # self loops
        width = conv.heads * conv.out_channels
        # Weighted sums of rows and of gradients, and dots of both for the gradient of the weights.
        num_bytes = 3 * gather_bytes(num_edges, num_nodes, width, conv.heads)
        return Needs(products, num_bytes, num_edges * conv.heads)
    # Sums of rows and of gradients, on the narrow side. Those of the features never change.
    num_bytes = 2 * gather_bytes(num_edges, num_nodes, min(linears[0]))
    return Needs(products, 0 if is_first else num_bytes, 0)
