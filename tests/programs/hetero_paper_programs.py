"""Models of several types of nodes as papers write them: norms by type, edges made, many losses."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from shared import Ddp, Results, by_order, descend, weights
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, ModuleDict, ModuleList, Parameter
from torch_geometric.data import HeteroData
from torch_geometric.nn import (
    GATConv,
    GINConv,
    HANConv,
    HeteroBatchNorm,
    HeteroConv,
    HeteroLayerNorm,
    HGTConv,
    MessagePassing,
    RGCNConv,
    SAGEConv,
    to_hetero,
)
from torch_geometric.nn.conv import FiLMConv, GraphConv
from torch_geometric.utils import scatter, softmax

XDict = dict[str, Tensor]
EdgeDict = dict[tuple[str, str, str], Tensor]
WIDTHS = {'paper': 6, 'author': 5, 'venue': 4}


def trained(data: HeteroData, model: Module, lr: float = 0.05) -> Results:
    """Three steps on the labels of papers, and their output in evaluation."""
    paper = data['paper']

    def loss_of() -> Tensor:
        out = model(data.x_dict, data.edge_index_dict)
        return F.cross_entropy(out[paper.train_mask], paper.y[paper.train_mask])

    losses = descend(loss_of, model, lr)
    model.eval()
    with torch.no_grad():
        out = model(data.x_dict, data.edge_index_dict)
    return {'losses': losses, 'out': out, 'weights': weights(model)}


class Encoded(Module):
    """Every type gets 8 channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = ModuleDict({name: Linear(width, 8) for name, width in WIDTHS.items()})
        self.out = Linear(8, 3)

    def encoded(self, x_dict: XDict) -> XDict:
        return {name: self.encode[name](x).tanh() for name, x in x_dict.items()}


def relations(data: HeteroData) -> list[tuple[str, str, str]]:
    return data.edge_types


def norms_by_type(data: HeteroData, ddp: Ddp) -> Results:
    """HeteroConv with skips, a batch norm and a layer norm for every type."""
    torch.manual_seed(0)

    class Model(Encoded):
        def __init__(self) -> None:
            super().__init__()
            self.convs = ModuleList(
                HeteroConv({e: SAGEConv(8, 8, bias=False) for e in relations(data)}, aggr='mean')
                for _ in range(2)
            )
            self.norms = ModuleList(
                ModuleDict({name: BatchNorm1d(8) for name in WIDTHS}) for _ in range(2)
            )

        def forward(self, x_dict: XDict, edges: EdgeDict) -> Tensor:
            x_dict = self.encoded(x_dict)
            for conv, norm in zip(self.convs, self.norms, strict=True):
                new = conv(x_dict, edges)
                x_dict = {k: x_dict[k] + norm[k](x).relu() for k, x in new.items()}
            return self.out(x_dict['paper'])

    return trained(data, ddp(Model().double()))


def hetero_norms_of_pyg(data: HeteroData, ddp: Ddp) -> Results:
    """HeteroBatchNorm and HeteroLayerNorm on all types one after another."""
    torch.manual_seed(0)
    num = {name: data[name].num_nodes for name in WIDTHS}

    class Model(Encoded):
        def __init__(self) -> None:
            super().__init__()
            self.conv = HeteroConv({e: SAGEConv(8, 8, bias=False) for e in relations(data)})
            self.bn, self.ln = HeteroBatchNorm(8, 3), HeteroLayerNorm(8, 3)

        def forward(self, x_dict: XDict, edges: EdgeDict) -> Tensor:
            x_dict = self.conv(self.encoded(x_dict), edges)
            x = torch.cat([x_dict[name] for name in WIDTHS])
            types = torch.cat([torch.full((num[name],), i) for i, name in enumerate(WIDTHS)])
            x = self.ln(self.bn(x, types).relu(), types)
            return self.out(x[: num['paper']])

    return trained(data, ddp(Model().double()))


