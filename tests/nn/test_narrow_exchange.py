"""Where a narrower linear layer follows a sum, its columns travel; results stay the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from alike import Wrap, assert_alike, cut_of, gradient, itself
from few import few
from on_ranks import on_ranks
from small_graphs import assert_close, small_graph
from torch import Tensor
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.nn import ClusterGCNConv, GraphConv, SAGEConv
from traffic import counted

import pyg_sar
from pyg_sar.nn.wrap import wrap as wrapped
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


def _with_layer(
    make: Callable[[torch.nn.Module], torch.nn.Module], name: str = 'lin_l'
) -> SAGEConv:
    conv = SAGEConv(IN, OUT)
    setattr(conv, name, make(getattr(conv, name)))
    return conv


def _normed(layer: torch.nn.Module) -> torch.nn.Module:
    """Every read of its weight changes the next one's."""
    layer = spectral_norm(layer)
    with torch.no_grad():
        layer.parametrizations['weight'].original[0] *= 3
    return layer


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
    'spectral norm of own rows': (lambda: _with_layer(_normed, 'lin_r'), NARROW),
    'propagate hook': (lambda: _hooked('register_propagate_forward_hook'), WIDE),
    'aggregate hook': (lambda: _hooked('register_aggregate_forward_hook'), WIDE),
    'layer hook': (lambda: _hooked('register_forward_hook', of_layer=True), WIDE),
    'conv hook': (lambda: _hooked('register_forward_hook'), NARROW),
}
WEIGHTED = ('GraphConv', 'GraphConv-mean')


def _sends(index: Any) -> int:
    """Rows that this rank sends to others."""
    return sum(step.send_index.numel() for step in index.handle.shard.steps)


def _run(data: Any, wrap: Wrap, mode: str) -> dict[str, Any]:
    """Outputs of some forwards; after them, all gradients. No more columns travel than may."""
    found = {}
    for name, (make, expected) in CONVS.items():
        torch.manual_seed(3)
        plain = make().double()
        # Every halo row travels, so that columns can be counted.
        options = {} if mode == 'one_shot' else {'partial_sums': False}
        conv = plain if wrap is itself else wrapped(plain, mode=mode, **options)
        nodes = torch.arange(40) if wrap is itself else data.n_id
        generator = torch.Generator().manual_seed(4)
        x = torch.randn(40, IN, generator=generator, dtype=torch.float64)[nodes].requires_grad_()
        weight = [data.edge_weight] if name in WEIGHTED else []
        outs = []
        for _ in range(ROUNDS):
            with counted() as forward:
                out = conv(x.sin(), data.edge_index, *weight)
            assert type(out) in (Tensor, Rows)
            outs.append(out.detach())
            weight_of_loss = torch.randn(40, out.size(1), generator=generator).double()
            with counted() as backward:
                (out * weight_of_loss[nodes]).sum().backward()
            if wrap is not itself and expected is not None:
                sizes = _sends(data.edge_index), data.edge_index.handle.shard.num_halo
                sent = forward.bytes_sent, backward.bytes_sent
                assert sent == tuple(8 * n * e for n, e in zip(sizes, expected, strict=True)), name
        found[name] = [outs, x.grad, [gradient(p) for p in plain.parameters()]]
    return found


@pytest.mark.parametrize(('size', 'kind', 'mode'), few(LAYOUTS))
def test_results_and_columns_that_travel(size: int, kind: str, mode: str) -> None:
    assert_alike(_run, mode, cut=kind, ranks=(size,), by='processes')


