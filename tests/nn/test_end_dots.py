"""Dots of queries and keys, apart from the message that reads them: exact, and only where alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from alike import Wrap, as_one_process, gradient, take_step
from torch import Tensor
from torch.nn import Linear
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.utils import softmax

Message = Callable[[Any, dict[str, Any]], Tensor]


def _softmax(m: dict[str, Any], scores: Tensor) -> Tensor:
    return softmax(scores, m['index'], m['ptr'], m['size_i'])


def _attended(conv: Any, m: dict[str, Any]) -> Tensor:
    alpha = _softmax(m, (m['q_i'] * m['k_j']).sum(-1) / 2)
    conv.alpha = alpha
    return m['v_j'] * alpha.unsqueeze(-1)


def _gated(conv: Any, m: dict[str, Any]) -> Tensor:
    dots = torch.mul(m['k_j'], m['q_i']).sum(dim=-1, keepdim=True)
    return m['v_j'] * torch.sigmoid(conv.scale * dots)


def _of_one_tensor(conv: Any, m: dict[str, Any]) -> Tensor:
    return m['v_j'] * _softmax(m, torch.sum(m['v_i'] * m['v_j'], -1)).unsqueeze(-1)


def _twice(conv: Any, m: dict[str, Any]) -> Tensor:
    """Two sums of the same ends, and a message that is replayed."""
    first, second = (m['q_i'] * m['k_j']).sum(-1), (m['k_j'] * m['q_i']).sum(-1)
    return (m['v_j'] * first.unsqueeze(-1)).tanh() + second.unsqueeze(-1)


def _changed_in_place(conv: Any, m: dict[str, Any]) -> Tensor:
    first, second = (m['q_i'] * m['k_j']).sum(-1, keepdim=True), (m['q_i'] * m['k_j']).sum(-1)
    first *= conv.scale.detach()
    return (m['v_j'] * first).tanh() * second.unsqueeze(-1)


APART: dict[str, Message] = {
    'changed in place': _changed_in_place,
    'softmax': _attended,
    'gate': _gated,
    'one tensor': _of_one_tensor,
    'twice': _twice,
}


def _read_otherwise(conv: Any, m: dict[str, Any]) -> Tensor:
    return m['v_j'] * (m['q_i'] * m['k_j']).sum(-1, keepdim=True) + m['k_j']


def _kept(conv: Any, m: dict[str, Any]) -> Tensor:
    conv.products = m['q_i'] * m['k_j']
    return m['v_j'] * conv.products.sum(-1, keepdim=True)


def _of_two_pairs(conv: Any, m: dict[str, Any]) -> Tensor:
    scores = (m['q_i'] * m['k_j']).sum(-1) + (m['q_i'] * m['v_j']).sum(-1)
    return m['v_j'] * scores.sigmoid().unsqueeze(-1)


def _changed(conv: Any, m: dict[str, Any]) -> Tensor:
    m['k_j'] *= 2
    return m['v_j'] * (m['q_i'] * m['k_j']).sum(-1, keepdim=True)


def _without_gradient(conv: Any, m: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        scores = (m['q_i'] * m['k_j']).sum(-1, keepdim=True)
    return m['v_j'] * scores


def _products(conv: Any, m: dict[str, Any]) -> Tensor:
    return m['q_i'] * m['k_j'] + 0 * m['v_j']


def _squares(conv: Any, m: dict[str, Any]) -> Tensor:
    products = m['q_i'] * m['k_j']
    return m['v_j'] * (products.sum(-1, keepdim=True) + products.square().sum(-1, keepdim=True))


_OTHERS = [_read_otherwise, _kept, _of_two_pairs, _changed, _without_gradient, _products, _squares]
TOGETHER: dict[str, Message] = {f.__name__[1:]: f for f in _OTHERS}


class Scores(pyg.MessagePassing):
    """A conv whose message is given."""

    def __init__(self, message: Message, *shape: int) -> None:
        super().__init__(aggr='sum', node_dim=0)
        width = shape[0] * shape[-1] if len(shape) > 1 else shape[0]
        self.of, self.shape = message, shape
        self.q, self.k, self.v = (Linear(6, width) for _ in range(3))
        self.scale = torch.nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        rows = {n: getattr(self, n)(x).view(x.size(0), *self.shape) for n in ('q', 'k', 'v')}
        return self.propagate(edge_index, **rows)

    def message(
        self, q_i: Tensor, k_j: Tensor, v_i: Tensor, v_j: Tensor, index: Any, ptr: Any, size_i: Any
    ) -> Tensor:
        given = {'q_i': q_i, 'k_j': k_j, 'v_i': v_i, 'v_j': v_j}
        return self.of(self, {**given, 'index': index, 'ptr': ptr, 'size_i': size_i})


def _step(conv: Any, data: Data, is_apart: bool) -> list[Any]:
    found = take_step(conv, data, loss=lambda out: out.sin().sum(), grad=gradient)
    plans = conv._sar.plans.values() if hasattr(conv, '_sar') else ()
    assert all((plan.ends is not None) == is_apart for plan in plans)
    return found


CASES = [
    *product(APART, [(4,), (2, 5)], [True]),
    *product(TOGETHER, [(4,)], [False]),
    ('gate', (2,), False),  # few channels
]


@pytest.mark.parametrize(('name', 'shape', 'is_apart'), CASES)
@as_one_process(ranks=(1, 3))
def test_dots(
    data: Data, wrap: Wrap, name: str, shape: tuple[int, ...], is_apart: bool
) -> list[Any]:
    """Apart, or with the message where it reads the rows otherwise, or where they are short."""
    conv = wrap(Scores({**APART, **TOGETHER}[name], *shape).double())
    return [_step(conv, data, is_apart) for _ in range(2)]


CONVS: dict[str, Callable[[], pyg.MessagePassing]] = {
    'Transformer': lambda: pyg.TransformerConv(6, 4, heads=2),
    'AGNN': lambda: pyg.AGNNConv(),
    'SuperGAT': lambda: pyg.SuperGATConv(6, 4, 2, attention_type='SD'),
}


@pytest.mark.parametrize('name', CONVS)
@as_one_process(ranks=(1, 3))
def test_convs_of_pyg(data: Data, wrap: Wrap, name: str) -> Any:
    return _step(wrap(CONVS[name]().double().eval()), data, True)
