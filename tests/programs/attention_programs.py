"""Attention over all nodes: PyG's graph transformers, and those that users write by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Results, descend, weights
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


def trained(data: Data, ddp: Ddp, model: Module, lr: float = 0.05) -> Results:
    """Three steps of a model of the whole data, its gradients, and its output in evaluation."""
    model = ddp(model.double())

    def loss() -> Tensor:
        out = model(data)
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    torch.set_default_dtype(torch.float64)  # PyG's SGFormerAttention makes ones of the default
    try:
        losses = descend(loss, model, lr)
        model.eval()
        with torch.no_grad():
            out = model(data)
    finally:
        torch.set_default_dtype(torch.float32)
    inner = getattr(model, 'module', model)
    gradients = {name: p.grad for name, p in inner.named_parameters() if p.grad is not None}
    return {'losses': losses, 'out': out, 'weights': weights(model), 'gradients': gradients}


class OnData(Module):
    """Calls a model of PyG with all nodes as one graph."""

    def __init__(self, model: Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, data: Data) -> Tensor:
        batch = data.y.new_zeros(data.num_nodes)
        out: Tensor = self.model(data.x, data.edge_index, batch)
        return out


def sgformer(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = SGFormer(6, 8, 3, trans_num_layers=2, trans_dropout=0.0, gnn_dropout=0.0)
    return trained(data, ddp, OnData(model))


def sgformer_of_two_heads(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = SGFormer(
        6, 8, 3, trans_num_heads=2, trans_dropout=0.0, gnn_dropout=0.0, aggregate='cat'
    )
    return trained(data, ddp, OnData(model))


class OnGraphs(OnData):
    """Three graphs in a batch: the nodes of a class are one."""

    def forward(self, data: Data) -> Tensor:
        out: Tensor = self.model(data.x, data.edge_index, data.y)
        return out


def sgformer_on_several_graphs(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = SGFormer(6, 8, 3, trans_num_layers=2, trans_dropout=0.0, gnn_dropout=0.0)
    return trained(data, ddp, OnGraphs(model))


def polynormer_local_then_global(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    none = {'in_dropout': 0.0, 'dropout': 0.0, 'global_dropout': 0.0}
    model = Polynormer(6, 8, 3, local_layers=2, global_layers=2, **none).double()
    first = trained(data, ddp, OnData(model))
    model.train()._global = True
    return {'local': first, 'global': trained(data, ddp, OnData(model))}


class GPS(Module):
    """Two GPS layers."""

    def __init__(self, attn_type: str, norm: str = 'batch_norm') -> None:
        super().__init__()
        self.lin = Linear(6, 8)
        self.convs = ModuleList(
            GPSConv(8, GCNConv(8, 8), heads=2, attn_type=attn_type, norm=norm) for _ in range(2)
        )
        self.out = Linear(8, 3)

    def forward(self, data: Data) -> Tensor:
        x = self.lin(data.x)
        for conv in self.convs:
            x = conv(x, data.edge_index)
        out: Tensor = self.out(x)
        return out


def gps_performer(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    return trained(data, ddp, GPS('performer'))


def gps_multihead(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    return trained(data, ddp, GPS('multihead'))


def gps_with_a_batch(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)

    class Batched(GPS):
        def forward(self, data: Data) -> Tensor:
            x = self.lin(data.x)
            batch = torch.zeros_like(data.y)
            for conv in self.convs:
                x = conv(x, data.edge_index, batch)
            out: Tensor = self.out(x)
            return out

    return trained(data, ddp, Batched('performer', 'graph_norm'))


class Dense(Module):
    """An attention of PyG by itself, on a batch of one graph."""

    def __init__(self, attention: Module, width: int) -> None:
        super().__init__()
        self.lin, self.attention, self.out = Linear(6, 8), attention, Linear(width, 3)

    def forward(self, data: Data) -> Tensor:
        h, mask = to_dense_batch(self.lin(data.x))
        h = self.attention(h, mask)
        out: Tensor = self.out(h[mask])
        return out


def performer_by_itself(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    return trained(data, ddp, Dense(PerformerAttention(8, 2, head_channels=4), 8))


def performer_redrawn(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    attention = PerformerAttention(8, 2, head_channels=4).double()
    model = Dense(attention, 8)
    first = trained(data, ddp, model)
    model.train()
    attention.redraw_projection_matrix()
    return {'first': first, 'redrawn': trained(data, ddp, model)}


def sgformer_attention_by_itself(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    return trained(data, ddp, Dense(SGFormerAttention(8, 2, head_channels=8), 8))


def polynormer_attention_by_itself(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    attention = PolynormerAttention(8, 2, head_channels=4, qk_shared=False)
    return trained(data, ddp, Dense(attention, 8))


class Layered(Module):
    """Layers of attention over all nodes and of GCN in turn."""

    def __init__(self, make: type[Module]) -> None:
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


class DifformerLike(Module):
    """Simple global attention: 1 + <q, k> of unit vectors, normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = Linear(8, 8), Linear(8, 8), Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (lin(x).view(-1, 2, 4) for lin in (self.q, self.k, self.v))
        q, k = q / torch.norm(q, p=2), k / torch.norm(k, p=2)
        kvs = torch.einsum('lhm,lhd->hmd', k, v)
        numerator = torch.einsum('nhm,hmd->nhd', q, kvs)
        numerator = numerator + v.sum(dim=0, keepdim=True).repeat(v.shape[0], 1, 1)
        ks_sum = torch.einsum('lhm->hm', k)
        denominator = torch.einsum('nhm,hm->nh', q, ks_sum).unsqueeze(-1) + v.shape[0]
        return (numerator / denominator).flatten(1)


