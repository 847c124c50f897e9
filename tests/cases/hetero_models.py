"""Heterogeneous models with what they are called with, for parity with one-process PyG."""

from __future__ import annotations

from collections.abc import Callable

import torch
from conv_case import Case, Inputs
from hetero_graphs import CITES, HAS, KNOWS, WRITES, hetero_graph
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.nn.models import GraphSAGE

TYPES = ['paper', 'author', 'term']
METADATA = (TYPES, hetero_graph().edge_types)
BOTH = (-1, -1)
REV_WRITES = ('paper', 'rev_writes', 'author')
DISLIKES = ('author', 'rev_knows', 'author')

Tensors = dict[str, Tensor]


class Layers(torch.nn.Module):
    """HeteroConv layers; `edges` names the edge attributes that every one of them takes."""

    def __init__(self, *layers: torch.nn.Module, edges: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)
        self.edges = edges

    def forward(self, x: Tensors, edge_index: dict, edge: dict[str, dict]) -> Tensors:
        for layer in self.layers:
            x = layer(x, edge_index, **{f'{name}_dict': edge[name] for name in self.edges})
            x = {key: value.tanh() for key, value in x.items()}
        return x


class Homogeneous(torch.nn.Module):
    """Written for one type of nodes; to_hetero makes the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = pyg.Linear(-1, 6)
        self.conv1 = pyg.SAGEConv(BOTH, 6, aggr='max')
        self.norm = pyg.BatchNorm(6)
        self.conv2 = pyg.GATConv(BOTH, 5, heads=2, concat=False, add_self_loops=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lin(x)
        h = self.norm(self.conv1(h, edge_index)).tanh()
        return self.conv2(h, edge_index)


class OwnToHetero(torch.nn.Module):
    """A to_hetero'd model, called with dicts only."""

    def __init__(self, model: torch.nn.Module, aggr: str) -> None:
        super().__init__()
        self.model = pyg.to_hetero(model, METADATA, aggr=aggr)

    def forward(self, x: Tensors, edge_index: dict, edge: dict[str, dict]) -> Tensors:
        return self.model(x, edge_index)


class Projected(torch.nn.Module):
    """Every type to one width first."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = pyg.HeteroDictLinear(-1, 6, types=TYPES)
        self.conv = pyg.HeteroConv({rel: pyg.SAGEConv(6, 5) for rel in METADATA[1]})
        self.out = pyg.HeteroDictLinear(5, 4, types=TYPES)

    def forward(self, x: Tensors, edge_index: dict, edge: dict[str, dict]) -> Tensors:
        return self.out(self.conv(self.lin(x), edge_index))


def _everywhere(make: Callable[[], torch.nn.Module], aggr: str = 'sum') -> pyg.HeteroConv:
    return pyg.HeteroConv({rel: make() for rel in METADATA[1]}, aggr)


def _mixed() -> pyg.HeteroConv:
    """Another conv for every relation, several into papers; some relations have none."""
    return pyg.HeteroConv(
        {
            WRITES: pyg.GATConv(BOTH, 6, edge_dim=3, add_self_loops=False),
            CITES: pyg.GraphConv(-1, 6, aggr='mean'),
            ('term', 'rev_has', 'paper'): pyg.TransformerConv(BOTH, 3, heads=2),
            HAS: pyg.SAGEConv(BOTH, 6, aggr=['max', 'sum']),
            KNOWS: pyg.GATv2Conv(-1, 6, add_self_loops=True),
            REV_WRITES: pyg.SAGEConv(BOTH, 6),
        },
        'sum',
    )


class Mixed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _mixed(), _mixed()

    def forward(self, x: Tensors, edge_index: dict, edge: dict[str, dict]) -> Tensors:
        attrs = {WRITES: edge['edge_attr'][WRITES]}
        weights = {CITES: edge['edge_weight'][CITES]}
        h = self.first(x, edge_index, edge_attr_dict=attrs, edge_weight_dict=weights)
        return self.second(h, edge_index, edge_attr_dict=attrs, edge_weight_dict=weights)


class Attention(torch.nn.Module):
    """Layers over all types at once: every type to one width first."""

    def __init__(self, first: torch.nn.Module, second: torch.nn.Module) -> None:
        super().__init__()
        self.lin = pyg.HeteroDictLinear(-1, 6, types=TYPES)
        self.first, self.second = first, second

    def forward(self, x: Tensors, edge_index: dict, edge: dict[str, dict]) -> Tensors:
        h = {key: value.tanh() for key, value in self.first(self.lin(x), edge_index).items()}
        return self.second(h, edge_index)


class Signed(torch.nn.Module):
    """Two relations of one type of nodes, seen as friends and foes."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = pyg.Linear(-1, 6)
        self.first, self.second = pyg.SignedConv(6, 4, True), pyg.SignedConv(4, 3, False)

    def forward(self, x: Tensors, edge_index: dict, edge: dict[str, dict]) -> Tensors:
        h = self.lin(x['author'])
        friends, foes = edge_index[KNOWS], edge_index[DISLIKES]
        return {'author': self.second(self.first(h, friends, foes).tanh(), friends, foes)}


