"""Tensors of edges in another dimension than the first, in containers, or on the conv."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alike import Wrap, assert_alike
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

N, WIDTH = 30, 4
CUTS = {'equal': [i // 10 for i in range(N)], 'unequal': [min(i % 7, 2) for i in range(N)]}


class Batched(MessagePassing):
    """Weights ``[B, E]`` beside features ``[B, N, F]``, as in ASTGCN."""

    def forward(self, x: Any, edge_index: Any, weight: Any) -> Any:
        return self.propagate(edge_index, x=torch.stack([x, 2 * x]), weight=weight)

    def message(self, x_j: Any, weight: Any) -> Any:
        return weight.unsqueeze(-1) * x_j


class Reduced(MessagePassing):
    """A number of all edges from ``[B, E]``: where parts have as many edges, no size tells."""

    def forward(self, x: Any, edge_index: Any, weight: Any) -> Any:
        return self.propagate(edge_index, x=x, weight=weight)

    def message(self, x_j: Any, weight: Any) -> Any:
        return weight.mean() * x_j


class Kept(MessagePassing):
    """Weights that ``forward`` puts on the conv."""

    def forward(self, x: Any, edge_index: Any, weight: Any) -> Any:
        self.kept = weight[0].view(-1, 1)
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Any) -> Any:
        return self.kept * x_j


class Held(MessagePassing):
    """Weights in a tuple, a list, a dict or a function."""

    def __init__(self, hold: Callable[[Any], Any], take: Callable[[Any], Any]) -> None:
        super().__init__()
        self.hold, self.take = hold, take

    def forward(self, x: Any, edge_index: Any, weight: Any) -> Any:
        return self.propagate(edge_index, x=x, held=self.hold(weight[0]))

    def message(self, x_j: Any, held: Any) -> Any:
        weight = self.take(held)
        return (weight.mean() + weight.view(-1, 1)) * x_j


class Mean(Held):
    """Of these the mean alone, which fits any number of edges."""

    def message(self, x_j: Any, held: Any) -> Any:
        return self.take(held).mean() * x_j


HOLDERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    'tuple': (lambda w: (w, None), lambda held: held[0]),
    'list': (lambda w: [2.0, [w]], lambda held: held[1][0]),
    'dict': (lambda w: {'w': w}, lambda held: held['w']),
    'function': (lambda w: lambda: w, lambda held: held()),
}
KINDS: dict[str, Callable[[], MessagePassing]] = {
    **{kind.__name__: kind for kind in (Batched, Reduced, Kept)},
    **{f'Held, {name}': functools.partial(Held, *each) for name, each in HOLDERS.items()},
    **{f'Mean, {name}': functools.partial(Mean, *each) for name, each in HOLDERS.items()},
}


def _graph() -> Data:
    """Every node has four edges into it, so parts of as many nodes have as many edges."""
    draw = torch.Generator().manual_seed(0)
    src = torch.randint(N, (4 * N,), generator=draw)
    return Data(
        x=torch.randn(N, WIDTH, dtype=torch.float64, generator=draw),
        edge_index=torch.stack([src, torch.arange(N).repeat_interleave(4)]),
        edge_weight=torch.rand(4 * N, dtype=torch.float64, generator=draw),
    )


def _step(data: Data, wrap: Wrap, kind: str) -> list[Any]:
    x, weight = (t.clone().requires_grad_() for t in (data.x, data.edge_weight))
    found = []
    conv = wrap(KINDS[kind]())
    for factor in (1, 2):
        out = conv(x, data.edge_index, torch.stack([weight, factor * weight]))
        out.square().sum().backward()
        found += [out.detach(), x.grad.clone(), weight.grad.clone()]
    return found


@pytest.mark.parametrize('cut', [CUTS['equal'], CUTS['unequal']], ids=CUTS)
@pytest.mark.parametrize('kind', KINDS)
def test_as_plain_pyg(kind: str, cut: list[int]) -> None:
    assert_alike(_step, kind, graph=_graph, cut=cut, ranks=(1, 3), tolerance=1e-12)
