"""Sums of w_e * x_j with weights per edge and head: kernels, the Function, and convs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks
from small_graphs import ASSIGNMENTS, assert_close, cut, small_graph
from torch import Tensor
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GraphConv, MessagePassing

from pyg_sar import load_shard, wrap
from pyg_sar.aggregate.weighted import weighted_sum
from pyg_sar.comm import Exchange
from pyg_sar.comm.swap import GRADIENTS_TAG, ROWS_TAG, Swap
from pyg_sar.conv.paths import Paths
from pyg_sar.kernels import weighted_sums
from pyg_sar.kernels.weighted_sums import (
    _add_by_index_add,
    _dots_by_gather,
    _dots_by_sampling,
    add_weighted_sums,
    edge_dots,
)
from pyg_sar.shard.bags import make_bags
from pyg_sar.shard.plan import plan_of

MODES = ('sequential', 'sequential_no_remat', 'one_shot')
TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-5}

# Kernels.

SHAPES = [(1, 1), (1, 3), (1, 16), (3, 1), (3, 5), (2, 16)]
"""Heads and channels: on both sides of every bound in the choice of the form."""

BLOCKS = {
    'every row taken': (4, 30, 60),
    'more edges than pairs': (4, 7, 60),
    'empty rows': (50, 7, 20),
    'one edge': (5, 5, 1),
    'no edges': (5, 3, 0),
    'no rows': (0, 3, 0),
}


def _edges(num_rows: int, num_cols: int, num_edges: int) -> tuple[Tensor, Tensor]:
    if not num_edges:
        return (torch.empty(0, dtype=torch.int64),) * 2
    return torch.randint(num_rows, (num_edges,)), torch.randint(num_cols, (num_edges,))


def _dense_sums(rows: Tensor, cols: Tensor, num_rows: int, values: Tensor, w: Tensor) -> Tensor:
    """Matrix products in float64, one for every head."""
    out = torch.zeros(num_rows, *values.shape[1:], dtype=torch.float64)
    for head in range(values.size(1)):
        matrix = torch.zeros(num_rows, values.size(0), dtype=torch.float64)
        matrix.index_put_((rows, cols), w[:, head].double(), accumulate=True)
        out[:, head] = matrix @ values[:, head].double()
    return out


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('block', BLOCKS)
def test_sums_and_dots_are_dense_products(block, shape, dtype):
    num_rows, num_cols, num_edges = BLOCKS[block]
    rows, cols = _edges(*BLOCKS[block])
    values = torch.randn(num_cols, *shape, dtype=dtype)
    weight = torch.randn(num_edges, shape[0], dtype=dtype)
    want = _dense_sums(rows, cols, num_rows, values, weight).to(dtype)
    bags = make_bags(rows, cols, num_rows)
    for add in (add_weighted_sums, _add_by_index_add):
        before = torch.randn(num_rows, *shape, dtype=dtype)
        out = add(before.clone(), values, bags, weight)
        assert_close(out, before + want, tolerance=TOLERANCE[dtype])
    out = torch.zeros(num_rows, *shape, dtype=dtype)
    assert add_weighted_sums(out, values, bags, weight, is_zero=True) is out
    assert_close(out, want, tolerance=TOLERANCE[dtype])

    rows, order = rows.sort(stable=True)
    cols = cols[order]
    left = torch.randn(num_rows, *shape, dtype=dtype)
    want = torch.einsum('rhc,nhc->rnh', left.double(), values.double())[rows, cols].to(dtype)
    bags = make_bags(rows, cols, num_rows, is_sorted=True)
    forms = [edge_dots, _dots_by_gather]
    if block != 'more edges than pairs':
        forms.append(_dots_by_sampling)
    for dots in forms:
        assert_close(dots(left, values, bags), want, tolerance=TOLERANCE[dtype])


@given(st.data())
def test_any_block(data):
    num_rows, num_cols = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    heads, channels = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    pairs = st.tuples(st.integers(0, num_rows - 1), st.integers(0, num_cols - 1))
    edges = data.draw(st.lists(pairs, max_size=25))
    rows = torch.tensor([r for r, _ in edges], dtype=torch.int64)
    cols = torch.tensor([c for _, c in edges], dtype=torch.int64)
    values = torch.randn(num_cols, heads, channels, dtype=torch.float64)
    weight = torch.randn(len(edges), heads, dtype=torch.float64)
    bags = make_bags(rows, cols, num_rows)
    limits = {
        '_BAG_BYTES': data.draw(st.sampled_from([1, 100, 1 << 20])),
        '_EDGE_BYTES': data.draw(st.sampled_from([1, 100, 1 << 20])),
        '_CHUNK_EDGES': data.draw(st.integers(1, 30)),
        '_SAMPLED_EDGES': data.draw(st.integers(1, 30)),
    }
    with mock.patch.multiple(weighted_sums, **limits):
        out = torch.zeros(num_rows, heads, channels, dtype=torch.float64)
        add_weighted_sums(out, values, bags, weight)
        assert_close(out, _dense_sums(rows, cols, num_rows, values, weight))
        # The adjoint: <out, left> = <weight, dots>, edge by edge.
        left = torch.randn_like(out)
        rows, order = rows.sort(stable=True)
        cols = cols[order]
        bags = make_bags(rows, cols, num_rows, is_sorted=True)
        want = (left[rows] * values[cols]).sum(-1)
        assert_close(edge_dots(left, values, bags), want)


def test_chunks_cover_every_bag_once():
    ptr = torch.tensor([0, 3, 3, 10, 11, 11], dtype=torch.int32)
    chunks = list(weighted_sums._chunks(ptr, 2, 5))
    assert chunks == [(0, 2, 0, 3), (2, 3, 3, 10), (3, 5, 10, 11)]


def test_the_choice_of_the_form(monkeypatch):
    """From a few channels on no rows of edges are gathered."""
    gathered = []
    monkeypatch.setattr(
        weighted_sums, '_edge_chunks', lambda *args: gathered.append(args) or iter(())
    )
    rows, cols = _edges(4, 70, 60)
    bags = make_bags(rows.sort().values, cols, 4, is_sorted=True)
    for shape, count in [((4, 32), 0), ((1, 128), 0), ((8, 8), 0), ((1, 1), 1), ((8, 1), 2)]:
        gathered.clear()
        values = torch.randn(70, *shape)
        add_weighted_sums(torch.zeros(4, *shape), values, bags, torch.rand(60, shape[0]))
        edge_dots(torch.randn(4, *shape), values, bags)
        assert len(gathered) == count, shape


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_takes_the_fallback(dtype):
    """Small integers, whose sums are exact in 8 bits of mantissa."""
    rows, cols = _edges(9, 4, 30)
    values = torch.randint(-2, 3, (4, 2, 8)).to(dtype)
    weight = torch.randint(1, 3, (30, 2)).to(dtype)
    out = torch.zeros(9, 2, 8, dtype=dtype)
    add_weighted_sums(out, values, make_bags(rows, cols, 9), weight)
    assert torch.equal(out.double(), _dense_sums(rows, cols, 9, values, weight))
    rows = rows.sort().values
    dots = edge_dots(out, values, make_bags(rows, cols, 9, is_sorted=True))
    assert torch.equal(dots, (out[rows] * values[cols]).sum(-1))


# The Function.

HEADS, CHANNELS = 2, 5


def _inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and output gradient of the whole graph."""
    data = small_graph()
    generator = torch.Generator().manual_seed(4)
    num_nodes, num_edges = data.num_nodes, data.num_edges
    shapes = (num_nodes, HEADS, CHANNELS), (num_edges, HEADS), (num_nodes, HEADS, CHANNELS)
    x, weight, grad = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes
    )
    return x, weight, grad


