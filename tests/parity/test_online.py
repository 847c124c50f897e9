"""One pass for a softmax that only weights; any other use goes by destination, as exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, assert_alike, cut_of, itself, take_step
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


@pytest.fixture
def exchanges() -> Iterator[Callable[[], tuple[int, int]]]:
    """Gives the numbers of exchanges of rows and of gradients since it was called last."""
    names, counts = ('all_gather_halo', 'reduce_scatter_halo'), Counter[str]()

    def counted(name: str, exchange: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return exchange(*args, **kwargs)

        return call

    def taken() -> tuple[int, int]:
        fetched, returned = (counts.pop(name, 0) for name in names)
        return fetched, returned

    made = {name: counted(name, getattr(Exchange, name)) for name in names}
    with mock.patch.multiple(Exchange, **made):
        yield taken


ONE_PASS = {
    **dict.fromkeys(['RGATConv: additive', 'PointTransformerConv: default'], 1),
    **dict.fromkeys(['GENConv: softmax, learnable t', 'GeneralConv: additive attention'], 1),
    'SimpleConv: aggr=Attentional with net': 1,
    # For the weights, for the messages:
    **dict.fromkeys(['TransformerConv: 2 heads', 'AGNNConv: learnable beta'], 2),
    **{'GATv2Conv: 3 heads': 2, 'GATConv: edge features': 2},
}


@pytest.mark.parametrize('name', ONE_PASS)
def test_one_exchange(root: str, name: str, exchanges: Any) -> None:
    """Forward fetches the rows once; backward once, and returns their gradients once."""
    case, data, taken = CASES[name], pyg_sar.load_shard(root), []
    model = pyg_sar.DistributedDataParallel(make(case))
    step(case, model, data, lambda stage: taken.append(exchanges()))
    assert taken == [(ONE_PASS[name], 0), (ONE_PASS[name], ONE_PASS[name])]


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


def _without_grad(alpha: Tensor) -> Tensor:
    with torch.no_grad():
        return alpha * 2


NOT_LINEAR: dict[str, Callable[[Tensor], Tensor]] = {
    'cubed': lambda alpha: alpha**3,
    'shifted': lambda alpha: alpha + 1e-9,
    'clamped': lambda alpha: alpha.clamp(max=0.3),
    'tiny dropped': lambda alpha: alpha.masked_fill(alpha < 1e-9, 0),
    'detached': lambda alpha: alpha.detach(),
    'half detached': lambda alpha: 0.5 * alpha + 0.5 * alpha.detach(),
    'no grad': _without_grad,
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
    found = take_step(wrap(conv), data)
    if wrap is not itself and checks is not None:
        checks(conv)
    return found


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
def test_linear_uses(use: str, aggr: Any, exchanges: Any) -> None:
    _compare(Using(LINEAR[use], aggr))
    assert exchanges() == (2, 1)


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


def test_hook_of_a_later_call(root: str, exchanges: Any) -> None:
    """A hook registered after the first call makes messages that are not linear."""
    conv = Using(lambda alpha: alpha)
    data = pyg_sar.load_shard(root)
    module = pyg_sar.DistributedDataParallel(conv)
    module(data.x, data.edge_index)
    assert exchanges()[0] == 1
    handle = conv.register_message_forward_hook(lambda _, __, out: F.relu(out))
    graph = plain()
    out = module(data.x, data.edge_index)
    assert exchanges()[0] == 0  # it sees all edges at once
    want = conv(graph.x, graph.edge_index)[data.n_id]
    torch.testing.assert_close(out, want, rtol=0, atol=1e-10)
    handle.remove()
