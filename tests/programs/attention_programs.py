"""Attention over all nodes: PyG's graph transformers, and those that users write by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from shared import Ddp, Program, Results, trained
from torch import Tensor
from torch.nn import BatchNorm1d, LayerNorm, Linear, Module, ModuleList, MultiheadAttention
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GPSConv, Polynormer, SGFormer
from torch_geometric.nn.attention import (
    PerformerAttention,
    PolynormerAttention,
    QFormer,
    SGFormerAttention,
)
from torch_geometric.utils import to_dense_batch


def fit(data: Data, ddp: Ddp, make: Callable[[], Module]) -> Results:
    torch.set_default_dtype(torch.float64)  # PyG's SGFormerAttention makes ones of the default
    try:
        return trained(data, ddp, make, inputs=(data,), lr=0.02)
    finally:
        torch.set_default_dtype(torch.float32)


class OnData(Module):
    """A model of PyG with all nodes as one graph, or with those of a class as one."""

    def __init__(self, model: Module, several: bool = False) -> None:
        super().__init__()
        self.model, self.several = model, several

    def forward(self, data: Data) -> Tensor:
        batch = data.y if self.several else data.y.new_zeros(data.num_nodes)
        out: Tensor = self.model(data.x, data.edge_index, batch)
        return out


def sgformer(**options: object) -> Module:
    return SGFormer(6, 8, 3, trans_dropout=0.0, gnn_dropout=0.0, **options)


class GPS(Module):
    """Two GPS layers."""

    def __init__(self, attn_type: str, norm: str = 'batch_norm', batch: bool = False) -> None:
        super().__init__()
        self.lin, self.batch = Linear(6, 8), batch
        self.convs = ModuleList(
            GPSConv(8, GCNConv(8, 8), heads=2, attn_type=attn_type, norm=norm) for _ in range(2)
        )
        self.out = Linear(8, 3)

    def forward(self, data: Data) -> Tensor:
        x = self.lin(data.x)
        for conv in self.convs:
            x = conv(x, data.edge_index, torch.zeros_like(data.y) if self.batch else None)
        out: Tensor = self.out(x)
        return out


class Dense(Module):
    """An attention of PyG by itself, on a batch of one graph."""

    def __init__(self, attention: Module) -> None:
        super().__init__()
        self.lin, self.attention, self.out = Linear(6, 8), attention, Linear(8, 3)

    def forward(self, data: Data) -> Tensor:
        h, mask = to_dense_batch(self.lin(data.x))
        out: Tensor = self.out(self.attention(h, mask)[mask])
        return out


class Layered(Module):
    """Layers of attention over all nodes and of GCN in turn."""

    def __init__(self, make: Callable[[], Module]) -> None:
        super().__init__()
        self.lin = Linear(6, 8)
        self.attentions = ModuleList(make() for _ in range(2))
        self.convs = ModuleList(GCNConv(8, 8) for _ in range(2))
        self.norms = ModuleList([BatchNorm1d(8), LayerNorm(8)])
        self.out = Linear(8, 3)

    def forward(self, data: Data) -> Tensor:
        x = self.lin(data.x)
        for attention, conv, norm in zip(self.attentions, self.convs, self.norms, strict=True):
            x = norm(0.5 * attention(x) + 0.5 * conv(x, data.edge_index)).relu()
        out: Tensor = self.out(x)
        return out


class ByThree(Module):
    """Queries, keys and values of two heads of four channels."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = Linear(8, 8), Linear(8, 8), Linear(8, 8)

    def heads(self, x: Tensor) -> list[Tensor]:
        return [lin(x).view(-1, 2, 4) for lin in (self.q, self.k, self.v)]


class Difformer(ByThree):
    """Simple global attention: 1 + <q, k> of unit vectors, normalised."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        q, k = q / torch.norm(q, p=2), k / torch.norm(k, p=2)
        numerator = torch.einsum('nhm,hmd->nhd', q, torch.einsum('lhm,lhd->hmd', k, v))
        numerator = numerator + v.sum(dim=0, keepdim=True).repeat(v.shape[0], 1, 1)
        ks_sum = torch.einsum('lhm->hm', k)
        denominator = torch.einsum('nhm,hm->nh', q, ks_sum).unsqueeze(-1) + v.shape[0]
        return (numerator / denominator).flatten(1)


class LinearTransformer(ByThree):
    """elu(q) + 1 and elu(k) + 1, as in "Transformers are RNNs"."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = k.permute(1, 2, 0) @ v.transpose(0, 1)
        z = 1 / (q * k.sum(0)).sum(-1, keepdim=True)
        return ((q.transpose(0, 1) @ kv).transpose(0, 1) * z).reshape(x.size(0), 8)


class Softmax(ByThree):
    """scaled_dot_product_attention over all nodes."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unsqueeze(0).transpose(1, 2) for each in self.heads(x))
        out = F.scaled_dot_product_attention(q, k, v)
        return out.transpose(1, 2).reshape(x.size(0), 8)


class SoftmaxOfRows(ByThree):
    """Without heads, rows first."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), scale=0.3)


class Multihead(Module):
    """torch.nn.MultiheadAttention, of rows and of a batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.batch = MultiheadAttention(8, 2), MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.rows(x, x, x, need_weights=False)[0]
        h = h.unsqueeze(0)
        return self.batch(h, h, h, need_weights=False)[0].squeeze(0)


class Tokens(Module):
    """A few learned queries attend to all nodes, and nodes to them (as in Exphormer, ISAB)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Parameter(torch.randn(4, 8))
        self.k, self.v = Linear(8, 8), Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        read = F.scaled_dot_product_attention(self.tokens, self.k(x), self.v(x))
        return F.scaled_dot_product_attention(x, read, read)


class Sequence(Module):
    """All nodes are one sequence of PyG's QFormer."""

    def __init__(self) -> None:
        super().__init__()
        self.former = QFormer(6, 8, 3, num_heads=2, num_layers=1)

    def forward(self, data: Data) -> Tensor:
        out: Tensor = self.former(data.x.unsqueeze(0)).squeeze(0)
        return out


MODELS: dict[str, Callable[[], Module]] = {
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
    'difformer_like': lambda: Layered(Difformer),
    'linear_transformer': lambda: Layered(LinearTransformer),
    'softmax_attention': lambda: Layered(Softmax),
    'softmax_attention_without_heads': lambda: Layered(SoftmaxOfRows),
    'multihead_attention': lambda: Layered(Multihead),
    'tokens_read_all_nodes': lambda: Layered(Tokens),
    'qformer_on_one_sequence': Sequence,
}

PROGRAMS: dict[str, Program] = {
    name: lambda data, ddp, make=make: fit(data, ddp, make) for name, make in MODELS.items()
}


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