@functools.cache
def _expected(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, grad = _inputs(dtype)
    x.requires_grad_()
    weight.requires_grad_()
    src, dst = small_graph().edge_index
    out = torch.zeros_like(x).index_add(0, dst, weight.unsqueeze(-1) * x[src])
    out.backward(grad)
    return out.detach(), x.grad, weight.grad


@contextmanager
def _counted() -> Iterator[dict[str, list[int]]]:
    """Rows received in every message, of rows and of gradients; and of all-to-alls."""
    found: dict[str, list[int]] = {'rows': [], 'gradients': [], 'all': [], 'return all': []}
    init, fetch, give = Swap.__init__, Exchange.fetch_all, Exchange.return_all

    def swap(self: Swap, received: Any, *args: Any) -> None:
        kind = {ROWS_TAG: 'rows', GRADIENTS_TAG: 'gradients'}[args[-1]]
        found[kind].append(received.rows[0].size(0))
        assert len(received.rows) == 1
        init(self, received, *args)

    def fetch_all(self: Exchange, tensors: Any) -> Any:
        found['all'].append(len(tensors))
        return fetch(self, tensors)

    def return_all(self: Exchange, gradients: Any, out: Any) -> None:
        found['return all'].append(len(gradients))
        give(self, gradients, out)

    with (
        mock.patch.object(Swap, '__init__', swap),
        mock.patch.object(Exchange, 'fetch_all', fetch_all),
        mock.patch.object(Exchange, 'return_all', return_all),
    ):
        yield found


def _run(
    root: str, mode: str, needs_x: bool, needs_weight: bool, dtype: torch.dtype
) -> dict[str, Any]:
    data = load_shard(root)
    x, weight, grad = _inputs(dtype)
    x = x[data.n_id].requires_grad_(needs_x)
    weight = weight[data.e_id].requires_grad_(needs_weight)
    saved: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tuple(tensor.shape))
        return tensor

    shard = data.edge_index.shard
    plan = plan_of(data.edge_index, shard)
    exchange = Exchange(shard)
    options = {'keep_rows': mode == 'sequential_no_remat', 'one_shot': mode == 'one_shot'}
    with _counted() as forward, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = weighted_sum(x, weight, plan, exchange, **options)
    with _counted() as backward:
        if needs_x or needs_weight:
            out.backward(grad[data.n_id])
    want_out, want_x, want_weight = _expected(dtype)
    tolerance = TOLERANCE[dtype]
    assert_close(out.detach(), want_out[data.n_id], tolerance=tolerance)
    if needs_x:
        assert_close(x.grad, want_x[data.n_id], tolerance=tolerance)
    if needs_weight:
        assert_close(weight.grad, want_weight[data.e_id], tolerance=tolerance)
    steps = shard.steps
    return {
        'forward': forward,
        'backward': backward,
        'saved': sorted(saved),
        'x': tuple(x.shape),
        'weight': tuple(weight.shape),
        'received': [s.recv_rows for s in steps],
        'sent': [s.send_index.numel() for s in steps],
        'halo': shard.num_halo,
    }


