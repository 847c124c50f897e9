"""What scripts do with a Data: copies, loops over attributes, new ones, casts, counts."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, by_order, descend, weights
from torch import Tensor
from torch.nn import Embedding, Module
from torch_geometric import transforms as T
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import coalesce, homophily, one_hot, sort_edge_index, unbatch


def trained(data: Data, ddp: Ddp) -> Results:
    """Three steps on what the data holds; a program by itself, and part of others."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).to(data.x.dtype))

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def counts(data: Data, ddp: Ddp) -> Results:
    return {
        'nodes': data.num_nodes,
        'edges': data.num_edges,
        'features': data.num_features,
        'node features': data.num_node_features,
        'edge features': data.num_edge_features,
        'classes': int(data.y.max().item()) + 1,
        'unique': data.y.unique().numel(),
        'x': list(data.x.shape),
        'length': len(data.x),
        'edge_index': [data.edge_index.dim(), data.edge_index.size(0), data.edge_index.shape[1]],
        'numel': data.x.numel() + data.edge_attr.numel(),
        'share': data.train_mask.sum().item() / data.num_nodes,
        'validated': data.validate(),
    }


def cloned_and_moved(data: Data, ddp: Ddp) -> Results:
    copied = data.clone().to('cpu').contiguous()
    copied.x *= 0.5
    copied.x[copied.y == 0] += 1
    return {'before': data.x.sum().item(), 'after': copied.x.sum().item()} | trained(copied, ddp)


def copied_by_python(data: Data, ddp: Ddp) -> Results:
    shallow, deep = copy.copy(data), copy.deepcopy(data)
    shallow.x = data.x + 1
    deep.x.add_(2)
    return {'sums': [d.x.sum().item() for d in (data, shallow, deep)]} | trained(deep, ddp)


def loop_over_attributes(data: Data, ddp: Ddp) -> Results:
    shapes = {name: list(value.shape) for name, value in data if isinstance(value, Tensor)}
    wanted = {n: shapes[n] for n in ('x', 'y', 'edge_index', 'edge_attr', 'train_mask')}
    sums = {n: data[n].double().sum().item() for n in ('x', 'y', 'edge_attr', 'train_mask')}
    return {'shapes': wanted, 'sums': sums, 'has': 'edge_weight' in data, 'no': 'pos' in data}


def new_attributes(data: Data, ddp: Ddp) -> Results:
    data.norm = data.x.norm(dim=-1, keepdim=True)
    data['big'] = data.norm.squeeze() > data.norm.mean()
    data.strength = data.edge_weight * data.edge_attr[:, 0]
    data.x = torch.cat([data.x, data.norm], dim=-1)
    copied = data.clone()
    results = {'norm': copied.norm, 'big': copied.big, 'strength': copied.strength}
    del data.norm
    return results | {'left': 'norm' in data} | trained(copied, ddp)


def applied_to_all(data: Data, ddp: Ddp) -> Results:
    """A cast of every floating-point attribute."""
    data = data.apply(lambda t: t.float() if t.is_floating_point() else t)
    data = data.apply(lambda t: t.double() if t.is_floating_point() else t)
    return {'dtype': str(data.edge_attr.dtype), 'x': data.x} | trained(data, ddp)


def rebuilt_data(data: Data, ddp: Ddp) -> Results:
    """Another Data of the parts, as after a download."""
    new = Data(x=data.x[:, 1:], edge_index=data.edge_index, y=data.y)
    new.train_mask = data.train_mask
    return {'nodes': new.num_nodes} | trained(new, ddp)


def tuple_and_dict(data: Data, ddp: Ddp) -> Results:
    values = data.to_dict()
    x, edge_index = values['x'], values['edge_index']
    torch.manual_seed(0)
    model = ddp(Net(x.shape[-1], 8, 3).double())
    out = model(x=x, edge_index=edge_index)
    return {'out': out, 'mean': out.mean().item()}


def columns_by_index(data: Data, ddp: Ddp) -> Results:
    order = data.x.var(dim=0).argsort(descending=True)
    data.x = data.x[:, order[:4]]
    return {'order': order} | trained(data, ddp)


def shapes_and_views(data: Data, ddp: Ddp) -> Results:
    x = data.x.view(data.num_nodes, 2, 3).transpose(1, 2).reshape(-1, 6)
    x = torch.stack([x, x.flip(1)], dim=1).mean(dim=1).unsqueeze(0).squeeze(0)
    data.x = torch.cat([x, x.new_zeros(x.size(0), 1), torch.ones(x.size(0), 1).to(x)], -1)
    return {'x': data.x} | trained(data, ddp)


def stacked_hops(data: Data, ddp: Ddp) -> Results:
    """SIGN: powers of the adjacency, precomputed by a conv without weights, then an MLP."""
    torch.manual_seed(0)
    conv = GCNConv(6, 6, bias=False).double()
    with torch.no_grad():
        conv.lin.weight.copy_(torch.eye(6))
    conv, xs = ddp(conv), [data.x]
    with torch.no_grad():
        for _ in range(2):
            xs.append(conv(xs[-1], data.edge_index))
    data.x = torch.cat(xs, dim=-1)
    data.edge_index = data.edge_index[:, :0]
    return {'x': data.x} | trained(data, ddp)


