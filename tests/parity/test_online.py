"""One pass for a softmax that only weights; any other use takes the general way, as exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from graphs import awkward_graph
from parity_cases import CASES, make, run
from ranks import run_ranks
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATv2Conv, MessagePassing, TransformerConv
from torch_geometric.utils import softmax

import pyg_sar
from pyg_sar.aggregate import blocks
from pyg_sar.comm import Exchange, GradientReturn
from pyg_sar.conv import propagation

TOLERANCE = 1e-10
INF = float('inf')


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('online') / 'random3'
    pyg_sar.partition_graph(awkward_graph(), 3, folder, method='random')
    return folder


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every destination's edges lie in several."""
    monkeypatch.setattr(blocks, 'CHUNK_BYTES', 1)
    monkeypatch.setattr(blocks, '_MIN_EDGES', 40)


class _Counts:
    """Exchanges of rows and of gradients."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.fetched = self.returned = 0
        fetch, finish = Exchange.fetch, GradientReturn.finish

        def counted_fetch(*args: Any, **kwargs: Any) -> Any:
            self.fetched += 1
            return fetch(*args, **kwargs)

        def counted_finish(*args: Any) -> None:
            self.returned += 1
            finish(*args)

        patch.setattr(Exchange, 'fetch', counted_fetch)
        patch.setattr(GradientReturn, 'finish', counted_finish)

    def take(self) -> tuple[int, int]:
        found = self.fetched, self.returned
        self.fetched = self.returned = 0
        return found


ONE_PASS = {
    **{'Transformer': 1, 'Transformer-beta': 1, 'AGNN': 1, 'RGAT': 1, 'PointTransformer': 1},
    **{'General-attention': 1, 'GEN-softmax': 1, 'SAGE-attentional': 1},
    **{'GATv2': 2, 'GAT-edge': 2},  # one for the weights, one for the messages
}


@pytest.mark.parametrize('name', ONE_PASS)
def test_one_exchange(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward fetches the rows once; backward once, and returns their gradients once."""
    counts = _Counts(monkeypatch)
    out, _ = run(name, pyg_sar.wrap(make(name)), pyg_sar.load_shard(root))
    assert counts.take() == (ONE_PASS[name], 0)
    out.sum().backward()
    assert counts.take() == (ONE_PASS[name], ONE_PASS[name])


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