@pytest.fixture(scope='module')
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], str]:
    root = tmp_path_factory.mktemp('weighted')
    return {
        (n, kind): str(cut(small_graph(), n, root / f'{n} {kind}', kind))
        for n in (1, 2, 3, 4)
        for kind in ASSIGNMENTS
        if n > 1 or kind == 'uneven'
    }


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('kind', ASSIGNMENTS)
@pytest.mark.parametrize(('world_size', 'num_parts'), [(1, 3), (2, 2), (2, 4), (3, 3)])
def test_output_and_gradients(parts, world_size, num_parts, kind, mode):
    """With a part that nobody lives in, too."""
    run_ranks(_run, world_size, parts[num_parts, kind], mode, True, True, torch.float64)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('needs', [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize('mode', MODES)
def test_messages_and_saved_tensors(parts, mode, needs, dtype):
    """Rows travel once in forward; again for the weight's gradient; gradients only for x's."""
    needs_x, needs_weight = needs
    for found in run_ranks(_run, 3, parts[3, 'uneven'], mode, needs_x, needs_weight, dtype):
        forward, backward = found['forward'], found['backward']
        one_shot, refetches = mode == 'one_shot', mode == 'sequential' and needs_weight
        nothing: list[int] = []
        assert forward == {
            'rows': nothing if one_shot else found['received'],
            'gradients': nothing,
            'all': [1] if one_shot else nothing,
            'return all': nothing,
        }
        assert backward == {
            'rows': found['received'] if refetches else nothing,
            'gradients': found['sent'] if needs_x and not one_shot else nothing,
            'all': nothing,
            'return all': [1] if needs_x and one_shot else nothing,
        }
        saved = []
        if needs_weight:
            saved.append(found['x'])
            row = found['x'][1:]
            if one_shot:
                saved.append((found['halo'], *row))
            if mode == 'sequential_no_remat':
                saved += [(rows, *row) for rows in found['received']]
        if needs_x:
            saved.append(found['weight'])
        assert found['saved'] == sorted(saved)


def test_no_gradient_no_rows_kept(parts):
    data = load_shard(parts[3, 'uneven'])
    plan, exchange = (
        plan_of(data.edge_index, data.edge_index.shard),
        Exchange(data.edge_index.shard),
    )
    x, weight, _ = _inputs()
    with torch.no_grad(), mock.patch.object(Exchange, 'fetch', autospec=True) as fetch:
        fetch.return_value = iter([[x]] * len(plan.blocks))
        weighted_sum(x, weight.requires_grad_(), plan, exchange, keep_rows=True)
    assert fetch.call_args.kwargs == {'keep': False}


# Convs.


class Own(MessagePassing):
    """A weight per edge and head times what `rows` makes of x."""

    def __init__(self, form: str, aggr: str = 'sum', heads: int = HEADS, channels: int = 3) -> None:
        super().__init__(aggr=aggr, node_dim=0)
        self.form, self.heads, self.channels = form, heads, channels
        self.lin = torch.nn.Linear(6, heads * channels)
        self.gate = torch.nn.Linear(4, heads)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, frozen: bool) -> Tensor:
        weight = self.gate(edge_attr).tanh()
        weight = weight.detach() if frozen else weight
        x = self.lin(x)
        if self.form != 'matrix':
            x = x.view(-1, self.heads, self.channels)
        out = self.propagate(edge_index, x=x, weight=weight)
        return out.reshape(-1, self.heads * self.channels)

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        if self.form == 'matrix':
            rows = x_j.view(-1, self.heads, self.channels)
            return (weight.unsqueeze(-1) * rows).view(-1, self.heads * self.channels)
        if self.form == 'right':
            return x_j * weight[:, :, None]
        if self.form == 'twice':
            return (x_j * weight.unsqueeze(-1)) * weight.unsqueeze(-1)
        if self.form == 'detached':
            return x_j * weight.unsqueeze(-1).detach()
        if self.form == 'across':
            return x_j * weight.view(-1, 1, self.heads)
        return weight.view(-1, self.heads, 1) * x_j


class Stacks(MessagePassing):
    """Nodes in the last dimension but one, one learnable weight for every edge, of both stacks."""

    def __init__(self) -> None:
        super().__init__(aggr='mean', node_dim=-2)
        self.gate = torch.nn.Linear(4, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, frozen: bool) -> Tensor:
        weight = self.gate(edge_attr).tanh()
        weight = weight.detach() if frozen else weight
        return self.propagate(edge_index, x=torch.stack([x, x.sin()]), weight=weight).sum(0)

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        return weight * x_j


class Attention(torch.nn.Module):
    """Any attention conv, without the frozen weights of the others."""

    def __init__(self, conv: MessagePassing) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, frozen: bool) -> Tensor:
        return self.conv(x, edge_index, edge_attr)


