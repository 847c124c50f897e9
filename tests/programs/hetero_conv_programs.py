"""Models of several types of nodes: HeteroConv, to_hetero, HGT, RGCN and the like."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Results, descend, weights
from torch import Tensor
from torch.nn import Linear, Module, ModuleDict, Parameter
from torch_geometric.data import HeteroData
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GraphConv,
    HANConv,
    HeteroConv,
    HeteroDictLinear,
    HGTConv,
    RGCNConv,
    SAGEConv,
    to_hetero,
)

XDict = dict[str, Tensor]


def trained(data: HeteroData, model: Module, *, lr: float = 0.1) -> Results:
    """Three steps on the labels of papers, and their output."""
    paper = data['paper']

    def loss_of() -> Tensor:
        out = model(data.x_dict, data.edge_index_dict)
        out = out['paper'] if isinstance(out, dict) else out
        return F.cross_entropy(out[paper.train_mask], paper.y[paper.train_mask])

    losses = descend(loss_of, model, lr)
    model.eval()
    with torch.no_grad():
        out = model(data.x_dict, data.edge_index_dict)
    out = out['paper'] if isinstance(out, dict) else out
    acc = (out.argmax(-1) == paper.y)[paper.test_mask].double().mean().item()
    return {'losses': losses, 'out': out, 'acc': acc, 'weights': weights(model)}


class Encoded(Module):
    """Every type gets 8 channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = ModuleDict(
            {name: Linear(width, 8) for name, width in (('paper', 6), ('author', 5), ('venue', 4))}
        )
        self.out = Linear(8, 3)

    def encoded(self, x_dict: XDict) -> XDict:
        return {name: self.encode[name](x).relu() for name, x in x_dict.items()}


