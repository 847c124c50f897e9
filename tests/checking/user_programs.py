"""Small models as users write them: what stands between two convs. None knows of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as tg
from torch_geometric import utils
from torch_geometric.nn import aggr
from torch_geometric.nn.models import MLP, DeepGraphInfomax, InnerProductDecoder

import pyg_sar

Step = Callable[[Tensor, Tensor], Tensor]
C = 8  # channels


class Net(nn.Module):
    """Two convs with a step between them."""

    def __init__(self, step: nn.Module) -> None:
        super().__init__()
        self.first, self.second = tg.SAGEConv(6, C), tg.SAGEConv(C, 3)
        self.step = step

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.first(x, edge_index))
        x = self.step(x, edge_index)
        return self.second(x, edge_index)


class Plain(nn.Module):
    """A step without modules."""

    def __init__(self, function: Step) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.function(x, edge_index)


class Of(nn.Module):
    """A step with modules `m`."""

    def __init__(self, call: Callable[[Any, Tensor, Tensor], Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.inner = modules[0] if len(modules) == 1 else nn.ModuleList(modules)
        self.call = call

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.call(self.inner, x, edge_index)


class Parameters(nn.Module):
    """A step with a parameter of some shape."""

    def __init__(self, call: Callable[[Tensor, Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape))
        self.call = call

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.call(self.weight, x, edge_index)


class VirtualNode(nn.Module):
    """As in PyG's examples for graph property prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mlp = nn.Embedding(1, C), MLP([C, C, C], norm=None)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        virtual = self.embedding.weight.expand(1, -1)
        x = x + virtual
        return x + self.mlp(virtual + x.sum(dim=0, keepdim=True))


