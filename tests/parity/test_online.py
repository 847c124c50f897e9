"""One pass for a softmax that only weights; any other use goes by destination, as exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, assert_alike, cut_of, itself
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


@pytest.fixture
def root() -> str:
    return cut_of(plain, 3, 'random')


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
def test_one_exchange(root: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def _step(data: Data, wrap: Wrap, conv: Any, checks: Callable[[Any], None] | None) -> list[Any]:
    """The output and every gradient; `checks` sees the wrapped conv."""
    x = data.x.clone().requires_grad_()
    conv.zero_grad()
    out = wrap(conv)(x, data.edge_index)
    nodes = data.node if wrap is itself else data.n_id
    (out * (nodes.view(-1, 1) * 7 % 5 - 2 + torch.arange(out.size(1))).sin()).sum().backward()
    if wrap is not itself and checks is not None:
        checks(conv)
    return [out.detach(), x.grad, [p.grad.clone() for p in conv.parameters()]]


def _compare(conv: MessagePassing, checks: Callable[[Any], None] | None = None) -> None:
    assert_alike(_step, conv, checks, graph=plain, cut='random', ranks=(1,), rtol=0, equal_nan=True)


def _takes(*paths: str) -> Callable[[Any], None]:
    def check(conv: Any) -> None:
        assert conv.chosen_paths() == list(paths)

    return check


@pytest.mark.parametrize('use', NOT_LINEAR)
def test_other_uses(use: str) -> None:
    path = 'one_shot' if use in ('hook', 'other gradient') else 'by destination'
    _compare(Using(NOT_LINEAR[use]), _takes(path))


@pytest.mark.parametrize('aggr', ['add', 'mean', ['add', 'mean']], ids=str)
@pytest.mark.parametrize('use', LINEAR)
def test_linear_uses(use: str, aggr: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = _Counts(monkeypatch)
    _compare(Using(LINEAR[use], aggr))
    assert counts.take() == (2, 1)


@pytest.mark.parametrize('aggr', ['max', 'mul', 'std', ['add', 'max']], ids=str)
def test_other_reductions(aggr: Any) -> None:
    _compare(Using(lambda alpha: alpha, aggr), _takes('by destination'))


def test_in_place_on_the_result() -> None:
    """What backward reads is not what the conv gets."""

    class Adding(Using):
        def update(self, inputs: Tensor) -> Tensor:
            inputs += 1
            return inputs.mul_(2)

    _compare(Adding(lambda alpha: alpha))


def test_hook_of_a_later_call(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    want = conv(graph.x, graph.edge_index)[data.n_id]
    torch.testing.assert_close(out, want, rtol=0, atol=1e-10)
    handle.remove()
