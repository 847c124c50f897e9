"""Vectors of the whole graph in forward: pools, readouts, the best nodes, degrees."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Results, descend, mlp, weights
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch_geometric.data import Data
from torch_geometric.nn import (
    AttentionalAggregation,
    GCNConv,
    MultiAggregation,
    SAGPooling,
    Set2Set,
    SumAggregation,
    TopKPooling,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)
from torch_geometric.utils import degree, to_dense_batch
from torch_geometric.utils import softmax as segment_softmax


def trained(data: Data, ddp: Ddp, make: type[Module], *args: Tensor) -> Results:
    """Three steps; what a model gives is brought to a number by its squares."""
    torch.manual_seed(0)
    model = ddp(make().double())

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index, *args)
        if out.size(0) == data.num_nodes:
            return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        return (out - 1).pow(2).mean()

    losses = descend(loss_of, model, 0.02)
    with torch.no_grad():
        out = model(data.x, data.edge_index, *args)
    return {'losses': losses, 'out': out, 'weights': weights(model)}


class Pooled(Module):
    """A conv, something over all nodes, a linear layer."""

    def __init__(self, num: int = 8, num_out: int = 3) -> None:
        super().__init__()
        self.conv, self.lin = GCNConv(6, 8), Linear(num, num_out)

    def encoded(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index).tanh()


def mean_pool_without_batch(data: Data, ddp: Ddp) -> Results:
    class Model(Pooled):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.lin(global_mean_pool(self.encoded(x, edge_index), None))

    return trained(data, ddp, Model)


def pools_with_zero_batch(data: Data, ddp: Ddp) -> Results:
    class Model(Pooled):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            h = self.encoded(x, edge_index)
            pools = [global_mean_pool(h, batch), global_max_pool(h, batch)]
            return self.lin((pools[0] + pools[1] + global_add_pool(h, batch)) / 3)

    return trained(data, ddp, Model, torch.zeros(data.num_nodes, dtype=torch.long))


def pool_by_class(data: Data, ddp: Ddp) -> Results:
    """A batch of node rows: every class is a graph."""

    class Model(Pooled):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            return self.lin(global_mean_pool(self.encoded(x, edge_index), batch, size=3))

    return trained(data, ddp, Model, data.y)


def pooled_back_to_nodes(data: Data, ddp: Ddp) -> Results:
    class Model(Pooled):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            h = self.encoded(x, edge_index)
            return self.lin(h - global_mean_pool(h, batch)[batch])

    return trained(data, ddp, Model, data.y)


def attentional_aggregation(data: Data, ddp: Ddp) -> Results:
    class Model(Pooled):
        def __init__(self) -> None:
            super().__init__()
            self.pool = AttentionalAggregation(mlp(8, 4, 1))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.lin(self.pool(self.encoded(x, edge_index)))

    return trained(data, ddp, Model)


def set_to_set(data: Data, ddp: Ddp) -> Results:
    class Model(Pooled):
        def __init__(self) -> None:
            super().__init__(16)
            self.pool = Set2Set(8, processing_steps=2)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.encoded(x, edge_index)
            return self.lin(self.pool(h, torch.zeros(h.size(0), dtype=torch.long)))

    return trained(data, ddp, Model)


def several_aggregations(data: Data, ddp: Ddp) -> Results:
    class Model(Pooled):
        def __init__(self) -> None:
            super().__init__(8 * 4)
            self.pool = MultiAggregation(['mean', 'max', 'std', SumAggregation()])

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.lin(self.pool(self.encoded(x, edge_index), dim=0))

    return trained(data, ddp, Model)


def softmax_over_nodes(data: Data, ddp: Ddp) -> Results:
    class Model(Pooled):
        def __init__(self) -> None:
            super().__init__()
            self.score = Parameter(torch.ones(8))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.encoded(x, edge_index)
            alpha = F.softmax(h @ self.score, dim=0)
            return self.lin((alpha.unsqueeze(1) * h).sum(0)).view(1, -1)

    return trained(data, ddp, Model)


def softmax_of_segments(data: Data, ddp: Ddp) -> Results:
    class Model(Pooled):
        def __init__(self) -> None:
            super().__init__()
            self.gate = Linear(8, 1)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            h = self.encoded(x, edge_index)
            alpha = segment_softmax(self.gate(h), batch, num_nodes=3)
            return self.lin(torch.zeros(3, 8, dtype=h.dtype).index_add(0, batch, alpha * h))

    return trained(data, ddp, Model, data.y)


def top_nodes(data: Data, ddp: Ddp) -> Results:
    """The eight nodes with the greatest scores, weighted by them."""

    class Model(Pooled):
        def __init__(self) -> None:
            super().__init__()
            self.score = Linear(8, 1)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.encoded(x, edge_index)
            values, index = self.score(h).squeeze(-1).topk(8)
            return self.lin(values.sigmoid() @ h[index]).unsqueeze(0)

    return trained(data, ddp, Model)


def best_node(data: Data, ddp: Ddp) -> Results:
    """The features of the node where a column is greatest, by argmax."""

    class Model(Pooled):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.encoded(x, edge_index)
            return self.lin(h + h[h[:, 0].argmax()] - h[h.norm(dim=1).argmin()])

    return trained(data, ddp, Model)


def sort_pooling(data: Data, ddp: Ddp) -> Results:
    class Model(Pooled):
        def __init__(self) -> None:
            super().__init__(40)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.encoded(x, edge_index)
            order = h[:, -1].sort(descending=True).indices[:5]
            return self.lin(h[order].view(1, -1))

    return trained(data, ddp, Model)


def top_k_pooling(data: Data, ddp: Ddp) -> Results:
    class Model(Pooled):
        def __init__(self) -> None:
            super().__init__()
            self.pool, self.conv2 = TopKPooling(8, ratio=0.5), GCNConv(8, 8)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h, edge_index, *_ = self.pool(self.encoded(x, edge_index), edge_index)
            return self.lin(self.conv2(h, edge_index).mean(dim=0, keepdim=True))

    return trained(data, ddp, Model)


def sag_pooling(data: Data, ddp: Ddp) -> Results:
    class Model(Pooled):
        def __init__(self) -> None:
            super().__init__()
            self.pool = SAGPooling(8, ratio=0.6, GNN=GCNConv)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h, _, _, batch, *_ = self.pool(self.encoded(x, edge_index), edge_index)
            return self.lin(global_mean_pool(h, batch))

    return trained(data, ddp, Model)


def dense_batch(data: Data, ddp: Ddp) -> Results:
    class Model(Pooled):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h, mask = to_dense_batch(self.encoded(x, edge_index))
            return self.lin((h * mask.unsqueeze(-1)).sum(dim=1) / mask.sum())

    return trained(data, ddp, Model)


def degree_scalers(data: Data, ddp: Ddp) -> Results:
    """PNA by hand: amplified by the logarithm of a degree against its mean over all nodes."""

    class Model(Pooled):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            log = (degree(edge_index[1], x.size(0), dtype=x.dtype) + 1).log()
            scale = (log / log.mean()).view(-1, 1)
            return self.lin(scale * self.encoded(x, edge_index))

    return trained(data, ddp, Model)


def deep_graph_sets(data: Data, ddp: Ddp) -> Results:
    """Moments of all nodes: mean, variance, third, logsumexp, product of gates."""

    class Model(Pooled):
        def __init__(self) -> None:
            super().__init__(8 * 5)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.encoded(x, edge_index)
            centred = h - h.mean(0)
            moments = [h.mean(0), h.var(0), centred.pow(3).mean(0), h.logsumexp(0)]
            gates = torch.prod(1 - 0.01 * h.sigmoid(), dim=0)
            return self.lin(torch.cat([*moments, gates])).view(1, 3)

    return trained(data, ddp, Model)
