"""Several types of nodes: HeteroConv, to_hetero, rows and edges of types, losses of several."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Results, mlp, parts, programs
from three_steps import fitted, inner, model_of, supervised, trained
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, ModuleDict, ModuleList, Parameter
from torch_geometric import nn as pyg
from torch_geometric import transforms as T
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, HeteroConv, MessagePassing, SAGEConv, to_hetero
from torch_geometric.utils import degree, scatter, softmax

XDict = dict[str, Tensor]
EdgeDict = dict[tuple[str, str, str], Tensor]
WIDTHS = {'paper': 6, 'author': 5, 'venue': 4}
WRITES, CITES = ('author', 'writes', 'paper'), ('paper', 'cites', 'paper')
Layers = Callable[[HeteroData], Module]


class Encoded(Module):
    """Every type gets 8 channels, then layers of all types, then papers get classes."""

    def __init__(self, data: HeteroData, make: Layers) -> None:
        super().__init__()
        self.encode = ModuleDict({name: Linear(width, 8) for name, width in WIDTHS.items()})
        self.layers, self.out = make(data), Linear(8, 3)

    def forward(self, x_dict: XDict, edges: EdgeDict) -> Tensor:
        x_dict = {name: self.encode[name](x).tanh() for name, x in x_dict.items()}
        out = self.layers(x_dict, edges)
        return self.out(out['paper'] if isinstance(out, dict) else out)


class Normed(Module):
    """Skips, a batch norm of every type, and norms of PyG on all types one after another."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        convs = {e: SAGEConv(8, 8, bias=False) for e in data.edge_types}
        self.conv = HeteroConv(convs, aggr='mean')
        self.norms = ModuleDict({name: BatchNorm1d(8) for name in WIDTHS})
        self.bn, self.ln = pyg.HeteroBatchNorm(8, 3), pyg.HeteroLayerNorm(8, 3)
        self.num = {name: data[name].num_nodes for name in WIDTHS}

    def forward(self, x_dict: XDict, edges: EdgeDict) -> Tensor:
        new = self.conv(x_dict, edges)
        x_dict = {k: x_dict[k] + self.norms[k](x).relu() for k, x in new.items()}
        x_dict = self.conv(x_dict, edges)
        x = torch.cat([x_dict[name] for name in WIDTHS])
        types = [torch.full((self.num[name],), i) for i, name in enumerate(WIDTHS)]
        types = torch.cat(types)
        return self.ln(self.bn(x, types).relu(), types)[: self.num['paper']]


class Gnn(Module):
    """What to_hetero makes a model of types of; layers without widths get them at first."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm = torch.nn.LazyLinear(8), BatchNorm1d(8)
        self.conv1 = SAGEConv((-1, -1), 8, aggr='max')
        self.conv2 = GATConv((-1, -1), 8, add_self_loops=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.norm(self.conv1(self.lin(x), edge_index)).relu()
        return self.conv2(x, edge_index)


class OneByOne(Module):
    """A conv for every relation, summed by hand, mixed by learned shares and by scores."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.convs = ModuleDict(
            {'__'.join(e): pyg.GATv2Conv((8, 8), 8, add_self_loops=False) for e in data.edge_types}
        )
        self.into = [e for e in data.edge_types if e[-1] == 'paper']
        self.mix, self.score = Parameter(torch.zeros(len(self.into))), mlp(8, 4, 1)

    def forward(self, x_dict: XDict, edges: EdgeDict) -> Tensor:
        out = dict(x_dict)
        for (src, rel, dst), edge_index in edges.items():
            conv = self.convs[f'{src}__{rel}__{dst}']
            out[dst] = out[dst] + conv((x_dict[src], x_dict[dst]), edge_index)
        h = torch.stack(
            [self.convs['__'.join(e)]((out[e[0]], out['paper']), edges[e]) for e in self.into], 1
        )
        alpha = self.score(h).mean(dim=0).softmax(dim=0)  # means over all papers
        return (alpha * h).sum(dim=1) + torch.einsum('r,nrd->nd', self.mix.softmax(0), h)


class PairConv(MessagePassing):
    """A user's conv on a pair, its softmax, a norm of messages and a mean over sources."""

    def __init__(self) -> None:
        super().__init__(aggr='add', node_dim=0)
        self.q, self.k, self.bn = Linear(8, 8), Linear(8, 8), BatchNorm1d(8)

    def forward(self, x: Any, edge_index: Tensor) -> Tensor:
        src, dst = (x, x) if isinstance(x, Tensor) else x
        src = src - src.mean(dim=0)
        size = src.size(0), dst.size(0)
        return dst + self.propagate(edge_index, q=self.q(dst), k=self.k(src), v=src, size=size)

    def message(
        self, q_i: Tensor, k_j: Tensor, v_j: Tensor, index: Tensor, size_i: int | None
    ) -> Tensor:
        alpha = softmax((q_i * k_j).sum(-1), index, num_nodes=size_i)
        return self.bn(v_j) * alpha.unsqueeze(-1)


