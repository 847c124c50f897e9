"""Where a narrower linear layer follows a sum, its columns travel; results stay the same."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from few import few
from on_ranks import on_ranks, parts_of
from ranks import run_ranks
from small_graphs import assert_close, small_graph
from torch import Tensor
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.nn import ClusterGCNConv, GraphConv, SAGEConv
from traffic import counted

import pyg_sar
from pyg_sar.nn.wrap import wrap
from pyg_sar.rows.rows import Rows

IN, OUT = 12, 3
ROUNDS = 2
LAYOUTS = [
    (3, 'uneven', 'sequential'),
    (1, 'uneven', 'sequential'),
    (3, 'empty part', 'sequential'),
    (3, 'uneven', 'one_shot'),
]


class OwnForward(SAGEConv):
    """Uses the sum twice."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = self.propagate(edge_index, x=(x, x))
        return self.lin_l(out) + out[:, :OUT]


class OwnUpdate(SAGEConv):
    """Sees the sum before the layer does."""

    def update(self, inputs: Tensor) -> Tensor:
        return inputs.relu()


class OwnAggregate(SAGEConv):
    """No sum alone."""

    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int) -> Tensor:
        return super().aggregate(inputs, index, dim_size=dim_size).relu()


class OwnMessage(SAGEConv):
    """Not just the row of the source."""

    def message(self, x_j: Tensor) -> Tensor:
        return 2 * x_j


