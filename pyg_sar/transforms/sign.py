"""SIGN: features propagated K hops over the whole graph, once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric import transforms
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from pyg_sar.conv.sar_conv import SARConv
from pyg_sar.rows.attach import check_not_local
from pyg_sar.rows.edges import EdgeIndex


class SIGN(transforms.SIGN):
    """``torch_geometric.transforms.SIGN`` on a cut graph, as on one machine.

    ``X_i = (D^-1/2 A D^-1/2)^i X`` for ``i = 1 ... K``, with the degrees ``D``.

    The results are ``data.x1``, ``data.x2``, ...; an ``edge_weight`` of the data is
    used. A model that reads them needs no other rank's rows any more, so the nodes may be visited
    in any order, in mini-batches too. :func:`pyg_sar.transforms.save_node_attrs` keeps them in
    the shards.

    For two hops::

        data = pyg_sar.transforms.SIGN(2)(data)
        x = torch.cat([data.x, data.x1, data.x2], dim=-1)

    Collective on the data of :func:`pyg_sar.load_shard`: one exchange per hop, block by block,
    without gradient. On a plain graph it is PyG's transform.

    Args:
        K: The number of hops, at least 0.

    Raises:
        ValueError: If the data has no floating-point ``x``.
    """

    def forward(self, data: Data) -> Data:
        """Adds ``x1`` to ``xK``, each of shape and dtype of ``x``."""
        check_not_local('SIGN', data)
        if not isinstance(data.edge_index, EdgeIndex):
            return super().forward(data)
        if not isinstance(data.x, Tensor) or not data.x.is_floating_point():
            got = data.x.dtype if isinstance(data.x, Tensor) else type(data.x).__name__
            raise ValueError(f"expected floating-point features 'x' (got {got})")
        propagate = SARConv(_NormalizedSum())
        x = data.x
        with torch.no_grad():
            for hop in range(1, self.K + 1):
                x = data[f'x{hop}'] = propagate(x, data.edge_index, data.edge_weight)
        return data


class _NormalizedSum(MessagePassing):
    """``D^-1/2 A D^-1/2 x``, without self loops of its own."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
        if edge_weight is not None:
            edge_weight = edge_weight.to(x.dtype)
        edge_index, edge_weight = gcn_norm(
            edge_index, edge_weight, x.size(0), add_self_loops=False, dtype=x.dtype
        )
        # propagate_type: (x: Tensor, edge_weight: Tensor)
        return self.propagate(edge_index, x=x, edge_weight=edge_weight)

    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        return edge_weight.view(-1, 1) * x_j
