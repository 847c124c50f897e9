"""One pass for a softmax that only weights; any other use goes by destination, as exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conv_case import make
from conv_cases import CASES
from conv_graphs import plain
from exact import step
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax

import pyg_sar
from pyg_sar.comm.exchange import Exchange
from pyg_sar.ops import chunks

TOLERANCE = 1e-10
INF = float('inf')


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('online') / 'random3'
    pyg_sar.partition_graph(plain(), 3, folder, method='random')
    return folder


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every destination's edges lie in several."""
    monkeypatch.setattr(chunks, 'CHUNK_BYTES', 1)
    monkeypatch.setattr(chunks, 'MIN_EDGES', 40)


class _Counts:
    """Exchanges of rows and of gradients."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.fetched = self.returned = 0
        fetch, give_back = Exchange.all_gather_halo, Exchange.reduce_scatter_halo

        def counted_fetch(*args: Any, **kwargs: Any) -> Any:
            self.fetched += 1
            return fetch(*args, **kwargs)

        def counted_return(*args: Any) -> Any:
            self.returned += 1
            return give_back(*args)

        patch.setattr(Exchange, 'all_gather_halo', counted_fetch)
        patch.setattr(Exchange, 'reduce_scatter_halo', counted_return)

    def take(self) -> tuple[int, int]:
        found = self.fetched, self.returned
        self.fetched = self.returned = 0
        return found


ONE_PASS = {
    **dict.fromkeys(['RGATConv: additive', 'PointTransformerConv: default'], 1),
    **dict.fromkeys(['GENConv: softmax, learnable t', 'GeneralConv: additive attention'], 1),
    'SimpleConv: aggr=Attentional with net': 1,
    # For the weights, for the messages:
    **dict.fromkeys(['TransformerConv: 2 heads', 'AGNNConv: learnable beta'], 2),
    **{'GATv2Conv: 3 heads': 2, 'GATConv: edge features': 2},
}


@pytest.mark.parametrize('name', ONE_PASS)
def test_one_exchange(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward fetches the rows once; backward once, and returns their gradients once."""
    counts, taken = _Counts(monkeypatch), []
    case, data = CASES[name], pyg_sar.load_shard(root)
    step(
        case,
        pyg_sar.DistributedDataParallel(make(case)),
        data,
        'wrapped',
        lambda stage: taken.append(counts.take()),
    )
    assert taken == [(ONE_PASS[name], 0), (ONE_PASS[name], ONE_PASS[name])]


def _cubed(alpha: Tensor) -> Tensor:
    return alpha**3


class _Tripled(torch.autograd.Function):
    """The identity, with a gradient that is not its own."""

    @staticmethod
    def forward(ctx: Any, alpha: Tensor) -> Tensor:
        return alpha * 1

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 3 * grads[0]


def _with_hook(alpha: Tensor) -> Tensor:
    alpha = alpha * 1
    if alpha.requires_grad:
        alpha.register_hook(lambda grad: grad.clamp(max=0.1))
    return alpha


def _in_place(alpha: Tensor) -> Tensor:
    view = alpha * 1
    view.view(-1).add_(1e-3)
    return view


def _filled(alpha: Tensor) -> Tensor:
    out = torch.zeros_like(alpha)
    out[:] = alpha
    return out**2


NOT_LINEAR: dict[str, Callable[[Tensor], Tensor]] = {
    'cubed': _cubed,
    'shifted': lambda alpha: alpha + 1e-9,
    'clamped': lambda alpha: alpha.clamp(max=0.3),
    'tiny dropped': lambda alpha: alpha.masked_fill(alpha < 1e-9, 0),
    'detached': lambda alpha: alpha.detach(),
    'half detached': lambda alpha: 0.5 * alpha + 0.5 * alpha.detach(),
    'no grad': lambda alpha: _without_grad(alpha),
    'other gradient': lambda alpha: _Tripled.apply(alpha),
    'hook': _with_hook,
    'heads turned': lambda alpha: alpha.flip(1),
    'heads transposed': lambda alpha: alpha.unsqueeze(-1).transpose(1, 2).expand(-1, 2, 2).sum(2),
    'mean of heads': lambda alpha: alpha.mean(1, keepdim=True).expand(-1, 2),
    'product of heads': lambda alpha: alpha * alpha[:, :1],
    'inverse': lambda alpha: 1 / (1 + alpha),
    'in place': _in_place,
    'filled in': _filled,
}


