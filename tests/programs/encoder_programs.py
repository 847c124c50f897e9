"""Encoders of where nodes stand: GPSE with its heads of nodes and of graphs, and WLConv."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Results, descend, weights
from torch_geometric.data import Data
from torch_geometric.nn import GPSE, WLConv


def _trained(data: Data, ddp: Ddp, virtual_node: bool) -> Results:
    torch.manual_seed(0)
    model = GPSE(
        6,
        dim_out=4,
        dim_inner=8,
        layers_pre_mp=1,
        layers_mp=2,
        layers_post_mp=2,
        virtual_node=virtual_node,
        num_node_targets=3,
        num_graph_targets=2,
        multi_head_dim_inner=4,
        dropout=0.0,
    )
    model = ddp(model.double())

    def loss() -> torch.Tensor:
        batch = data.clone()
        batch.batch, batch.y_graph = torch.zeros_like(data.y), torch.ones(1, 2).double()
        batch.y = F.one_hot(data.y, 3).double()
        pred, true = model(batch)
        return (pred - true).abs().mean()

    return {'losses': descend(loss, model, 0.05), 'weights': weights(model)}


def gpse(data: Data, ddp: Ddp) -> Results:
    return _trained(data, ddp, virtual_node=False)


def gpse_with_a_virtual_node(data: Data, ddp: Ddp) -> Results:
    return _trained(data, ddp, virtual_node=True)


def weisfeiler_lehman(data: Data, ddp: Ddp) -> Results:
    """Colours of two rounds of WLConv, which is no MessagePassing, and their histogram."""
    conv = WLConv()
    first = conv(data.y, data.edge_index)
    second = conv(first, data.edge_index)
    return {'first': first, 'second': second, 'histogram': conv.histogram(second)}
