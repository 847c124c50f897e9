"""The first case that tests/cases has of every conv, 64 to 64 channels, and the graphs they run on.

The convs of `_OTHERS` have another case, other arguments or another call.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ('benchmarks', 'tests', 'tests/cases')]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from cached_graphs import CACHE, SEED, load_graph  # noqa: E402
from conv_calls import WEIGHT  # noqa: E402
from conv_case import X_AND_EDGES, Call, Case, Inputs  # noqa: E402
from conv_cases import CASES, OF_CONVS  # noqa: E402
from torch.nn import Linear, ReLU, Sequential  # noqa: E402
from torch_geometric.data import Data, HeteroData  # noqa: E402
from torch_geometric.nn import GCNConv, SAGEConv  # noqa: E402

import pyg_sar  # noqa: E402

WIDTH, HEADS, RELATIONS, EDGE_WIDTH, NODES_OF_HYPEREDGE = 64, 4, 8, 8, 8
SHARE = WIDTH // HEADS
NODE_TYPES = ['a', 'b']
EDGE_TYPES = [(NODE_TYPES[i // 4], f'r{i % 2}', NODE_TYPES[i // 2 % 2]) for i in range(RELATIONS)]
_OF_PYG_LIB = ('DynamicEdgeConv', 'GravNetConv', 'SplineConv')
WITHOUT_KERNELS = dict.fromkeys(_OF_PYG_LIB, 'its kernels are those of pyg-lib')
"""Convs that are not measured."""


def graph(name: str, kind: str) -> Data | HeteroData:
    """The graph `name` of ``cached_graphs`` with features, for one `kind` of convs.

    ``'plain'``: edge features, weights and relations, types and places of nodes; ``'hetero'``: two
    types of nodes and eight of edges; ``'hypergraph'``: nodes in hyperedges.
    """
    data = load_graph(name)
    generator = torch.Generator().manual_seed(SEED)
    num_nodes, num_edges = data.num_nodes, data.num_edges
    x = torch.randn(num_nodes, WIDTH, generator=generator)
    edge_index = data.edge_index
    if kind == 'hypergraph':
        num_hyperedges = num_nodes // NODES_OF_HYPEREDGE
        incidence = torch.stack([edge_index[0], edge_index[1] % num_hyperedges]).unique(dim=1)
        hyper = HeteroData()
        hyper['node'].x = x
        hyper['hyperedge'].num_nodes = num_hyperedges
        hyper['node', 'in', 'hyperedge'].edge_index = incidence
        return hyper
    node_type = torch.randint(2, (num_nodes,), generator=generator)
    if kind == 'hetero':
        src, dst = node_type[edge_index]
        either = torch.randint(2, (num_edges,), generator=generator)
        plain = Data(x=x, edge_index=edge_index, node_type=node_type, num_nodes=num_nodes)
        plain.edge_type = 4 * src + 2 * dst + either
        return plain.to_heterogeneous(node_type_names=NODE_TYPES, edge_type_names=EDGE_TYPES)
    return Data(
        x=x,
        edge_index=edge_index,
        node_type=node_type,
        pos=torch.randn(num_nodes, 3, generator=generator),
        normal=F.normalize(torch.randn(num_nodes, 3, generator=generator), dim=-1),
        edge_weight=torch.rand(num_edges, generator=generator) + 0.1,
        edge_attr=torch.randn(num_edges, EDGE_WIDTH, generator=generator),
        edge_type=torch.randint(RELATIONS, (num_edges,), generator=generator),
    )


def graph_file(name: str, kind: str) -> Path:
    """A .pt file with :func:`graph`, made once."""
    path = CACHE / f'convs-{name.replace(":", "-")}-{kind}' / 'graph.pt'
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(graph(name, kind), path)
    return path


def cut(name: str, kind: str, num_parts: int) -> Path:
    """A partition folder of :func:`graph`, made once."""
    folder = graph_file(name, kind).parent / f'parts{num_parts}'
    if not folder.exists():
        pyg_sar.partition_graph(graph(name, kind), num_parts, folder, seed=SEED)
    return folder


class Given(Inputs):
    """Attributes of a graph, of which only the features of nodes take a gradient."""

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name == 'x' else getattr(self.constant, name)


def _mlp(num_in: int, num_out: int = WIDTH) -> torch.nn.Module:
    return Sequential(Linear(num_in, WIDTH), ReLU(), Linear(WIDTH, num_out))


def _of_constant(module: torch.nn.Module, d: Inputs) -> Any:
    return module(d.x, d.constant.x, d.edge_index)


def _signed(module: torch.nn.Module, d: Inputs) -> Any:
    is_positive = d.edge_type < RELATIONS // 2
    return module(d.x, d.edge_index[:, is_positive], d.edge_index[:, ~is_positive])


_SIZES = {
    **dict.fromkeys(('in_channels', 'out_channels', 'channels', 'hidden_channels'), WIDTH),
    **dict.fromkeys(('dim', 'edge_dim', 'in_edge_channels'), EDGE_WIDTH),
    **dict.fromkeys(('edge_type_emb_dim', 'edge_attr_emb_dim'), EDGE_WIDTH),
    **dict.fromkeys(('num_relations', 'num_edge_types'), RELATIONS),
    **{'num_node_types': 2, 'heads': HEADS, 'metadata': (NODE_TYPES, EDGE_TYPES)},
}
"""By the names of PyG's arguments, for a case that gives them."""


