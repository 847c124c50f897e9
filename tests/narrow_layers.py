"""Layers whose sum goes through a linear map and elsewhere, and how many columns travel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import ClusterGCNConv, GraphConv, MessagePassing, SAGEConv, SGConv

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