def encoded(data: HeteroData, ddp: Ddp, make: Layers) -> Results:
    return trained(data, ddp, lambda: Encoded(data, make), lr=0.1)


LAYERS: dict[str, Layers] = {
    'norms_of_types': Normed,
    'relations_one_by_one': OneByOne,
    'own_conv_between_types': lambda data: HeteroConv({e: PairConv() for e in data.edge_types}),
}
PROGRAMS = programs(encoded, LAYERS)


def to_hetero_of_lazy_layers(data: HeteroData, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = to_hetero(Gnn().double(), data.metadata(), aggr='sum')
    with torch.no_grad():
        model(data.x_dict, data.edge_index_dict)
    return trained(data, ddp, lambda: model, loss=lambda out: out['paper'].pow(2).mean())


def attention_over_meta_paths(data: HeteroData, ddp: Ddp) -> Results:
    """HAN, whose attention takes means over all nodes of a type; its weights are a regulariser."""

    @parts(
        lin=lambda: pyg.HeteroDictLinear(dict(WIDTHS), 8),
        conv=lambda: pyg.HANConv(8, 8, data.metadata(), heads=2),
        out=(Linear, 8, 3),
    )
    def net(m: Any, x_dict: XDict, edges: EdgeDict) -> tuple[Tensor, Tensor]:
        out, shares = m.conv(m.lin(x_dict), edges, return_semantic_attention_weights=True)
        return m.out(out['paper']), shares['paper']

    def loss(out: tuple[Tensor, Tensor]) -> Tensor:
        return supervised(out[0], data) + 0.1 * (out[1] * out[1].log()).sum()

    return trained(data, ddp, net, loss=loss)


def a_relation_left_out(data: HeteroData, ddp: Ddp) -> Results:
    """One relation is empty, one is not in the model, one type gets no messages."""
    edges = {
        key: (value[:, :0] if key[1] == 'knows' else value)
        for key, value in data.edge_index_dict.items()
        if key[1] not in ('in', 'rev_writes')
    }

    def layer() -> HeteroConv:
        return HeteroConv({e: pyg.GraphConv((8, 8), 8) for e in edges}, aggr='max')

    @parts(convs=lambda: ModuleList(layer() for _ in range(2)))
    def twice(m: Any, x_dict: XDict, edges: EdgeDict) -> XDict:
        """With a ReLU between; types that get nothing stay."""
        for conv in m.convs:
            x_dict = x_dict | {name: x.relu() for name, x in conv(x_dict, edges).items()}
        return x_dict

    make = partial(Encoded, data, lambda data: twice())
    return trained(data, ddp, make, inputs=(data.x_dict, edges))


def one_graph_of_all_types(data: HeteroData, ddp: Ddp) -> Results:
    """to_homogeneous of padded features, RGCN with bases and FiLM."""
    for name in WIDTHS:
        data[name].x = F.pad(data[name].x, (0, 6 - data[name].x.size(1)))
    whole = data.to_homogeneous(node_attrs=['x'], add_node_type=True, add_edge_type=True)

    @parts(
        emb=(torch.nn.Embedding, 3, 6),
        conv1=lambda: pyg.RGCNConv(6, 8, len(data.edge_types), num_bases=2),
        conv2=lambda: pyg.FiLMConv(8, 3, len(data.edge_types)),
    )
    def net(m: Any) -> Tensor:
        x = whole.x + m.emb(whole.node_type)
        x = m.conv1(x, whole.edge_index, whole.edge_type).relu()
        out = m.conv2(x, whole.edge_index, whole.edge_type)
        return out[whole.node_type == data.node_types.index('paper')]

    return {'nodes': whole.num_nodes} | trained(data, ddp, net, inputs=())


# Rows and edges of types before training


class Papers(Module):
    """Papers learn from citations and authors."""

    def __init__(self, num_paper: int = 6, num_author: int = 5) -> None:
        super().__init__()
        self.cites = SAGEConv(num_paper, 8)
        self.writes = SAGEConv((num_author, num_paper), 8)
        self.lin = Linear(8, 3)

    def forward(self, x_dict: XDict, edges: EdgeDict) -> Tensor:
        h = self.cites(x_dict['paper'], edges[CITES])
        h = h + self.writes((x_dict['author'], x_dict['paper']), edges[WRITES])
        return self.lin(h.tanh())


def on_papers(data: HeteroData, wrap: Ddp) -> Results:
    width = data['paper'].x.size(1), data['author'].x.size(1)
    return trained(data, wrap, lambda: Papers(*width))


def losses_of_two_types(data: HeteroData, ddp: Ddp) -> Results:
    """And citations join papers that are alike."""
    model = model_of(ddp, lambda: ModuleDict({'paper': Linear(6, 3), 'author': Linear(5, 5)}))
    src, dst = data[CITES].edge_index
    weight = data[CITES].edge_weight

    def loss_of() -> Tensor:
        out, x = inner(model)['paper'](data['paper'].x), data['author'].x
        author = F.mse_loss(inner(model)['author'](x), x.roll(1, dims=1))
        smooth = (weight * (out[src] - out[dst]).pow(2).sum(dim=-1)).sum() / weight.sum()
        return F.cross_entropy(out, data['paper'].y) + 0.5 * author + 0.1 * smooth

    return fitted(loss_of, model)


def features_by_hand(data: HeteroData, ddp: Ddp) -> Results:
    """Of authors means of their papers; of papers degrees, and those of the same venue."""
    paper, author = data['paper', 'rev_writes', 'author'].edge_index
    mean = scatter(data['paper'].x[paper], author, 0, data['author'].num_nodes, 'mean')
    degrees = [
        degree(data[edge_type].edge_index[1], data['paper'].num_nodes, torch.double)
        for edge_type in data.edge_types
        if edge_type[-1] == 'paper'
    ]
    paper, venue = data['paper', 'in', 'venue'].edge_index
    total = torch.zeros(data['venue'].num_nodes, 6, dtype=torch.double)
    total.index_add_(0, venue, data['paper'].x[paper])
    count = torch.bincount(venue, minlength=data['venue'].num_nodes).clamp(min=1)
    most = scatter(data['paper'].x[paper], venue, 0, data['venue'].num_nodes, 'max')
    venues = total / count.unsqueeze(-1) + most
    back = torch.zeros_like(data['paper'].x).index_add(0, paper, venues[venue])
    deg = torch.stack(degrees, dim=-1)
    data['author'].x = torch.cat([data['author'].x, mean], dim=-1)
    data['paper'].x = torch.cat([data['paper'].x, (deg + 1).log(), back], dim=1)
    most = {str(e): int(degree(data[e].edge_index[0]).max()) for e in data.edge_types}
    return {'deg': deg, 'most': most, 'mean': mean, 'venues': venues} | on_papers(data, ddp)


def edges_of_training_papers(data: HeteroData, ddp: Ddp) -> Results:
    src = data[CITES].edge_index[0]
    keep = data['paper'].train_mask[src] | (data[CITES].edge_attr[:, 0] > 0)
    data[CITES].edge_index = data[CITES].edge_index[:, keep]
    return {'kept': keep, 'count': data[CITES].edge_index.size(1)} | on_papers(data, ddp)


def transform_to_undirected(data: HeteroData, ddp: Ddp) -> Results:
    del data[CITES].edge_attr, data[CITES].edge_weight
    del data['paper', 'rev_writes', 'author']
    data = T.ToUndirected()(data)
    return {'edges': data.num_edges, 'types': str(data.edge_types)} | on_papers(data, ddp)


def clones_and_stores(data: HeteroData, ddp: Ddp) -> Results:
    """Goes through the stores, adds and deletes attributes, as scripts do."""
    copy = data.clone().to('cpu')
    for store in copy.node_stores:
        store.size_of_type = store.num_nodes
        store.norm = store.x.norm(dim=-1)
    shapes = {str(key): list(value.shape) for key, value in copy.collect('norm').items()}
    edges = {str(edge_type): copy[edge_type].num_edges for edge_type in copy.edge_types}
    features = dict(copy.num_node_features)
    return {'shapes': shapes, 'edges': edges, 'features': features} | on_papers(copy, ddp)


def a_type_shuffled_for_contrast(data: HeteroData, ddp: Ddp) -> Results:
    """HDGI: the features of every type shuffled by a permutation of its own."""

    @parts(
        encode=lambda: ModuleDict({name: Linear(width, 8) for name, width in WIDTHS.items()}),
        conv=lambda: HeteroConv({e: SAGEConv((8, 8), 8) for e in data.edge_types}),
        disc=lambda: Parameter(torch.eye(8)),
    )
    def net(m: Any, x_dict: XDict, edges: EdgeDict) -> Tensor:
        x_dict = {name: m.encode[name](x).tanh() for name, x in x_dict.items()}
        mixed = {k: x[torch.randperm(x.size(0))] for k, x in x_dict.items()}
        z, other = m.conv(x_dict, edges), m.conv(mixed, edges)
        total = 0
        for name in WIDTHS:
            summary = z[name].mean(dim=0).sigmoid()
            right, wrong = (each[name] @ (m.disc @ summary) for each in (z, other))
            total = total - F.logsigmoid(right).mean() - F.logsigmoid(-wrong).mean()
        return total

    model = model_of(ddp, net)
    return fitted(lambda: model(data.x_dict, data.edge_index_dict), model)
