"""Where a narrower linear layer follows a sum, its columns travel; results stay the same."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import run_ranks
from small_graphs import assert_close, cut, small_graph
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.nn import ClusterGCNConv, GraphConv, MessagePassing, SAGEConv, SGConv
from torch_geometric.nn.models import GraphSAGE
from traffic import counted

import pyg_sar
from pyg_sar.conv.stand_ins import StandIn

IN, OUT = 12, 3
ROUNDS = 3
LAYOUTS = [
    (1, 'uneven', 'sequential'),
    (3, 'empty part', 'sequential'),
    *((3, 'uneven', mode) for mode in ('sequential', 'one_shot')),
]


class Own(MessagePassing):
    """A conv of a user's: `after` says what happens to the mean."""

    def __init__(self, after: Callable[[Own, Tensor, Tensor], Any]) -> None:
        super().__init__(aggr='mean')
        self.after = after
        self.narrow = torch.nn.Linear(IN, OUT)
        self.narrow_too = torch.nn.Linear(IN, OUT, bias=False)
        self.wide = torch.nn.Linear(IN, 20)
        self.num_forwards = 0

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        self.edges = edge_index
        self.num_forwards += 1
        return self.after(self, self.propagate(edge_index, x=x), x)


def _plain_layer(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    return conv.narrow(out) + x[:, :OUT]


def _keywords(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    result = F.linear(weight=conv.narrow.weight, input=out, bias=None)
    return result.mul_(2)


def _questions(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    assert isinstance(out, Tensor)
    assert out.shape == out.size() == x.shape
    assert (out.size(-1), out.dim(), out.ndim, len(out)) == (IN, 2, 2, x.size(0))
    assert (out.dtype, out.device, out.is_floating_point()) == (x.dtype, x.device, True)
    return conv.narrow(out)


def _history(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    assert out.requires_grad
    assert not out.is_leaf
    assert out.grad_fn is not None
    return conv.narrow(out)


def _twice(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    return conv.narrow(out) + out[:, :OUT]


def _two_layers(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    return F.normalize(conv.narrow(out)) * conv.narrow_too(out)


def _wider_too(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    return torch.cat([conv.narrow(out), conv.wide(out)], dim=-1)


def _indexed(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    chosen = x[:, 0] > 0
    result = x.new_zeros(x.size(0), OUT)
    result[chosen] = conv.narrow(out[chosen])
    return result


def _in_place(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    same = out
    out += x
    return conv.narrow(out) + same.sum(-1, keepdim=True)


def _view_in_place(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    view = out.view(-1, 2, IN // 2)
    view[:, 1] *= x[:, : IN // 2]
    return conv.narrow(out)


def _changed_source(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    x.mul_(3)
    return conv.narrow(out) + x[:, :OUT]


def _unused(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    return conv.narrow(x)


def _returned(conv: Own, out: Tensor, x: Tensor) -> Any:
    return conv.narrow(out), {'sum': out, 'list': [out]}


def _attribute(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    conv.last = out
    return conv.narrow(out)


def _listed(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    vars(conv).setdefault('all', []).append(out)
    return conv.narrow(out)


def _later_an_attribute(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    if conv.num_forwards > 1:
        conv.last = out
    return conv.narrow(out)


def _other_modes(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = conv.narrow(out)
    return conv.narrow_too(x) * scale


def _second_propagate(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    return conv.narrow(conv.propagate(conv.edges, x=out))


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return values * values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * grads[0]


def _function(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    return conv.narrow(out) + _Square.apply(out)[:, :OUT]


def _later(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    """From the second forward on the first layer of two is not what it was."""
    first = conv.narrow if conv.num_forwards == 1 else conv.narrow_too
    return first(out) if conv.num_forwards < 3 else first(out) + out[:, :OUT]


def _later_a_function(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    result = conv.narrow(out)
    return result if conv.num_forwards == 1 else result + _Square.apply(out)[:, :OUT]


def _later_returned(conv: Own, out: Tensor, x: Tensor) -> Any:
    result = conv.narrow(out)
    return result if conv.num_forwards == 1 else (result, out)


def _layer_twice(conv: Own, out: Tensor, x: Tensor) -> Tensor:
    result = conv.narrow(out).relu_()
    return result if conv.num_forwards == 1 else result + conv.narrow(out)


class UpdateLayer(MessagePassing):
    """Its layer is in update."""

    def __init__(self) -> None:
        super().__init__(aggr='sum')
        self.lin = torch.nn.Linear(IN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def update(self, inputs: Tensor) -> Tensor:
        return self.lin(inputs)


class Aggregate(Own):
    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int) -> Tensor:
        return super().aggregate(inputs, index, dim_size=dim_size).relu()


def _double(*args: Any) -> Tensor:
    return args[-1] * 2


def _hooked(register: str, *, of_layer: bool = False) -> Own:
    conv = Own(_plain_layer)
    getattr(conv.narrow if of_layer else conv, register)(_double)
    return conv


ALWAYS_WIDE = [(IN, IN)] * ROUNDS
THEN_NARROW = [(IN, IN), (OUT, OUT), (OUT, OUT)]
# What travels in forward and backward of every round, in columns; None where other things do too.
Columns = list[tuple[int, int]] | None
CONVS: dict[str, tuple[Callable[[], torch.nn.Module], Columns]] = {
    'SAGE': (lambda: SAGEConv(IN, OUT), THEN_NARROW),
    'SAGE-sum': (lambda: SAGEConv(IN, OUT, aggr='sum', normalize=True), THEN_NARROW),
    'SAGE-project': (lambda: SAGEConv(IN, OUT, project=True), THEN_NARROW),
    'SAGE-both': (lambda: SAGEConv(IN, OUT, aggr=['mean', 'sum']), ALWAYS_WIDE),
    'SAGE-wider': (lambda: SAGEConv(IN, 20), ALWAYS_WIDE),
    'SAGE-reversed': (lambda: SAGEConv(IN, OUT, flow='target_to_source'), None),
    'GraphConv': (lambda: GraphConv(IN, OUT), THEN_NARROW),
    'GraphConv-mean': (lambda: GraphConv(IN, OUT, aggr='mean'), THEN_NARROW),
    'ClusterGCN': (lambda: ClusterGCNConv(IN, OUT), None),
    'SG': (lambda: SGConv(IN, OUT, K=2), None),
    'update': (UpdateLayer, THEN_NARROW),
    'aggregate': (lambda: Aggregate(_plain_layer), ALWAYS_WIDE),
    'propagate hook': (lambda: _hooked('register_propagate_forward_hook'), ALWAYS_WIDE),
    'aggregate hook': (lambda: _hooked('register_aggregate_forward_hook'), ALWAYS_WIDE),
    'layer hook': (lambda: _hooked('register_forward_hook', of_layer=True), ALWAYS_WIDE),
}
for _after in (_plain_layer, _keywords, _questions):
    CONVS[_after.__name__[1:]] = functools.partial(Own, _after), THEN_NARROW
for _after in (
    *(_history, _twice, _two_layers, _wider_too, _indexed, _in_place, _view_in_place),
    *(_returned, _attribute, _listed, _function),
):
    CONVS[_after.__name__[1:]] = functools.partial(Own, _after), ALWAYS_WIDE
CONVS['changed_source'] = functools.partial(Own, _changed_source), THEN_NARROW
CONVS['second_propagate'] = (
    functools.partial(Own, _second_propagate),
    [(2 * IN, 2 * IN), *[(IN + OUT, IN + OUT)] * 2],
)
CONVS['unused'] = functools.partial(Own, _unused), [(IN, 0)] * ROUNDS
CONVS['other_modes'] = functools.partial(Own, _other_modes), [(IN, 0)] * ROUNDS
# What turns out otherwise is computed after all, and not tried again.
CONVS['later'] = functools.partial(Own, _later), [(IN, IN), (OUT + IN, IN), (IN, IN)]
BOTH = [(IN, IN), (OUT + IN, OUT + IN), (IN, IN)]
CONVS['layer_twice'] = functools.partial(Own, _layer_twice), BOTH
CONVS['later_an_attribute'] = functools.partial(Own, _later_an_attribute), BOTH
CONVS['later_returned'] = functools.partial(Own, _later_returned), BOTH
CONVS['later_a_function'] = functools.partial(Own, _later_a_function), None
WEIGHTED = ('GraphConv', 'GraphConv-mean')


@pytest.fixture(scope='module')
def parts(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    root = tmp_path_factory.mktemp('narrow')

    def folder(num_parts: int, kind: str = 'uneven') -> str:
        path = root / f'{num_parts} {kind}'
        return str(path if path.exists() else cut(small_graph(), num_parts, path, kind))

    return folder


def _run(name: str, data: Data, mode: Any) -> tuple[Any, ...]:
    """Outputs and columns that travelled of some forwards; after them, all gradients."""
    torch.manual_seed(3)
    conv = inner = CONVS[name][0]().double()
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(40, IN, generator=generator, dtype=torch.float64)
    shard = getattr(data.edge_index, 'shard', None)
    n_id = torch.arange(40)
    if shard is not None:
        conv, n_id = pyg_sar.wrap(conv, mode=mode), data.n_id
    x = x[n_id].requires_grad_()
    weight = [data.edge_weight] if name in WEIGHTED else []
    outs, columns = [], []
    for _ in range(ROUNDS):
        with counted() as forward:
            found = _flat(conv(x.sin(), data.edge_index, *weight))
        found += [value for key, value in vars(inner).items() if key == 'last']
        assert not any(isinstance(value, StandIn) for value in [*found, *vars(inner).values()])
        outs.append([t.detach() for t in found])
        weights = [torch.randn(40, t.size(1), generator=generator).double() for t in found]
        with counted() as backward:
            sum((t * w[n_id]).sum() for t, w in zip(found, weights, strict=True)).backward()
        if dist.is_initialized() and shard is not None and shard.num_halo:
            sends = sum(step.send_index.numel() for step in shard.steps)
            columns.append(
                (forward.bytes_sent / 8 / sends, backward.bytes_sent / 8 / shard.num_halo)
            )
    shares = [torch.zeros_like(p) if p.grad is None else p.grad for p in inner.parameters()]
    if dist.is_initialized() and shard is not None:
        for share in shares:
            dist.all_reduce(share)
    return n_id, outs, x.grad, shares, columns


def _flat(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    return [t for e in (found.values() if isinstance(found, dict) else found) for t in _flat(e)]


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


@pytest.mark.parametrize(('world_size', 'kind', 'mode'), LAYOUTS)
def test_results_and_columns(
    parts: Callable[..., str], world_size: int, kind: str, mode: str
) -> None:
    ranks = run_ranks(_run_all, world_size, parts(world_size, kind), mode)
    for name, (_, expected) in CONVS.items():
        _, outs, grad_x, gradients, _ = _expected(name)
        for found in ranks:
            n_id, own_outs, own_grad_x, own_gradients, columns = found[name]
            for own, want in zip(own_outs, outs, strict=True):
                for a, b in zip(own, want, strict=True):
                    assert_close(a, b[n_id], tolerance=1e-10)
            assert_close(own_grad_x, grad_x[n_id], tolerance=1e-10)
            for a, b in zip(own_gradients, gradients, strict=True):
                assert_close(a, b, tolerance=1e-10)
            if expected is not None and world_size > 1 and kind == 'uneven':
                assert columns == expected, name


def _steps(conv: torch.nn.Module, x: Tensor, data: Data, num_steps: int, call: Any) -> list[Tensor]:
    """Outputs of some training steps, then the gradients of all of them together."""
    outs = [call(conv, x * 2, data.edge_index) for _ in range(num_steps)]
    sum(out.square().sum() for out in outs).backward()
    shares = [p.grad.clone() for p in conv.parameters()]
    for share in shares:
        dist.all_reduce(share)
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
        handle = conv.lin_l.register_forward_pre_hook(lambda _, given: seen.append(given[0].sum()))
    out = conv(*args)
    if dist.get_rank() == 1:
        handle.remove()
        assert len(seen) == 1
    return out


def _copied(conv: torch.nn.Module, *args: Any) -> Tensor:
    return copy.deepcopy(conv)(*args) * 0 + conv(*args)


def _in_many_ways(root: str) -> list[list[Tensor]]:
    data, found = pyg_sar.load_shard(root), []
    for call in (_called, _checkpointed, _hooked_on_rank_1, _changed_afterwards, _copied):
        torch.manual_seed(3)
        conv = pyg_sar.wrap(SAGEConv(IN, OUT, root_weight=False).double())
        x = torch.ones(data.num_nodes, IN, dtype=torch.float64).cumsum(0).sin().requires_grad_()
        _steps(conv, x, data, 1, call)  # the layer is not known yet
        found.append(_steps(conv, x, data, 2, _called) + _steps(conv, x, data, 2, call))
    return found


def test_called_in_other_ways(parts: Callable[..., str]) -> None:
    """Checkpointed, with a hook on one rank, with rows changed before backward, as a copy."""
    for plainly, *others in run_ranks(_in_many_ways, 3, parts(3)):
        for found in others:
            for a, b in zip(found, plainly, strict=True):
                assert_close(a, b)


def _evaluations(root: str) -> list[Any]:
    """Raw features: sums that nothing learns from are not kept, so they may be narrow."""
    data = pyg_sar.load_shard(root)
    torch.manual_seed(3)
    conv = pyg_sar.wrap(SAGEConv(6, 2).double())
    sends = sum(step.send_index.numel() for step in data.edge_index.shard.steps)
    found: list[Any] = [data.n_id]
    for mode in (torch.no_grad, torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode(), counted() as traffic:
            found.append(conv(data.x, data.edge_index).clone())
        found.append(traffic.bytes_sent / 8 / sends)
    conv, x = conv.float(), data.x.float().requires_grad_()
    for _ in range(2):
        conv(x, data.edge_index)
    with torch.autocast('cpu', dtype=torch.bfloat16), counted() as traffic:
        conv(x, data.edge_index)
    return [*found, traffic.bytes_sent / 4 / sends]


def test_evaluations(parts: Callable[..., str]) -> None:
    graph = small_graph()
    torch.manual_seed(3)
    expected = SAGEConv(6, 2).double()(graph.x, graph.edge_index)
    for n_id, *found, under_autocast in run_ranks(_evaluations, 3, parts(3)):
        assert found[1::2] == [6, 2, 2, 6]
        assert under_autocast == 6
        for out in found[::2]:
            assert_close(out, expected[n_id], tolerance=1e-10)


def _recomputing(root: str, recompute: bool) -> list[Any]:
    data = pyg_sar.load_shard(root)
    torch.manual_seed(3)
    model = GraphSAGE(6, 8, 3, 2, norm='batch_norm').double()
    model = pyg_sar.wrap(model, checkpoint_activations=recompute)
    found: list[Any] = []
    for _ in range(3):
        with counted() as traffic:
            model(data.x, data.edge_index).square().sum().backward()
        found.append(traffic.bytes_sent)
    return [*found, *(p.grad for p in model.parameters())]


def test_with_recomputed_activations(parts: Callable[..., str]) -> None:
    """Rows travel as narrow, and the bits stay the same."""
    for plain, own in zip(
        *(run_ranks(_recomputing, 3, parts(3), flag) for flag in (False, True)), strict=True
    ):
        assert plain[:3] == own[:3]
        assert plain[0] > plain[1] == plain[2]
        for a, b in zip(plain[3:], own[3:], strict=True):
            assert torch.equal(a, b)


def _pair(root: str) -> tuple[Any, ...]:
    """Restricted to the edges into some nodes: a pair of sources and destinations."""
    data = pyg_sar.load_shard(root)
    (layer,) = layers = pyg_sar.restrict(data, data.train_mask, num_layers=1)
    torch.manual_seed(3)
    conv = pyg_sar.wrap(SAGEConv(6, 2).double())
    x = data.x.requires_grad_()
    sends = sum(step.send_index.numel() for step in layer.edge_index.shard.steps)
    for _ in range(2):
        pair = x[layers.input_nodes]
        with counted() as traffic:
            out = conv((pair, pair[: layer.num_dst]), layer.edge_index)
    out.square().sum().backward()
    weight = conv.lin_l.weight.grad
    dist.all_reduce(weight)
    columns = traffic.bytes_sent / 8 / sends
    return data.n_id, data.n_id[layers.output_nodes], out.detach(), x.grad, weight, columns


def test_a_pair(parts: Callable[..., str]) -> None:
    graph = small_graph()
    torch.manual_seed(3)
    conv = SAGEConv(6, 2).double()
    x = graph.x.requires_grad_()
    expected = conv(x, graph.edge_index)
    expected[graph.train_mask].square().sum().backward()
    for n_id, outputs, out, grad, weight, columns in run_ranks(_pair, 3, parts(3)):
        assert columns == 2
        assert_close(out, expected[outputs].detach(), tolerance=1e-10)
        assert_close(grad, x.grad[n_id], tolerance=1e-10)
        assert_close(weight, conv.lin_l.weight.grad, tolerance=1e-10)
