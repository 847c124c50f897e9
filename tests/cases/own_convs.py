"""MessagePassing classes as users write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from conv_case import Edges
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import add_remaining_self_loops, add_self_loops, degree, scatter
from torch_geometric.utils import softmax as renamed_softmax

import pyg_sar


class Own(MessagePassing):
    """Sums x_j unless a subclass says otherwise."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{'aggr': 'add', **kwargs})

    def forward(self, x: Tensor, edge_index: Tensor, **kwargs: Any) -> Any:
        return self.propagate(edge_index, x=x, **kwargs)


class TwoSoftmaxes(Own):
    """A softmax of a softmax, the second one used non-linearly, and a learnable tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.query = torch.nn.Parameter(torch.empty(8))

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        logits = (x_j * self.query).sum(-1)
        first = renamed_softmax(logits, index, num_nodes=size_i)
        second = renamed_softmax(first * (x_i * x_j).sum(-1), index, num_nodes=size_i)
        return second.pow(2).view(-1, 1) * x_j + first.view(-1, 1)


class ThreeSoftmaxes(Own):
    """Side by side, one of them per channel."""

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor) -> Tensor:
        one = renamed_softmax(x_j, index)
        two = renamed_softmax((x_i * x_j).sum(-1), index)
        three = renamed_softmax((x_i - x_j).abs().sum(-1, keepdim=True), index)
        return one * two.view(-1, 1) + three.log() * x_j


class OwnAggregate(Own):
    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int) -> Tensor:
        largest = scatter(inputs, index, 0, dim_size, reduce='max')
        return largest - 0.5 * scatter(inputs, index, 0, dim_size, reduce='mean')


class AggregateOfTypes(Own):
    """Reads an argument of propagate in aggregate."""

    def message(self, x_j: Tensor) -> Tensor:
        return x_j.tanh()

    def aggregate(self, inputs: Tensor, index: Tensor, edge_type: Tensor, dim_size: int) -> Tensor:
        masks = [edge_type == t for t in range(3)]
        means = [scatter(inputs[m], index[m], 0, dim_size, reduce='mean') for m in masks]
        return torch.cat(means, dim=-1)


class AggregateIntoPlain(Own):
    """Sums into a plain tensor of all nodes; the message keeps a number of all edges."""

    def message(self, x_j: Tensor) -> Tensor:
        self.mean = x_j.detach().mean()
        return x_j.tanh()

    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int) -> Tensor:
        return torch.zeros(dim_size, inputs.size(1), dtype=inputs.dtype).index_add(0, index, inputs)


class AggregateWithSoftmax(Own):
    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(8, 1)

    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int) -> Tensor:
        weight = renamed_softmax(self.gate(inputs), index, num_nodes=dim_size)
        return scatter(weight * inputs, index, 0, dim_size, reduce='sum')


class OwnUpdate(Own):
    """Reads x in update, weights by an argument that is neither of nodes nor of edges."""

    def __init__(self) -> None:
        super().__init__(aggr='mean')
        self.lin = torch.nn.Linear(16, 5)
        self.scale = torch.nn.Parameter(torch.empty(8))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        return self.propagate(edge_index, x=x, scale=self.scale.exp())

    def message(self, x_j: Tensor, scale: Tensor) -> Tensor:
        return (x_j * scale).tanh()

    def update(self, inputs: Tensor, x: Tensor) -> Tensor:
        return self.lin(torch.cat([inputs, x], dim=-1))


class EdgeUpdates(Own):
    """Edge values by edge_updater, with or without a softmax, given back and used."""

    def __init__(self, *, has_softmax: bool) -> None:
        super().__init__()
        self.has_softmax = has_softmax
        self.lin = torch.nn.Linear(4, 8)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Any:  # type: ignore[override]
        values = self.edge_updater(edge_index, x=x, edge_attr=edge_attr)
        return self.propagate(edge_index, x=x, values=values), Edges(edge_index, values)

    def edge_update(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor, index: Tensor) -> Tensor:
        values = x_i * x_j + self.lin(edge_attr)
        return renamed_softmax(values, index) if self.has_softmax else values.tanh()

    def message(self, x_j: Tensor, values: Tensor) -> Tensor:
        return x_j * values


class Stacked(Own):
    """Two propagates in a forward, nodes in dimension 1."""

    def __init__(self) -> None:
        super().__init__(node_dim=1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:  # type: ignore[override]
        h = torch.stack([x, x.sin()])
        h = self.propagate(edge_index, h=h, edge_weight=edge_weight)
        return self.propagate(edge_index, h=h.tanh(), edge_weight=edge_weight).sum(0)

    def message(self, h_j: Tensor, edge_weight: Tensor) -> Tensor:
        return h_j * edge_weight.view(1, -1, 1)


class ManyPropagates(Own):
    """Of other widths, with an argument that is there only sometimes, on some of the edges."""

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_weight: Tensor, edge_type: Tensor
    ) -> Tensor:
        a = self.propagate(edge_index, x=x, edge_weight=None)
        b = self.propagate(edge_index, x=a[:, :3], edge_weight=edge_weight)
        c = self.propagate(edge_index[:, edge_type == 0], x=b.sin(), edge_weight=None)
        return torch.cat([a, b, c], dim=-1)

    def message(self, x_j: Tensor, edge_weight: Tensor | None) -> Tensor:
        return x_j if edge_weight is None else x_j * edge_weight.view(-1, 1)


class SetsEdgeValues(Own):
    """A message that keeps its attention for forward."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:  # type: ignore[override]
        out = self.propagate(edge_index, x=x)
        alpha, self.alpha = self.alpha, None
        return out, Edges(edge_index, alpha)

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor) -> Tensor:
        self.alpha = renamed_softmax((x_i * x_j).sum(-1), index)
        return x_j * self.alpha.view(-1, 1)


