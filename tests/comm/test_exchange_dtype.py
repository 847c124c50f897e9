"""Rows that travel in a narrower dtype: only they are rounded, and half the bytes are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from few import few
from layouts import LAYOUTS, same
from on_ranks import on_ranks
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import ChebConv, GATConv, GCNConv, MessagePassing, SAGEConv, TransformerConv
from traffic import counted, give_back

from pyg_sar import SARConv
from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.vote import agree

MODES = ['sequential', 'sequential_no_remat', 'one_shot']
NARROW = torch.bfloat16


def _rounded(tensor: Tensor) -> Tensor:
    """What a tensor is after it has travelled."""
    is_wide = tensor.is_floating_point() and tensor.element_size() > 2
    return tensor.to(NARROW).to(tensor.dtype) if is_wide else tensor


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


@pytest.mark.parametrize('keep', [False, True])
@pytest.mark.parametrize(('world_size', 'num_parts'), LAYOUTS[2:])
@on_ranks(is_local=True)
def test_rows_are_rounded_and_own_rows_are_not(data, world_size, num_parts, keep):
    shard = data.edge_index.handle.shard
    torch.manual_seed(dist.get_rank())
    values = _values(shard.num_own)
    exact, narrow = Exchange(shard), Exchange(shard, dtype=NARROW)
    pairs = zip(
        exact.all_gather_halo(values, keep=True),
        narrow.all_gather_halo(values, keep=keep),
        strict=True,
    )
    for number, (expected, found) in enumerate(pairs):
        if number >= shard.parts_per_rank:
            sent, expected = expected[0], [_rounded(t) for t in expected]
            # Rounding shows, or the test would see nothing.
            assert sent.numel() == 0 or not torch.equal(sent, expected[0])
        assert same(found, expected)
    halo = [_rounded(t) for t in exact.fetch(values)]
    assert same(narrow.fetch(values), halo)
    ids = torch.arange(0, shard.num_halo, 2)
    (request,) = narrow.parts([ids])
    assert same(narrow.fetch(values, request), [t[ids] for t in halo])


@pytest.mark.parametrize(('world_size', 'num_parts'), LAYOUTS[2:])
@on_ranks(is_local=True)
def test_gradients_are_rounded_once_and_summed_in_full(data, world_size, num_parts):
    """Bit for bit what an exact exchange makes of rounded rows: nothing is summed in half."""
    shard = data.edge_index.handle.shard
    torch.manual_seed(dist.get_rank())
    exact, narrow = Exchange(shard), Exchange(shard, dtype=NARROW)

    def random(rows: int) -> list[Tensor]:
        return [torch.randn(rows, *shape, dtype=torch.float64) for shape in ((3,), (2, 2))]

    expected, found = ([torch.zeros_like(t) for t in random(shard.num_own)] for _ in 'en')
    ranges = map(shard.source_range, [*shard.parts, *(step.part for step in shard.steps)])
    own = [random(end - start) for start, end in ranges]
    give_back(narrow, found, own)
    for rows in own[shard.parts_per_rank :]:
        rows[:] = [_rounded(t) for t in rows]
    give_back(exact, expected, own)
    assert same(found, expected)
    halo, ids = random(shard.num_halo), torch.arange(0, shard.num_halo, 2)
    (request,) = narrow.parts([ids])
    for rows, asked in ((halo, []), ([t[ids] for t in halo], [request])):
        narrow.give_back(rows, found, *asked)
        exact.give_back([_rounded(t) for t in rows], expected, *asked)
        assert same(found, expected)


CONVS: dict[str, Callable[[], MessagePassing]] = {
    'SAGE': lambda: SAGEConv(6, 4),
    'Transformer': lambda: TransformerConv(6, 4, edge_dim=4),
    'GAT': lambda: GATConv(6, 4, heads=2),
    'SAGE-median': lambda: SAGEConv(6, 4, aggr='median'),
}


def _layer(
    data: Data, name: str, dtype: torch.dtype | None, **options: Any
) -> tuple[list[Tensor], list[int]]:
    """Output and gradients in float32, and the bytes sent in forward and backward."""
    torch.manual_seed(3)
    conv = SARConv(CONVS[name](), exchange_dtype=dtype, **options)
    edges = [data.edge_attr.float()] if name == 'Transformer' else []
    x = data.x.float().requires_grad_()
    conv(x, data.edge_index, *edges).sum().backward()  # what is agreed on once
    x.grad = None
    conv.zero_grad()
    with counted() as forward:
        out = conv(x, data.edge_index, *edges)
    with counted() as backward:
        (out * torch.arange(1, 1 + out.size(-1))).sum().backward()
    # The gradient of a bias of keys is 0, but for what is rounded.
    named = [(k, p) for k, p in conv.named_parameters() if not k.endswith('lin_key.bias')]
    found = [out.detach(), x.grad, *(p.grad for _, p in named)]
    return found, [forward.bytes_sent, backward.bytes_sent]


@pytest.mark.parametrize('mode', few(MODES, every=4))
@pytest.mark.parametrize('name', CONVS)
@on_ranks()
def test_half_the_bytes(data, name, mode):
    """On every path, both ways; and the results are near, though not the same."""
    exact, full = _layer(data, name, None, mode=mode)
    narrow, half = _layer(data, name, NARROW, mode=mode)
    assert min(full) > 0
    assert [2 * count for count in half] == full
    for a, b in zip(narrow, exact, strict=True):
        largest = max(agree(b.abs().max().item()))
        assert (a - b).abs().max() <= 0.02 * largest
    assert any(agree(not same(narrow, exact)))


@pytest.mark.parametrize('name', CONVS)
@on_ranks(1, 3)
def test_one_process_has_nothing_to_round(data, name):
    exact, narrow = (_layer(data, name, dtype)[0] for dtype in (None, NARROW))
    assert same(narrow, exact)


def _integers(data: Data) -> Tensor:
    """Features that bfloat16 holds exactly."""
    return (data.n_id.view(-1, 1) * torch.arange(1, 4) % 7).double()


DEGREES = {'GCN': lambda: GCNConv(3, 3, bias=False), 'Cheb': lambda: ChebConv(3, 3, 2)}


@pytest.mark.parametrize('name', DEGREES)
@on_ranks()
def test_degrees_are_not_rounded(data, name):
    """Of convs whose rows round to themselves, while their degrees' roots do not."""
    found = []
    for each in (None, NARROW):
        torch.manual_seed(3)
        conv = DEGREES[name]().double()
        if name == 'GCN':  # the rows that travel come out of the linear layer
            with torch.no_grad():
                conv.lin.weight.copy_(torch.eye(3))
        conv = SARConv(conv, exchange_dtype=each, partial_sums=False)  # sums would round
        found.append(conv(_integers(data), data.edge_index).detach())
    assert torch.equal(*found)


@on_ranks(2)
def test_ranks_with_other_dtypes(data):
    conv = SARConv(SAGEConv(6, 4).double(), exchange_dtype=(torch.bfloat16, None)[dist.get_rank()])
    with pytest.raises(ValueError, match='exchange_dtype'):
        conv(data.x, data.edge_index)


@on_ranks(2, is_local=True)
def test_half_rows_stay_as_they_are(data):
    """Nothing narrower to send: a float16 model is not turned into a bfloat16 one."""
    shard = data.edge_index.handle.shard
    x = torch.full((shard.num_own, 2), 1 / 3, dtype=torch.float16)  # another one in bfloat16
    (halo,) = Exchange(shard, dtype=NARROW).fetch([x])
    assert halo.numel() > 0
    assert (halo == x[0]).all()