def hetero_conv_of_sage(data: HeteroData, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = {'paper': 6, 'author': 5, 'venue': 4}
            self.conv1, self.conv2 = (
                HeteroConv({e: SAGEConv(width(e), num) for e in data.edge_types}, aggr='sum')
                for num, width in (
                    (8, lambda e: (sizes[e[0]], sizes[e[-1]])),
                    (3, lambda e: (8, 8)),
                )
            )

        def forward(self, x_dict: XDict, edge_index_dict: dict[tuple, Tensor]) -> XDict:
            x_dict = self.conv1(x_dict, edge_index_dict)
            x_dict = {name: x.relu() for name, x in x_dict.items()}
            return self.conv2(x_dict, edge_index_dict)

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def hetero_conv_of_many_kinds(data: HeteroData, ddp: Ddp) -> Results:
    class Model(Encoded):
        def __init__(self) -> None:
            super().__init__()
            self.conv = HeteroConv(
                {
                    ('paper', 'cites', 'paper'): GCNConv(8, 8),
                    ('author', 'writes', 'paper'): GATConv((8, 8), 8, add_self_loops=False),
                    ('paper', 'rev_writes', 'author'): SAGEConv((8, 8), 8),
                    ('venue', 'rev_in', 'paper'): GraphConv((8, 8), 8, aggr='max'),
                },
                aggr='mean',
            )

        def forward(self, x_dict: XDict, edge_index_dict: dict[tuple, Tensor]) -> Tensor:
            return self.out(self.conv(self.encoded(x_dict), edge_index_dict)['paper'].tanh())

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def hetero_conv_stacked_with_weights(data: HeteroData, ddp: Ddp) -> Results:
    """Relations are concatenated; weights and attributes go in by their dicts."""

    class Model(Encoded):
        def __init__(self) -> None:
            super().__init__()
            self.conv = HeteroConv(
                {
                    ('paper', 'cites', 'paper'): GCNConv(8, 4),
                    ('author', 'writes', 'paper'): SAGEConv((8, 8), 4),
                },
                aggr='cat',
            )

        def forward(self, x_dict: XDict, edge_index_dict: dict[tuple, Tensor]) -> Tensor:
            x_dict = self.encoded(x_dict)
            out = self.conv(x_dict, edge_index_dict, edge_weight_dict=data.edge_weight_dict)
            return self.out(out['paper'])

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def to_hetero_of_sage(data: HeteroData, ddp: Ddp) -> Results:
    class GNN(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = SAGEConv((8, 8), 8), SAGEConv((8, 8), 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    class Model(Encoded):
        def __init__(self) -> None:
            super().__init__()
            del self.out
            self.gnn = to_hetero(GNN(), data.metadata(), aggr='sum')

        def forward(self, x_dict: XDict, edge_index_dict: dict[tuple, Tensor]) -> XDict:
            return self.gnn(self.encoded(x_dict), edge_index_dict)

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def to_hetero_of_lazy_gat(data: HeteroData, ddp: Ddp) -> Results:
    class GNN(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = GATConv((-1, -1), 8, add_self_loops=False)
            self.lin1 = torch.nn.LazyLinear(8)
            self.conv2 = GATConv((-1, -1), 3, add_self_loops=False)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = (self.conv1(x, edge_index) + self.lin1(x)).relu()
            return self.conv2(x, edge_index)

    torch.manual_seed(0)
    model = to_hetero(GNN().double(), data.metadata(), aggr='sum')
    with torch.no_grad():  # initialises the lazy layers
        model(data.x_dict, data.edge_index_dict)
    return trained(data, ddp(model))


def hgt(data: HeteroData, ddp: Ddp) -> Results:
    class Model(Encoded):
        def __init__(self) -> None:
            super().__init__()
            self.convs = torch.nn.ModuleList(HGTConv(8, 8, data.metadata(), 2) for _ in range(2))

        def forward(self, x_dict: XDict, edge_index_dict: dict[tuple, Tensor]) -> Tensor:
            x_dict = self.encoded(x_dict)
            for conv in self.convs:
                x_dict = conv(x_dict, edge_index_dict)
            return self.out(x_dict['paper'])

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def han(data: HeteroData, ddp: Ddp) -> Results:
    """Attention over relations takes the mean over all nodes of a type."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            widths = {'paper': 6, 'author': 5, 'venue': 4}
            self.conv, self.lin = HANConv(widths, 8, data.metadata(), heads=2), Linear(8, 3)

        def forward(self, x_dict: XDict, edge_index_dict: dict[tuple, Tensor]) -> Tensor:
            return self.lin(self.conv(x_dict, edge_index_dict)['paper'])

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def dict_linear(data: HeteroData, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = HeteroDictLinear({'paper': 6, 'author': 5, 'venue': 4}, 8)
            self.conv = GraphConv((8, 8), 3)

        def forward(self, x_dict: XDict, edge_index_dict: dict[tuple, Tensor]) -> Tensor:
            x_dict = self.lin(x_dict)
            edge_index = edge_index_dict['author', 'writes', 'paper']
            return self.conv((x_dict['author'], x_dict['paper']), edge_index)

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def relations_one_by_one(data: HeteroData, ddp: Ddp) -> Results:
    """A conv for every relation in a ModuleDict, summed by hand."""

    class Model(Encoded):
        def __init__(self) -> None:
            super().__init__()
            self.convs = ModuleDict(
                {'__'.join(e): GATv2Conv((8, 8), 8, add_self_loops=False) for e in data.edge_types}
            )

        def forward(self, x_dict: XDict, edge_index_dict: dict[tuple, Tensor]) -> Tensor:
            x_dict = self.encoded(x_dict)
            out = {name: x for name, x in x_dict.items()}
            for (src, rel, dst), edge_index in edge_index_dict.items():
                conv = self.convs[f'{src}__{rel}__{dst}']
                out[dst] = out[dst] + conv((x_dict[src], x_dict[dst]), edge_index)
            return self.out(out['paper'])

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def learned_weights_of_relations(data: HeteroData, ddp: Ddp) -> Results:
    class Model(Encoded):
        def __init__(self) -> None:
            super().__init__()
            self.into = [e for e in data.edge_types if e[-1] == 'paper']
            self.convs = torch.nn.ModuleList(SAGEConv((8, 8), 8) for _ in self.into)
            self.mix = Parameter(torch.zeros(len(self.into)))

        def forward(self, x_dict: XDict, edge_index_dict: dict[tuple, Tensor]) -> Tensor:
            x = self.encoded(x_dict)
            outs = [
                conv((x[e[0]], x['paper']), edge_index_dict[e])
                for e, conv in zip(self.into, self.convs, strict=True)
            ]
            return self.out(torch.einsum('r,rnd->nd', self.mix.softmax(0), torch.stack(outs)))

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def semantic_attention_by_hand(data: HeteroData, ddp: Ddp) -> Results:
    """Scores of relations are means over all papers."""

    class Model(Encoded):
        def __init__(self) -> None:
            super().__init__()
            self.cites = SAGEConv((8, 8), 8)
            self.writes = SAGEConv((8, 8), 8)
            self.score = torch.nn.Sequential(Linear(8, 4), torch.nn.Tanh(), Linear(4, 1))

        def forward(self, x_dict: XDict, edge_index_dict: dict[tuple, Tensor]) -> Tensor:
            x = self.encoded(x_dict)
            cites = self.cites((x['paper'], x['paper']), edge_index_dict['paper', 'cites', 'paper'])
            edge_index = edge_index_dict['author', 'writes', 'paper']
            writes = self.writes((x['author'], x['paper']), edge_index)
            h = torch.stack([cites, writes], dim=1)
            alpha = self.score(h).mean(dim=0).softmax(dim=0)
            return self.out((alpha * h).sum(dim=1))

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def homogeneous_rgcn(data: HeteroData, ddp: Ddp) -> Results:
    """All types in one graph, as RGCN has it."""
    for name, width in (('paper', 6), ('author', 5), ('venue', 4)):
        data[name].x = F.pad(data[name].x, (0, 6 - width))
    whole = data.to_homogeneous(node_attrs=['x'], edge_attrs=[])
    torch.manual_seed(0)
    model = ddp(RGCNConv(6, 3, num_relations=len(data.edge_types)).double())
    paper, mask = data['paper'], data['paper'].train_mask

    def loss_of() -> Tensor:
        out = model(whole.x, whole.edge_index, whole.edge_type)
        return F.cross_entropy(out[whole.node_type == 0][mask], paper.y[mask])

    return {'nodes': whole.num_nodes, 'losses': descend(loss_of, model), 'weights': weights(model)}