def _steps(conv: torch.nn.Module, x: Tensor, data: Data, call: Any) -> list[Tensor]:
    """Outputs of some training steps, then the gradients of all of them together."""
    outs = [call(conv, x * 2, data.edge_index) for _ in range(2)]
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
    """Hooks that look at what goes into the layer, and into all layers; on other ranks none."""
    seen: list[Any] = []
    handles = []
    if dist.get_rank() == 1:
        of_all = torch.nn.modules.module.register_module_forward_pre_hook
        handles = [
            conv.lin_l.register_forward_pre_hook(
                lambda _, given: seen.append(pyg_sar.local(given[0]).sum())
            ),
            of_all(lambda module, _: seen.append(type(module))),
        ]
    out = conv(*args)
    for handle in handles:
        handle.remove()
    assert not handles or (type(conv.lin_l) in seen and any(isinstance(x, Tensor) for x in seen))
    return out


def _copied(conv: torch.nn.Module, *args: Any) -> Tensor:
    return copy.deepcopy(conv)(*args) * 0 + conv(*args)


@on_ranks()
def test_called_in_other_ways(data):
    """Checkpointed, with a hook on one rank, with rows changed before backward, as a copy."""
    found = []
    for call in (_called, _checkpointed, _hooked_on_rank_1, _changed_afterwards, _copied):
        torch.manual_seed(3)
        conv = wrapped(SAGEConv(IN, OUT, root_weight=False).double(), partial_sums=False)
        x = torch.ones(40, IN, dtype=torch.float64).cumsum(0).sin()[data.n_id].requires_grad_()
        found.append(_steps(conv, x, data, _called) + _steps(conv, x, data, call))
    for others in found[1:]:
        assert_close(others, found[0])


def _written_to(data: Any, wrap: Wrap, which: str, learns: bool) -> list[Any]:
    """The gradient of the narrow layer, where sources, destinations or both are written to."""
    plain = SAGEConv(6, 2).double()
    plain.lin_r.requires_grad_(learns)
    # Not raw features, whose sums are kept.
    needs = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    src, dst = data.x + needs, data.x + needs
    x = {'one tensor': src, 'a pair': (src, dst), 'a pair of one': (src, src)}[which]
    out = wrap(plain)(x, data.edge_index)
    with torch.no_grad():
        src.mul_(3)
    out.square().sum().backward()
    return [parameter.grad for parameter in plain.parameters()]


@pytest.mark.parametrize('which', ['one tensor', 'a pair', 'a pair of one'])
@pytest.mark.parametrize('learns', [True, False])
def test_rows_that_are_written_to_before_backward(which: str, learns: bool) -> None:
    """An error where plain PyG has one, as the layer of own rows keeps them; else its gradients."""
    if which == 'a pair' or not learns:
        assert_alike(_written_to, which, learns, ranks=(1,))
        return
    data = pyg_sar.load_shard(cut_of(small_graph, 3))
    for of, wrap in ((small_graph(), itself), (data, pyg_sar.DistributedDataParallel)):
        with pytest.raises(RuntimeError, match='modified by an inplace operation'):
            _written_to(of, wrap, which, learns)


@on_ranks()
def test_evaluations(data):
    """Raw features: sums that nothing learns from are not kept, so they may be narrow."""
    plain, graph = SAGEConv(6, 2).double(), small_graph()
    conv = wrapped(copy.deepcopy(plain), partial_sums=False)
    sends = _sends(data.edge_index)
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
    conv = wrapped(copy.deepcopy(plain), partial_sums=False)
    expected = plain(graph.x.requires_grad_(), graph.edge_index)
    expected[graph.train_mask].square().sum().backward()
    (layer,) = layers = pyg_sar.restrict(data, data.train_mask, num_layers=1)
    x = data.x.requires_grad_()
    for _ in range(2):
        pair = x[layers.input_nodes]
        with counted() as traffic:
            out = conv((pair, pair[layer.dst]), layer.edge_index)
    out.square().sum().backward()
    assert traffic.bytes_sent == 8 * _sends(layer.edge_index) * 2
    assert_close(pyg_sar.gather(out), expected[graph.train_mask], tolerance=1e-10)
    assert_close(pyg_sar.gather(x.grad), graph.x.grad, tolerance=1e-10)
    assert_close(conv.lin_l.weight.grad, plain.lin_l.weight.grad, tolerance=1e-10)