class Doubles(torch.nn.Linear):
    """A layer that is more than linear."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values).square()


def _double(*args: Any) -> Tensor:
    return args[-1] * 2


def _hooked(register: str, *, of_layer: bool = False) -> SAGEConv:
    conv = SAGEConv(IN, OUT)
    getattr(conv.lin_l if of_layer else conv, register)(_double)
    return conv


def _with_layer(make: Callable[[torch.nn.Module], torch.nn.Module]) -> SAGEConv:
    conv = SAGEConv(IN, OUT)
    conv.lin_l = make(conv.lin_l)
    return conv


WIDE, NARROW = (IN, IN), (OUT, OUT)
# What travels in forward and backward, in columns; None where other things do too.
CONVS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, int] | None]] = {
    'SAGE': (lambda: SAGEConv(IN, OUT), NARROW),
    'SAGE-sum': (lambda: SAGEConv(IN, OUT, aggr='sum', normalize=True), NARROW),
    'SAGE-project': (lambda: SAGEConv(IN, OUT, project=True, root_weight=False), NARROW),
    'SAGE-lazy': (lambda: SAGEConv(-1, OUT), NARROW),
    'SAGE-both': (lambda: SAGEConv(IN, OUT, aggr=['mean', 'sum']), WIDE),
    'SAGE-wider': (lambda: SAGEConv(IN, 20), WIDE),
    'SAGE-reversed': (lambda: SAGEConv(IN, OUT, flow='target_to_source'), None),
    'GraphConv': (lambda: GraphConv(IN, OUT), NARROW),
    'GraphConv-mean': (lambda: GraphConv(IN, OUT, aggr='mean', bias=False), NARROW),
    'ClusterGCN': (lambda: ClusterGCNConv(IN, OUT), None),
    'own forward': (lambda: OwnForward(IN, OUT), WIDE),
    'own update': (lambda: OwnUpdate(IN, OUT), WIDE),
    'own aggregate': (lambda: OwnAggregate(IN, OUT), WIDE),
    'own message': (lambda: OwnMessage(IN, OUT), None),
    'own layer': (lambda: _with_layer(lambda _: Doubles(IN, OUT)), WIDE),
    'spectral norm': (lambda: _with_layer(spectral_norm), WIDE),
    'propagate hook': (lambda: _hooked('register_propagate_forward_hook'), WIDE),
    'aggregate hook': (lambda: _hooked('register_aggregate_forward_hook'), WIDE),
    'layer hook': (lambda: _hooked('register_forward_hook', of_layer=True), WIDE),
    'conv hook': (lambda: _hooked('register_forward_hook'), NARROW),
}
WEIGHTED = ('GraphConv', 'GraphConv-mean')


def _rows(mode: str) -> dict[str, bool]:
    """The option that has every halo row travel, so that columns can be counted."""
    return {} if mode == 'one_shot' else {'partial_sums': False}


def _run(name: str, data: Data, mode: Any) -> tuple[Any, ...]:
    """Outputs and columns that travelled of some forwards; after them, all gradients."""
    torch.manual_seed(3)
    conv = inner = CONVS[name][0]().double()
    conv.eval()  # spectral norm iterates in training
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(40, IN, generator=generator, dtype=torch.float64)
    is_cut = hasattr(data.edge_index, 'handle')
    n_id = data.n_id if is_cut else torch.arange(40)
    if is_cut:
        conv = wrap(conv, mode=mode, **_rows(mode))
    x = x[n_id].requires_grad_()
    weight = [data.edge_weight] if name in WEIGHTED else []
    outs, columns = [], []
    for _ in range(ROUNDS):
        with counted() as forward:
            found = conv(x.sin(), data.edge_index, *weight)
        assert type(found) in (Tensor, Rows)
        outs.append(found.detach())
        weight_of_loss = torch.randn(40, found.size(1), generator=generator).double()
        with counted() as backward:
            (found * weight_of_loss[n_id]).sum().backward()
        shard = data.edge_index.handle.shard if is_cut else None
        if dist.is_initialized() and shard is not None and shard.num_halo:
            sends = sum(step.send_index.numel() for step in shard.steps)
            columns.append(
                (forward.bytes_sent / 8 / sends, backward.bytes_sent / 8 / shard.num_halo)
            )
    shares = [torch.zeros_like(p) if p.grad is None else p.grad for p in inner.parameters()]
    return *pyg_sar.local((n_id, outs, x.grad)), shares, columns


def _run_all(root: str, mode: Any) -> dict[str, Any]:
    found, data = {}, pyg_sar.load_shard(root)
    for name in CONVS:
        try:
            found[name] = _run(name, data, mode)
        except Exception as error:
            raise AssertionError(name) from error
    return found


@functools.cache
def _expected(name: str) -> tuple[Any, ...]:
    return _run(name, small_graph(), None)


@pytest.mark.parametrize(('world_size', 'kind', 'mode'), few(LAYOUTS))
def test_results_and_columns(world_size: int, kind: str, mode: str) -> None:
    ranks = run_ranks(_run_all, world_size, str(parts_of(world_size, kind)), mode)
    for name, (_, expected) in CONVS.items():
        _, outs, grad_x, gradients, _ = _expected(name)
        for found in ranks:
            n_id, own_outs, own_grad_x, own_gradients, columns = found[name]
            for own, want in zip(own_outs, outs, strict=True):
                assert_close(own, want[n_id], tolerance=1e-10)
            assert_close(own_grad_x, grad_x[n_id], tolerance=1e-10)
            for a, b in zip(own_gradients, gradients, strict=True):
                assert_close(a, b, tolerance=1e-10)
            if expected is not None and world_size > 1 and kind == 'uneven':
                assert columns == [expected] * ROUNDS, name


def _steps(conv: torch.nn.Module, x: Tensor, data: Data, num_steps: int, call: Any) -> list[Tensor]:
    """Outputs of some training steps, then the gradients of all of them together."""
    outs = [call(conv, x * 2, data.edge_index) for _ in range(num_steps)]
    sum(out.square().sum() for out in outs).backward()
    shares = [p.grad.clone() for p in conv.parameters()]
    return [*(o.detach() for o in outs), x.grad.clone(), *shares]


def _called(conv: torch.nn.Module, *args: Any) -> Tensor:
    return conv(*args)


def _checkpointed(conv: torch.nn.Module, *args: Any) -> Tensor:
    return checkpoint(conv, *args, use_reentrant=False)


def _changed_afterwards(conv: torch.nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
    out = conv(x, edge_index)
    x.mul_(3)
    return out


def _hooked_on_rank_1(conv: torch.nn.Module, *args: Any) -> Tensor:
    """A hook that looks at what goes into the layer; on other ranks there is none."""
    seen: list[Tensor] = []
    if dist.get_rank() == 1:
        handle = conv.lin_l.register_forward_pre_hook(
            lambda _, given: seen.append(pyg_sar.local(given[0]).sum())
        )
    out = conv(*args)
    if dist.get_rank() == 1:
        handle.remove()
        assert len(seen) == 1
    return out


def _all_hooked_on_rank_1(conv: torch.nn.Module, *args: Any) -> Tensor:
    seen: list[type] = []
    if dist.get_rank() == 1:
        register = torch.nn.modules.module.register_module_forward_pre_hook
        handle = register(lambda module, _: seen.append(type(module)))
    out = conv(*args)
    if dist.get_rank() == 1:
        handle.remove()
        assert type(conv.lin_l) in seen
    return out


def _copied(conv: torch.nn.Module, *args: Any) -> Tensor:
    return copy.deepcopy(conv)(*args) * 0 + conv(*args)


WAYS = [_checkpointed, _hooked_on_rank_1, _all_hooked_on_rank_1, _changed_afterwards, _copied]


@on_ranks()
def test_called_in_other_ways(data):
    """Checkpointed, with a hook on one rank, with rows changed before backward, as a copy."""
    found = []
    for call in (_called, *WAYS):
        torch.manual_seed(3)
        conv = wrap(SAGEConv(IN, OUT, root_weight=False).double(), partial_sums=False)
        x = torch.ones(40, IN, dtype=torch.float64).cumsum(0).sin()[data.n_id].requires_grad_()
        found.append(_steps(conv, x, data, 2, _called) + _steps(conv, x, data, 2, call))
    for others in found[1:]:
        for a, b in zip(others, found[0], strict=True):
            assert_close(a, b)


def _written_to(conv: torch.nn.Module, data: Any, which: str) -> list[Tensor]:
    """The gradient of the narrow layer, where sources, destinations or both are written to."""
    # Not raw features, whose sums are kept.
    needs = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    src, dst = data.x + needs, data.x + needs
    x = {'one tensor': src, 'a pair': (src, dst), 'a pair of one': (src, src)}[which]
    out = conv(x, data.edge_index)
    with torch.no_grad():
        src.mul_(3)
    out.square().sum().backward()
    return [parameter.grad for parameter in conv.parameters()]


@pytest.mark.parametrize('which', ['one tensor', 'a pair', 'a pair of one'])
@pytest.mark.parametrize('learns', [True, False])
@on_ranks(1, 3)
def test_rows_that_are_written_to_before_backward(data, which, learns):
    """An error where plain PyG has one, as the layer of own rows keeps them; else its gradients."""
    torch.manual_seed(3)
    plain = SAGEConv(6, 2).double()
    plain.lin_r.requires_grad_(learns)
    conv = wrap(copy.deepcopy(plain))
    if which != 'a pair' and learns:
        for each, graph in ((plain, small_graph()), (conv, data)):
            with pytest.raises(RuntimeError, match='modified by an inplace operation'):
                _written_to(each, graph, which)
        return
    want = _written_to(plain, small_graph(), which)
    for a, b in zip(_written_to(conv, data, which), want, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            assert_close(a, b, tolerance=1e-10)


@on_ranks()
def test_evaluations(data):
    """Raw features: sums that nothing learns from are not kept, so they may be narrow."""
    plain, graph = SAGEConv(6, 2).double(), small_graph()
    conv = wrap(copy.deepcopy(plain), partial_sums=False)
    sends = sum(step.send_index.numel() for step in data.edge_index.handle.shard.steps)
    for mode, columns in (
        (torch.no_grad, 2),
        (torch.inference_mode, 2),
        (torch.no_grad, 2),
        (torch.enable_grad, 6),
    ):
        with mode(), counted() as traffic:
            out = conv(data.x, data.edge_index).clone()
        assert traffic.bytes_sent == 8 * sends * columns
        assert_close(out, plain(graph.x, graph.edge_index)[data.n_id], tolerance=1e-10)
    conv, x = conv.float(), data.x.float().requires_grad_()
    for _ in range(2):
        conv(x, data.edge_index)
    with torch.autocast('cpu', dtype=torch.bfloat16), counted() as traffic:
        conv(x, data.edge_index)
    assert traffic.bytes_sent == 4 * sends * 6


@on_ranks()
def test_a_pair(data):
    """Restricted to the edges into some nodes: a pair of sources and destinations."""
    graph, plain = small_graph(), SAGEConv(6, 2).double()
    conv = wrap(copy.deepcopy(plain), partial_sums=False)
    expected = plain(graph.x.requires_grad_(), graph.edge_index)
    expected[graph.train_mask].square().sum().backward()
    (layer,) = layers = pyg_sar.restrict(data, data.train_mask, num_layers=1)
    x = data.x.requires_grad_()
    sends = sum(step.send_index.numel() for step in layer.edge_index.handle.shard.steps)
    for _ in range(2):
        pair = x[layers.input_nodes]
        with counted() as traffic:
            out = conv((pair, pair[layer.dst]), layer.edge_index)
    out.square().sum().backward()
    assert traffic.bytes_sent == 8 * sends * 2
    assert_close(pyg_sar.gather(out), expected[graph.train_mask], tolerance=1e-10)
    assert_close(pyg_sar.gather(x.grad), graph.x.grad, tolerance=1e-10)
    assert_close(conv.lin_l.weight.grad, plain.lin_l.weight.grad, tolerance=1e-10)
