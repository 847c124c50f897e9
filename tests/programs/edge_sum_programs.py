"""Neighbours summed by hand, with the rows of edge_index and scatter, without a conv."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Results, descend, mlp, weights
from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric.data import Data
from torch_geometric.utils import degree, scatter, softmax, spmm, to_edge_index, to_torch_coo_tensor


def trained(data: Data, ddp: Ddp, model: Module, *args: Tensor) -> Results:
    """Three steps of a model of the data, and its output."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model = ddp(model.double())

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index, *args)
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    losses = descend(loss_of, model)
    with torch.no_grad():
        out = model(data.x, data.edge_index, *args)
    return {'losses': losses, 'out': out, 'weights': weights(model)}


class Lin(Module):
    """Something that learns, for models that differ in what they sum."""

    def __init__(self, num_in: int = 6, num_out: int = 3) -> None:
        super().__init__()
        self.lin = Linear(num_in, num_out)


def gcn_by_index_add(data: Data, ddp: Ddp) -> Results:
    class Model(Lin):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            row, col = edge_index
            deg = degree(col, x.size(0), dtype=x.dtype)
            norm = deg.pow(-0.5)
            norm[norm == float('inf')] = 0
            h = self.lin(x)
            messages = h[row] * (norm[row] * norm[col]).view(-1, 1)
            return torch.zeros_like(h).index_add_(0, col, messages)

    return trained(data, ddp, Model())


def mean_by_scatter_add(data: Data, ddp: Ddp) -> Results:
    class Model(Lin):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            src, dst = edge_index[0], edge_index[1]
            total = torch.zeros(x.size(0), x.size(1), dtype=x.dtype)
            total.scatter_add_(0, dst.view(-1, 1).expand(-1, x.size(1)), x[src])
            count = torch.zeros(x.size(0), dtype=x.dtype).scatter_add_(
                0, dst, torch.ones(dst.size(0), dtype=x.dtype)
            )
            return self.lin(total / count.clamp(min=1).unsqueeze(-1) + x)

    return trained(data, ddp, Model())