def label_statistics(data: Data, ddp: Ddp) -> Results:
    values, freq = data.y.unique(return_counts=True)
    hot = one_hot(data.y, num_classes=3, dtype=torch.double)
    return {
        'values': values,
        'freq': freq,
        'hot': hot.mean(dim=0),
        'mode': data.y.mode().values.item(),
        'most': data.y.bincount().argmax().item(),
        'histogram': torch.histc(data.x, bins=5, min=-2, max=6),
        'homophily': homophily(data.edge_index, data.y),
        'by class': [data.x[data.y == c].std(dim=0) for c in values.tolist()],
    }


def feature_sparsity(data: Data, ddp: Ddp) -> Results:
    """Rows without a positive feature, unique rows of signs, isolated rows."""
    positive = data.x > 1.5
    return {
        'none': int((~positive.any(dim=1)).sum()),
        'all': positive.all(dim=0),
        'density': positive.double().mean().item(),
        'nonzero': positive.nonzero().size(0),
        'count': torch.count_nonzero(positive, dim=0),
        'unique': positive.unique(dim=0).size(0),
        'isnan': bool(torch.isnan(data.x).any()),
        'close': torch.allclose(data.x, data.x + 1e-12),
        'equal': torch.equal(data.y, data.y.clone()),
    }


@by_order
def embeddings_by_id(data: Data, ddp: Ddp) -> Results:
    """An Embedding of every node, called with arange."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.net = Embedding(data.num_nodes, 4), Net(10, 8, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            ids = torch.arange(x.size(0))
            return self.net(torch.cat([x, self.emb(ids)], dim=-1), edge_index)

    torch.manual_seed(0)
    model = ddp(Model().double())
    losses = descend(lambda: F.cross_entropy(model(data.x, data.edge_index), data.y), model)
    return {'losses': losses, 'weights': weights(model)}


@by_order
def embedding_table(data: Data, ddp: Ddp) -> Results:
    """emb.weight goes in whole, for graphs without features."""
    torch.manual_seed(0)
    emb = Embedding(data.num_nodes, 6).double()
    model = ddp(Net(6, 8, 3).double())

    def loss_of() -> Tensor:
        return F.cross_entropy(model(emb.weight, data.edge_index), data.y)

    losses = descend(loss_of, [*emb.parameters(), *model.parameters()])
    return {'losses': losses, 'weights': weights(model), 'emb': emb.weight}


@by_order
def ids_as_features(data: Data, ddp: Ddp) -> Results:
    position = torch.arange(data.num_nodes).double().view(-1, 1) / data.num_nodes
    data.x = torch.cat([data.x, position], dim=1)
    return trained(data, ddp)


@by_order
def rows_by_number(data: Data, ddp: Ddp) -> Results:
    """Single nodes, ranges and strides of the rows."""
    x = data.x
    rolled = x.roll(1, dims=0)
    split = torch.split(x, 30)
    return {
        'one': x[5],
        'last': x[-1],
        'value': x[17, 3].item(),
        'range': x[10:20],
        'strided': x[::7],
        'cumsum': x[:, 0].cumsum(0)[-1].item(),
        'rolled': rolled[0],
        'split': [part.mean().item() for part in split],
        'label': data.y[88].item(),
    }


@by_order
def edges_by_number(data: Data, ddp: Ddp) -> Results:
    """The first edges, the ids of their ends, and edges in the order of destinations."""
    edge_index, attr = sort_edge_index(data.edge_index, data.edge_weight, num_nodes=data.num_nodes)
    merged, weight = coalesce(data.edge_index, data.edge_weight, data.num_nodes)
    return {
        'first': data.edge_index[:, :5],
        'largest': data.edge_index.max().item(),
        'ends': data.edge_index[0, :3].tolist(),
        'sorted': edge_index[:, :5],
        'attr': attr.sum().item(),
        'merged': merged.size(1),
        'weight': weight.max().item(),
    }


def parts_by_label(data: Data, ddp: Ddp) -> Results:
    order = data.y.argsort(stable=True)
    parts = unbatch(data.x[order], data.y[order])
    return {'means': [part.mean(dim=0) for part in parts], 'sizes': [len(part) for part in parts]}


def transforms_composed(data: Data, ddp: Ddp) -> Results:
    """Constant, NormalizeFeatures and a cast, after loading."""
    data = T.Compose([T.Constant(2.0), T.NormalizeFeatures(['x']), T.ToDevice('cpu')])(data)
    return {'features': data.num_features, 'x': data.x} | trained(data, ddp)


@by_order
def laplacian_positions(data: Data, ddp: Ddp) -> Results:
    """Eigenvectors of the Laplacian; their signs are taken away."""
    adj = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.double)
    adj[data.edge_index[0], data.edge_index[1]] = 1
    adj = ((adj + adj.t()) > 0).double()
    values, _ = torch.linalg.eigh(torch.diag(adj.sum(1)) - adj)
    return {'values': values[-6:], 'adj': adj}
