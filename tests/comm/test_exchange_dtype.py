"""Rows that travel in a narrower dtype: only they are rounded, and half the bytes are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from few import few
from ranks import run_ranks
from small_graphs import assert_all_raise, attempt, cut, small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import ChebConv, GATConv, GCNConv, MessagePassing, SAGEConv, TransformerConv
from traffic import counted, put

import pyg_sar
from pyg_sar import SARConv
from pyg_sar.comm import Exchange, GradientReturn

DTYPES = [torch.bfloat16, torch.float16]
LAYOUTS = [(2, 2), (2, 6), (3, 3), (4, 4)]
MODES = ['sequential', 'sequential_no_remat', 'one_shot']


def _rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """What a tensor is after it has travelled."""
    is_wide = tensor.is_floating_point() and tensor.element_size() > 2
    return tensor.to(dtype).to(tensor.dtype) if is_wide else tensor


def _values(num_rows: int) -> list[Tensor]:
    """Rows of several dtypes; the floating-point ones wider than half are not representable."""
    x = torch.randn(num_rows, 5, dtype=torch.float64)
    return [
        x,
        x[:, :2].float(),
        torch.randn(num_rows, 2, 3),
        (x * 1000).long(),
        x > 0,
        x.half(),
        x.to(torch.bfloat16),
        torch.empty(num_rows, 0),
    ]


def _same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, expected, strict=True)
    )


def _fetched(root: str, dtype: torch.dtype, depth: int, keep: bool) -> list[bool]:
    """Whether every block is what it should be: own rows as they are, remote ones rounded."""
    data = pyg_sar.local(pyg_sar.load_shard(root))
    shard = data.edge_index.shard
    torch.manual_seed(dist.get_rank())
    values = _values(shard.num_own)
    exact, narrow = Exchange(shard), Exchange(shard, depth=depth, dtype=dtype)
    right = []
    pairs = zip(exact.fetch(values, keep=True), narrow.fetch(values, keep=keep), strict=True)
    for number, (expected, found) in enumerate(pairs):
        if number >= shard.parts_per_rank:
            sent, expected = expected[0], [_rounded(t, dtype) for t in expected]
            # Rounding shows, or the test would see nothing.
            right.append(sent.numel() == 0 or not torch.equal(sent, expected[0]))
        right.append(_same(found, expected))
    halo = [_rounded(t, dtype) for t in exact.fetch_all(values)]
    right.append(_same(narrow.fetch_all(values), halo))
    ids = torch.arange(0, shard.num_halo, 2)
    (request,) = narrow.request([ids])
    right.append(_same(narrow.fetch_requested(values, request), [t[ids] for t in halo]))
    return right


@pytest.mark.parametrize('keep', [False, True])
@pytest.mark.parametrize('dtype', few(DTYPES))
@pytest.mark.parametrize(('world_size', 'num_parts'), LAYOUTS)
def test_rows_are_rounded_and_own_rows_are_not(tmp_path, world_size, num_parts, dtype, keep):
    root = str(cut(small_graph(), num_parts, tmp_path / 'parts'))
    for right in run_ranks(_fetched, world_size, root, dtype, 1 + keep, keep):
        assert all(right)


def _returned(root: str, dtype: torch.dtype) -> list[bool]:
    """Whether gradients equal the exact return of gradients that were rounded before."""
    shard = pyg_sar.local(pyg_sar.load_shard(root)).edge_index.shard
    torch.manual_seed(dist.get_rank())
    exact, narrow = Exchange(shard), Exchange(shard, dtype=dtype)
    shapes = [(3,), (2, 2)]

    def random(rows: int) -> list[Tensor]:
        return [torch.randn(rows, *shape, dtype=torch.float64) for shape in shapes]

    parts = [*shard.parts, *(step.part for step in shard.steps)]
    sizes = [end - start for start, end in (shard.source_range(part) for part in parts)]
    gradients = [random(size) for size in sizes]
    out = {name: [torch.zeros(shard.num_own, *s).double() for s in shapes] for name in 'en'}
    returns = {'e': GradientReturn(exact, out['e']), 'n': GradientReturn(narrow, out['n'])}
    for number, rows in enumerate(gradients):
        put(returns['n'], rows)
        is_own = number < shard.parts_per_rank
        put(returns['e'], rows if is_own else [_rounded(t, dtype) for t in rows])
    for each in returns.values():
        each.finish()
    right = [_same(out['n'], out['e'])]

    halo = random(shard.num_halo)
    start = random(shard.num_own)
    found, expected = [t.clone() for t in start], [t.clone() for t in start]
    narrow.return_all(halo, found)
    exact.return_all([_rounded(t, dtype) for t in halo], expected)
    right.append(_same(found, expected))
    ids = torch.arange(0, shard.num_halo, 2)
    (request,) = narrow.request([ids])
    narrow.return_requested([t[ids] for t in halo], found, request)
    exact.return_requested([_rounded(t[ids], dtype) for t in halo], expected, request)
    right.append(_same(found, expected))
    return right


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize(('world_size', 'num_parts'), LAYOUTS)
def test_gradients_are_rounded_once_and_summed_in_full(tmp_path, world_size, num_parts, dtype):
    """Bit for bit what an exact exchange makes of rounded rows: nothing is summed in half."""
    root = str(cut(small_graph(), num_parts, tmp_path / 'parts'))
    for right in run_ranks(_returned, world_size, root, dtype):
        assert all(right)


CONVS: dict[str, Callable[[], MessagePassing]] = {
    'SAGE': lambda: SAGEConv(6, 4),
    'Transformer': lambda: TransformerConv(6, 4, edge_dim=4),
    'GAT': lambda: GATConv(6, 4, heads=2),
    'SAGE-median': lambda: SAGEConv(6, 4, aggr='median'),
}


def _layer(
    root: str, name: str, mode: str, dtype: torch.dtype | None, options: dict[str, Any]
) -> tuple[list[Tensor], int, int]:
    """Output and gradients in float32, and the bytes sent in forward and backward."""
    data = pyg_sar.local(pyg_sar.load_shard(root))
    torch.manual_seed(3)
    conv = SARConv(CONVS[name](), mode=mode, exchange_dtype=dtype, **options)
    edges = [data.edge_attr.float()] if name == 'Transformer' else []
    x = data.x.float().requires_grad_()
    conv(x, data.edge_index, *edges).sum().backward()  # what is agreed on once
    x.grad = None
    conv.zero_grad()
    with counted() as forward:
        out = conv(x, data.edge_index, *edges)
    with counted() as backward:
        (out * torch.arange(1, 1 + out.size(-1))).sum().backward()
    found = [out.detach(), x.grad, *(p.grad for p in conv.parameters())]
    return found, forward.bytes_sent, backward.bytes_sent


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('mode', few([*MODES, 'auto'], every=4))
@pytest.mark.parametrize('name', CONVS)
def test_half_the_bytes(tmp_path, name, mode, dtype):
    """On every path, both ways; and the results are near, though not the same."""
    root = str(cut(small_graph(), 3, tmp_path / 'parts'))
    options = {'memory_budget': 1} if mode == 'auto' else {}
    if mode != 'one_shot':  # what travels in float16 are rows always
        options |= {'partial_sums': dtype == torch.bfloat16}
    exact = run_ranks(_layer, 3, root, name, mode, None, options)
    narrow = run_ranks(_layer, 3, root, name, mode, dtype, options)
    largest = [
        max(t.abs().max().item() for t in of) for of in zip(*(f for f, _, _ in exact), strict=True)
    ]
    differs = False
    for (found, forward, backward), (expected, full_forward, full_backward) in zip(
        narrow, exact, strict=True
    ):
        assert full_forward > 0
        assert full_backward > 0
        assert (2 * forward, 2 * backward) == (full_forward, full_backward)
        for a, b, scale in zip(found, expected, largest, strict=True):
            assert (a - b).abs().max() <= 0.02 * scale
            differs |= not torch.equal(a, b)
    assert differs


@pytest.mark.parametrize('name', CONVS)
def test_one_process_has_nothing_to_round(tmp_path, name):
    root = str(cut(small_graph(), 3, tmp_path / 'parts'))
    exact, _, _ = _layer(root, name, 'sequential', None, {})
    narrow, _, _ = _layer(root, name, 'sequential', torch.bfloat16, {})
    assert _same(narrow, exact)


def _integers(data: Data) -> Tensor:
    """Features that bfloat16 holds exactly."""
    return (data.n_id.view(-1, 1) * torch.arange(1, 4) % 7).double()


def _degrees(root: str, name: str, dtype: torch.dtype | None) -> Tensor:
    """A conv whose rows round to themselves, while its degrees' roots do not."""
    data = pyg_sar.local(pyg_sar.load_shard(root))
    torch.manual_seed(3)
    make = {'GCN': lambda: GCNConv(3, 3, bias=False), 'Cheb': lambda: ChebConv(3, 3, 2)}[name]
    conv = SARConv(make().double(), exchange_dtype=dtype, partial_sums=False)  # sums would round
    if name == 'GCN':  # the rows that travel come out of the linear layer
        with torch.no_grad():
            conv.lin.weight.copy_(torch.eye(3))
    out: Tensor = conv(_integers(data), data.edge_index).detach()
    return out


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('name', ['GCN', 'Cheb'])
def test_degrees_are_not_rounded(tmp_path, name, dtype):
    root = str(cut(small_graph(), 3, tmp_path / 'parts'))
    exact = run_ranks(_degrees, 3, root, name, None)
    narrow = run_ranks(_degrees, 3, root, name, dtype)
    assert _same(narrow, exact)


def _dtype_of_rank(root: str) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    conv = SARConv(SAGEConv(6, 4).double(), exchange_dtype=DTYPES[dist.get_rank()])
    return attempt(conv, data.x, data.edge_index)


def test_ranks_with_other_dtypes(tmp_path):
    root = str(cut(small_graph(), 2, tmp_path / 'parts'))
    outcomes = run_ranks(_dtype_of_rank, 2, root)
    assert_all_raise(outcomes, 'ValueError', 'expected the same layer', 'exchange_dtype')


def test_half_rows_stay_as_they_are(tmp_path):
    """Nothing narrower to send: a bfloat16 model is not turned into a float16 one."""
    root = str(cut(small_graph(), 2, tmp_path / 'parts'))
    for value in run_ranks(_half_rows, 2, root):
        assert value


def _half_rows(root: str) -> bool:
    shard = pyg_sar.local(pyg_sar.load_shard(root)).edge_index.shard
    x = torch.full((shard.num_own, 2), 1e30, dtype=torch.bfloat16)  # infinite in float16
    (halo,) = Exchange(shard, dtype=torch.float16).fetch_all([x])
    return halo.numel() > 0 and bool((halo == x[0]).all())