def scatter_of_pyg(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = Linear(4 * 6, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            src, dst = edge_index
            sums = [
                scatter(x[src], dst, dim=0, dim_size=x.size(0), reduce=reduce)
                for reduce in ('sum', 'mean', 'max', 'min')
            ]
            return self.lin(torch.cat(sums, dim=-1))

    return trained(data, ddp, Model())


def sums_at_sources(data: Data, ddp: Ddp) -> Results:
    """What a node sends rather than what it gets: the sum by edge_index[0]."""

    class Model(Lin):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            src, dst = edge_index
            return self.lin(x + scatter(x[dst], src, dim=0, dim_size=x.size(0)))

    return trained(data, ddp, Model())


def both_directions(data: Data, ddp: Ddp) -> Results:
    class Model(Lin):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            src, dst = edge_index
            in_ = torch.zeros_like(x).index_add(0, dst, x[src])
            out = torch.zeros_like(x).index_add(0, src, x[dst])
            return self.lin(torch.cat([x, in_, out], dim=1))

    return trained(data, ddp, Model(18))


def attention_by_hand(data: Data, ddp: Ddp) -> Results:
    class Model(Lin):
        def __init__(self) -> None:
            super().__init__()
            self.att = Linear(6, 1, bias=False)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            src, dst = edge_index
            h = self.lin(x)
            logits = F.leaky_relu(self.att(torch.cat([h[src], h[dst]], dim=-1)), 0.2)
            alpha = softmax(logits, dst, num_nodes=x.size(0))
            return scatter(alpha * h[src], dst, dim=0, dim_size=x.size(0), reduce='sum')

    return trained(data, ddp, Model())


def softmax_by_hand(data: Data, ddp: Ddp) -> Results:
    """exp, divided by its sum at the destination, with the maximum over all edges taken off."""

    class Model(Lin):
        def __init__(self) -> None:
            super().__init__()
            self.att = Linear(6, 1)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            src, dst = edge_index
            logits = (torch.tanh(self.att(x))[src] * x[dst]).sum(-1)
            e = torch.exp(logits - logits.max())
            total = torch.zeros(x.size(0), dtype=x.dtype).index_add_(0, dst, e)
            alpha = e / (total[dst] + 1e-16)
            return self.lin(torch.zeros_like(x).index_add_(0, dst, alpha.unsqueeze(-1) * x[src]))

    return trained(data, ddp, Model())


def weighted_by_an_attribute(data: Data, ddp: Ddp) -> Results:
    class Model(Lin):
        def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
            h = x.index_select(0, edge_index[0]) * edge_weight.view(-1, 1)
            return self.lin(scatter(h, edge_index[1], 0, x.size(0)))

    return trained(data, ddp, Model(), data.edge_weight)


def normalised_weights(data: Data, ddp: Ddp) -> Results:
    """Weights divided by their largest, and by the sum at the destination."""
    weight = data.edge_weight / data.edge_weight.max()
    total = scatter(weight, data.edge_index[1], dim_size=data.num_nodes, reduce='sum')
    weight = weight / total[data.edge_index[1]]

    class Model(Lin):
        def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
            h = self.lin(x)
            return h + scatter(h[edge_index[0]] * edge_weight[:, None], edge_index[1], 0, x.size(0))

    return {'weight': weight, 'total': total} | trained(data, ddp, Model(), weight)


def appnp_by_hand(data: Data, ddp: Ddp) -> Results:
    class Model(Lin):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            row, col = edge_index
            deg = degree(col, x.size(0), x.dtype).clamp(min=1)
            weight = (deg[row] * deg[col]).rsqrt().view(-1, 1)
            h = z = self.lin(x).tanh()
            for _ in range(4):
                z = 0.9 * torch.zeros_like(z).index_add(0, col, weight * z[row]) + 0.1 * h
            return z

    return trained(data, ddp, Model())


def label_propagation_by_hand(data: Data, ddp: Ddp) -> Results:
    row, col = data.edge_index
    deg = degree(col, data.num_nodes).double()
    norm = deg.pow(-0.5).masked_fill(deg == 0, 0)
    y = F.one_hot(data.y, 3).double() * data.train_mask.unsqueeze(1)
    out = y.clone()
    for _ in range(5):
        spread = scatter((norm[row] * norm[col]).unsqueeze(1) * out[row], col, 0, data.num_nodes)
        out = (0.8 * spread + 0.2 * y).clamp(0, 1)
    acc = (out.argmax(-1) == data.y)[data.test_mask].double().mean()
    return {'out': out, 'acc': acc}


def correct_and_smooth_by_hand(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(mlp(data.num_features, 8, 3).double())
    mask = data.train_mask
    losses = descend(lambda: F.cross_entropy(model(data.x)[mask], data.y[mask]), model)
    row, col = data.edge_index
    weight = 1 / degree(col, data.num_nodes).double().clamp(min=1)[col].unsqueeze(1)
    with torch.no_grad():
        soft = model(data.x).softmax(-1)
        error = torch.zeros_like(soft)
        error[mask] = F.one_hot(data.y[mask], 3).double() - soft[mask]
        sigma = error[mask].abs().sum() / mask.sum()
        for _ in range(3):
            error = (
                0.7 * torch.zeros_like(error).index_add(0, col, weight * error[row]) + 0.3 * error
            )
        scale = sigma / error.abs().sum(dim=1, keepdim=True)
        scale[scale.isinf() | (scale > 1000)] = 1.0
        soft = soft + scale * error
        soft[mask] = F.one_hot(data.y[mask], 3).double()
    return {'losses': losses, 'soft': soft, 'sigma': sigma}


def sparse_matrix(data: Data, ddp: Ddp) -> Results:
    adj = to_torch_coo_tensor(data.edge_index, size=(data.num_nodes, data.num_nodes)).double().t()

    class Model(Lin):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return torch.sparse.mm(adj, self.lin(x))

    return trained(data, ddp, Model())


def sparse_csr_spmm(data: Data, ddp: Ddp) -> Results:
    values = torch.ones(data.edge_index.size(1), dtype=torch.float64)
    size = data.num_nodes, data.num_nodes
    adj = torch.sparse_coo_tensor(data.edge_index.flip(0), values, size).coalesce().to_sparse_csr()

    class Model(Lin):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return spmm(adj, self.lin(x), reduce='sum')

    return {'edges': to_edge_index(adj)[0].size(1)} | trained(data, ddp, Model())


def dense_adjacency(data: Data, ddp: Ddp) -> Results:
    adj = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.float64)
    adj[data.edge_index[1], data.edge_index[0]] = 1.0

    class Model(Lin):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return adj @ self.lin(x)

    return trained(data, ddp, Model())


def heat_of_laplacian(data: Data, ddp: Ddp) -> Results:
    """Explicit steps of diffusion along edges: differences go to both ends."""
    row, col = data.edge_index
    h = data.x
    for _ in range(3):
        flow = 0.05 * (h[row] - h[col])
        h = h.index_add(0, col, flow).index_add(0, row, -flow)
    return {'h': h, 'kept': h.sum(0), 'before': data.x.sum(0)}


def max_pool_of_neighbours(data: Data, ddp: Ddp) -> Results:
    class Model(Lin):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            src, dst = edge_index
            index = dst.unsqueeze(-1).expand(-1, x.size(-1))
            most = x.scatter_reduce(0, index, x[src], reduce='amax', include_self=True)
            return self.lin(most)

    return trained(data, ddp, Model())


def page_rank(data: Data, ddp: Ddp) -> Results:
    row, col = data.edge_index
    out_degree = degree(row, data.num_nodes, dtype=torch.float64)
    rank = torch.full((data.num_nodes,), 1 / data.num_nodes, dtype=torch.float64)
    for _ in range(20):
        share = rank / out_degree.clamp(min=1)
        dangling = rank[out_degree == 0].sum() / data.num_nodes
        new = torch.zeros_like(rank).scatter_add_(0, col, share[row])
        rank = 0.15 / data.num_nodes + 0.85 * (new + dangling)
    return {'rank': rank, 'sum': rank.sum(), 'top': rank.max()}


def hops_from_a_node(data: Data, ddp: Ddp) -> Results:
    """Breadth-first search from the nodes of the training set, by whole edges."""
    row, col = data.edge_index
    hops = torch.where(data.train_mask & (data.y == 2), 0, data.num_nodes)
    for _ in range(6):
        hops = torch.minimum(hops, scatter(hops[row] + 1, col, 0, data.num_nodes, 'min'))
    return {'reached': (hops < data.num_nodes).sum().item()}