class NearestConv(tg.MessagePassing):
    """Looks for its own neighbours, as DynamicEdgeConv does."""

    def __init__(self) -> None:
        super().__init__(aggr='max')
        self.lin = nn.Linear(2 * C, C)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        nearest = torch.cdist(x, x).topk(4, largest=False).indices
        col = torch.arange(x.size(0)).repeat_interleave(4)
        return self.propagate(torch.stack([nearest.flatten(), col]), x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return self.lin(torch.cat([x_i, x_j - x_i], dim=-1))


class OwnConv(tg.MessagePassing):
    """A conv whose parts can be replaced."""

    def __init__(self, **functions: Any) -> None:
        super().__init__(aggr='add')
        self.lin = nn.Linear(C, C)
        self.functions = functions

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.functions.get('before', lambda x: x)(self.lin(x))
        return self.functions.get('after', lambda x: x)(self.propagate(edge_index, x=x))

    def message(self, x_j: Tensor) -> Tensor:
        return self.functions.get('message', lambda x: x)(x_j)

    def update(self, out: Tensor) -> Tensor:
        return self.functions.get('update', lambda x: x)(out)


class WholeGraphLayer(nn.Module):
    """A transformer layer over the nodes, as in GPS."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(C, 2, batch_first=True)
        self.norm = nn.LayerNorm(C)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        dense, mask = utils.to_dense_batch(x)
        out = self.attention(dense, dense, dense, key_padding_mask=~mask)[0][mask]
        return self.norm(x + out)


class Memory(nn.Module):
    """Keeps a running mean of what it sees, in a buffer."""

    def __init__(self, mean: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.register_buffer('kept', torch.zeros(C))
        self.mean = mean

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        with torch.no_grad():
            self.kept.mul_(0.9).add_(self.mean(x.detach()), alpha=0.1)
        return x - self.kept.to(x.dtype)


def _zeros(x: Tensor) -> Tensor:
    return x.new_zeros(x.size(0), dtype=torch.int64)


def _bins(x: Tensor) -> Tensor:
    return (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def _pooled(pool: Any) -> nn.Module:
    return Of(lambda m, x, e: x + m(x, _zeros(x)), pool)


def _readout(function: Callable[..., Tensor], *args: Any) -> nn.Module:
    return Plain(lambda x, e: x + function(x, *args))


def _dense(x: Tensor, e: Tensor) -> Tensor:
    return utils.to_dense_adj(e, max_num_nodes=x.size(0))[0].to(x.dtype)


def _pool_of_edges(x: Tensor, e: Tensor) -> Tensor:
    rows = x[e[0]] * x[e[1]]
    return x * rows.mean()


def _two_hops(x: Tensor, e: Tensor) -> Tensor:
    adj = torch.sparse_coo_tensor(e, torch.ones(e.size(1), dtype=x.dtype), (x.size(0),) * 2)
    return x + (adj @ (adj @ x)) / 100


def _page_rank(x: Tensor, e: Tensor) -> Tensor:
    rank = x.new_full((x.size(0), 1), 1 / x.size(0))
    for _ in range(3):
        rank = 0.15 / x.size(0) + 0.85 * utils.scatter(rank[e[0]], e[1], 0, x.size(0))
    return x * rank * 10


def _by_pairs(x: Tensor) -> Tensor:
    pairs = torch.combinations(torch.arange(min(x.size(0), 6)))
    return x + (x[pairs[:, 0]] - x[pairs[:, 1]]).abs().mean(0)


def _contrast(x: Tensor) -> Tensor:
    z = F.normalize(x)
    return x * (z @ z.t()).logsumexp(dim=1, keepdim=True)


def _whitened(x: Tensor) -> Tensor:
    q, _ = torch.linalg.qr(x)
    return q[:, :C].abs()


def _centred_kernel(x: Tensor) -> Tensor:
    k = x @ x.t()
    return (k - k.mean(0) - k.mean(1, keepdim=True) + k.mean()) @ x / 100


def _k_means(x: Tensor) -> Tensor:
    centres = x[:3].detach()
    nearest = torch.cdist(x, centres).argmin(1)
    return x - utils.scatter(x, nearest, 0, 3, reduce='mean')[nearest]


def _infomax(m: Any, x: Tensor, e: Tensor) -> Tensor:
    z, _, summary = m(x, e)
    return z * summary


PROGRAMS: dict[str, Callable[[], nn.Module]] = {
    # Readouts and virtual nodes
    'mean': lambda: Plain(lambda x, e: x - x.mean(dim=0)),
    'mean of one channel': lambda: Plain(lambda x, e: x * x[:, 0].mean()),
    'global_mean_pool': lambda: _readout(tg.global_mean_pool, None),
    'global_add_pool': lambda: _readout(tg.global_add_pool, None),
    'global_max_pool': lambda: _readout(tg.global_max_pool, None),
    'global_mean_pool by a batch': lambda: Plain(
        lambda x, e: x + tg.global_mean_pool(x, _bins(x), 3)[_bins(x)]
    ),
    'virtual node': VirtualNode,
    'MeanAggregation': lambda: _pooled(aggr.MeanAggregation()),
    'SumAggregation': lambda: _pooled(aggr.SumAggregation()),
    'MaxAggregation': lambda: _pooled(aggr.MaxAggregation()),
    'VarAggregation': lambda: _pooled(aggr.VarAggregation()),
    'MedianAggregation': lambda: _pooled(aggr.MedianAggregation()),
    'QuantileAggregation': lambda: _pooled(aggr.QuantileAggregation(0.3)),
    'PowerMeanAggregation': lambda: Of(
        lambda m, x, e: x + m(x.abs() + 1, _zeros(x)), aggr.PowerMeanAggregation()
    ),
    'SoftmaxAggregation': lambda: _pooled(aggr.SoftmaxAggregation(learn=True)),
    'AttentionalAggregation': lambda: _pooled(aggr.AttentionalAggregation(nn.Linear(C, 1))),
    'Set2Set': lambda: Of(
        lambda m, x, e: x + m[1](m[0](x, _zeros(x))), aggr.Set2Set(C, 2), nn.Linear(2 * C, C)
    ),
    'DeepSetsAggregation': lambda: _pooled(aggr.DeepSetsAggregation(nn.Linear(C, C))),
    'SetTransformerAggregation': lambda: _pooled(aggr.SetTransformerAggregation(C)),
    'GRUAggregation': lambda: _pooled(aggr.GRUAggregation(C, C)),
    'LSTMAggregation': lambda: _pooled(aggr.LSTMAggregation(C, C)),
    'SortAggregation': lambda: Of(
        lambda m, x, e: x + m(x, _zeros(x)).view(2, C).sum(0), aggr.SortAggregation(2)
    ),
    'MLPAggregation': lambda: Of(
        lambda m, x, e: x + m(x[:4], _zeros(x[:4])),
        aggr.MLPAggregation(C, C, 4, num_layers=1),
    ),
    'EquilibriumAggregation': lambda: _pooled(aggr.EquilibriumAggregation(C, C, [8])),
    'MultiAggregation': lambda: Of(
        lambda m, x, e: x + m[1](m[0](x, _zeros(x))),
        aggr.MultiAggregation(['mean', 'max']),
        nn.Linear(2 * C, C),
    ),
    # Counts and orders; functions of torch by themselves are in docs/ops.md
    'argmax': lambda: Plain(lambda x, e: x - x[x[:, 0].argmax()]),
    'bincount of classes': lambda: Plain(
        lambda x, e: x / (1 + torch.bincount(_bins(x), minlength=3)[_bins(x)])[:, None]
    ),
    'one_hot frequencies': lambda: Plain(
        lambda x, e: x[:, :3].repeat(1, 3)[:, :C] * F.one_hot(_bins(x), 3).double().mean(0).max()
    ),
    'running mean in a buffer': lambda: Memory(lambda x: x.mean(0)),
    'count of nodes': lambda: Plain(lambda x, e: x / x.size(0)),
    'len': lambda: Plain(lambda x, e: x * len(x) / 100),
    'numel': lambda: Plain(lambda x, e: x * x.numel() / 1000),
    'log of the count': lambda: Plain(lambda x, e: x / torch.log(torch.tensor(x.size(0) + 1.0))),
    'argsort': lambda: Plain(lambda x, e: x[x[:, 0].argsort()]),
    'top half by score': lambda: Plain(
        lambda x, e: x * (x[:, :1] >= x[:, 0].sort().values[x.size(0) // 2])
    ),
    'first node': lambda: Plain(lambda x, e: x - x[0]),
    'every other node': lambda: Plain(lambda x, e: torch.cat([x[::2], x[1::2]])),
    'positions': lambda: Plain(
        lambda x, e: x + torch.arange(x.size(0), dtype=x.dtype)[:, None] / 100
    ),
    'pairs': lambda: Plain(lambda x, e: _by_pairs(x)),
    'transposed and reshaped': lambda: Plain(lambda x, e: x.t().reshape(x.shape)),
    # Attention and layers over nodes
    'softmax over nodes': lambda: Plain(lambda x, e: x * x.softmax(0)),
    'log_softmax over nodes': lambda: Plain(lambda x, e: x + x.log_softmax(0)),
    'logsumexp': lambda: Plain(lambda x, e: x - x.logsumexp(0)),
    'softmax of PyG': lambda: Plain(lambda x, e: x * utils.softmax(x, _zeros(x))),
    'gate over nodes': lambda: Of(lambda m, x, e: x * m(x).softmax(0), nn.Linear(C, 1)),
    'attention': lambda: Plain(lambda x, e: (x @ x.t()).softmax(1) @ x),
    'scaled_dot_product_attention': lambda: Plain(
        lambda x, e: F.scaled_dot_product_attention(x[None], x[None], x[None])[0]
    ),
    'MultiheadAttention': WholeGraphLayer,
    'TransformerEncoder': lambda: Of(
        lambda m, x, e: m(x[None])[0],
        nn.TransformerEncoder(nn.TransformerEncoderLayer(C, 2, C, 0.0, batch_first=True), 1),
    ),
    'LSTM': lambda: Of(lambda m, x, e: m(x[None])[0][0], nn.LSTM(C, C, batch_first=True)),
    'GRU': lambda: Of(lambda m, x, e: m(x)[0], nn.GRU(C, C)),
    'Conv1d': lambda: Of(lambda m, x, e: m(x.t()[None])[0].t(), nn.Conv1d(C, C, 3, padding=1)),
    'AvgPool1d': lambda: Plain(lambda x, e: F.avg_pool1d(x.t(), 3, 1, 1).t()),
    'BatchNorm1d of a copy in a list': lambda: Of(lambda m, x, e: m(x), nn.BatchNorm1d(C)),
    'InstanceNorm of PyG': lambda: Of(lambda m, x, e: m(x), tg.InstanceNorm(C)),
    'GraphNorm': lambda: Of(lambda m, x, e: m(x), tg.GraphNorm(C)),
    'PairNorm': lambda: Of(lambda m, x, e: m(x), tg.PairNorm()),
    'GraphSizeNorm': lambda: Of(lambda m, x, e: m(x), tg.GraphSizeNorm()),
    'MeanSubtractionNorm': lambda: Of(lambda m, x, e: m(x), tg.MeanSubtractionNorm()),
    'DiffGroupNorm': lambda: Of(lambda m, x, e: m(x), tg.DiffGroupNorm(C, 2)),
    'LayerNorm of the graph': lambda: Of(lambda m, x, e: m(x), tg.LayerNorm(C)),
    'contrast': lambda: Plain(lambda x, e: _contrast(x)),
    'qr': lambda: Plain(lambda x, e: _whitened(x)),
    'svd': lambda: Plain(lambda x, e: x / torch.linalg.svdvals(x)[0]),
    'centred kernel': lambda: Plain(lambda x, e: _centred_kernel(x)),
    'k-means': lambda: Plain(lambda x, e: _k_means(x)),
    'einsum over nodes': lambda: Plain(lambda x, e: x @ torch.einsum('nc,nd->cd', x, x) / 10),
    'linear attention': lambda: Plain(
        lambda x, e: x.sigmoid() @ (x.sigmoid().t() @ x) / x.sigmoid().sum()
    ),
    'embedding of positions': lambda: Of(
        lambda m, x, e: x + m(torch.arange(x.size(0))), nn.Embedding(100, C)
    ),
    'one row per node': lambda: Parameters(lambda w, x, e: x + w[: x.size(0)], 100, C),
    # Edges outside of a conv
    'rows of both ends': lambda: Plain(_pool_of_edges),
    'scatter of rows': lambda: Plain(
        lambda x, e: x + utils.scatter(x[e[0]], e[1], 0, x.size(0), 'mean')
    ),
    'index_add of rows': lambda: Plain(lambda x, e: x.index_add(0, e[1], x[e[0]])),
    'inner products': lambda: Of(lambda m, x, e: x * m(x, e).mean(), InnerProductDecoder()),
    'all inner products': lambda: Of(
        lambda m, x, e: x * m.forward_all(x).mean(), InnerProductDecoder()
    ),
    'degree of sources': lambda: Plain(
        lambda x, e: x * utils.degree(e[0], x.size(0), dtype=x.dtype)[:, None]
    ),
    'degree of destinations': lambda: Plain(
        lambda x, e: x * utils.degree(e[1], x.size(0), dtype=x.dtype)[:, None]
    ),
    'mean degree': lambda: Plain(lambda x, e: x * (e.size(1) / x.size(0))),
    'dense adjacency': lambda: Plain(lambda x, e: _dense(x, e).t() @ x),
    'DenseGCNConv': lambda: Of(lambda m, x, e: m(x, _dense(x, e))[0], tg.DenseGCNConv(C, C)),
    'DMoN': lambda: Of(lambda m, x, e: x * m(x[None], _dense(x, e)[None])[3], tg.DMoNPooling(C, 3)),
    'dense_diff_pool': lambda: Plain(
        lambda x, e: x + tg.dense_diff_pool(x, _dense(x, e), x[:, :3])[0][0].mean(0)
    ),
    'dense_mincut_pool': lambda: Plain(
        lambda x, e: x * tg.dense_mincut_pool(x, _dense(x, e), x[:, :3])[2]
    ),
    'two hops': lambda: Plain(_two_hops),
    'page rank': lambda: Plain(_page_rank),
    'to_undirected': lambda: Of(
        lambda m, x, e: m(x, utils.to_undirected(e, num_nodes=x.size(0))), tg.SAGEConv(C, C)
    ),
    'reversed edges': lambda: Of(lambda m, x, e: m(x, e.flip(0)), tg.SAGEConv(C, C)),
    'self loops': lambda: Of(
        lambda m, x, e: m(x, utils.add_self_loops(e, num_nodes=x.size(0))[0]), tg.SAGEConv(C, C)
    ),
    'no self loops': lambda: Of(
        lambda m, x, e: m(x, utils.remove_self_loops(e)[0]), tg.SAGEConv(C, C)
    ),
    'half of the edges': lambda: Of(
        lambda m, x, e: m(x, e[:, : e.size(1) // 2]), tg.SAGEConv(C, C)
    ),
    'edges by a mask': lambda: Of(
        lambda m, x, e: m(x, e[:, torch.arange(e.size(1)) % 2 == 0]), tg.SAGEConv(C, C)
    ),
    'sorted edges': lambda: Of(lambda m, x, e: m(x, utils.sort_edge_index(e)), tg.SAGEConv(C, C)),
    'coalesced edges': lambda: Of(lambda m, x, e: m(x, utils.coalesce(e)), tg.SAGEConv(C, C)),
    'subgraph': lambda: Of(
        lambda m, x, e: m(x, utils.subgraph(x[:, 0] > 0, e, num_nodes=x.size(0))[0]),
        tg.SAGEConv(C, C),
    ),
    'new edges': lambda: Of(
        lambda m, x, e: m(x, torch.stack([_zeros(x), torch.arange(x.size(0))])), tg.SAGEConv(C, C)
    ),
    'homophily': lambda: Plain(lambda x, e: x * utils.homophily(e, _bins(x))),
    'laplacian': lambda: Plain(
        lambda x, e: x * utils.get_laplacian(e, num_nodes=x.size(0))[1].mean()
    ),
    'a conv that is called by hand': lambda: Of(
        lambda m, x, e: m.propagate(e, x=(x, x)), tg.SAGEConv(C, C)
    ),
    'a conv on dense neighbours': NearestConv,
    'TopKPooling': lambda: Of(lambda m, x, e: x + m(x, e)[0].mean(0), tg.TopKPooling(C)),
    'DeepGraphInfomax inside': lambda: Of(
        _infomax,
        DeepGraphInfomax(
            C,
            tg.SAGEConv(C, C),
            lambda z, *args: z.mean(dim=0).sigmoid(),
            lambda x, e: (x.flip(0), e),
        ),
    ),
    # Inside a user's own conv
    'own conv': lambda: OwnConv(),
    'own conv: softmax before': lambda: OwnConv(before=lambda x: x.softmax(0)),
    'own conv: normalised before': lambda: OwnConv(before=lambda x: F.normalize(x, dim=-1)),
    'own conv: mean before': lambda: OwnConv(before=lambda x: x - x.mean(0)),
    'own conv: mean of messages': lambda: OwnConv(message=lambda x: x - x.mean(0)),
    'own conv: softmax of messages': lambda: OwnConv(message=lambda x: x.softmax(0)),
    'own conv: number of messages': lambda: OwnConv(message=lambda x: x / x.size(0)),
    'own conv: sigmoid of messages': lambda: OwnConv(message=lambda x: x.sigmoid()),
    'own conv: mean in update': lambda: OwnConv(update=lambda x: x - x.mean(0)),
    'own conv: batch norm in update': lambda: OwnConv(
        update=lambda x: F.batch_norm(x, None, None, training=True)
    ),
    'own conv: relu in update': lambda: OwnConv(update=lambda x: x.relu()),
    'own conv: max after': lambda: OwnConv(after=lambda x: x / x.abs().max()),
    'own conv: sorted after': lambda: OwnConv(after=lambda x: x.sort(0)[0]),
    'own conv: count after': lambda: OwnConv(after=lambda x: x / x.size(0)),
    # Right, with what is there for it
    'global_mean': lambda: Plain(lambda x, e: x - pyg_sar.global_mean(x, dim=0)),
    'global_softmax': lambda: Plain(lambda x, e: x * pyg_sar.global_softmax(x)),
    'global_std': lambda: Plain(lambda x, e: x / pyg_sar.global_std(x)),
    'global_mean by a batch': lambda: Plain(
        lambda x, e: x + pyg_sar.global_mean(x, batch=_bins(x))[_bins(x)]
    ),
    'gate over all nodes': lambda: Of(
        lambda m, x, e: x * pyg_sar.global_softmax(m(x)), nn.Linear(C, 1)
    ),
    'MLP': lambda: Of(lambda m, x, e: m(x), MLP([C, C, C], norm='batch_norm', dropout=0.0)),
    'skip and gate by row': lambda: Of(
        lambda m, x, e: x + m(x).sigmoid() * x.mean(1, keepdim=True), nn.Linear(C, 1)
    ),
    'JumpingKnowledge': lambda: Of(
        lambda m, x, e: m([x, x.relu()]), tg.JumpingKnowledge('lstm', C, 2)
    ),
    'heads by row': lambda: Of(
        lambda m, x, e: m(x.view(-1, 2, 4), x.view(-1, 2, 4), x.view(-1, 2, 4))[0].flatten(1),
        nn.MultiheadAttention(4, 2, batch_first=True),
    ),
    'attention of a conv': lambda: Of(lambda m, x, e: m(x, e), tg.GATConv(C, 4, 2)),
    'ChebConv': lambda: Of(lambda m, x, e: m(x, e), tg.ChebConv(C, C, 3)),
    'quantised': lambda: Plain(lambda x, e: x + x.detach().round()),
    'masked by sign': lambda: Plain(lambda x, e: torch.where(x > 0, x, -0.1 * x)),
    'rows that are filled': lambda: Plain(
        lambda x, e: torch.zeros_like(x).masked_scatter(x > 0, x[x > 0])
    ),
    'selected and put back': lambda: Plain(
        lambda x, e: x.index_copy(0, (x[:, 0] > 0).nonzero()[:, 0], x[x[:, 0] > 0] * 2)
    ),
}
