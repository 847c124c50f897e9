"""Several types of nodes: losses, statistics and edges of types, outside of convs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Results, by_order, descend, mlp, weights
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, ModuleDict
from torch_geometric import transforms as T
from torch_geometric.data import HeteroData
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import degree, scatter

WRITES, CITES = ('author', 'writes', 'paper'), ('paper', 'cites', 'paper')


class Model(Module):
    """Papers learn from citations and authors."""

    def __init__(self, num_out: int = 3, num_paper: int = 6, num_author: int = 5) -> None:
        super().__init__()
        self.cites = SAGEConv(num_paper, 8)
        self.writes = SAGEConv((num_author, num_paper), 8)
        self.lin = Linear(8, num_out)

    def forward(self, x_dict: dict[str, Tensor], edges: dict[tuple, Tensor]) -> Tensor:
        h = self.cites(x_dict['paper'], edges[CITES])
        h = h + self.writes((x_dict['author'], x_dict['paper']), edges[WRITES])
        return self.lin(h.tanh())


def trained(data: HeteroData, ddp: Ddp, make: type[Module] = Model, *args: int) -> Results:
    torch.manual_seed(0)
    model = ddp(make(*args).double())
    mask = data['paper'].train_mask

    def loss_of() -> Tensor:
        out = model(data.x_dict, data.edge_index_dict)
        return F.cross_entropy(out[mask], data['paper'].y[mask])

    losses = descend(loss_of, model)
    return {'losses': losses, 'weights': weights(model)}


def every_type_standardised(data: HeteroData, ddp: Ddp) -> Results:
    means = {}
    for name in data.node_types:
        x = data[name].x
        means[name] = x.mean(dim=0)
        data[name].x = (x - x.mean(dim=0)) / x.std(dim=0)
    return {'means': means} | trained(data, ddp)


def x_dict_comprehension(data: HeteroData, ddp: Ddp) -> Results:
    data['paper'].x, data['author'].x = (
        F.normalize(x, dim=-1) for x in (data.x_dict['paper'], data.x_dict['author'])
    )
    sums = {name: x.sum().item() for name, x in data.x_dict.items()}
    return {'sums': sums} | trained(data, ddp)


def class_weights(data: HeteroData, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Model().double())
    y, mask = data['paper'].y, data['paper']['train_mask']
    weight = 1 / torch.bincount(y[mask], minlength=3).double()
    weight = weight / weight.sum()

    def loss_of() -> Tensor:
        out = model(data.x_dict, data.edge_index_dict)
        return F.cross_entropy(out[mask], y[mask], weight=weight)

    return {'weight': weight, 'losses': descend(loss_of, model), 'weights': weights(model)}


def metrics_of_splits(data: HeteroData, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Model().double()).eval()
    pred = model(data.x_dict, data.edge_index_dict).argmax(dim=-1)
    accs = []
    for split in ['train_mask', 'val_mask', 'test_mask']:
        mask = data['paper'][split]
        accs.append(float((pred[mask] == data['paper'].y[mask]).sum() / mask.sum()))
    counts = {name: data[name].num_nodes for name in data.node_types}
    return {'accs': accs, 'counts': counts, 'total': data.num_nodes, 'edges': data.num_edges}


def link_prediction_of_a_relation(data: HeteroData, ddp: Ddp) -> Results:
    """Who writes what: an MLP over both ends of every edge of a relation."""

    class Links(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.score = SAGEConv((5, 6), 8), mlp(5 + 8, 8, 1)

        def forward(self, x_dict: dict[str, Tensor], edge_index: Tensor) -> Tensor:
            paper = self.conv((x_dict['author'], x_dict['paper']), edge_index).relu()
            row, col = edge_index
            return self.score(torch.cat([x_dict['author'][row], paper[col]], dim=-1)).view(-1)

    torch.manual_seed(0)
    model = ddp(Links().double())
    edge_index = data[WRITES].edge_index
    target = data['paper'].y[edge_index[1]].double()

    def loss_of() -> Tensor:
        return F.mse_loss(model(data.x_dict, edge_index), target)

    losses = descend(loss_of, model)
    pred = model(data.x_dict, edge_index).clamp(min=0, max=2)
    return {'losses': losses, 'pred': pred, 'rmse': F.mse_loss(pred, target).sqrt().item()}


@by_order
def links_against_random_papers(data: HeteroData, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(ModuleDict({'author': mlp(5, 8, 4), 'paper': mlp(6, 8, 4)}).double())
    inner = getattr(model, 'module', model)
    row, col = data[WRITES].edge_index

    def loss_of() -> Tensor:
        author, paper = inner['author'](data['author'].x), inner['paper'](data['paper'].x)
        wrong = torch.randint(0, data['paper'].num_nodes, (row.size(0),))
        pos = (author[row] * paper[col]).sum(-1)
        neg = (author[row] * paper[wrong]).sum(-1)
        return -F.logsigmoid(pos - neg).mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def smoothness_of_citations(data: HeteroData, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Model().double())
    src, dst = data[CITES].edge_index
    mask, weight = data['paper'].train_mask, data[CITES].edge_weight

    def loss_of() -> Tensor:
        out = model(data.x_dict, data.edge_index_dict)
        smooth = (weight * (out[src] - out[dst]).pow(2).sum(dim=-1)).sum() / weight.sum()
        return F.cross_entropy(out[mask], data['paper'].y[mask]) + 0.1 * smooth

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def authors_from_papers_by_scatter(data: HeteroData, ddp: Ddp) -> Results:
    """Features of authors are means of those of their papers."""
    paper, author = data['paper', 'rev_writes', 'author'].edge_index
    mean = scatter(data['paper'].x[paper], author, 0, data['author'].num_nodes, 'mean')
    data['author'].x = torch.cat([data['author'].x, mean], dim=-1)
    result = trained(data, ddp, Model, 3, 6, 11)
    return {'mean': mean} | result


def degrees_by_relation(data: HeteroData, ddp: Ddp) -> Results:
    degrees = [
        degree(data[edge_type].edge_index[1], data['paper'].num_nodes, torch.double)
        for edge_type in data.edge_types
        if edge_type[-1] == 'paper'
    ]
    deg = torch.stack(degrees, dim=-1)
    data['paper'].x = torch.cat([data['paper'].x, (deg + 1).log()], dim=1)
    most = {str(e): int(degree(data[e].edge_index[0]).max()) for e in data.edge_types}
    return {'deg': deg, 'most': most} | trained(data, ddp, Model, 3, 9)


def meta_path_by_hand(data: HeteroData, ddp: Ddp) -> Results:
    """Papers of the same venue: to the venues and back, by index_add."""
    paper, venue = data['paper', 'in', 'venue'].edge_index
    total = torch.zeros(data['venue'].num_nodes, 6, dtype=torch.double)
    total.index_add_(0, venue, data['paper'].x[paper])
    count = torch.bincount(venue, minlength=data['venue'].num_nodes).clamp(min=1)
    venues = total / count.unsqueeze(-1)
    back = torch.zeros_like(data['paper'].x).index_add(0, paper, venues[venue])
    data['paper'].x = torch.cat([data['paper'].x, back], dim=-1)
    return {'venues': venues} | trained(data, ddp, Model, 3, 12)


def readout_of_all_types(data: HeteroData, ddp: Ddp) -> Results:
    """A vector of the graph from means of every type, added to all papers."""

    class Readout(Model):
        def __init__(self) -> None:
            super().__init__()
            self.context = Linear(6 + 5 + 4, 3)

        def forward(self, x_dict: dict[str, Tensor], edges: dict[tuple, Tensor]) -> Tensor:
            means = torch.cat([x_dict[n].mean(dim=0) for n in ('paper', 'author', 'venue')])
            return super().forward(x_dict, edges) + self.context(means)

    return trained(data, ddp, Readout)


def batch_norm_by_type(data: HeteroData, ddp: Ddp) -> Results:
    class Normed(Model):
        def __init__(self) -> None:
            super().__init__()
            self.norms = ModuleDict({'paper': BatchNorm1d(6), 'author': BatchNorm1d(5)})

        def forward(self, x_dict: dict[str, Tensor], edges: dict[tuple, Tensor]) -> Tensor:
            return super().forward({n: m(x_dict[n]) for n, m in self.norms.items()}, edges)

    return trained(data, ddp, Normed)


def attention_between_types(data: HeteroData, ddp: Ddp) -> Results:
    """Every paper looks at all authors."""

    class Attention(Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.out = Linear(6, 4), Linear(5, 4), Linear(11, 3)

        def forward(self, x_dict: dict[str, Tensor], edges: dict[tuple, Tensor]) -> Tensor:
            paper, author = x_dict['paper'], x_dict['author']
            alpha = (self.q(paper) @ self.k(author).t()).softmax(dim=-1)
            return self.out(torch.cat([paper, alpha @ author], dim=-1))

    return trained(data, ddp, Attention)


def losses_of_two_types(data: HeteroData, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(ModuleDict({'paper': Linear(6, 3), 'author': Linear(5, 5)}).double())
    inner = getattr(model, 'module', model)

    def loss_of() -> Tensor:
        paper = F.cross_entropy(inner['paper'](data['paper'].x), data['paper'].y)
        x = data['author'].x
        author = F.mse_loss(inner['author'](x), x.roll(1, dims=1))
        return paper + 0.5 * author

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def edges_of_training_papers(data: HeteroData, ddp: Ddp) -> Results:
    src = data[CITES].edge_index[0]
    keep = data['paper'].train_mask[src] | (data[CITES].edge_attr[:, 0] > 0)
    data[CITES].edge_index = data[CITES].edge_index[:, keep]
    return {'kept': keep, 'count': data[CITES].edge_index.size(1)} | trained(data, ddp)


def transform_to_undirected(data: HeteroData, ddp: Ddp) -> Results:
    del data[CITES].edge_attr, data[CITES].edge_weight
    del data['paper', 'rev_writes', 'author']
    data = T.ToUndirected()(data)
    return {'edges': data.num_edges, 'types': str(data.edge_types)} | trained(data, ddp)


def clones_and_stores(data: HeteroData, ddp: Ddp) -> Results:
    """Goes through the stores, adds and deletes attributes, as scripts do."""
    copy = data.clone().to('cpu')
    for store in copy.node_stores:
        store.size_of_type = store.num_nodes
        store.norm = store.x.norm(dim=-1)
    shapes = {str(key): list(value.shape) for key, value in copy.collect('norm').items()}
    edges = {str(edge_type): copy[edge_type].num_edges for edge_type in copy.edge_types}
    features = dict(copy.num_node_features)
    return {'shapes': shapes, 'edges': edges, 'features': features} | trained(copy, ddp)
