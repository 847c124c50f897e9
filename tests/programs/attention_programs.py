"""Attention over all nodes: PyG's graph transformers, and those that users write by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Results, named, parts, programs
from three_steps import trained
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GPSConv, Polynormer, SGFormer
from torch_geometric.nn.attention import (
    PerformerAttention,
    PolynormerAttention,
    QFormer,
    SGFormerAttention,
)
from torch_geometric.utils import to_dense_batch


def fit(data: Data, ddp: Ddp, make: Callable[[], nn.Module]) -> Results:
    torch.set_default_dtype(torch.float64)  # PyG's SGFormerAttention makes ones of the default
    try:
        return trained(data, ddp, make, inputs=(data,), lr=0.02)
    finally:
        torch.set_default_dtype(torch.float32)


class OnData(nn.Module):
    """A model of PyG with all nodes as one graph, or with those of a class as one."""

    def __init__(self, model: nn.Module, several: bool = False) -> None:
        super().__init__()
        self.model, self.several = model, several

    def forward(self, data: Data) -> Tensor:
        batch = data.y if self.several else data.y.new_zeros(data.num_nodes)
        return self.model(data.x, data.edge_index, batch)


def sgformer(**options: object) -> nn.Module:
    return SGFormer(6, 8, 3, trans_dropout=0.0, gnn_dropout=0.0, **options)


class GPS(nn.Module):
    """Two GPS layers."""

    def __init__(self, attn_type: str, norm: str = 'batch_norm', batch: bool = False) -> None:
        super().__init__()
        self.lin, self.batch = nn.Linear(6, 8), batch
        self.convs = nn.ModuleList(
            GPSConv(8, GCNConv(8, 8), heads=2, attn_type=attn_type, norm=norm) for _ in range(2)
        )
        self.out = nn.Linear(8, 3)

    def forward(self, data: Data) -> Tensor:
        x = self.lin(data.x)
        for conv in self.convs:
            x = conv(x, data.edge_index, torch.zeros_like(data.y) if self.batch else None)
        return self.out(x)


class Dense(nn.Module):
    """An attention of PyG by itself, on a batch of one graph."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.lin, self.attention, self.out = nn.Linear(6, 8), attention, nn.Linear(8, 3)

    def forward(self, data: Data) -> Tensor:
        h, mask = to_dense_batch(self.lin(data.x))
        return self.out(self.attention(h, mask)[mask])