class Scalar(torch.nn.Module):
    """Any conv with an edge_weight, here computed; used twice with the same weight."""

    def __init__(self, make: Callable[[], MessagePassing]) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([make(), make()])
        self.gate = torch.nn.Linear(4, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, frozen: bool) -> Tensor:
        weight = self.gate(edge_attr).sigmoid().squeeze(-1)
        weight = weight.detach() if frozen else weight
        for conv in self.convs:
            x = conv(x, edge_index, weight).tanh()
        return x


CONVS: dict[str, Callable[[], torch.nn.Module]] = {
    'heads': lambda: Own('left'),
    'heads of 16 channels': lambda: Own('right', channels=16),
    'one head': lambda: Own('right', heads=1),
    'three heads, three channels': lambda: Own('left', heads=3),
    'mean': lambda: Own('right', 'mean'),
    'views of a matrix': lambda: Own('matrix', channels=16),
    'stacks': Stacks,
    'GAT': lambda: Attention(GATConv(6, 8, heads=3, edge_dim=4)),
    'GAT of one head': lambda: Attention(GATConv(6, 3, edge_dim=4, add_self_loops=False)),
    'GATv2': lambda: Attention(GATv2Conv(6, 8, heads=2, edge_dim=4)),
    'GCN': lambda: Scalar(lambda: GCNConv(6, 6)),
    'GraphConv': lambda: Scalar(lambda: GraphConv(6, 6)),
    'GraphConv, mean': lambda: Scalar(lambda: GraphConv(6, 6, aggr='mean')),
}
OTHERS = {form: functools.partial(Own, form, heads=3) for form in ('twice', 'detached', 'across')}


