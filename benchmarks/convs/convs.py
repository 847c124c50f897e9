"""One natural configuration of every conv of PyG, 64 to 64 channels, and the graphs they run on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from cached_graphs import CACHE, SEED, load_graph  # noqa: E402
from torch.nn import Linear, ReLU, Sequential  # noqa: E402
from torch_geometric.data import Data, HeteroData  # noqa: E402
from torch_geometric.nn import conv as c  # noqa: E402

import pyg_sar  # noqa: E402

WIDTH, HEADS, RELATIONS, EDGE_WIDTH, NODES_OF_HYPEREDGE = 64, 4, 8, 8, 8
SHARE = WIDTH // HEADS
WITHOUT_KERNELS = {'SplineConv': 'its kernels are those of pyg-lib'}
"""Convs that are not measured."""


def graph(name: str, kind: str) -> Data | HeteroData:
    """The graph `name` of ``cached_graphs`` with features, for one `kind` of convs.

    ``'plain'``: edge features, weights and relations, types and places of nodes; ``'hetero'``: two
    types of nodes and eight of edges; ``'hyper'``: nodes in hyperedges.
    """
    data = load_graph(name)
    generator = torch.Generator().manual_seed(SEED)
    num_nodes, num_edges = data.num_nodes, data.num_edges
    x = torch.randn(num_nodes, WIDTH, generator=generator)
    edge_index = data.edge_index
    if kind == 'hyper':
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
        names = ['ab'[i // 4] + f'r{i % 2}' + 'ab'[i // 2 % 2] for i in range(RELATIONS)]
        types = [(name[0], name[1:3], name[3]) for name in names]
        return plain.to_heterogeneous(node_type_names=['a', 'b'], edge_type_names=types)
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


@dataclass(frozen=True)
class Conv:
    """How a conv is made, and how it is called with x and the graph."""

    make: Callable[[Any], torch.nn.Module]
    call: Callable[[torch.nn.Module, Any, Any], Any]
    kind: str = 'plain'

    def x(self, data: Any) -> Any:
        """A leaf with the features of the nodes, or one for every type of them."""
        if self.kind == 'hetero':
            return {name: _leaf(data[name].x) for name in data.node_types}
        return _leaf(data['node'].x if self.kind == 'hyper' else data.x)


def _leaf(x: Any) -> Any:
    return x.detach().clone().requires_grad_()


def _with(*names: str) -> Callable[[torch.nn.Module, Any, Any], Any]:
    return lambda m, x, d: m(x, d.edge_index, **{name: d[name] for name in names})


def _dicts(module: torch.nn.Module, x: Any, data: Any) -> Any:
    return module(x, {name: data[name].edge_index for name in data.edge_types})


def _signed(module: torch.nn.Module, x: Any, data: Any) -> Any:
    is_positive = data.edge_type < RELATIONS // 2
    return module(x, data.edge_index[:, is_positive], data.edge_index[:, ~is_positive])


def _incidence(module: torch.nn.Module, x: Any, data: Any) -> Any:
    edge_index = data['node', 'in', 'hyperedge'].edge_index
    return module(x, edge_index, num_edges=data['hyperedge'].num_nodes)


def _mlp(num_in: int, num_out: int = WIDTH) -> torch.nn.Module:
    return Sequential(Linear(num_in, WIDTH), ReLU(), Linear(WIDTH, num_out))


DEGREES = torch.arange(64, 0, -1)
"""Number of nodes by in-degree, the same on all ranks."""

_X, _W, _A, _T = _with(), _with('edge_weight'), _with('edge_attr'), _with('edge_type')
_POINTS = 3


def _of(make: Callable[[], torch.nn.Module], call: Any = _X, kind: str = 'plain') -> Conv:
    return Conv(lambda _: make(), call, kind)


def _pna() -> torch.nn.Module:
    aggregators = ['mean', 'min', 'max', 'std']
    scalers = ['identity', 'amplification', 'attenuation']
    return c.PNAConv(WIDTH, WIDTH, aggregators, scalers, DEGREES, towers=HEADS, divide_input=True)


def _rgat() -> torch.nn.Module:
    conv = c.RGATConv(WIDTH, SHARE, RELATIONS, heads=HEADS)
    with torch.no_grad():
        for parameter in (conv.l2, conv.b2):  # PyG leaves them uninitialised
            parameter.fill_(1)
    return conv


def _hetero_sages(data: Any) -> torch.nn.Module:
    return c.HeteroConv({name: c.SAGEConv((WIDTH, WIDTH), WIDTH) for name in data.edge_types})


CONVS: dict[str, Conv] = {
    'AGNNConv': _of(lambda: c.AGNNConv()),
    'APPNP': _of(lambda: c.APPNP(3, 0.1)),
    'ARMAConv': _of(lambda: c.ARMAConv(WIDTH, WIDTH)),
    'AntiSymmetricConv': _of(lambda: c.AntiSymmetricConv(WIDTH)),
    'CGConv': _of(lambda: c.CGConv(WIDTH, EDGE_WIDTH), _A),
    'ChebConv': _of(lambda: c.ChebConv(WIDTH, WIDTH, 3)),
    'ClusterGCNConv': _of(lambda: c.ClusterGCNConv(WIDTH, WIDTH, 0.3)),
    'DNAConv': _of(
        lambda: c.DNAConv(WIDTH, heads=HEADS),
        lambda m, x, d: m(torch.stack([x, x.relu()], dim=1), d.edge_index),
    ),
    'DirGNNConv': _of(lambda: c.DirGNNConv(c.GCNConv(WIDTH, WIDTH))),
    'EGConv': _of(lambda: c.EGConv(WIDTH, WIDTH, num_heads=HEADS)),
    'EdgeConv': _of(lambda: c.EdgeConv(_mlp(2 * WIDTH))),
    'FAConv': _of(lambda: c.FAConv(WIDTH), lambda m, x, d: m(x, d.x, d.edge_index)),
    'FastRGCNConv': _of(lambda: c.FastRGCNConv(WIDTH, WIDTH, RELATIONS, num_blocks=16), _T),
    'FeaStConv': _of(lambda: c.FeaStConv(WIDTH, WIDTH, HEADS)),
    'FiLMConv': _of(lambda: c.FiLMConv(WIDTH, WIDTH, RELATIONS), _T),
    'GATConv': _of(lambda: c.GATConv(WIDTH, SHARE, HEADS)),
    'GATv2Conv': _of(lambda: c.GATv2Conv(WIDTH, SHARE, HEADS)),
    'GCN2Conv': _of(
        lambda: c.GCN2Conv(WIDTH, 0.1, 0.5, 1), lambda m, x, d: m(x, d.x, d.edge_index)
    ),
    'GCNConv': _of(lambda: c.GCNConv(WIDTH, WIDTH)),
    'GENConv': _of(lambda: c.GENConv(WIDTH, WIDTH)),
    'GINConv': _of(lambda: c.GINConv(_mlp(WIDTH))),
    'GINEConv': _of(lambda: c.GINEConv(_mlp(WIDTH), edge_dim=EDGE_WIDTH), _A),
    'GMMConv': _of(lambda: c.GMMConv(WIDTH, WIDTH, EDGE_WIDTH, 3), _A),
    'GPSConv': _of(
        lambda: c.GPSConv(WIDTH, c.GCNConv(WIDTH, WIDTH), HEADS, attn_type='performer'),
        lambda m, x, d: m(x, d.edge_index),
    ),
    'GatedGraphConv': _of(lambda: c.GatedGraphConv(WIDTH, 2)),
    'GeneralConv': _of(
        lambda: c.GeneralConv(WIDTH, WIDTH, EDGE_WIDTH, attention=True, heads=HEADS), _A
    ),
    'GraphConv': _of(lambda: c.GraphConv(WIDTH, WIDTH), _W),
    'HANConv': Conv(lambda d: c.HANConv(WIDTH, WIDTH, d.metadata(), HEADS), _dicts, 'hetero'),
    'HEATConv': _of(
        lambda: c.HEATConv(WIDTH, SHARE, 2, RELATIONS, 8, EDGE_WIDTH, 8, heads=HEADS),
        _with('node_type', 'edge_type', 'edge_attr'),
    ),
    'HGTConv': Conv(lambda d: c.HGTConv(WIDTH, WIDTH, d.metadata(), HEADS), _dicts, 'hetero'),
    'HeteroConv': Conv(_hetero_sages, _dicts, 'hetero'),
    'HypergraphConv': _of(lambda: c.HypergraphConv(WIDTH, WIDTH), _incidence, 'hyper'),
    'LEConv': _of(lambda: c.LEConv(WIDTH, WIDTH)),
    'LGConv': _of(lambda: c.LGConv()),
    'MFConv': _of(lambda: c.MFConv(WIDTH, WIDTH)),
    'MixHopConv': _of(lambda: c.MixHopConv(WIDTH, WIDTH)),
    'NNConv': _of(lambda: c.NNConv(WIDTH, WIDTH, _mlp(EDGE_WIDTH, WIDTH * WIDTH)), _A),
    'PDNConv': _of(lambda: c.PDNConv(WIDTH, WIDTH, EDGE_WIDTH, WIDTH), _A),
    'PNAConv': _of(_pna),
    'PPFConv': _of(
        lambda: c.PPFConv(_mlp(WIDTH + 4), _mlp(WIDTH)),
        lambda m, x, d: m(x, d.pos, d.normal, d.edge_index),
    ),
    'PointGNNConv': _of(
        lambda: c.PointGNNConv(_mlp(WIDTH, _POINTS), _mlp(WIDTH + _POINTS), _mlp(WIDTH)),
        lambda m, x, d: m(x, d.pos, d.edge_index),
    ),
    'PointNetConv': _of(
        lambda: c.PointNetConv(_mlp(WIDTH + _POINTS), _mlp(WIDTH)),
        lambda m, x, d: m(x, d.pos, d.edge_index),
    ),
    'PointTransformerConv': _of(
        lambda: c.PointTransformerConv(WIDTH, WIDTH), lambda m, x, d: m(x, d.pos, d.edge_index)
    ),
    'RGATConv': _of(_rgat, _T),
    'RGCNConv': _of(lambda: c.RGCNConv(WIDTH, WIDTH, RELATIONS), _T),
    'ResGatedGraphConv': _of(lambda: c.ResGatedGraphConv(WIDTH, WIDTH)),
    'SAGEConv': _of(lambda: c.SAGEConv(WIDTH, WIDTH)),
    'SAGEConv, max': _of(lambda: c.SAGEConv(WIDTH, WIDTH, 'max')),
    'SGConv': _of(lambda: c.SGConv(WIDTH, WIDTH, 2)),
    'SSGConv': _of(lambda: c.SSGConv(WIDTH, WIDTH, 0.1, 2)),
    'SignedConv': _of(lambda: c.SignedConv(WIDTH, WIDTH, True), _signed),
    'SimpleConv': _of(lambda: c.SimpleConv()),
    'SuperGATConv': _of(lambda: c.SuperGATConv(WIDTH, SHARE, HEADS).eval()),
    'TAGConv': _of(lambda: c.TAGConv(WIDTH, WIDTH)),
    'TransformerConv': _of(lambda: c.TransformerConv(WIDTH, SHARE, HEADS)),
    'WLConvContinuous': _of(lambda: c.WLConvContinuous()),
}
