"""The rules of rows decide how a message is computed: by blocks, by destination, or on all edges.

Every message is compared with plain PyG, output and gradients, whatever its path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, assert_same, cut_of, gradient, itself, of_rank, on_whole_graph, parallel
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import degree, scatter, softmax

import pyg_sar
from pyg_sar.comm.threads import run_threads
from pyg_sar.nn.options import Path as PathName
from pyg_sar.rows.registry import rules_by_function

N, E, WIDTH = 40, 300, 6


class _Clipping(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].clamp(-0.01, 0.01)


Of = SimpleNamespace
"""What a message reads: conv, x (which is x_j), x_i, w, kind, index, size (of i) and flag."""


def _hooked(m: Of) -> Tensor:
    out = m.x * 2
    if out.requires_grad:
        out.register_hook(lambda grad: grad.clamp(-0.01, 0.01))  # type: ignore[no-untyped-call]
    return out


def _hooked_gate(m: Of) -> Tensor:
    gate = m.conv.lin.bias.tanh()
    if gate.requires_grad:
        gate.register_hook(lambda grad: grad / grad.norm())  # type: ignore[no-untyped-call]
    return m.x * gate


def _hooked_node(m: Of) -> Tensor:
    gate = m.conv.lin.bias.tanh()
    if gate.grad_fn is not None:
        gate.grad_fn.register_hook(lambda grads, _: tuple(grad / grad.norm() for grad in grads))
    return m.x * gate


def _caught(m: Of) -> Tensor:
    try:
        return m.x * 2 if m.x.size(0) > 100 else m.x
    except ValueError:
        return m.x * 3


def _by_kind(m: Of, change: Callable[[Tensor], Tensor]) -> Tensor:
    out = torch.zeros_like(m.x)
    for kind in range(3):
        out[m.kind == kind] = change(m.x[m.kind == kind]) * (kind + 1)
    return out


def _of_generator(m: Of) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return m.x * (torch.rand(m.x.size(0), 1, generator=generator) >= 0)


def _by_head(m: Of) -> Tensor:
    return (m.x.view(m.x.size(0), 2, 3) * m.w.view(-1, 1, 1)).reshape(m.x.shape)


def _softmax(m: Of) -> Tensor:
    return m.x * softmax(m.x_i.sum(-1) * m.w, m.index, num_nodes=m.size).view(-1, 1)


def _of_node(m: Of, values: Tensor, reduce: str) -> Tensor:
    return scatter(values, m.index, 0, m.size, reduce)[m.index]


ALL_EDGES: dict[str, Callable[[Of], Any]] = {
    'minus the mean': lambda m: m.x - m.x.mean(0),
    'clipped by the spread': lambda m: m.x.clamp(max=3 * float(m.x.detach().std())),
    'clipped without Python': lambda m: m.x / (1 + m.x.detach().std()),
    'a quantile': lambda m: m.x * (m.w > torch.quantile(m.w.detach(), 0.8)).view(-1, 1),
    'the largest': lambda m: m.x * (m.w >= m.w.topk(5).values[-1]).view(-1, 1),
    'a median': lambda m: m.x * (m.w > m.w.median()).view(-1, 1),
    'ranks': lambda m: m.x * m.w.argsort().argsort().view(-1, 1),
    'softmax over edges': lambda m: m.x * m.w.softmax(0).view(-1, 1),
    'running sum': lambda m: m.x * m.w.cumsum(0).view(-1, 1),
    'reversed': lambda m: m.x.flip(0),
    'the first row': lambda m: m.x - m.x[0],
    'some of the rows': lambda m: torch.cat([m.x, m.x_i])[: m.x.size(0)],
    'a batch norm': lambda m: F.batch_norm(m.x, None, None, training=True),
    'a mean of a selection': lambda m: _by_kind(m, lambda rows: rows - rows.mean(0)),
    'a branch on values': lambda m: m.x if (m.x > 40).any() else -m.x,
    'a branch without Python': lambda m: torch.where(m.x.mean() > 0.01, m.x, -m.x),
    'a branch on a parameter': lambda m: m.x if m.conv.lin.weight.norm() > 0 else m.x - m.x.mean(0),
    'a branch on the number': lambda m: m.x if m.w.numel() > 120 else -m.x,
    'a branch that is caught': _caught,
    'the number': lambda m: m.x / m.x.size(0),
    'its root': lambda m: m.x / math.sqrt(m.x.shape[0]),
    'its root by NumPy': lambda m: m.x / np.sqrt(m.x.shape[0]),
    'a number of NumPy': lambda m: m.x / int(np.int64(m.x.shape[0])),
    'numbers of NumPy': lambda m: m.x * np.int64(m.x.shape[0]),
    'its length': lambda m: m.x * min(len(m.x), 200) / 200,
    'how many numbers': lambda m: m.x / m.x.shape.numel(),
    'a tensor of it': lambda m: m.x / torch.tensor(m.x.size(0)).sqrt(),
    'a sum of ones': lambda m: m.x / torch.ones(m.x.size(0), 1).sum(),
    'as many numbers as there are': lambda m: m.x * torch.arange(m.x.size(0)).view(-1, 1),
    'a part of a table': lambda m: m.x * m.conv.lin.weight[: m.x.size(0)].sum(),
    'the number of a selection': lambda m: m.x / (1 + m.x[m.kind == 1].size(0)),
    'one draw for all': lambda m: m.x * (torch.rand(1) >= 0),
    'a draw and a statistic': lambda m: m.x * (torch.rand_like(m.x) >= 0) - m.x.mean(0),
    'a draw by a generator': _of_generator,
    'a hook': _hooked,
    'a hook of a parameter': _hooked_gate,
    'a hook of a node of autograd': _hooked_node,
    'a backward of its own': lambda m: _Clipping.apply(m.x),
    'of a parameter': lambda m: m.x @ _Clipping.apply(m.conv.lin.weight),
    'ids as numbers': lambda m: m.x * m.index.view(-1, 1),
    'ids as a list': lambda m: m.x * (1 + len(set(m.index.tolist()))),
    'the largest id': lambda m: m.x * float(m.index.max()),
    'a branch on an id': lambda m: m.x if m.index.max() < 20 else -m.x,
    'a rounded sum': lambda m: m.x * round(m.w.sum().item()),
    'divided by a sum into zeros': lambda m: (
        m.x.exp() / m.x.new_zeros(m.size, WIDTH).index_add(0, m.index, m.x.exp())[m.index]
    ),
    'counts of edges': lambda m: m.x / torch.bincount(m.index)[m.index].view(-1, 1),
}
BY_ROW: dict[PathName, dict[str, Callable[[Of], Any]]] = {
    'SpMM': {'itself': lambda m: m.x},
    'SpMM with learned values': {
        'weighted': lambda m: m.x * m.w.view(-1, 1),
        'weighted by head': _by_head,
    },
    'scalar times x_j': {
        'a gate': lambda m: m.x * m.x_i.sum(-1, keepdim=True).tanh(),
        'a softmax': _softmax,
        'new ones': lambda m: m.x * m.x.new_ones(m.x.size(0), 1),
        'a new draw': lambda m: m.x * m.x.new_empty(m.x.size(0), 1).bernoulli_(1.0),
        'dots and new zeros': lambda m: (
            m.x * ((m.x_i * m.x).sum(-1, keepdim=True) + m.x.new_zeros(m.x.size(0), 1))
        ),
    },
    'replay': {
        'a mean of numbers': lambda m: m.x - m.x.mean(-1, keepdim=True),
        'sorted numbers': lambda m: m.x.sort(dim=-1).values,
        'a norm of a layer': lambda m: F.layer_norm(m.x, (WIDTH,)) * m.x,
        'another to each kind': lambda m: _by_kind(m, torch.tanh),
        'a number for every edge': lambda m: m.x * torch.full((m.x.size(0), 1), 2.0),
        'a draw for every edge': lambda m: m.x * (torch.rand(m.x.size(0), 1) >= 0),
        'a draw for every number': lambda m: m.x * (torch.rand_like(m.x) >= 0),
        'an expanded parameter': lambda m: m.x + m.conv.lin.bias.expand(m.x.size(0), -1),
        'numbers of all rows in one': lambda m: (m.x.reshape(-1) * 2).view(-1, WIDTH),
        'a determinant': lambda m: m.x * torch.linalg.det(m.x.view(-1, 2, 3)[..., :2]).view(-1, 1),
        'nothing if there are none': lambda m: m.x.tanh() if m.x.size(0) else m.x,
    },
    'by destination': {
        'a softmax by hand': lambda m: m.x / _of_node(m, m.w, 'sum').view(-1, 1),
        'minus the mean of a node': lambda m: (
            m.x - scatter(m.x, m.index, 0, m.size, 'mean').index_select(0, m.index)
        ),
        'degrees': lambda m: m.x / degree(m.index, m.size, m.x.dtype)[m.index].view(-1, 1),
        'twice a softmax': lambda m: m.x * softmax(softmax(m.w, m.index), m.index).view(-1, 1),
        'minus the maximum of a node': lambda m: m.x - _of_node(m, m.x, 'max'),
        'a softmax of another dimension': lambda m: softmax(m.x.t(), m.index, dim=1).t() * m.x,
    },
}
BY_ROWS = {name: message for of_path in BY_ROW.values() for name, message in of_path.items()}


class Told(MessagePassing):
    """A conv whose message is given."""

    def __init__(self, message: Callable[[Of], Any]) -> None:
        super().__init__(node_dim=0)
        self.told = message
        self.lin = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, edge_index, w, kind, flag=True):
        return self.propagate(edge_index, x=x, w=w, kind=kind, flag=flag)

    def message(self, x_j, x_i, w, kind, index, size_i: int, flag: bool):
        values = {'w': w, 'kind': kind, 'index': index, 'size': size_i, 'flag': flag}
        out: Tensor = self.told(Of(conv=self, x=x_j, x_i=x_i, **values))
        return out


def _graph() -> Data:
    draw = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(N, WIDTH, dtype=torch.float64, generator=draw),
        edge_index=torch.randint(N - 3, (2, E), generator=draw),
        w=torch.rand(E, dtype=torch.float64, generator=draw),
        kind=torch.randint(3, (E,), generator=draw),
        num_nodes=N,
    )
    data.x[7] *= 50
    return data


CUT = [i % 5 % 3 for i in range(N)]
Messages = dict[str, Callable[[Of], Any]]


def _results(
    data: Any, wrap: Wrap, messages: Messages, flags: tuple[bool, ...], mode: str
) -> dict[str, Any]:
    """Outputs and gradients of every message, and on ranks its paths."""
    found: dict[str, Any] = {}
    for name, message in messages.items():
        torch.manual_seed(1)
        conv = parallel(Told(message).double(), wrap, mode=mode)
        x, w = (data[name].detach().clone().requires_grad_() for name in ('x', 'w'))
        outs = [conv(x, data.edge_index, w, data.kind, flag) for flag in flags]
        sum((out * torch.arange(1.0, 1 + WIDTH).double()).sin().sum() for out in outs).backward()
        grads = [gradient(leaf) for leaf in (x, w, *conv.parameters())]
        found[name] = [*(out.detach() for out in outs), *grads]
        if wrap is not itself:
            PATHS[name] = conv.chosen_paths()
    return found


PATHS: dict[str, list[str]] = {}
"""Of every message, on the last rank."""


def _check(
    messages: Messages,
    ranks: tuple[int, ...] = (3,),
    flags: tuple[bool, ...] = (True,),
    mode: str = 'sequential',
    graph: Callable[[], Data] | None = None,
    **options: Any,
) -> dict[str, list[str]]:
    """Compares each message with plain PyG; gives the paths."""
    graph = graph or _graph
    args = messages, flags, mode
    want = on_whole_graph(_results, graph, *args)
    for size in ranks:
        PATHS.clear()
        root = cut_of(graph, 3, CUT)
        for found in run_threads(lambda: of_rank(_results, root, args), size):  # noqa: B023
            for name, value in want.items():
                scale = max(1, float(value.abs().max()))
                assert_same(
                    {name: found[name]}, {name: value}, tolerance=1e-10 * scale, rtol=0, **options
                )
    return dict(PATHS)


@pytest.mark.parametrize('ranks', [1, 3])
def test_what_asks_for_other_edges_is_computed_on_all(ranks: int) -> None:
    assert _check(ALL_EDGES, (ranks,)) == {name: ['one_shot'] for name in ALL_EDGES}


@pytest.mark.parametrize('ranks', [1, 3])
def test_what_works_row_by_row_is_not(ranks: int) -> None:
    paths = {name: [path] for path, messages in BY_ROW.items() for name in messages}
    assert _check(BY_ROWS, (ranks,)) == paths


@pytest.mark.parametrize('mode', ['sequential_no_remat', 'one_shot'])
def test_other_modes(mode: str) -> None:
    _check(ALL_EDGES | BY_ROWS, mode=mode)


def test_another_number_may_be_another_message() -> None:
    def message(m: Of) -> Tensor:
        return m.x * 2 if m.flag else m.x - m.x.mean(0)

    paths = _check({'by its flag': message}, flags=(True, False, True))
    assert paths == {'by its flag': ['replay', 'one_shot']}


class Registry(dict[str, Any]):
    def add(self, name: str) -> Callable[[Any], Any]:
        return lambda function: self.setdefault(name, function)


REGISTRY = Registry()


class Registered(Told):
    @REGISTRY.add('message')
    def message(self, x_j, x_i):
        return (x_j - x_i).tanh()


def test_a_decorator_is_no_part_of_the_message() -> None:
    data = pyg_sar.load_shard(cut_of(_graph, 3, CUT))
    conv = pyg_sar.SARConv(Registered(lambda m: m.x).double())
    conv(data.x, data.edge_index, data.w, data.kind)
    assert conv.chosen_paths() == ['replay']


@pytest.mark.parametrize('width', [13, 26, 100, 104, 128, 260])
def test_no_width_is_a_number_of_edges(width: int) -> None:
    def message(m: Of) -> Tensor:
        wide = m.x.repeat(1, width)[:, :width].relu() / m.x.size(-1) ** 0.5
        return m.x * wide.mean(-1, keepdim=True).sin()

    assert _check({'wide': message}) == {'wide': ['replay']}


@torch.library.custom_op('pyg_sar_tests::twice', mutates_args=())
def _twice(x: Tensor) -> Tensor:
    return x * 2


_twice.register_autograd(lambda ctx, grad: grad * 2)


def test_an_operation_without_a_rule() -> None:
    messages: Messages = {'a C++ operation': lambda m: _twice(m.x).tanh()}
    with pytest.raises(ValueError, match=r'pyg_sar.nn.rowwise\(torch.ops.pyg_sar_tests.twice'):
        _check(messages)
    before = dict(rules_by_function)
    try:
        assert pyg_sar.nn.rowwise(_twice) is _twice
        assert _check(messages) == {'a C++ operation': ['replay']}
    finally:
        rules_by_function.clear()
        rules_by_function.update(before)
    with pytest.raises(ValueError, match=r"expected an operation of torch.ops in 'operation'"):
        pyg_sar.nn.rowwise(torch.relu)


def _with_nan() -> Data:
    data = _graph()
    data.x[3, 1] = float('nan')
    return data


def test_values_decide_nothing() -> None:
    """Also not those of one rank."""
    found = _check({'it': BY_ROWS['a softmax']}, graph=_with_nan, equal_nan=True)
    assert found == {'it': ['scalar times x_j']}