def _by_number(alpha: Tensor) -> Tensor:
    return alpha * (2.0 if float(alpha.detach().sum()) > -1 else 1.0)


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
    'by a number': _by_number,
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
    module = pyg_sar.wrap(conv)
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
def test_other_uses(root: Path, use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = _Counts(monkeypatch)
    conv = Using(NOT_LINEAR[use])
    _compare(conv, pyg_sar.load_shard(root), awkward_graph())
    assert counts.take() == (4, 1)


@pytest.mark.parametrize('aggr', ['add', 'mean', ['add', 'mean']], ids=str)
@pytest.mark.parametrize('use', LINEAR)
def test_linear_uses(root: Path, use: str, aggr: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = _Counts(monkeypatch)
    _compare(Using(LINEAR[use], aggr), pyg_sar.load_shard(root), awkward_graph())
    assert counts.take() == (2, 1)


@pytest.mark.parametrize('aggr', ['max', 'mul', 'std', ['add', 'max']], ids=str)
def test_other_reductions(root: Path, aggr: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = _Counts(monkeypatch)
    _compare(Using(lambda alpha: alpha, aggr), pyg_sar.load_shard(root), awkward_graph())
    assert counts.take() == (4, 1)


def _dropped_out(root: str, name: str, general: bool) -> tuple[Tensor, ...]:
    """Output and gradients of a conv whose weights are dropped out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, 'CHUNK_BYTES', 1)
        patch.setattr(blocks, '_MIN_EDGES', 40)
        if general:
            patch.setattr(propagation, '_one_pass', lambda _: False)
        conv = make(name)
        conv.dropout = 0.4
        data = pyg_sar.load_shard(root)
        torch.manual_seed(3)
        out, inputs = run(name, pyg_sar.wrap(conv), data)
        out.backward(torch.ones_like(out))
        gradients = [torch.zeros(1) if p.grad is None else p.grad for p in conv.parameters()]
        return (out.detach(), *(t.grad for t in inputs.values()), *gradients)


@pytest.mark.parametrize('name', ['Transformer', 'GATv2', 'RGAT'])
@pytest.mark.parametrize('world_size', [1, 3])
def test_dropout(root: Path, name: str, world_size: int) -> None:
    """As in the general way, which replays the same masks."""
    args = world_size, str(root), name
    found = run_ranks(_dropped_out, *args, False)
    wanted = run_ranks(_dropped_out, *args, True)
    kept = make(name)
    kept.dropout = 0.0
    for own, other in zip(found, wanted, strict=True):
        for a, b in zip(own, other, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE)
    data = pyg_sar.load_shard(root)
    if world_size == 1:
        assert not torch.allclose(run(name, pyg_sar.wrap(kept), data)[0], found[0][0])


ATTENTIVE = {
    'Transformer': lambda: TransformerConv(8, 4, heads=2, edge_dim=4),
    'GATv2': lambda: GATv2Conv(8, 4, heads=2, edge_dim=4),
}


def _weighted(name: str, data: Data, rank: int) -> tuple[Tensor, ...]:
    """Output and gradients of a loss of it and the weights of edges into nodes below 30."""
    torch.manual_seed(0)
    conv = ATTENTIVE[name]().double()
    module: Any = conv if rank < 0 else pyg_sar.wrap(conv)
    x, edge_attr = data.x.clone().requires_grad_(), data.edge_attr.clone().requires_grad_()
    out, (edge_index, alpha) = module(x, data.edge_index, edge_attr, return_attention_weights=True)
    is_read = data.node[edge_index[1]] < 30
    loss = (out * data.node.view(-1, 1).sin()).sum()
    if bool(is_read.any()):
        loss = loss + (alpha[is_read] ** 2).sum()
    loss.backward()
    gradients = torch.cat([p.grad.flatten() for p in conv.parameters()])
    if rank >= 0 and dist.is_initialized():
        dist.all_reduce(gradients)
    return out.detach(), x.grad, gradients


def _weighted_shard(root: str, name: str) -> tuple[Tensor, ...]:
    data = pyg_sar.load_shard(root)
    rank = dist.get_rank() if dist.is_initialized() else 0
    return (data.n_id, *_weighted(name, data, rank))


@pytest.mark.parametrize('name', ATTENTIVE)
def test_gradient_of_the_weights(tmp_path: Path, name: str) -> None:
    """The weights that a conv gives per edge take a gradient, on some ranks only."""
    graph = awkward_graph()
    graph.node = torch.arange(60)
    assignment = torch.arange(60) // 20  # the third rank reads none of its weights
    pyg_sar.partition_graph(graph, 3, tmp_path / 'cut', method=assignment)
    out, grad, gradients = _weighted(name, graph, -1)
    for n_id, *found in run_ranks(_weighted_shard, 3, str(tmp_path / 'cut'), name):
        for a, b in zip(found, (out[n_id], grad[n_id], gradients), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE)


class Masked(MessagePassing):
    """A given logit for every edge, beside one from x."""

    def __init__(self, factor: float) -> None:
        super().__init__(aggr='add')
        self.factor = factor

    def forward(self, x: Tensor, edge_index: Tensor, mask: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, mask=mask)

    def message(self, x_i: Tensor, x_j: Tensor, mask: Tensor, index: Tensor) -> Tensor:
        logits = (x_i * x_j).sum(-1) * self.factor + mask
        return x_j * softmax(logits, index).view(-1, 1)


def _masked(root: str, factor: float, dtype: torch.dtype, all_of: int | None) -> Any:
    graph, data = awkward_graph(), pyg_sar.load_shard(root)
    mask = torch.zeros(graph.num_edges, dtype=dtype)
    if all_of is not None:
        mask[::3] = -INF
        mask[graph.edge_index[1] == all_of] = -INF
    conv = Masked(factor)
    plain = graph.x.to(dtype).requires_grad_()
    own = data.x.to(dtype).requires_grad_()
    expected = conv(plain, graph.edge_index, mask)
    out = pyg_sar.wrap(conv)(own, data.edge_index, mask[data.e_id])
    expected.sum().backward()
    out.sum().backward()
    return (out, expected[data.n_id]), (own.grad, plain.grad[data.n_id])


@pytest.mark.parametrize('all_of', [-1, 5])
@pytest.mark.parametrize('world_size', [1, 3])
def test_masked_edges(root: Path, all_of: int, world_size: int) -> None:
    """-inf leaves an edge out; a node whose edges all are gets what it gets from PyG."""
    for pairs in run_ranks(_masked, world_size, str(root), 1.0, torch.float64, all_of):
        for found, wanted in pairs:
            torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE, equal_nan=True)


@pytest.mark.parametrize('factor', [30.0, 1e4])
def test_large_logits(root: Path, factor: float) -> None:
    """In float32, where exp of any of them overflows."""
    exact = _masked(str(root), factor, torch.float64, None)
    rounded = _masked(str(root), factor, torch.float32, None)
    for (found, plain), (_, wanted) in zip(rounded, exact, strict=True):
        assert bool(found.isfinite().all())
        # One process is off as well; and the gradient of a logit, rounded, reaches x many times.
        error, plain_error = ((t.double() - wanted).abs().max() for t in (found, plain))
        bound = torch.finfo(torch.float32).eps * (1 + factor) * wanted.abs().max()
        assert error <= 2 * plain_error + 2 * bound


def test_in_place_on_the_result(root: Path) -> None:
    """What backward reads is not what the conv gets."""

    class Adding(Using):
        def update(self, inputs: Tensor) -> Tensor:
            inputs += 1
            return inputs.mul_(2)

    _compare(Adding(lambda alpha: alpha), pyg_sar.load_shard(root), awkward_graph())


def test_hook_of_a_later_call(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook registered after the first call makes messages that are not linear."""
    counts = _Counts(monkeypatch)
    conv = Using(lambda alpha: alpha)
    data = pyg_sar.load_shard(root)
    module = pyg_sar.wrap(conv)
    module(data.x, data.edge_index)
    assert counts.take()[0] == 1
    handle = conv.register_message_forward_hook(lambda _, __, out: F.relu(out))
    graph = awkward_graph()
    out = module(data.x, data.edge_index)
    assert counts.take()[0] == 2
    torch.testing.assert_close(
        out, conv(graph.x, graph.edge_index)[data.n_id], rtol=0, atol=TOLERANCE
    )
    handle.remove()


def test_cases_exist() -> None:
    assert set(ONE_PASS) <= set(CASES)