class SetsNumber(Own):
    """A message that leaves a number for forward."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        return self.propagate(edge_index, x=x) * self.factor

    def message(self, x_j: Tensor) -> Tensor:
        self.factor = 3.0
        return x_j.tanh()


class CountsCalls(Own):
    """A message that goes on from a number it left before; its messages are copies of x_j."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        out = self.propagate(edge_index, x=x)
        return self.calls * self.propagate(edge_index, x=out) + self.calls

    def message(self, x_j: Tensor) -> Tensor:
        self.calls += 1
        return x_j


class ReadsSources(Own):
    """Weights of edges from both ends, read in forward in all the ways there are."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        row, col = edge_index
        weight = torch.sigmoid((x[row] * x[col]).sum(-1) / 4)
        weight = weight + torch.index_select(x, 0, index=edge_index[0])[:, 1]
        weight = weight * x.t().index_select(1, edge_index[-2])[2].tanh()
        weight = weight + x.t()[:, row].cos().mean(0) + x[row, 0]
        turned = edge_index.flip(0)
        return self.propagate(edge_index, x=x, weight=weight + x[turned[1], 3])

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        return x_j * weight.view(-1, 1)


class ReducesAtSources(Own):
    """Weights of edges from what all edges out of a node have in common."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        row, col = edge_index
        num_nodes = x.size(0)
        alpha = renamed_softmax((x[row] * x[col]).cos(), row, num_nodes=num_nodes)
        largest = scatter(edge_weight, row, 0, num_nodes, reduce='max')
        total = scatter(edge_weight * x[col].t(), row, dim=-1, dim_size=num_nodes, reduce='mean')
        out_degree = degree(row, num_nodes, dtype=x.dtype)
        weight = alpha.mean(-1) / out_degree[row] + edge_weight / largest[row]
        return self.propagate(edge_index, x=x + total.t(), weight=weight)

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        return x_j * weight.view(-1, 1)


class LoopsUpToLargestId(Own):
    """Self loops for as many nodes as PyG finds in the edges; ids that no edge names have none."""

    def __init__(self, remaining: bool) -> None:
        super().__init__()
        self.remaining = remaining

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, node: Tensor) -> Tensor:
        # Edges among the first nodes, and those that every node keeps from them.
        is_low = (node[edge_index[0]] < 23) & (node[edge_index[1]] < 23)
        edge_index, edge_attr = edge_index[:, is_low], edge_attr[is_low]
        if self.remaining:
            plain, _ = add_remaining_self_loops(edge_index)
            edge_index, edge_attr = add_remaining_self_loops(edge_index, edge_attr, 2.0)
        else:
            plain, _ = add_self_loops(edge_index)
            edge_index, edge_attr = add_self_loops(edge_index, edge_attr, 'mean')
        out = self.propagate(edge_index, x=x, edge_attr=edge_attr)
        return out + self.propagate(plain, x=x, edge_attr=None)

    def message(self, x_j: Tensor, edge_attr: Tensor | None) -> Tensor:
        return x_j if edge_attr is None else x_j * edge_attr.sum(-1, keepdim=True)