def _without_grad(alpha: Tensor) -> Tensor:
    with torch.no_grad():
        return alpha * 2


LINEAR: dict[str, Callable[[Tensor], Tensor]] = {
    'itself': lambda alpha: alpha,
    'negated': lambda alpha: -alpha / 3,
    'sum': lambda alpha: alpha + 2 * alpha,
    'difference of views': lambda alpha: alpha.view(-1) - 2 * alpha.flatten(),
    'there and back': lambda alpha: alpha.unsqueeze(-1).transpose(1, 2).squeeze(1),
    'in place': lambda alpha: (alpha * 1).mul_(2),
}


class Using(MessagePassing):
    """Two heads of four channels, weighted by a function of the softmax."""

    def __init__(self, use: Callable[[Tensor], Tensor], aggr: Any = 'add') -> None:
        super().__init__(aggr=aggr, node_dim=0)
        self.use = use
        self.lin = torch.nn.Linear(8, 8).double()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, h=self.lin(x))

    def message(self, x_i: Tensor, h_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        h_j = h_j.view(-1, 2, 4)
        logits = (x_i.view(-1, 2, 4) * h_j).sum(-1)
        alpha = self.use(softmax(logits, index, num_nodes=size_i))
        return (h_j * alpha.view(-1, 2, 1)).view(-1, 8)


def _compare(conv: MessagePassing, data: Data, graph: Data, tolerance: float = TOLERANCE) -> None:
    """One process, output and every gradient."""
    module = pyg_sar.DistributedDataParallel(conv)
    plain, own = graph.x.clone().requires_grad_(), data.x.clone().requires_grad_()
    conv.zero_grad()
    expected = conv(plain, graph.edge_index)
    grad = torch.randn_like(expected)
    expected.backward(grad)
    gradients = [p.grad.clone() for p in conv.parameters()]
    conv.zero_grad()
    out = module(own, data.edge_index)
    out.backward(grad[data.n_id])
    pairs = [(out, expected[data.n_id]), (own.grad, plain.grad[data.n_id])]
    pairs += [(p.grad, g) for p, g in zip(conv.parameters(), gradients, strict=True)]
    for found, wanted in pairs:
        torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize('use', NOT_LINEAR)
def test_other_uses(root: Path, use: str) -> None:
    conv = Using(NOT_LINEAR[use])
    _compare(conv, pyg_sar.load_shard(root), plain())
    assert conv.chosen_paths() == [
        'one_shot' if use in ('hook', 'other gradient') else 'by destination'
    ]


@pytest.mark.parametrize('aggr', ['add', 'mean', ['add', 'mean']], ids=str)
@pytest.mark.parametrize('use', LINEAR)
def test_linear_uses(root: Path, use: str, aggr: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = _Counts(monkeypatch)
    _compare(Using(LINEAR[use], aggr), pyg_sar.load_shard(root), plain())
    assert counts.take() == (2, 1)


@pytest.mark.parametrize('aggr', ['max', 'mul', 'std', ['add', 'max']], ids=str)
def test_other_reductions(root: Path, aggr: Any) -> None:
    conv = Using(lambda alpha: alpha, aggr)
    _compare(conv, pyg_sar.load_shard(root), plain())
    assert conv.chosen_paths() == ['by destination']


def test_in_place_on_the_result(root: Path) -> None:
    """What backward reads is not what the conv gets."""

    class Adding(Using):
        def update(self, inputs: Tensor) -> Tensor:
            inputs += 1
            return inputs.mul_(2)

    _compare(Adding(lambda alpha: alpha), pyg_sar.load_shard(root), plain())


def test_hook_of_a_later_call(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook registered after the first call makes messages that are not linear."""
    counts = _Counts(monkeypatch)
    conv = Using(lambda alpha: alpha)
    data = pyg_sar.load_shard(root)
    module = pyg_sar.DistributedDataParallel(conv)
    module(data.x, data.edge_index)
    assert counts.take()[0] == 1
    handle = conv.register_message_forward_hook(lambda _, __, out: F.relu(out))
    graph = plain()
    out = module(data.x, data.edge_index)
    assert counts.take()[0] == 0  # it sees all edges at once
    torch.testing.assert_close(
        out, conv(graph.x, graph.edge_index)[data.n_id], rtol=0, atol=TOLERANCE
    )
    handle.remove()