def difformer_like(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    return trained(data, ddp, Layered(DifformerLike))


class LinearTransformer(Module):
    """elu(q) + 1 and elu(k) + 1, as in "Transformers are RNNs"."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(-1, 3, 2, 4).unbind(1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = k.permute(1, 2, 0) @ v.transpose(0, 1)
        z = 1 / (q * k.sum(0)).sum(-1, keepdim=True)
        return ((q.transpose(0, 1) @ kv).transpose(0, 1) * z).reshape(x.size(0), 8)


def linear_transformer(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    return trained(data, ddp, Layered(LinearTransformer))


class Softmax(Module):
    """scaled_dot_product_attention over all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = Linear(8, 8), Linear(8, 8), Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            lin(x).view(1, x.size(0), 2, 4).transpose(1, 2) for lin in (self.q, self.k, self.v)
        )
        out = F.scaled_dot_product_attention(q, k, v)
        return out.transpose(1, 2).reshape(x.size(0), 8)


def softmax_attention(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    return trained(data, ddp, Layered(Softmax))


class SoftmaxOfRows(Softmax):
    """Without heads, rows first."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), scale=0.3)


def softmax_attention_without_heads(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    return trained(data, ddp, Layered(SoftmaxOfRows))


class Multihead(Module):
    """torch.nn.MultiheadAttention, rows first."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiheadAttention(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.attention(x, x, x, need_weights=False)
        return out


def multihead_attention(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    return trained(data, ddp, Layered(Multihead))


def tokens_read_all_nodes(data: Data, ddp: Ddp) -> Results:
    """A few learned queries attend to all nodes, and nodes to them (as in Exphormer, ISAB)."""
    torch.manual_seed(0)

    class Tokens(Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = torch.nn.Parameter(torch.randn(4, 8))
            self.k, self.v = Linear(8, 8), Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            read = F.scaled_dot_product_attention(self.tokens, self.k(x), self.v(x))
            return F.scaled_dot_product_attention(x, read, read)

    return trained(data, ddp, Layered(Tokens))


def qformer_on_one_sequence(data: Data, ddp: Ddp) -> Results:
    """All nodes are one sequence of PyG's QFormer."""
    torch.manual_seed(0)

    class Sequence(Module):
        def __init__(self) -> None:
            super().__init__()
            self.former = QFormer(6, 8, 3, num_heads=2, num_layers=1)

        def forward(self, data: Data) -> Tensor:
            out: Tensor = self.former(data.x.unsqueeze(0)).squeeze(0)
            return out

    return trained(data, ddp, Sequence(), 0.02)
