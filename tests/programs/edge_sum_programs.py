"""Neighbours summed by hand and by matrices: edge_index, scatter, sparse and dense, no conv."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Results, mlp, named, parts, programs
from three_steps import descend, model_of, supervised, trained
from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric import utils as U
from torch_geometric.data import Data

Sum = Callable[[Tensor, Tensor, Data], Tensor]


def mean_by_scatter_add(x: Tensor, edge_index: Tensor, data: Data) -> Tensor:
    src, dst = edge_index[0], edge_index[1]
    total = torch.zeros(x.size(0), x.size(1), dtype=x.dtype)
    total.scatter_add_(0, dst.view(-1, 1).expand(-1, x.size(1)), x[src])
    count = torch.zeros(x.size(0), dtype=x.dtype).scatter_add_(
        0, dst, torch.ones(dst.size(0), dtype=x.dtype)
    )
    return total / count.clamp(min=1).unsqueeze(-1) + x


def scatter_of_pyg(x: Tensor, edge_index: Tensor, data: Data) -> Tensor:
    """Of PyG, into destinations and into sources."""
    src, dst = edge_index
    into = [
        U.scatter(x[src], dst, dim=0, dim_size=x.size(0), reduce=reduce)
        for reduce in ('sum', 'mean', 'max', 'min')
    ]
    out_of = [
        U.scatter(x[dst], src, dim=0, dim_size=x.size(0), reduce=reduce)
        for reduce in ('sum', 'min', 'max')
    ]
    return sum([*into, *out_of])


def max_pool_of_neighbours(x: Tensor, edge_index: Tensor, data: Data) -> Tensor:
    src, dst = edge_index
    index = dst.unsqueeze(-1).expand(-1, x.size(-1))
    return x.scatter_reduce(0, index, x[src], reduce='amax', include_self=True)


def attention_by_hand(x: Tensor, edge_index: Tensor, data: Data) -> Tensor:
    src, dst = edge_index
    logits = F.leaky_relu((x[src] + x[dst]).sum(-1, keepdim=True), 0.2)
    alpha = U.softmax(logits, dst, num_nodes=x.size(0))
    return U.scatter(alpha * x[src], dst, dim=0, dim_size=x.size(0), reduce='sum')


def softmax_by_hand(x: Tensor, edge_index: Tensor, data: Data) -> Tensor:
    """exp, divided by its sum at the destination, with the maximum over all edges taken off."""
    src, dst = edge_index
    logits = (torch.tanh(x)[src] * x[dst]).sum(-1)
    e = torch.exp(logits - logits.max())
    total = torch.zeros(x.size(0), dtype=x.dtype).index_add_(0, dst, e)
    alpha = e / (total[dst] + 1e-16)
    return torch.zeros_like(x).index_add_(0, dst, alpha.unsqueeze(-1) * x[src])


def appnp_by_hand(x: Tensor, edge_index: Tensor, data: Data) -> Tensor:
    row, col = edge_index
    deg = U.degree(col, x.size(0), x.dtype).clamp(min=1)
    weight = (deg[row] * deg[col]).rsqrt().view(-1, 1)
    h = z = x.tanh()
    for _ in range(4):
        z = 0.9 * torch.zeros_like(z).index_add(0, col, weight * z[row]) + 0.1 * h
    return z


def sparse_csr_spmm(x: Tensor, edge_index: Tensor, data: Data) -> Tensor:
    values = torch.ones(edge_index.size(1), dtype=torch.float64)
    size = data.num_nodes, data.num_nodes
    coo = torch.sparse_coo_tensor(edge_index.flip(0), values, size).coalesce()
    row, col = coo.indices()
    assert int(col.max()) < data.num_nodes
    norm = torch.sparse_coo_tensor(coo.indices(), coo.values() / (1 + row % 3), size)
    adj = norm.to_sparse_csr()
    assert U.to_edge_index(adj)[0].size(1) == norm.values().numel() if norm.is_coalesced() else True
    return U.spmm(adj, x, reduce='sum') + adj @ x


def dense_adjacency(x: Tensor, edge_index: Tensor, data: Data) -> Tensor:
    adj = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.float64)
    adj[edge_index[1], edge_index[0]] = 1.0
    return adj @ x


def power_iteration(x: Tensor, edge_index: Tensor, data: Data) -> Tensor:
    num = data.num_nodes
    adj = torch.sparse_coo_tensor(edge_index.flip(0), data.edge_weight, (num, num))
    v = data.x.new_ones(num)
    for _ in range(5):
        v = (adj @ v.view(-1, 1)).view(-1)
        v = v / v.norm()
    return x * (1 + v.view(-1, 1))


def hops_from_a_node(x: Tensor, edge_index: Tensor, data: Data) -> Tensor:
    """Breadth-first search from some nodes of the training set, by whole edges."""
    row, col = edge_index
    hops = torch.where(data.train_mask & (data.y == 2), 0, data.num_nodes)
    for _ in range(6):
        hops = torch.minimum(hops, U.scatter(hops[row] + 1, col, 0, data.num_nodes, 'min'))
    return x * (hops < data.num_nodes).view(-1, 1)


class Summed(Module):
    """A layer, what is summed of it, another layer."""

    def __init__(self, data: Data, summed: Sum) -> None:
        super().__init__()
        self.first, self.last, self.summed = Linear(6, 8), Linear(8, 3), summed
        self.data = [data]

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.summed(self.first(x), edge_index, self.data[0]))


def summed(data: Data, ddp: Ddp, of: Sum) -> Results:
    return trained(data, ddp, lambda: Summed(data, of))


PROGRAMS = programs(
    summed,
    named(
        *(mean_by_scatter_add, scatter_of_pyg, max_pool_of_neighbours, attention_by_hand),
        *(softmax_by_hand, appnp_by_hand, sparse_csr_spmm, dense_adjacency, power_iteration),
        hops_from_a_node,
    ),
)


def label_propagation_by_hand(data: Data, ddp: Ddp) -> Results:
    """By scatter, and by a sparse matrix."""
    row, col = data.edge_index
    deg = U.degree(col, data.num_nodes).double()
    norm = deg.pow(-0.5).masked_fill(deg == 0, 0)
    hot = F.one_hot(data.y, 3).double() * data.train_mask.unsqueeze(1)
    size, ones = (data.num_nodes, data.num_nodes), torch.ones(data.num_edges, dtype=torch.double)
    adj = torch.sparse_coo_tensor(data.edge_index.flip(0), ones, size)
    out, other = hot.clone(), hot
    for _ in range(4):
        spread = U.scatter((norm[row] * norm[col]).unsqueeze(1) * out[row], col, 0, data.num_nodes)
        out = (0.8 * spread + 0.2 * hot).clamp(0, 1)
        other = 0.9 * torch.sparse.mm(adj, other) / 8 + 0.1 * hot
    acc = (out.argmax(-1) == data.y)[data.test_mask].double().mean()
    return {'out': out, 'acc': acc, 'other': other}


def correct_and_smooth_by_hand(data: Data, ddp: Ddp) -> Results:
    model = model_of(ddp, lambda: mlp(6, 8, 3))
    mask = data.train_mask
    losses = descend(lambda: supervised(model(data.x), data), model)
    row, col = data.edge_index
    weight = 1 / U.degree(col, data.num_nodes).double().clamp(min=1)[col].unsqueeze(1)
    with torch.no_grad():
        soft = model(data.x).softmax(-1)
        error = torch.zeros_like(soft)
        error[mask] = F.one_hot(data.y[mask], 3).double() - soft[mask]
        sigma = error[mask].abs().sum() / mask.sum()
        for _ in range(3):
            spread = torch.zeros_like(error).index_add(0, col, weight * error[row])
            error = (0.7 * spread + 0.3 * error).clamp_(-1, 1)
        scale = sigma / error.abs().sum(dim=1, keepdim=True)
        scale[scale.isinf() | (scale > 1000)] = 1.0
        soft = soft + scale * error
        soft[mask] = F.one_hot(data.y[mask], 3).double()
    return {'losses': losses, 'soft': soft, 'sigma': sigma}


def matrix_as_an_argument(data: Data, ddp: Ddp) -> Results:
    """Personalised page rank in the model, which gets the matrix."""

    @parts(mlp=(mlp, 6, 8, 3))
    def net(m: Any, x: Tensor, adj: Tensor) -> Tensor:
        h = z = m.mlp(x)
        for _ in range(3):
            z = 0.8 * (adj @ z) + 0.2 * h
        return z

    edge_index, weight = U.add_remaining_self_loops(
        data.edge_index, data.edge_weight, fill_value=1.0, num_nodes=data.num_nodes
    )
    deg = U.scatter(weight, edge_index[1], 0, data.num_nodes, reduce='sum')
    weight = deg[edge_index[0]].rsqrt() * weight * deg[edge_index[1]].rsqrt()
    adj = U.to_torch_coo_tensor(edge_index, weight, size=data.num_nodes).t()
    return trained(data, ddp, net, inputs=(data.x, adj))
