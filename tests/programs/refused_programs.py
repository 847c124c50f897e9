"""What is refused, by an error that says why: pairs of all nodes, NumPy, second derivatives."""

from __future__ import annotations

import step_programs
import torch
import torch.nn.functional as F
import transformer_programs
from shared import Ddp, Net, Results, named, programs
from three_steps import descend, model_of, supervised, trained
from torch import Tensor
from torch.func import functional_call
from torch.nn import Linear
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import to_torch_csr_tensor


def all_pairs(z: Tensor, data: Data) -> Tensor:
    """The adjacency against z z^T, dense, as small graphs allow."""
    adj = torch.zeros(data.num_nodes, data.num_nodes).double()
    adj[data.edge_index[0], data.edge_index[1]] = 1
    return F.binary_cross_entropy_with_logits(z @ z.t(), adj)


def info_nce_by_cross_entropy(z: Tensor, data: Data) -> Tensor:
    a, b = F.normalize(z), F.normalize(z.flip(1))
    return F.cross_entropy(a @ b.t() / 0.2, torch.arange(a.size(0)))


def auc_by_pairs(z: Tensor, data: Data) -> Tensor:
    """The share of pairs of a positive and a negative that are in order."""
    score, target = z[:, 0], data.y == 0
    above = score[target].view(-1, 1) > score[~target].view(1, -1)
    return z.mean() + above.double().mean()


def numpy_metrics(z: Tensor, data: Data) -> Tensor:
    return z.mean() + float(z.detach().cpu().numpy().mean())


def principal_components(z: Tensor, data: Data) -> Tensor:
    x = data.x - data.x.mean(0)
    vectors = torch.linalg.svd(x, full_matrices=False).Vh[:3]
    return F.mse_loss(z, (x @ vectors.t()).abs())


def csr_matrix(z: Tensor, data: Data) -> Tensor:
    adj = to_torch_csr_tensor(data.edge_index.flip(0), size=(data.num_nodes, data.num_nodes))
    return (adj.double() @ z).pow(2).mean()


PROGRAMS = transformer_programs.REFUSED | step_programs.REFUSED
PROGRAMS |= programs(
    lambda data, ddp, loss: trained(data, ddp, loss=lambda out: loss(out, data)),
    named(
        *(all_pairs, info_nce_by_cross_entropy, auc_by_pairs),
        *(numpy_metrics, principal_components, csr_matrix),
    ),
)


def gradient_penalty_of_a_gnn(data: Data, ddp: Ddp) -> Results:
    model = model_of(ddp, Net)

    def loss_of() -> Tensor:
        x = data.x.detach().clone().requires_grad_(True)
        loss = supervised(model(x, data.edge_index), data)
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + 10 * grad.pow(2).sum()

    return {'losses': descend(loss_of, model)}


def least_over_edges_turned_round(data: Data, ddp: Ddp) -> Results:
    """A message that looks at all edges, which run the other way."""

    class LeastConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add', flow='target_to_source')
            self.lin = Linear(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=self.lin(x))

        def message(self, x_j: Tensor) -> Tensor:
            return x_j - x_j.min()

    return trained(data, ddp, LeastConv)


def fast_weights(data: Data, ddp: Ddp) -> Results:
    """An inner step by autograd.grad, and the outer one through it."""
    model = model_of(ddp, lambda: Linear(6, 3))
    named = dict(model.named_parameters())
    inner = supervised(functional_call(model, named, (data.x,)), data)
    grads = torch.autograd.grad(inner, list(named.values()), create_graph=True)
    fast = {name: w - 0.1 * g for (name, w), g in zip(named.items(), grads, strict=True)}
    F.cross_entropy(functional_call(model, fast, (data.x,)), data.y).backward()
    return {'grads': [p.grad for p in model.parameters()]}
