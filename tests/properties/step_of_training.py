"""One step of a small model on a drawn graph, whole on one process or as a rank holds it."""

from __future__ import annotations

import math
from typing import Any

import torch
from drawn_graphs import Drawn
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv, HeteroConv, SAGEConv

import pyg_sar

WIDTH, EDGE_WIDTH = 4, 3


class Homogeneous(torch.nn.Module):
    """Edge weights in GCN's normalisation, a mean, and an attention that sees edge features."""

    def __init__(self) -> None:
        super().__init__()
        self.gcn = GCNConv(WIDTH, 5)
        self.sage = SAGEConv(5, WIDTH)
        self.gat = GATConv(WIDTH, 3, heads=2, edge_dim=EDGE_WIDTH)

    def forward(self, x: Any, edge_index: Any, weight: Any, edge_attr: Any) -> dict[Any, Tensor]:
        h = self.gcn(x[None], edge_index[None], weight[None]).tanh()
        h = self.sage(h, edge_index[None]).tanh()
        return {None: self.gat(h, edge_index[None], edge_attr[None])}


class Heterogeneous(torch.nn.Module):
    """A mean, then an attention, over every relation; types without in-edges keep their rows."""

    def __init__(self, relations: list[Any]) -> None:
        super().__init__()
        self.sage = HeteroConv({key: SAGEConv((WIDTH, WIDTH), WIDTH) for key in relations})
        gat = {
            key: GATConv((WIDTH, WIDTH), WIDTH, edge_dim=EDGE_WIDTH, add_self_loops=False)
            for key in relations
        }
        self.gat = HeteroConv(gat)

    def forward(self, x: Any, edge_index: Any, weight: Any, edge_attr: Any) -> dict[Any, Tensor]:
        h = {**x, **{key: value.tanh() for key, value in self.sage(x, edge_index).items()}}
        return {**h, **self.gat(h, edge_index, edge_attr_dict=edge_attr)}


def whole(drawn: Drawn) -> dict[str, dict[Any, Tensor]]:
    """What plain PyG computes: outputs by type, all gradients."""
    nodes = {
        key: {**attrs, 'n_id': torch.arange(drawn.num_nodes[key])}
        for key, attrs in drawn.node_attrs.items()
    }
    edges = {
        key: {**attrs, 'e_id': torch.arange(drawn.edges[key].size(1)), 'edge_index': edge_index}
        for (key, attrs), edge_index in zip(
            drawn.edge_attrs.items(), drawn.edges.values(), strict=True
        )
    }
    return _step(nodes, edges, None)


def on_ranks(cases: list[tuple[str, str]]) -> list[dict[str, dict[Any, Tensor]]]:
    """The same on this rank, for a partition folder and a mode each."""
    found = []
    for root, mode in cases:
        data = pyg_sar.load_shard(root)
        if hasattr(data, 'node_types'):
            nodes: dict[Any, Any] = {key: data[key] for key in data.node_types}
            edges: dict[Any, Any] = {key: data[key] for key in data.edge_types}
        else:
            nodes = edges = {None: data}
        found.append(_step(nodes, edges, mode))
    return found


def _step(nodes: dict[Any, Any], edges: dict[Any, Any], mode: Any) -> dict[str, dict[Any, Tensor]]:
    n_ids = {key: store['n_id'] for key, store in nodes.items()}
    e_ids = {key: store['e_id'] for key, store in edges.items()}
    x = {key: _leaf(store, 'x', n_ids[key]) for key, store in nodes.items()}
    weight = {key: _leaf(store, 'edge_weight', e_ids[key]) for key, store in edges.items()}
    edge_attr = {key: _leaf(store, 'edge_attr', e_ids[key]) for key, store in edges.items()}

    torch.manual_seed(0)
    model = Homogeneous() if None in nodes else Heterogeneous(list(edges))
    model = model.double()
    parameters = dict(model.named_parameters())
    if mode is not None:
        model = pyg_sar.DistributedDataParallel(model, mode=mode)
    out = model(
        {key: _coded(value, n_ids[key], WIDTH) for key, value in x.items()},
        {key: store['edge_index'] for key, store in edges.items()},
        {key: _coded(value, e_ids[key], 1).square().view(-1) for key, value in weight.items()},
        {key: _coded(value, e_ids[key], EDGE_WIDTH) for key, value in edge_attr.items()},
    )
    given = {key: _code(n_ids[key] + 7, value.size(1)) for key, value in out.items()}
    torch.autograd.backward(list(out.values()), [given[key] for key in out])
    found = {'out': out, 'x': x, 'weight': weight, 'edge_attr': edge_attr}
    results = {
        name: {
            key: pyg_sar.gather((value if name == 'out' else _gradient(value)).detach())
            for key, value in values.items()
        }
        for name, values in found.items()
    }
    results['parameters'] = {name: _gradient(p) for name, p in parameters.items()}
    return results


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _leaf(store: Any, name: str, ids: Tensor) -> Tensor:
    """An attribute in float64, or a column of zeros, to take a gradient."""
    value = store[name] if name in store else torch.zeros(ids.numel(), 1)
    return value.detach().double().clone().requires_grad_()


def _code(ids: Tensor, width: int) -> Tensor:
    """Numbers that differ from row to row, [n, width]."""
    return torch.sin(ids.double()[:, None] * 1.7 + torch.arange(width) * 2.3 + 1)


def _coded(value: Tensor, ids: Tensor, width: int) -> Tensor:
    """Rows of any shape as `width` numbers, no two rows alike."""
    flat = value.reshape(ids.numel(), math.prod(value.shape[1:]))
    return flat @ _code(torch.arange(flat.size(1)), width) + _code(ids, width)
