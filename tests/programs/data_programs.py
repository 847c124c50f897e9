"""What scripts do with a Data: they read, copy, change, move and rebuild it."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, parts
from three_steps import descend, model_of, trained, weights
from torch import Tensor
from torch.nn import Embedding, Linear, Parameter
from torch_geometric.data import Data
from torch_geometric.utils import homophily, one_hot, unbatch


def counts(data: Data, ddp: Ddp) -> Results:
    shapes = {name: list(value.shape) for name, value in data if isinstance(value, Tensor)}
    return {
        'nodes': data.num_nodes,
        'edges': data.num_edges,
        'features': [data.num_features, data.num_node_features, data.num_edge_features],
        'classes': int(data.y.max().item()) + 1,
        'unique': data.y.unique().numel(),
        'shapes': {n: shapes[n] for n in ('x', 'y', 'edge_index', 'edge_attr', 'train_mask')},
        'sums': {n: data[n].double().sum().item() for n in ('x', 'y', 'edge_attr', 'train_mask')},
        'has': ['edge_weight' in data, 'pos' in data],
        'length': len(data.x),
        'edge_index': [data.edge_index.dim(), data.edge_index.size(0), data.edge_index.shape[1]],
        'numel': data.x.numel() + data.edge_attr.numel(),
        'share': data.train_mask.sum().item() / data.num_nodes,
        'validated': data.validate(),
    }


def copied_and_changed(data: Data, ddp: Ddp) -> Results:
    copied, shallow, deep = data.clone().to('cpu').contiguous(), copy.copy(data), None
    deep = copy.deepcopy(data)
    copied.x *= 0.5
    copied.x[copied.y == 0] += 1
    shallow.x = data.x + 1
    deep.x.add_(2)
    sums = [d.x.sum().item() for d in (data, copied, shallow, deep)]
    return {'sums': sums, 'deep': trained(deep, ddp), 'copied': trained(copied, ddp)}


def new_attributes(data: Data, ddp: Ddp) -> Results:
    data.norm = data.x.norm(dim=-1, keepdim=True)
    data['big'] = data.norm.squeeze() > data.norm.mean()
    data.strength = data.edge_weight * data.edge_attr[:, 0]
    data.x = torch.cat([data.x, data.norm], dim=-1)
    copied = data.clone()
    results = {'norm': copied.norm, 'big': copied.big, 'strength': copied.strength}
    del data.norm
    return results | {'left': 'norm' in data} | trained(copied, ddp)


def rebuilt_data(data: Data, ddp: Ddp) -> Results:
    """A cast of every floating-point attribute; another Data of the parts, as after a download."""
    data = data.apply(lambda t: t.float() if t.is_floating_point() else t)
    data = data.apply(lambda t: t.double() if t.is_floating_point() else t)
    values = data.to_dict()
    new = Data(x=values['x'][:, 1:], edge_index=values['edge_index'], y=data.y)
    new.train_mask = data.train_mask
    return {'dtype': str(data.edge_attr.dtype), 'nodes': new.num_nodes} | trained(new, ddp)


def label_statistics(data: Data, ddp: Ddp) -> Results:
    values, freq = data.y.unique(return_counts=True)
    hot = one_hot(data.y, num_classes=3, dtype=torch.double)
    order = data.y.argsort(stable=True)
    parts = unbatch(data.x[order], data.y[order])
    return {
        'values': values,
        'freq': freq,
        'hot': hot.mean(dim=0),
        'mode': data.y.mode().values.item(),
        'most': data.y.bincount().argmax().item(),
        'histogram': torch.histc(data.x, bins=5, min=-2, max=6),
        'homophily': homophily(data.edge_index, data.y),
        'by class': [data.x[data.y == c].std(dim=0) for c in values.tolist()],
        'parts': [part.mean(dim=0) for part in parts],
        'sizes': [len(part) for part in parts],
    }


def tables_of_nodes(data: Data, ddp: Ddp) -> Results:
    """An Embedding by arange in the model; a parameter of every node beside the features."""

    @parts(emb=(Embedding, data.num_nodes, 4), net=(Net, 12, 8, 3))
    def net(m: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        ids = torch.arange(x.size(0))
        return m.net(torch.cat([x, m.emb(ids)], dim=-1), edge_index)

    table = Parameter(torch.randn(data.num_nodes, 2, dtype=torch.double))
    model = model_of(ddp, net)

    def loss_of() -> Tensor:
        out = model(torch.cat([data.x, table], dim=1), data.edge_index)
        return F.cross_entropy(out, data.y) + 0.01 * table.pow(2).sum()

    losses = descend(loss_of, [table, *model.parameters()])
    return {'losses': losses, 'table': table, 'weights': weights(model)}


def linkx(data: Data, ddp: Ddp) -> Results:
    """Rows of the adjacency are embedded: a weight for every node of the graph."""

    @parts(table=lambda: Parameter(torch.randn(data.num_nodes, 8)), lin=(Linear, 14, 3))
    def net(m: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        row, col = edge_index
        a = torch.zeros(x.size(0), 8, dtype=x.dtype).index_add_(0, col, m.table[row])
        return m.lin(torch.cat([a, x], dim=-1))

    return trained(data, ddp, net)
