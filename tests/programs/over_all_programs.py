"""What a model does with all nodes at once: statistics, readouts, pools, clusters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Results, mlp, named, parts, programs
from three_steps import fitted, model_of, supervised, trained
from torch import Tensor
from torch.nn import BatchNorm1d, Buffer, Linear, Module, Parameter, ReLU, Sequential
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn.aggr import SoftmaxAggregation, StdAggregation
from torch_geometric.utils import degree, to_dense_batch
from torch_geometric.utils import softmax as segment_softmax

Between = Callable[[Tensor], Tensor]


def shift_by_least(x: Tensor) -> Tensor:
    low, high = x.min(dim=0, keepdim=True)[0], x.max(dim=0, keepdim=True)[0]
    return (x - low) / (high - low + 1e-6)


def decorrelated(x: Tensor) -> Tensor:
    """Hidden features whitened by a Cholesky factor of their covariance."""
    x = x - x.mean(dim=0)
    cov = x.t().matmul(x) / x.size(0) + 1e-1 * torch.eye(8, dtype=x.dtype)
    return torch.linalg.solve_triangular(torch.linalg.cholesky(cov), x.t(), upper=False).t()


def mean_of_other_dimensions(x: Tensor) -> Tensor:
    """All numbers at once, by dims and by names of a reduction."""
    x = (x - x.mean()) / x.std()
    x = x / x.view(x.size(0), 2, 4).abs().sum(dim=(0, 2)).repeat_interleave(4)
    return 50 * x * torch.logsumexp(x, dim=0).sigmoid()


def deep_graph_sets(h: Tensor) -> Tensor:
    """Mean, variance, third, logsumexp, product of gates."""
    third = (h - h.mean(0)).pow(3).mean(0)
    gates = torch.prod(1 - 0.01 * h.sigmoid(), dim=0)
    return h + h.var(0) + third + h.logsumexp(0) + gates


def chosen_nodes(h: Tensor) -> Tensor:
    """The node where a column is greatest, the eight of the greatest scores, the five first."""
    values, index = h[:, 1].topk(8)
    top = values.sigmoid() @ h[index]
    order = h[:, -1].sort(descending=True).indices[:5]
    return h + h[h[:, 0].argmax()] - h[h.norm(dim=1).argmin()] + top + h[order].mean(0)


def quantile_gate(x: Tensor) -> Tensor:
    return x * (x > x.detach().quantile(0.4, dim=0))


@parts(
    running_mean=lambda: Buffer(torch.zeros(8)),
    running_var=lambda: Buffer(torch.ones(8)),
    scale=lambda: Parameter(torch.ones(8)),
)
def batch_norm_by_hand(m: Any, x: Tensor) -> Tensor:
    """With running statistics in buffers that the model writes itself."""
    if m.training:
        mean, var = x.mean(0), x.var(0, unbiased=False)
        with torch.no_grad():
            m.running_mean.mul_(0.9).add_(0.1 * mean)
            m.running_var.mul_(0.9).add_(0.1 * x.var(0))
    else:
        mean, var = m.running_mean, m.running_var
    return ((x - mean) / (var + 1e-5).sqrt() * m.scale).relu()


@parts(gate=(mlp, 8, 4, 8), emb=(torch.nn.Embedding, 1, 8), score=(Linear, 8, 1))
def squeeze_and_excite(m: Any, x: Tensor) -> Tensor:
    """And a virtual node, and a readout that every node gets."""
    virtual = m.emb(torch.zeros(1, dtype=torch.long)) + x.sum(dim=0, keepdim=True) / 50
    x = x * torch.sigmoid(m.gate(x.mean(dim=0) + x.amax(dim=0)))
    readout = (torch.softmax(m.score(x), dim=0) * x).sum(dim=0)
    return x + virtual.expand(x.size(0), -1) + readout.repeat(x.size(0), 1)


@parts(
    assign=(Linear, 8, 4),
    mix=(Linear, 8, 8),
    key=(Linear, 8, 8),
    queries=lambda: Parameter(torch.randn(3, 8)),
)
def soft_clusters(m: Any, x: Tensor) -> Tensor:
    """Nodes to clusters and back: s^T x, and s times it; learned queries look at all nodes."""
    s = m.assign(x).softmax(dim=-1)
    centres = torch.matmul(s.transpose(0, 1), x) / s.sum(dim=0).view(-1, 1)
    x = (x + s @ m.mix(centres)).relu()
    found = (m.queries @ m.key(x).t()).softmax(dim=-1) @ x
    return x + (x @ found.t()).softmax(dim=-1) @ found


@parts(
    group=(torch.nn.GroupNorm, 2, 8),
    lstm=(torch.nn.LSTM, 4, 4),
    instance=(torch.nn.InstanceNorm1d, 8),
    weight=lambda: Parameter(torch.randn(8, 8)),
)
def other_kernels(m: Any, x: Tensor) -> Tensor:
    """Norms, products and a recurrence that torch has kernels of their own for."""
    x = m.group(x) + m.instance(x.t().unsqueeze(0)).squeeze(0).t()
    x = torch.addmm(x, x, m.weight, alpha=0.1).sub_(torch.full_like(x, 0.1))
    gram = x.t() @ x + torch.eye(8, dtype=x.dtype)
    x = x + torch.linalg.solve(gram, x.t()).t()
    halves = torch.stack(x.split(4, dim=1))
    return x + m.lstm(halves)[0][-1].repeat(1, 2)


class Two(Module):
    """Two convs, and something between them that gets all hidden rows."""

    def __init__(self, make: Callable[[], Between]) -> None:
        super().__init__()
        self.conv1, self.conv2, self.between = pyg.GCNConv(6, 8), pyg.GCNConv(8, 3), make()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.between(self.conv1(x, edge_index)), edge_index)


def with_function(data: Data, ddp: Ddp, between: Between) -> Results:
    return trained(data, ddp, lambda: Two(lambda: between))


def with_module(data: Data, ddp: Ddp, make: Callable[[], Module]) -> Results:
    return trained(data, ddp, lambda: Two(make))


PROGRAMS = programs(
    with_function,
    named(
        *(shift_by_least, decorrelated, quantile_gate, mean_of_other_dimensions),
        *(deep_graph_sets, chosen_nodes),
    ),
) | programs(
    with_module, named(batch_norm_by_hand, squeeze_and_excite, soft_clusters, other_kernels)
)


# A vector of the graph, or one of each of several graphs


class Pooled(Module):
    """A conv, a pool of all nodes, a linear layer."""

    def __init__(self, pool: Callable[..., Tensor], num: int = 8) -> None:
        super().__init__()
        self.conv, self.pool, self.lin = pyg.GCNConv(6, 8), pool, Linear(num, 3)

    def forward(self, x: Tensor, edge_index: Tensor, *batch: Tensor) -> Tensor:
        return self.lin(self.pool(self.conv(x, edge_index).tanh(), *batch))


def softmax_of_segments(h: Tensor, batch: Tensor) -> Tensor:
    alpha = segment_softmax(h[:, :1], batch, num_nodes=3)
    return torch.zeros(3, 8, dtype=h.dtype).index_add(0, batch, alpha * h)


def dense_batch(h: Tensor) -> Tensor:
    h, mask = to_dense_batch(h)
    return (h * mask.unsqueeze(-1)).sum(dim=1) / mask.sum()


@parts(soft=partial(SoftmaxAggregation, learn=True), std=StdAggregation)
def aggregations_by_class(m: Any, h: Tensor, batch: Tensor) -> Tensor:
    return torch.cat([m.soft(h, batch), m.std(h, batch)], dim=1)


@parts(many=lambda: pyg.MultiAggregation(['mean', 'max', 'std', pyg.SumAggregation()]))
def several_aggregations(m: Any, h: Tensor) -> Tensor:
    return m.many(h, dim=0)


POOLS: dict[str, tuple[Callable[[], Callable[..., Tensor]], int, str]] = {
    'mean_pool_without_batch': (lambda: lambda h: pyg.global_mean_pool(h, None), 8, ''),
    'pooled_back_to_nodes': (lambda: lambda h, b: h - pyg.global_mean_pool(h, b)[b], 8, 'classes'),
    'attentional_aggregation': (lambda: pyg.AttentionalAggregation(mlp(8, 4, 1)), 8, ''),
    'set_to_set': (lambda: pyg.Set2Set(8, processing_steps=2), 16, 'zeros'),
    'several_aggregations': (several_aggregations, 32, ''),
    'aggregations_by_class': (aggregations_by_class, 16, 'classes'),
    'softmax_of_segments': (lambda: softmax_of_segments, 8, 'classes'),
    'dense_batch': (lambda: dense_batch, 8, ''),
}
"""What makes a pool, the width that it gives, and the batch that it gets."""


def of_pool(data: Data, ddp: Ddp, make: Callable[[], Module], batch: str = '') -> Results:
    batches = {'': [], 'zeros': [torch.zeros_like(data.y)], 'classes': [data.y]}
    more = batches[batch]
    return trained(data, ddp, make, *more, loss=lambda out: (out - 1).pow(2).mean(), lr=0.02)


def pooled(data: Data, ddp: Ddp, given: tuple[Callable[[], Any], int, str]) -> Results:
    return of_pool(data, ddp, lambda: Pooled(given[0](), given[1]), given[2])


PROGRAMS |= programs(pooled, POOLS)


@parts(
    pool=partial(pyg.SAGPooling, 8, ratio=0.6, GNN=pyg.GCNConv),
    conv=(pyg.GCNConv, 6, 8),
    conv2=(pyg.GCNConv, 8, 8),
    lin=(Linear, 8, 3),
)
def pooled_twice(m: Any, x: Tensor, edge_index: Tensor) -> Tensor:
    """A graph of some of the nodes, and a conv on it."""
    h, edge_index, _, batch, *_ = m.pool(m.conv(x, edge_index).tanh(), edge_index)
    return m.lin(pyg.global_mean_pool(m.conv2(h, edge_index), batch))


def sag_pooling(data: Data, ddp: Ddp) -> Results:
    return of_pool(data, ddp, pooled_twice)


def degree_scalers(data: Data, ddp: Ddp) -> Results:
    """PNA by hand: amplified by the logarithm of a degree against its mean over all nodes."""

    @parts(conv=(pyg.GCNConv, 6, 8), lin=(Linear, 8, 3))
    def net(m: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        log = (degree(edge_index[1], x.size(0), dtype=x.dtype) + 1).log()
        scale = (log / log.mean()).view(-1, 1)
        return m.lin(scale * m.conv(x, edge_index).tanh())

    return trained(data, ddp, net)


def pooled_by_columns_and_normed(data: Data, ddp: Ddp) -> Results:
    """A readout goes back to its nodes; the number of graphs is not given."""

    @parts(conv=(pyg.GCNConv, 6, 8), bn=(torch.nn.BatchNorm1d, 8), lin=(Linear, 16, 3))
    def net(m: Any, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = m.conv(x, edge_index)
        pooled = m.bn(pyg.global_mean_pool(x, batch))
        return m.lin(torch.cat([x, F.relu(pooled)[batch]], dim=-1))

    batch = (data.x[:, 0] > 1.5).long() + 2 * (data.x[:, 1] > 1.5).long()
    return trained(data, ddp, net, batch)


def functional_batch_norm(data: Data, ddp: Ddp) -> Results:
    return with_function(data, ddp, lambda x: F.batch_norm(x, None, None, training=True).relu())


def frozen_batch_norm(data: Data, ddp: Ddp) -> Results:
    """Statistics from passes without gradients; then the norm is in evaluation for good."""
    model = model_of(ddp, lambda: Two(lambda: Sequential(BatchNorm1d(8), ReLU())))
    with torch.no_grad():
        for _ in range(2):
            model(data.x, data.edge_index)
    for module in model.modules():
        if isinstance(module, BatchNorm1d):
            module.eval()
            module.weight.requires_grad_(False)
    return fitted(lambda: supervised(model(data.x, data.edge_index), data), model)


def norm_of_masked_rows(data: Data, ddp: Ddp) -> Results:
    """BatchNorm of the training nodes alone."""
    model = model_of(
        ddp, lambda: Sequential(Linear(6, 8, bias=False), BatchNorm1d(8), Linear(8, 3))
    )
    mask = data.train_mask
    return fitted(lambda: F.cross_entropy(model(data.x[mask]), data.y[mask]), model)
