"""The models: each takes the graph, a Data or a HeteroData, and gives the labelled nodes' rows."""

from __future__ import annotations

import torch
from configs import Config
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import (
    DeepGCNLayer,
    GENConv,
    HeteroConv,
    HeteroDictLinear,
    Linear,
    SAGEConv,
)
from torch_geometric.nn.models import GraphSAGE


def make_model(config: Config, data: Data | HeteroData) -> torch.nn.Module:
    if config.model == 'sage':
        return GraphSAGE(
            config.num_features,
            config.hidden,
            config.layers,
            config.num_outputs,
            dropout=config.dropout,
            norm='batch_norm' if config.has_norm else None,
        )
    if config.model == 'gen':
        return DeeperGCN(config)
    return RSAGE(config, {k: x.size(1) for k, x in features(data).items()}, data.edge_types)


def inputs(data: Data | HeteroData) -> tuple[object, ...]:
    """What the model of a graph is called with."""
    if isinstance(data, HeteroData):
        return features(data), data.edge_index_dict
    if 'edge_attr' in data:
        return data.x, data.edge_index, data.edge_attr
    return data.x, data.edge_index


def features(data: HeteroData) -> dict[str, Tensor]:
    """Types without features get a constant; parameters are the same on all ranks, so there can be
    no table with a row per node."""
    x = data['paper'].x
    ids = {s._key: s.get('n_id', torch.empty(s.num_nodes)) for s in data.node_stores}  # rows
    ones = {key: torch.ones_like(each, dtype=x.dtype).unsqueeze(1) for key, each in ids.items()}
    return {**ones, 'paper': x}


class RSAGE(torch.nn.Module):
    """Every layer: a transform of the node itself, plus one of the mean of each relation."""

    def __init__(self, config: Config, widths: dict[str, int], relations: list) -> None:
        super().__init__()
        hidden = config.hidden
        self.dropout = torch.nn.Dropout(config.dropout)
        self.encode = HeteroDictLinear(widths, hidden)
        self.roots, self.convs = torch.nn.ModuleList(), torch.nn.ModuleList()
        for _ in range(config.layers):
            convs = {rel: SAGEConv(hidden, hidden, root_weight=False) for rel in relations}
            self.roots.append(HeteroDictLinear(hidden, hidden, types=list(widths)))
            self.convs.append(HeteroConv(convs))
        self.classify = Linear(hidden, config.num_outputs)

    def forward(self, x: dict[str, Tensor], edge_index: dict) -> Tensor:
        h = self.encode(x)
        for root, conv in zip(self.roots, self.convs, strict=True):
            own, messages = root(h), conv(h, edge_index)
            h = {key: self.dropout((own[key] + messages.get(key, 0)).relu()) for key in own}
        return self.classify(h['paper'])


class DeeperGCN(torch.nn.Module):
    """Residual layers of GENConv with edge features (Li et al., arXiv 2006.07739)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden = config.hidden
        self.dropout = torch.nn.Dropout(config.dropout)
        self.encode_nodes = Linear(config.num_features, hidden)
        self.encode_edges = Linear(config.num_features, hidden)
        self.layers = torch.nn.ModuleList()
        for _ in range(config.layers):
            conv = GENConv(
                hidden, hidden, aggr='softmax', t=1.0, learn_t=True, num_layers=2, norm='layer'
            )
            norm = torch.nn.LayerNorm(hidden)
            layer = DeepGCNLayer(conv, norm, torch.nn.ReLU(), 'res+', config.dropout)
            self.layers.append(layer)
        self.classify = Linear(hidden, config.num_outputs)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x, edge_attr = self.encode_nodes(x), self.encode_edges(edge_attr)
        x = self.layers[0].conv(x, edge_index, edge_attr)
        for layer in self.layers[1:]:
            x = layer(x, edge_index, edge_attr)
        x = self.layers[0].act(self.layers[0].norm(x))
        return self.classify(self.dropout(x))