def _module(name: str, dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(5)
    return {**CONVS, **OTHERS}[name]().to(dtype)


def _layer(
    name: str, data: Any, module: torch.nn.Module, dtype: torch.dtype, frozen: bool, needs_x: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    x = data.x.detach().to(dtype).requires_grad_(needs_x)
    edge_attr = data.edge_attr.detach().to(dtype).requires_grad_()
    out = module(x, data.edge_index, edge_attr, frozen)
    return out, {'x': x, 'edge_attr': edge_attr}


def _conv_parity(
    name: str, root: str, mode: str, dtype: torch.dtype, frozen: bool, needs_x: bool
) -> list[str]:
    """Compares output and all gradients with plain PyG; returns the paths of propagate."""
    graph, data = small_graph(), load_shard(root)
    plain = _module(name, dtype)
    want, inputs = _layer(name, graph, plain, dtype, frozen, needs_x)
    torch.manual_seed(6)
    grad = torch.randn_like(want)
    want.backward(grad)
    wrapped = wrap(_module(name, dtype), mode=mode)
    paths: list[str] = []
    original = Paths.aggregate

    def aggregate(self: Paths, path: Any, *args: Any) -> Tensor:
        paths.append(path)
        return original(self, path, *args)

    with mock.patch.object(Paths, 'aggregate', aggregate):
        out, own = _layer(name, data, wrapped, dtype, frozen, needs_x)
    out.backward(grad[data.n_id])
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4}[dtype]
    assert_close(out.detach(), want.detach()[data.n_id], tolerance=tolerance)
    for key, ids in (('x', data.n_id), ('edge_attr', data.e_id)):
        assert_close(_grad(own[key]), _grad(inputs[key])[ids], tolerance=tolerance)
    for a, b in zip(wrapped.parameters(), plain.parameters(), strict=True):
        share = _grad(a).clone()
        if dist.is_initialized():
            dist.all_reduce(share)
        assert_close(share, _grad(b), tolerance=tolerance)
    return paths


def _grad(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('kind', ['uneven', 'empty part'])
@pytest.mark.parametrize('world_size', [1, 2, 3])
@pytest.mark.parametrize('name', CONVS)
def test_convs(parts, name, world_size, kind, mode):
    root = parts[3 if world_size == 1 else world_size, kind]
    for paths in run_ranks(_conv_parity, world_size, name, root, mode, torch.float64, False, True):
        assert set(paths) == {'weighted'}


@pytest.mark.parametrize('name', CONVS)
def test_convs_in_float32(parts, name):
    root = parts[3, 'uneven']
    for paths in run_ranks(_conv_parity, 3, name, root, 'sequential', torch.float32, False, True):
        assert set(paths) == {'weighted'}


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize(
    ('name', 'needs_x'),
    [
        *((n, needs) for n in ('heads', 'one head', 'GCN') for needs in (True, False)),
        ('stacks', True),
    ],
)
def test_weights_without_gradient(parts, name, needs_x, mode):
    """Of several heads, or of stacks; one number times the rows of a matrix is linear."""
    args = (name, parts[3, 'uneven'], mode, torch.float64, True, needs_x)
    for paths in run_ranks(_conv_parity, 3, *args):
        assert set(paths) == {'linear' if name == 'GCN' else 'weighted'}


@pytest.mark.parametrize('name', ['heads', 'GAT', 'GCN'])
def test_x_without_gradient(parts, name):
    run_ranks(_conv_parity, 3, name, parts[3, 'uneven'], 'sequential', torch.float64, False, False)


@pytest.mark.parametrize('name', OTHERS)
def test_other_products_are_replayed(parts, name):
    """Two products; a weight cut off from its gradient; weights along the channels."""
    args = (name, parts[3, 'uneven'], 'sequential', torch.float64, False, True)
    for paths in run_ranks(_conv_parity, 3, *args):
        assert paths == ['replay']


def test_half_precision_is_replayed(parts):
    """Products in bfloat16 are rounded before they are summed."""
    data = load_shard(parts[3, 'uneven'])
    paths: list[str] = []
    original = Paths.aggregate

    def aggregate(self: Paths, path: Any, *args: Any) -> Tensor:
        paths.append(path)
        return original(self, path, *args)

    want, _ = _layer(
        'heads', small_graph(), _module('heads', torch.bfloat16), torch.bfloat16, False, True
    )
    with mock.patch.object(Paths, 'aggregate', aggregate):
        module = wrap(_module('heads', torch.bfloat16))
        out, inputs = _layer('heads', data, module, torch.bfloat16, False, True)
    out.sum().backward()
    assert paths == ['replay']
    assert out.dtype == torch.bfloat16
    assert inputs['x'].grad is not None
    assert_close(out.detach(), want.detach()[data.n_id], tolerance=0.1)


@pytest.mark.parametrize('name', ['heads', 'GAT'])
def test_autocast(parts, name):
    """Mixed dtypes are replayed; output dtype and gradients are plain PyG's, as far as they go."""
    graph, data = small_graph(), load_shard(parts[3, 'uneven'])
    plain, wrapped = _module(name, torch.float32), wrap(_module(name, torch.float32))
    with torch.autocast('cpu', dtype=torch.bfloat16):
        want, inputs = _layer(name, graph, plain, torch.float32, False, True)
        out, own = _layer(name, data, wrapped, torch.float32, False, True)
    assert out.dtype == want.dtype
    want.float().square().sum().backward()
    out.float().square().sum().backward()
    for a, b in [(out, want), (own['x'].grad, inputs['x'].grad)]:
        b = b.detach()[data.n_id].float()
        assert (a.detach().float() - b).abs().max() <= 0.05 * b.abs().max()


def _needs_differ(root: str) -> str:
    data = load_shard(root)
    module = wrap(_module('heads', torch.float64))
    frozen = dist.get_rank() == 1
    try:
        _layer('heads', data, module, torch.float64, frozen, True)
    except ValueError as error:
        return str(error)
    return ''


def test_ranks_that_differ_in_the_weights_gradient(parts):
    for message in run_ranks(_needs_differ, 2, parts[2, 'uneven']):
        assert 'path of Own.message' in message
