"""Hooks inside message passing see what they see on one process."""

from __future__ import annotations

import copy

import pytest
import torch
from alike import assert_bits, cut_of
from small_graphs import small_graph
from torch import Tensor
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import GCN, GATConv, SAGEConv

import pyg_sar
from pyg_sar import DistributedDataParallel, SARConv


def test_hooks_of_edge_updates():
    """They see the arguments and the result of all edges."""
    data = pyg_sar.load_shard(cut_of(small_graph, 3))
    called = []
    conv = SARConv(GATConv(6, 4, add_self_loops=False).double())
    conv.register_edge_update_forward_pre_hook(lambda _, args: called.append(len(args)))
    conv.register_edge_update_forward_hook(lambda _, args, out: called.append(out.size(0)))
    conv(data.x, data.edge_index)
    assert called == [3, data.num_edges]


def test_explaining():
    data = pyg_sar.load_shard(cut_of(small_graph, 3))
    plain = SAGEConv(6, 4).double()
    conv = SARConv(plain)
    plain.explain = True
    with pytest.raises(ValueError, match='SAGEConv of a wrapped model cannot be explained'):
        conv(data.x, data.edge_index)


CONFIG = {'mode': 'multiclass_classification', 'task_level': 'node', 'return_type': 'raw'}


def _explained(model: torch.nn.Module, x: Tensor, edge_index: Tensor) -> list[Tensor]:
    explainer = Explainer(
        model,
        GNNExplainer(epochs=3),
        explanation_type='model',
        node_mask_type='attributes',
        edge_mask_type='object',
        model_config=CONFIG,
    )
    torch.manual_seed(1)
    found = explainer(x, edge_index, index=3)
    return [found.node_mask, found.edge_mask]


def test_explainer():
    """On a plain graph it says what it says of the plain model, also after it was refused."""
    graph, data = small_graph(), pyg_sar.load_shard(cut_of(small_graph, 3))
    plain = GCN(6, 8, 2, 3).double()
    model = DistributedDataParallel(copy.deepcopy(plain))
    with pytest.raises(ValueError, match=r'GCNConv .*explain'):
        _explained(model, data.x, data.edge_index)
    for _ in range(2):
        assert_bits(*(_explained(m, graph.x, graph.edge_index) for m in (model, plain)))