def _sized(name: str, call: Call | None = None, /, **more: Any) -> Case:
    """A case of tests/cases at these sizes, called as there by default, with `more` arguments."""
    case = CASES[name]
    return replace(case, make=partial(case.make, _SIZES, **more), call=call or case.call)


_OTHERS = [
    _sized('CGConv: edge features'),
    _sized('ChebConv: K=1', K=3),
    _sized('DNAConv: 2 heads', lambda m, d: m(torch.stack([d.x, d.x.relu()], 1), d.edge_index)),
    _sized('DirGNNConv: GCN', conv=GCNConv(WIDTH, WIDTH)),
    _sized('EGConv: symnorm', num_heads=HEADS),
    _sized('EdgeConv: aggr=max', nn=_mlp(2 * WIDTH)),
    _sized('FAConv: normalized', _of_constant),
    _sized('FastRGCNConv: blocks', num_blocks=16),
    _sized('FiLMConv: 3 relations'),
    _sized('GATConv: one head', out_channels=SHARE, heads=HEADS),
    _sized('GATv2Conv: 3 heads', out_channels=SHARE),
    _sized('GCN2Conv: theta', _of_constant),
    _sized('GINConv: eps', nn=_mlp(WIDTH), eps=0.0),
    _sized('GINEConv: edge features', nn=_mlp(WIDTH)),
    _sized('GMMConv: default', kernel_size=3),
    _sized('GPSConv: GCN', conv=GCNConv(WIDTH, WIDTH), attn_type='performer'),
    _sized('GeneralConv: additive attention'),
    _sized('GraphConv: add', WEIGHT),
    _sized('HEATConv: concat', out_channels=SHARE),
    _sized('HeteroConv: SAGE, sum', convs={t: SAGEConv((WIDTH, WIDTH), WIDTH) for t in EDGE_TYPES}),
    _sized('NNConv: add', nn=_mlp(EDGE_WIDTH, WIDTH * WIDTH)),
    _sized(
        'PNAConv: mean, sum',
        X_AND_EDGES,
        aggregators=['mean', 'min', 'max', 'std'],
        scalers=['identity', 'amplification', 'attenuation'],
        deg=torch.arange(64, 0, -1),
        edge_dim=None,
        towers=HEADS,
        divide_input=True,
    ),
    _sized('PPFConv: self loops', local_nn=_mlp(WIDTH + 4), global_nn=_mlp(WIDTH)),
    _sized('PointGNNConv: default', mlp_h=_mlp(WIDTH, 3), mlp_f=_mlp(WIDTH + 3), mlp_g=_mlp(WIDTH)),
    _sized('PointNetConv: self loops', local_nn=_mlp(WIDTH + 3), global_nn=_mlp(WIDTH)),
    _sized('RGATConv: additive', out_channels=SHARE),
    _sized('SAGEConv: aggr=mean'),
    _sized('SignedConv: first', _signed),
    _sized('SuperGATConv: MX, eval', out_channels=SHARE),
    _sized('TransformerConv: 2 heads', out_channels=SHARE),
]
_NAMED = {case.conv: case for case in (*map(_sized, OF_CONVS), *_OTHERS)}
_NAMED['SAGEConv, max'] = _sized('SAGEConv: aggr=max')
_LEFT_OUT = {'MessagePassing', *WITHOUT_KERNELS}
CONVS = {name: case for name, case in sorted(_NAMED.items()) if name not in _LEFT_OUT}
