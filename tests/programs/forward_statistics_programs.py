"""Models whose forward looks at all nodes: means, linear attention, virtual nodes, clusters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Results, descend, mlp, weights
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, SAGEConv


def trained(data: Data, ddp: Ddp, make: type[Module], lr: float = 0.1) -> Results:
    """Three steps of a model of x and edge_index, and its output in evaluation."""
    torch.manual_seed(0)
    model = ddp(make().double())

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    losses = descend(loss_of, model, lr)
    model.eval()
    with torch.no_grad():
        out = model(data.x, data.edge_index)
    return {'losses': losses, 'out': out, 'weights': weights(model)}


class Two(Module):
    """Two convs of 6, 8 and 3 channels; `between` is what a program is about."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(6, 8), GCNConv(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.between(self.conv1(x, edge_index)), edge_index)

    def between(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def minus_the_mean(data: Data, ddp: Ddp) -> Results:
    class Model(Two):
        def between(self, x: Tensor) -> Tensor:
            return (x - x.mean(dim=0, keepdim=True)).relu()

    return trained(data, ddp, Model)


def pair_norm_by_hand(data: Data, ddp: Ddp) -> Results:
    class Model(Two):
        def between(self, x: Tensor) -> Tensor:
            x = x - x.mean(dim=0)
            return x / (1e-6 + x.pow(2).sum(dim=1).mean()).sqrt()

    return trained(data, ddp, Model)


def batch_norm_by_hand(data: Data, ddp: Ddp) -> Results:
    """With running statistics in buffers that the model writes itself."""

    class Model(Two):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer('running_mean', torch.zeros(8))
            self.register_buffer('running_var', torch.ones(8))
            self.scale = Parameter(torch.ones(8))

        def between(self, x: Tensor) -> Tensor:
            if self.training:
                mean, var = x.mean(0), x.var(0, unbiased=False)
                with torch.no_grad():
                    self.running_mean.mul_(0.9).add_(0.1 * mean)
                    self.running_var.mul_(0.9).add_(0.1 * x.var(0))
            else:
                mean, var = self.running_mean, self.running_var
            return ((x - mean) / (var + 1e-5).sqrt() * self.scale).relu()

    return trained(data, ddp, Model)


def divided_by_the_largest(data: Data, ddp: Ddp) -> Results:
    class Model(Two):
        def between(self, x: Tensor) -> Tensor:
            return (x / x.abs().max()).tanh() + x / x.norm()

    return trained(data, ddp, Model)


def linear_attention(data: Data, ddp: Ddp) -> Results:
    """All nodes attend to all, in time linear in their number."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = Linear(6, 8), Linear(6, 8), Linear(6, 8)
            self.conv, self.out = GCNConv(6, 8), Linear(8, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
            attended = q @ (k.t() @ v) / (q @ k.sum(dim=0)).unsqueeze(-1)
            return self.out(attended + self.conv(x, edge_index))

    return trained(data, ddp, Model)


def sgformer_attention(data: Data, ddp: Ddp) -> Results:
    """Heads by einsum, norms over everything, and the number of nodes in the sum."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = Linear(6, 8), Linear(6, 8), Linear(6, 8)
            self.conv, self.out = GCNConv(6, 4), Linear(4, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            num = x.shape[0]
            q, k, v = (lin(x).view(num, 2, 4) for lin in (self.q, self.k, self.v))
            q, k = q / torch.norm(q, p=2), k / torch.norm(k, p=2)
            kv = torch.einsum('lhm,lhd->hmd', k, v)
            top = torch.einsum('nhm,hmd->nhd', q, kv) + num * v
            bottom = torch.einsum('nhm,hm->nh', q, k.sum(dim=0)).unsqueeze(-1) + num
            return self.out((top / bottom).mean(dim=1) + self.conv(x, edge_index))

    return trained(data, ddp, Model)


def full_attention(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = Linear(6, 4), Linear(6, 4), Linear(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            scores = self.q(x) @ self.k(x).t() / 2
            return scores.softmax(dim=-1) @ self.v(x)

    return trained(data, ddp, Model)


def multihead_attention_of_torch(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = GCNConv(6, 8), Linear(8, 3)
            self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.conv(x, edge_index).unsqueeze(0)
            return self.out(h + self.attention(h, h, h, need_weights=False)[0]).squeeze(0)

    return trained(data, ddp, Model)


def virtual_node(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = torch.nn.Embedding(1, 6)
            self.conv1, self.conv2 = SAGEConv(6, 6), SAGEConv(6, 3)
            self.mlp = mlp(6, 8, 6)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            virtual = self.emb(torch.zeros(1, dtype=torch.long))
            x = self.conv1(x + virtual, edge_index).relu()
            virtual = virtual + self.mlp(x.sum(dim=0, keepdim=True) / 50)
            return self.conv2(x + virtual.expand(x.size(0), -1), edge_index)

    return trained(data, ddp, Model)


def squeeze_and_excite(data: Data, ddp: Ddp) -> Results:
    class Model(Two):
        def __init__(self) -> None:
            super().__init__()
            self.gate = mlp(8, 4, 8)

        def between(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(self.gate(x.mean(dim=0) + x.amax(dim=0)))

    return trained(data, ddp, Model)


def soft_clusters(data: Data, ddp: Ddp) -> Results:
    """Nodes to clusters and back: s^T x, and s times it."""

    class Model(Two):
        def __init__(self) -> None:
            super().__init__()
            self.assign, self.mix = Linear(8, 4), Linear(8, 8)

        def between(self, x: Tensor) -> Tensor:
            s = self.assign(x).softmax(dim=-1)
            centres = torch.matmul(s.transpose(0, 1), x) / s.sum(dim=0).view(-1, 1)
            return (x + s @ self.mix(centres)).relu()

    return trained(data, ddp, Model)


def inducing_points(data: Data, ddp: Ddp) -> Results:
    """Learned queries look at all nodes, all nodes look at what they found."""

    class Model(Two):
        def __init__(self) -> None:
            super().__init__()
            self.queries, self.key = Parameter(torch.randn(3, 8)), Linear(8, 8)

        def between(self, x: Tensor) -> Tensor:
            found = (self.queries @ self.key(x).t()).softmax(dim=-1) @ x
            return x + (x @ found.t()).softmax(dim=-1) @ found

    return trained(data, ddp, Model)


def readout_added_to_every_node(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out, self.gate = GCNConv(6, 8), Linear(16, 3), Linear(8, 1)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.conv(x, edge_index).relu()
            alpha = torch.softmax(self.gate(h), dim=0)
            readout = (alpha * h).sum(dim=0)
            return self.out(torch.cat([h, readout.repeat(h.size(0), 1)], dim=1))

    return trained(data, ddp, Model)


def shift_by_least(data: Data, ddp: Ddp) -> Results:
    class Model(Two):
        def between(self, x: Tensor) -> Tensor:
            low, high = x.min(dim=0, keepdim=True)[0], x.max(dim=0, keepdim=True)[0]
            return (x - low) / (high - low + 1e-6)

    return trained(data, ddp, Model)


def decorrelated(data: Data, ddp: Ddp) -> Results:
    """Hidden features whitened by a Cholesky factor of their covariance."""

    class Model(Two):
        def between(self, x: Tensor) -> Tensor:
            x = x - x.mean(dim=0)
            cov = x.t().matmul(x) / x.size(0) + 1e-2 * torch.eye(8, dtype=x.dtype)
            return torch.linalg.solve_triangular(torch.linalg.cholesky(cov), x.t(), upper=False).t()

    return trained(data, ddp, Model, lr=0.02)


def quantile_gate(data: Data, ddp: Ddp) -> Results:
    class Model(Two):
        def between(self, x: Tensor) -> Tensor:
            return x * (x > x.detach().quantile(0.4, dim=0))

    return trained(data, ddp, Model)


def mean_of_a_branch(data: Data, ddp: Ddp) -> Results:
    """What forward does depends on a number of the whole graph."""

    class Model(Two):
        def between(self, x: Tensor) -> Tensor:
            return x.relu() if x.mean() > 0 else (x - x.mean()).relu()

    return trained(data, ddp, Model)


def mean_of_other_dimensions(data: Data, ddp: Ddp) -> Results:
    """All numbers at once, by dims and by names of a reduction."""

    class Model(Two):
        def between(self, x: Tensor) -> Tensor:
            x = (x - x.mean()) / x.std()
            x = x / x.view(x.size(0), 2, 4).abs().sum(dim=(0, 2)).repeat_interleave(4)
            return 50 * x * torch.logsumexp(x, dim=0).sigmoid()

    return trained(data, ddp, Model)