def transformer_of_types(data: HeteroData, ddp: Ddp) -> Results:
    """HGT as in PyG's example, with norms and a jump over all layers."""
    torch.manual_seed(0)

    class Model(Encoded):
        def __init__(self) -> None:
            super().__init__()
            self.convs = ModuleList(HGTConv(8, 8, data.metadata(), heads=2) for _ in range(2))
            self.norm, self.last = BatchNorm1d(16), Linear(16, 3)

        def forward(self, x_dict: XDict, edges: EdgeDict) -> Tensor:
            x_dict, found = self.encoded(x_dict), []
            for conv in self.convs:
                x_dict = conv(x_dict, edges)
                found.append(x_dict['paper'])
            return self.last(self.norm(torch.cat(found, dim=-1)))

    return trained(data, ddp(Model().double()))


def attention_over_meta_paths(data: HeteroData, ddp: Ddp) -> Results:
    """HAN, and its weights of relations as a regulariser."""
    torch.manual_seed(0)

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = HANConv(dict(WIDTHS), 8, data.metadata(), heads=2), Linear(8, 3)

        def forward(self, x_dict: XDict, edges: EdgeDict) -> tuple[Tensor, Tensor]:
            out, shares = self.conv(x_dict, edges, return_semantic_attention_weights=True)
            return self.out(out['paper']), shares['paper']

    model = ddp(Model().double())
    paper = data['paper']

    def loss_of() -> Tensor:
        out, shares = model(data.x_dict, data.edge_index_dict)
        loss = F.cross_entropy(out[paper.train_mask], paper.y[paper.train_mask])
        return loss + 0.1 * (shares * shares.log()).sum()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def to_hetero_with_norms(data: HeteroData, ddp: Ddp) -> Results:
    torch.manual_seed(0)

    class Gnn(Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = Linear(8, 8)
            self.conv1 = SAGEConv((8, 8), 8, aggr='max')
            self.norm = BatchNorm1d(8)
            self.conv2 = GATConv((8, 8), 8, add_self_loops=False)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = self.norm(self.conv1(self.lin(x), edge_index)).relu()
            return self.conv2(x, edge_index)

    class Model(Encoded):
        def __init__(self) -> None:
            super().__init__()
            self.gnn = to_hetero(Gnn(), data.metadata(), aggr='mean')

        def forward(self, x_dict: XDict, edges: EdgeDict) -> Tensor:
            return self.out(self.gnn(self.encoded(x_dict), edges)['paper'])

    return trained(data, ddp(Model().double()))


def a_relation_left_out(data: HeteroData, ddp: Ddp) -> Results:
    """One relation is empty, one is not in the model, one type gets no messages."""
    torch.manual_seed(0)
    edges = {
        key: (value[:, :0] if key[1] == 'knows' else value)
        for key, value in data.edge_index_dict.items()
        if key[1] not in ('in', 'rev_writes')
    }

    class Model(Encoded):
        def __init__(self) -> None:
            super().__init__()
            self.convs = ModuleList(
                HeteroConv({e: GraphConv((8, 8), 8) for e in edges}, aggr='max') for _ in range(2)
            )

        def forward(self, x_dict: XDict, edges: EdgeDict) -> Tensor:
            x_dict = self.encoded(x_dict)
            for conv in self.convs:
                x_dict = x_dict | {k: v.relu() for k, v in conv(x_dict, edges).items()}
            return self.out(x_dict['paper'])

    model = ddp(Model().double())
    paper = data['paper']

    def loss_of() -> Tensor:
        out = model(data.x_dict, edges)
        return F.cross_entropy(out[paper.train_mask], paper.y[paper.train_mask])

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def convs_shared_between_relations(data: HeteroData, ddp: Ddp) -> Results:
    """One conv object for all relations, one MLP with a norm for all types."""
    torch.manual_seed(0)

    class Model(Encoded):
        def __init__(self) -> None:
            super().__init__()
            self.shared = SAGEConv((8, 8), 8)
            self.gin = GINConv(
                torch.nn.Sequential(Linear(8, 8, bias=False), BatchNorm1d(8), torch.nn.ReLU())
            )

        def forward(self, x_dict: XDict, edges: EdgeDict) -> Tensor:
            x_dict = self.encoded(x_dict)
            out: dict[str, list[Tensor]] = {}
            for (src, _, dst), edge_index in edges.items():
                pair = x_dict[src], x_dict[dst]
                out.setdefault(dst, []).append(self.shared(pair, edge_index).relu())
            x_dict = {name: torch.stack(each).mean(0) for name, each in out.items()}
            paper = self.gin(x_dict['paper'], edges['paper', 'cites', 'paper'])
            paper = paper + self.gin(
                (x_dict['author'], x_dict['paper']), edges['author', 'writes', 'paper']
            )
            return self.out(paper)

    return trained(data, ddp(Model().double()))


def own_conv_between_types(data: HeteroData, ddp: Ddp) -> Results:
    """A user's conv on a pair, its softmax, a norm of messages and a mean over sources."""
    torch.manual_seed(0)

    class PairConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add', node_dim=0)
            self.q, self.k, self.bn = Linear(8, 8), Linear(8, 8), BatchNorm1d(8)

        def forward(self, x: tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
            src, dst = x
            src = src - src.mean(dim=0)
            size = src.size(0), dst.size(0)
            return dst + self.propagate(edge_index, q=self.q(dst), k=self.k(src), v=src, size=size)

        def message(
            self, q_i: Tensor, k_j: Tensor, v_j: Tensor, index: Tensor, size_i: int | None
        ) -> Tensor:
            alpha = softmax((q_i * k_j).sum(-1), index, num_nodes=size_i)
            return self.bn(v_j) * alpha.unsqueeze(-1)

    class Model(Encoded):
        def __init__(self) -> None:
            super().__init__()
            self.convs = ModuleDict({'__'.join(e): PairConv() for e in relations(data)})

        def forward(self, x_dict: XDict, edges: EdgeDict) -> Tensor:
            x_dict = self.encoded(x_dict)
            out = {k: [x] for k, x in x_dict.items()}
            for key, edge_index in edges.items():
                conv = self.convs['__'.join(key)]
                out[key[-1]].append(conv((x_dict[key[0]], x_dict[key[-1]]), edge_index))
            return self.out(sum(out['paper']))

    return trained(data, ddp(Model().double()))


def one_graph_of_all_types(data: HeteroData, ddp: Ddp) -> Results:
    """to_homogeneous of padded features, RGCN with bases and FiLM."""
    torch.manual_seed(0)
    data = copy.copy(data)
    for name in WIDTHS:
        x = data[name].x
        data[name].x = F.pad(x, (0, 6 - x.size(1)))
    num_papers = data['paper'].num_nodes
    homogeneous = data.to_homogeneous(node_attrs=['x'], add_node_type=True, add_edge_type=True)
    num_relations = len(data.edge_types)

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = torch.nn.Embedding(3, 6)
            self.conv1 = RGCNConv(6, 8, num_relations, num_bases=2)
            self.conv2 = FiLMConv(8, 3, num_relations)

        def forward(self) -> Tensor:
            x = homogeneous.x + self.emb(homogeneous.node_type)
            x = self.conv1(x, homogeneous.edge_index, homogeneous.edge_type).relu()
            return self.conv2(x, homogeneous.edge_index, homogeneous.edge_type)

    model = ddp(Model().double())
    paper = data['paper']

    def loss_of() -> Tensor:
        out = model()[homogeneous.node_type == data.node_types.index('paper')]
        return F.cross_entropy(out[paper.train_mask], paper.y[paper.train_mask])

    return {'losses': descend(loss_of, model), 'papers': num_papers, 'weights': weights(model)}


@by_order
def embeddings_of_a_type_without_features(data: HeteroData, ddp: Ddp) -> Results:
    """Venues have no features: a table by their number, learned beside the model."""
    torch.manual_seed(0)
    num_venues = data['venue'].num_nodes
    del data['venue'].x

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(num_venues, 8)
            self.lin = ModuleDict({'paper': Linear(6, 8), 'author': Linear(5, 8)})
            self.conv = HeteroConv({e: SAGEConv((8, 8), 8) for e in relations(data)}, aggr='sum')
            self.out = Linear(8, 3)

        def forward(self, x_dict: XDict, edges: EdgeDict) -> Tensor:
            x_dict = {name: self.lin[name](x).relu() for name, x in x_dict.items()}
            x_dict['venue'] = self.table(torch.arange(num_venues))
            x_dict = self.conv(x_dict, edges)
            x_dict = {name: x.relu() for name, x in x_dict.items()}
            return self.out(self.conv(x_dict, edges)['paper'])

    return trained(data, ddp(Model().double()))


def links_between_types_and_labels(data: HeteroData, ddp: Ddp) -> Results:
    """An encoder by to_hetero, a decoder of attributes, two losses by learned weights."""
    torch.manual_seed(0)

    class Gnn(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 8)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    encoder = to_hetero(Gnn(), data.metadata(), aggr='sum').double()
    with torch.no_grad():
        encoder(data.x_dict, data.edge_index_dict)

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.out, self.decoder = encoder, Linear(8, 3), Linear(16, 4)
            self.log_var = Parameter(torch.zeros(2))

        def forward(self, data: HeteroData) -> tuple[Tensor, Tensor]:
            z = self.encoder(data.x_dict, data.edge_index_dict)['paper']
            row, col = data['paper', 'cites', 'paper'].edge_index
            return self.out(z), self.decoder(torch.cat([z[row], z[col]], dim=-1))

    model = ddp(Model().double())
    inner = getattr(model, 'module', model)
    paper, cites = data['paper'], data['paper', 'cites', 'paper']

    def loss_of() -> Tensor:
        out, attr = model(data)
        losses = torch.stack(
            [
                F.cross_entropy(out[paper.train_mask], paper.y[paper.train_mask]),
                F.mse_loss(attr, cites.edge_attr),
            ]
        )
        return (losses * torch.exp(-inner.log_var) + inner.log_var).sum()

    return {'losses': descend(loss_of, model, 0.02), 'weights': weights(model)}


def authors_of_a_venue_by_scatter(data: HeteroData, ddp: Ddp) -> Results:
    """Two hops by hand between three types, means and maxima, and a conv after them."""
    torch.manual_seed(0)
    writes = data['author', 'writes', 'paper'].edge_index
    published = data['paper', 'in', 'venue'].edge_index
    num_papers, num_venues = data['paper'].num_nodes, data['venue'].num_nodes
    papers = scatter(data['author'].x[writes[0]], writes[1], 0, num_papers, reduce='mean')
    venues = scatter(papers[published[0]], published[1], 0, num_venues, reduce='max')
    back = scatter(venues[published[1]], published[0], 0, num_papers, reduce='sum')
    x = torch.cat([data['paper'].x, back], dim=1)
    conv = SAGEConv(11, 3).double()
    model = ddp(conv)
    paper = data['paper']
    cites = data['paper', 'cites', 'paper'].edge_index
    losses = descend(
        lambda: F.cross_entropy(model(x, cites)[paper.train_mask], paper.y[paper.train_mask]),
        model,
    )
    return {'losses': losses, 'venues': venues, 'back': back}


@by_order
def a_type_shuffled_for_contrast(data: HeteroData, ddp: Ddp) -> Results:
    """HDGI: the features of every type shuffled by a permutation of its own."""
    torch.manual_seed(0)

    class Model(Encoded):
        def __init__(self) -> None:
            super().__init__()
            self.conv = HeteroConv({e: SAGEConv((8, 8), 8) for e in relations(data)})
            self.disc = Parameter(torch.eye(8))

        def forward(self, x_dict: XDict, edges: EdgeDict) -> Tensor:
            z = self.conv(self.encoded(x_dict), edges)
            mixed = {k: x[torch.randperm(x.size(0))] for k, x in x_dict.items()}
            other = self.conv(self.encoded(mixed), edges)
            total = 0
            for name in WIDTHS:
                summary = z[name].mean(dim=0).sigmoid()
                right = z[name] @ (self.disc @ summary)
                wrong = other[name] @ (self.disc @ summary)
                total = total - F.logsigmoid(right).mean() - F.logsigmoid(-wrong).mean()
            return total

    model = ddp(Model().double())
    losses = descend(lambda: model(data.x_dict, data.edge_index_dict), model)
    return {'losses': losses, 'weights': weights(model)}
