"""Messages that change what they get in place, and convs with an aggregation of their own alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alike import Wrap, as_one_process, gradient, parallel, take_step
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import scatter, softmax

WIDTH = 4


def _scaled(m: dict[str, Any]) -> Any:
    out = m['v_j']
    out *= (m['q_i'] * m['q_j']).sum(-1, keepdim=True).sigmoid()
    return out


def _attended(m: dict[str, Any]) -> Any:
    alpha = softmax((m['q_i'] * m['q_j']).sum(-1), m['index'], m['ptr'], m['size_i'])
    out = m['v_j']
    out *= alpha.view(-1, 1)
    return out


def _added(m: dict[str, Any]) -> Any:
    m['v_j'] += m['e']
    return m['v_j'].relu_()


def _masked(m: dict[str, Any]) -> Any:
    m['v_j'][m['v_j'] > 0.5] = 0
    return m['v_j']


def _of_edges(m: dict[str, Any]) -> Any:
    m['n'] += m['v_j'].detach()
    return m['n'].clone() * m['v_j']


MESSAGES: dict[str, tuple[Callable[[dict[str, Any]], Any], Any]] = {
    'scaled': (_scaled, 'sum'),
    'attended': (_attended, 'sum'),
    'added': (_added, 'mean'),
    'masked': (_masked, 'max'),
    'both ends': (lambda m: m['q_i'].mul_(2).add_(m['v_j']) - m['q_j'], 'sum'),
    'twice the same': (lambda m: m['v_j'].mul_(3) + m['w_j'], 'sum'),
    'of edges': (_of_edges, 'sum'),
    'median': (lambda m: m['v_j'].mul_(2), 'median'),
}


class InPlace(MessagePassing):
    """A message that is given by name."""

    def __init__(self, name: str) -> None:
        self.of_edge, aggr = MESSAGES[name]
        super().__init__(aggr=aggr, node_dim=0)
        self.v, self.q = torch.nn.Linear(6, WIDTH), torch.nn.Linear(6, WIDTH)

    def forward(self, x: Any, edge_index: Any, e: Any, n: Any) -> Any:
        v = self.v(x)
        return self.propagate(edge_index, v=v, w=v, q=self.q(x), e=e, n=n)

    def message(self, v_j, w_j, q_i, q_j, e, n, index, ptr, size_i):
        given = {k: v for k, v in locals().items() if k not in ('self', '__class__')}
        return self.of_edge(given)


class OwnAggregation(MessagePassing):
    """No aggregation of PyG's: ``aggr=None``, as GENConv's of many programs."""

    def __init__(self, kind: str) -> None:
        super().__init__(aggr=None)
        self.kind = kind
        self.v = torch.nn.Linear(6, WIDTH)
        self.t = torch.nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Any, edge_index: Any, e: Any, n: Any) -> Any:
        return self.propagate(edge_index, v=self.v(x), e=e)

    def message(self, v_j: Any, e: Any) -> Any:
        return (v_j + e).relu() + 1e-7

    def aggregate(self, inputs: Any, index: Any, ptr: Any = None, dim_size: Any = None) -> Any:
        dim = self.node_dim
        if self.kind == 'softmax':
            out = softmax(inputs * self.t, index, num_nodes=dim_size, dim=dim) * inputs
            return scatter(out, index, dim, dim_size=dim_size, reduce='sum')
        if self.kind == 'power':
            out = scatter(inputs.clamp(1e-7, 10).pow(2), index, dim, dim_size, 'mean')
            return out.clamp(1e-7, 10).pow(0.5) * self.t
        if self.kind == 'both':
            large = scatter(inputs, index, dim, dim_size, 'max')
            return large + scatter(inputs, index, dim, dim_size, 'sum') * self.t
        zeros = inputs.new_zeros(dim_size, inputs.size(1))
        return zeros.index_add_(0, index, inputs * self.t)


KINDS = ['softmax', 'power', 'both', 'by hand']
CONVS: list[Callable[[], MessagePassing]] = [
    *(functools.partial(InPlace, name) for name in MESSAGES),
    *(functools.partial(OwnAggregation, kind) for kind in KINDS),
]


def _of_conv(data: Any, conv: Any) -> dict[str, Any]:
    """Three outputs, the last without gradients; what was given; gradients."""
    x, e = (each.detach().clone().requires_grad_() for each in (data.x, data.edge_attr))
    n = e.detach() * 2
    outs = [conv(x, data.edge_index, e, n) for _ in range(2)]
    sum(out.square().mean() for out in outs).backward()
    with torch.no_grad():
        outs.append(conv(x, data.edge_index, e, n))
    grads = [gradient(each) for each in (x, e, *conv.parameters())]
    return {'outs': [out.detach() for out in outs], 'n': n, 'grads': grads}


@pytest.mark.parametrize('mode', ['sequential', 'one_shot', 'sequential_no_remat'])
@as_one_process(ranks=(1, 3), tolerance=1e-11, rtol=0)
def test_all_convs(data: Any, wrap: Wrap, mode: Any) -> list[dict[str, Any]]:
    return [_of_conv(data, parallel(make().double(), wrap, mode=mode)) for make in CONVS]


class ChangesWhole(InPlace):
    """A table that all edges read, changed in place."""

    def forward(self, x: Any, edge_index: Any, e: Any, n: Any) -> Any:
        return self.propagate(edge_index, v=self.v(x), table=torch.ones(WIDTH, dtype=x.dtype))

    def message(self, v_j: Any, table: Any) -> Any:  # type: ignore[override]
        table += 1
        return v_j * table


@as_one_process(ranks=(1, 3), tolerance=1e-11, rtol=0)
def test_what_all_edges_read_changes_once(data: Any, wrap: Wrap) -> list[Any]:
    return take_step(wrap(ChangesWhole('scaled').double()), data, None, None)