class Layered(nn.Module):
    """Layers of attention over all nodes and of GCN in turn."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 8)
        self.attentions = nn.ModuleList(make() for _ in range(2))
        self.convs = nn.ModuleList(GCNConv(8, 8) for _ in range(2))
        self.norms = nn.ModuleList([nn.BatchNorm1d(8), nn.LayerNorm(8)])
        self.out = nn.Linear(8, 3)

    def forward(self, data: Data) -> Tensor:
        x = self.lin(data.x)
        for attention, conv, norm in zip(self.attentions, self.convs, self.norms, strict=True):
            x = norm(0.5 * attention(x) + 0.5 * conv(x, data.edge_index)).relu()
        return self.out(x)


def fit_layers(data: Data, ddp: Ddp, make: Callable[[], nn.Module]) -> Results:
    return fit(data, ddp, lambda: Layered(make))


QKV = {name: (nn.Linear, 8, 8) for name in 'qkv'}
"""Parts that make queries, keys and values."""


def heads(m: Any, x: Tensor) -> list[Tensor]:
    """Queries, keys and values of two heads of four channels."""
    return [lin(x).view(-1, 2, 4) for lin in (m.q, m.k, m.v)]


@parts(**QKV)
def difformer_like(m: Any, x: Tensor) -> Tensor:
    """Simple global attention: 1 + <q, k> of unit vectors, normalised."""
    q, k, v = heads(m, x)
    q, k = q / torch.norm(q, p=2), k / torch.norm(k, p=2)
    numerator = torch.einsum('nhm,hmd->nhd', q, torch.einsum('lhm,lhd->hmd', k, v))
    numerator = numerator + v.sum(dim=0, keepdim=True).repeat(v.shape[0], 1, 1)
    ks_sum = torch.einsum('lhm->hm', k)
    denominator = torch.einsum('nhm,hm->nh', q, ks_sum).unsqueeze(-1) + v.shape[0]
    return (numerator / denominator).flatten(1)


@parts(**QKV)
def linear_transformer(m: Any, x: Tensor) -> Tensor:
    """elu(q) + 1 and elu(k) + 1, as in "Transformers are RNNs"."""
    q, k, v = heads(m, x)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    kv = k.permute(1, 2, 0) @ v.transpose(0, 1)
    z = 1 / (q * k.sum(0)).sum(-1, keepdim=True)
    return ((q.transpose(0, 1) @ kv).transpose(0, 1) * z).reshape(x.size(0), 8)


@parts(**QKV)
def softmax_attention(m: Any, x: Tensor) -> Tensor:
    q, k, v = (each.unsqueeze(0).transpose(1, 2) for each in heads(m, x))
    out = F.scaled_dot_product_attention(q, k, v)
    return out.transpose(1, 2).reshape(x.size(0), 8)


@parts(**QKV)
def softmax_attention_without_heads(m: Any, x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(m.q(x), m.k(x), m.v(x), scale=0.3)


@parts(
    rows=(nn.MultiheadAttention, 8, 2), batch=partial(nn.MultiheadAttention, 8, 2, batch_first=True)
)
def multihead_attention(m: Any, x: Tensor) -> Tensor:
    """Of rows and of a batch of one."""
    h = x + m.rows(x, x, x, need_weights=False)[0]
    h = h.unsqueeze(0)
    return m.batch(h, h, h, need_weights=False)[0].squeeze(0)


@parts(tokens=lambda: nn.Parameter(torch.randn(4, 8)), k=(nn.Linear, 8, 8), v=(nn.Linear, 8, 8))
def tokens_read_all_nodes(m: Any, x: Tensor) -> Tensor:
    """A few learned queries attend to all nodes, and nodes to them (as in Exphormer, ISAB)."""
    read = F.scaled_dot_product_attention(m.tokens, m.k(x), m.v(x))
    return F.scaled_dot_product_attention(x, read, read)


@parts(former=partial(QFormer, 6, 8, 3, num_heads=2, num_layers=1))
def qformer_on_one_sequence(m: Any, data: Data) -> Tensor:
    return m.former(data.x.unsqueeze(0)).squeeze(0)


MODELS: dict[str, Callable[[], nn.Module]] = {
    'sgformer': lambda: OnData(sgformer(trans_num_layers=2)),
    'sgformer_of_two_heads': lambda: OnData(sgformer(trans_num_heads=2, aggregate='cat')),
    'sgformer_on_several_graphs': lambda: OnData(sgformer(trans_num_layers=2), several=True),
    'gps_performer': lambda: GPS('performer'),
    'gps_multihead': lambda: GPS('multihead'),
    'gps_with_a_batch': lambda: GPS('performer', 'graph_norm', batch=True),
    'performer_by_itself': lambda: Dense(PerformerAttention(8, 2, head_channels=4)),
    'sgformer_attention_by_itself': lambda: Dense(SGFormerAttention(8, 2, head_channels=8)),
    'polynormer_attention_by_itself': lambda: Dense(
        PolynormerAttention(8, 2, head_channels=4, qk_shared=False)
    ),
    'qformer_on_one_sequence': qformer_on_one_sequence,
}
LAYERS = named(
    difformer_like,
    linear_transformer,
    softmax_attention,
    softmax_attention_without_heads,
    multihead_attention,
    tokens_read_all_nodes,
)
PROGRAMS = programs(fit, MODELS) | programs(fit_layers, LAYERS)


def polynormer_local_then_global(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    none = {'in_dropout': 0.0, 'dropout': 0.0, 'global_dropout': 0.0}
    model = Polynormer(6, 8, 3, local_layers=2, global_layers=2, **none)
    first = fit(data, ddp, lambda: OnData(model))
    model.train()._global = True
    return {'local': first, 'global': fit(data, ddp, lambda: OnData(model))}


def performer_redrawn(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    attention = PerformerAttention(8, 2, head_channels=4).double()
    first = fit(data, ddp, lambda: Dense(attention))
    attention.train().redraw_projection_matrix()
    return {'first': first, 'redrawn': fit(data, ddp, lambda: Dense(attention))}