class Shared(torch.nn.Module):
    """One conv for two relations, and a relation that is used in one layer alone."""

    def __init__(self) -> None:
        super().__init__()
        lin = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
        self.conv = pyg.GINEConv(lin, edge_dim=3)
        self.lin = pyg.Linear(-1, 4)
        self.knows = pyg.SAGEConv((4, 4), 4)

    def forward(self, x: Tensors, edge_index: dict, edge: dict[str, dict]) -> Tensors:
        paper, author = self.lin(x['paper']), x['author']
        for _ in range(2):
            new = self.conv((author, paper), edge_index[WRITES], edge['edge_attr'][WRITES])
            author = self.conv(
                (paper, author), edge_index[REV_WRITES], edge['edge_attr'][REV_WRITES]
            )
            paper = new
        return {'paper': paper, 'author': self.knows(author, edge_index[KNOWS])}


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    'SAGE': lambda: Layers(
        _everywhere(lambda: pyg.SAGEConv(BOTH, 6)), _everywhere(lambda: pyg.SAGEConv(BOTH, 4))
    ),
    'SAGE-mean-of-relations': lambda: Layers(_everywhere(lambda: pyg.SAGEConv(BOTH, 6), 'mean')),
    'SAGE-max-of-relations': lambda: Layers(_everywhere(lambda: pyg.SAGEConv(BOTH, 6), 'max')),
    'GAT': lambda: Layers(
        _everywhere(lambda: pyg.GATConv(BOTH, 3, heads=2, add_self_loops=False)),
        _everywhere(lambda: pyg.GATConv(BOTH, 4, add_self_loops=False), 'cat'),
    ),
    'GraphConv': lambda: Layers(
        _everywhere(lambda: pyg.GraphConv(BOTH, 6)),
        _everywhere(lambda: pyg.GraphConv(BOTH, 4, aggr='max'), 'mean'),
        edges=('edge_weight',),
    ),
    'mixed': Mixed,
    'to_hetero': lambda: OwnToHetero(Homogeneous(), 'sum'),
    'to_hetero-GraphSAGE': lambda: OwnToHetero(GraphSAGE(BOTH, 6, 2, 4), 'mean'),
    'HeteroDictLinear': Projected,
    'HGT': lambda: Attention(pyg.HGTConv(6, 8, METADATA, heads=2), pyg.HGTConv(8, 8, METADATA)),
    'HAN': lambda: Attention(pyg.HANConv(6, 8, METADATA, heads=2), pyg.HANConv(8, 6, METADATA)),
    'Signed': Signed,
    'one conv for two relations': Shared,
}


def _call(model: torch.nn.Module, inputs: Inputs) -> Tensors:
    """With features of every type (ones for terms) and edge attributes."""
    x = {name: inputs.of(name).x for name in ('paper', 'author')}
    num_terms = inputs.data['term'].num_nodes
    x['term'] = torch.ones(num_terms, 2, dtype=x['paper'].dtype, device=x['paper'].device)
    edge = {
        'edge_attr': {rel: inputs.of(*rel).edge_attr for rel in (WRITES, REV_WRITES)},
        'edge_weight': {CITES: inputs.of(*CITES).edge_weight},
    }
    return model(x, inputs.data.edge_index_dict, edge)


def with_shapes(model: torch.nn.Module) -> torch.nn.Module:
    """The model in float64, its lazy parameters with their shapes."""
    with torch.no_grad():
        _call(model.double().eval(), Inputs(hetero_graph()))
    return model.train()


CASES = {
    f'hetero: {name}': Case(
        'hetero', name, lambda make=make: with_shapes(make()), _call, graph='papers'
    )
    for name, make in MODELS.items()
}
