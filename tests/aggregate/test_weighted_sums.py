"""Sums with a weight per edge and head over ranks: gradients, messages, what is kept."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from ranks import run_ranks
from small_graphs import ASSIGNMENTS, assert_close, cut, small_graph
from torch import Tensor

import pyg_sar
from pyg_sar.aggregate.weighted_sum import weighted_sum
from pyg_sar.comm import Exchange
from pyg_sar.comm.swap import GRADIENTS_TAG, ROWS_TAG, Swap
from pyg_sar.shard.plan import plan_of

MODES = ('sequential', 'sequential_no_remat', 'one_shot')


TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-5}


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
    data = pyg_sar.local(pyg_sar.load_shard(root))
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
    data = pyg_sar.local(pyg_sar.load_shard(parts[3, 'uneven']))
    plan, exchange = (
        plan_of(data.edge_index, data.edge_index.shard),
        Exchange(data.edge_index.shard),
    )
    x, weight, _ = _inputs()
    with torch.no_grad(), mock.patch.object(Exchange, 'fetch', autospec=True) as fetch:
        fetch.return_value = iter([[x]] * len(plan.blocks))
        weighted_sum(x, weight.requires_grad_(), plan, exchange, keep_rows=True)
    assert fetch.call_args.kwargs == {'keep': False}