class EmbeddingInMessage(Own):
    """x holds node ids."""

    def __init__(self) -> None:
        super().__init__(aggr='mean', node_dim=0)
        self.table = torch.nn.Embedding(60, 5)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return self.table(x_j) * self.table(x_i).tanh()


class EmbeddingInForward(Own):
    def __init__(self) -> None:
        super().__init__(aggr='mean')
        self.table = torch.nn.Embedding(60, 5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        return self.propagate(edge_index, x=self.table(x))


class EdgesOnly(Own):
    """Reads no node at all."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(4, 5)

    def forward(self, x: None, edge_index: Tensor, edge_attr: Tensor, size: Any = None) -> Tensor:  # type: ignore[override]
        return self.propagate(edge_index, x=x, edge_attr=edge_attr, size=size)

    def message(self, edge_attr: Tensor) -> Tensor:
        return self.lin(edge_attr).tanh()


class DestinationOnly(Own):
    def message(self, x_i: Tensor, edge_attr: Tensor) -> Tensor:
        return x_i * edge_attr.sum(-1, keepdim=True)


class CountsPositive(Own):
    """Integers of floats."""

    def message(self, x_j: Tensor) -> Tensor:
        return (x_j > 0).long()


class Widens(Own):
    """Sums of float32 in float64."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        return self.propagate(edge_index, x=x.float())

    def message(self, x_j: Tensor) -> Tensor:
        return x_j.double() * 2


class DividesByDegree(Own):
    def message(self, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return x_j / degree(index, size_i, x_j.dtype)[index].view(-1, 1)


class ReadsSourceIds(Own):
    def message(self, x_j: Tensor, edge_index: Tensor, node_j: Tensor) -> Tensor:
        return x_j * (edge_index[0] - edge_index[0] + node_j).view(-1, 1)


def _sin_of_x(conv: Any, inputs: Any) -> Any:
    edge_index, size, kwargs = inputs
    return edge_index, size, {**kwargs, 'x': kwargs['x'].sin()}


HOOKS: dict[str, Callable[..., Any]] = {
    'message_forward_pre_hook': lambda conv, args: ({**args[0], 'x_j': args[0]['x_j'] * 2},),
    'message_forward_hook': lambda conv, args, output: output.sin(),
    'aggregate_forward_pre_hook': lambda conv, args: ({**args[0]},),
    'aggregate_forward_hook': lambda conv, args, output: output * 0.5,
    'propagate_forward_pre_hook': _sin_of_x,
    'propagate_forward_hook': lambda conv, args, output: output + 1,
}
"""Those that MessagePassing has; each changes what passes it."""


class Hooked(Own):
    def __init__(self, *kinds: str) -> None:
        super().__init__()
        for kind in kinds:
            getattr(self, f'register_{kind}')(HOOKS[kind])

    def message(self, x_j: Tensor) -> Tensor:
        return x_j.tanh()


class AllNodes(Own):
    """Its forward looks at all nodes, at edges and at its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.query = torch.nn.Linear(8, 8), torch.nn.Parameter(torch.empty(8))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        x = self.lin(x) - x.mean(0)
        row, col = edge_index
        weight = (x[row] * x[col]).sum(-1)
        degree = x.new_zeros(x.size(0)).scatter_add_(0, col, torch.ones_like(weight))
        weight = weight / (1 + degree[row]) / weight.abs().max()
        attention = (x * self.query).softmax(dim=0)
        out = self.propagate(edge_index, x=x, weight=weight)
        return out + attention * (attention.t() @ out).sum() / x.size(0)

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        return x_j * weight.view(-1, 1)


class ReadsOwnRows(Own):
    """Wrong on a cut graph, on purpose: a mean over the rows of one rank."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        return self.propagate(edge_index, x=x) * pyg_sar.local(x).detach().mean()


class FailsOnOneRank(Own):
    """Raises on the rank that holds node 0, before or after the ranks have exchanged rows."""

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self.before = before

    def forward(self, x: Tensor, edge_index: Tensor, node: Tensor) -> Tensor:  # type: ignore[override]
        fails = 0 in pyg_sar.local(node).tolist() and pyg_sar.local(x).size(0) < 60
        if fails and self.before:
            raise ArithmeticError('before')
        out = self.propagate(edge_index, x=x)
        if fails:
            raise ArithmeticError('after')
        return out
