"""``pyg_sar.profile``: its counts follow from the shard, and nothing else changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from few import few
from on_ranks import on_ranks, parts_of
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, MedianAggregation, SAGEConv
from traffic import counted

import pyg_sar
from pyg_sar.comm.collectives import all_reduce_sum
from pyg_sar.comm.vote import agree
from pyg_sar.utils import hook

WIDTH = 6
of_rows = on_ranks(num_parts=3)


class Net(torch.nn.Module):
    """Layers whose rows are as wide as their inputs; a norm between them waits for other ranks."""

    def __init__(self, make: Callable[[], torch.nn.Module], num_layers: int = 2) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([make() for _ in range(num_layers)])
        self.norm = torch.nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(self.norm(x), edge_index).relu()
        return x


CONVS: dict[str, Callable[[], torch.nn.Module]] = {
    'sage': lambda: SAGEConv(WIDTH, WIDTH),
    'gat': lambda: GATConv(WIDTH, WIDTH, add_self_loops=False),
    'median': lambda: SAGEConv(WIDTH, WIDTH, aggr=MedianAggregation()),
}


def _model(conv: str = 'sage', **options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return pyg_sar.DistributedDataParallel(Net(CONVS[conv]).double(), **options)


def _step(model: torch.nn.Module, data: Data) -> list[Tensor]:
    model.zero_grad()
    out = model(data.x, data.edge_index)
    out.square().sum().backward()
    return [pyg_sar.local(out.detach()), *(p.grad.clone() for p in model.parameters())]


def _counts(passes: Any) -> tuple[int, ...]:
    return passes.rows_received, passes.rows_sent, passes.bytes_received, passes.bytes_sent


def _expected(data: Data, *, reverse: bool) -> tuple[int, ...]:
    """What travels when every halo row does in two steps, from the shard's own numbers."""
    shard = data.edge_index.handle.shard
    sent = sum(step.send_index.numel() for step in shard.steps)
    rows = (sent, shard.num_halo) if reverse else (shard.num_halo, sent)
    return tuple(2 * n for n in (*rows, *(n * WIDTH * 8 for n in rows)))


def _passes(prof: Any, layer: int, conv: str = 'SAGEConv') -> list[Any]:
    """The forward and the backward of a layer."""
    names = [f"layer 'convs.{layer}' ({conv}), {phase}" for phase in ('forward', 'backward')]
    return [prof.counts[name] for name in names]


@pytest.mark.parametrize('mode', ['sequential', 'sequential_no_remat'])
@of_rows
def test_rows_of_attention(data, mode):
    """Logits and features travel; only without rows kept are they received again in backward."""
    model = _model('gat', mode=mode, partial_sums=False)
    _step(model, data)  # plans
    with pyg_sar.profile() as prof:
        _step(model, data)
        _step(model, data)
    halo, back = (_expected(data, reverse=reverse) for reverse in (False, True))
    for layer in range(2):
        forward, backward = map(_counts, _passes(prof, layer, 'GATConv'))
        assert forward[0] == 2 * halo[0]  # a row of logits and one of features
        assert forward[2] == halo[2] + halo[2] // WIDTH
        again = halo[2] if mode == 'sequential' else 0
        assert backward[2] >= back[2] + again
        assert (backward[2] == back[2] + back[2] // WIDTH) == (mode != 'sequential')


@pytest.mark.slow
@pytest.mark.parametrize('conv', CONVS)
@of_rows
def test_bytes_are_those_of_the_messages(data, conv):
    """Also plans and requests of the first epoch."""
    model = _model(conv, mode='one_shot' if conv == 'gat' else 'sequential')
    with pyg_sar.profile() as prof, counted() as traffic:
        for _ in range(2):
            _step(model, data)
    counts = torch.tensor([_counts(each) for each in prof.counts.values()]).sum(0)
    assert counts[3] == traffic.bytes_sent > 0
    rows_received, rows_sent, bytes_received, bytes_sent = all_reduce_sum(counts).tolist()
    assert rows_received == rows_sent > 0
    assert bytes_received == bytes_sent


@of_rows
def test_kept_sums_move_no_rows(data):
    model = pyg_sar.DistributedDataParallel(CONVS['sage']().double())
    _step(model, data)
    with pyg_sar.profile() as prof:
        _step(model, data)
    first, *others = prof.counts
    assert first.endswith('(SAGEConv), forward')
    assert not any('backward' in name and 'layer SAR' in name for name in others)
    assert _counts(prof.counts[first]) == (0, 0, 0, 0)


@pytest.mark.parametrize('world_size', few([3, 1]))
@on_ranks(num_parts=3)
def test_same_bits(data, world_size):
    answers = []
    for is_profiled in (False, True):
        model = pyg_sar.DistributedDataParallel(_model('gat'))
        with pyg_sar.profile() if is_profiled else nullcontext():
            answers.append([each for _ in range(2) for each in _step(model, data)])
    assert all(map(torch.equal, *answers))
    assert hook.watchers == ()


@of_rows
def test_times_and_tables(data):
    model = _model('gat')
    before = time.perf_counter()
    with pyg_sar.profile() as prof:
        _step(model, data)
        with torch.no_grad():
            model(data.x, data.edge_index)
    assert prof.seconds <= time.perf_counter() - before
    counts = prof.counts
    passes = [p for i in range(2) for p in _passes(prof, i, 'GATConv')]
    assert all(p.waiting > 0 and p.computing > 0 for p in passes)
    assert counts['outside of layers'].waiting > 0  # the norm
    spent = sum(p.waiting + p.computing for p in counts.values())
    assert spent == pytest.approx(prof.seconds)
    assert list(counts)[-1] == 'outside of layers'

    rank, table, all_ranks = dist.get_rank(), prof.table(), prof.table(all_ranks=True)
    assert str(prof) == table
    rows = agree(passes[2].rows_received)
    assert len(set(rows)) > 1
    lines = all_ranks.splitlines()
    name = "layer 'convs.1' (GATConv), forward"
    start = next(i for i, line in enumerate(lines) if line.startswith(name))
    numbers = {'least': min(rows), 'mean': sum(rows) / 3, 'most': max(rows)}
    for line, (word, number) in zip(lines[start:], numbers.items(), strict=False):
        assert line.removeprefix(name).split()[:2] == [word, f'{number:,.0f}']
    assert lines[0].startswith('3 ranks: ')
    assert table.startswith(f'rank {rank} of 3: ')
    for name in counts:
        assert sum(line.startswith(name) for line in table.splitlines()) == 1
    assert f'{rows[rank]:,}' in table
    assert agree(all_ranks) == [all_ranks] * 3


@on_ranks(2)
def test_a_pass_of_one_rank_alone(data):
    """The others have done nothing in it."""
    with pyg_sar.profile() as prof:
        if dist.get_rank():
            with hook.in_layer('layer x', 'forward'):
                hook.moved(hook.Transfer('part 0', 'rows', 4, 0, 8, 0))
    line = next(li for li in prof.table(all_ranks=True).splitlines() if li.startswith('layer x'))
    assert line.split()[3:5] == ['least', '0']


@on_ranks(2)
def test_ranges_of_torch_profiler(data):
    """None without a profile of ours."""
    model, found = _model(), []
    for is_profiled in (False, True):
        with (
            pyg_sar.profile() if is_profiled else nullcontext(),
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler,
        ):
            _step(model, data)
        found.append({e.name for e in profiler.events() if e.name.startswith('pyg_sar::')})
    assert found[0] == set()
    assert found[1] >= {
        *(f"pyg_sar::layer 'convs.{i}' (SAGEConv), forward" for i in range(2)),
        *(f"pyg_sar::layer 'convs.{i}' (SAGEConv), backward" for i in range(2)),
        f'pyg_sar::wait: receiving the rows of part {1 - dist.get_rank()}',
        'pyg_sar::wait: receiving gradients of own rows',
        'pyg_sar::a sum over all ranks',
    }


@on_ranks(1, 3)
def test_exceptions(data):
    """In a layer: what came before counts, nothing is left."""
    model = _model()
    model(data.x, data.edge_index)
    with pytest.raises(ValueError, match='rows'), pyg_sar.profile() as prof:
        model(data.x[:-1], data.edge_index)
    assert prof.seconds > 0
    assert hook.watchers == ()


def test_without_a_process_group():
    """All parts on one process, profiles within others."""
    data = pyg_sar.load_shard(parts_of(3))
    model = _model()
    with pyg_sar.profile() as outer:
        _step(model, data)
        with pyg_sar.profile() as inner:
            model(data.x, data.edge_index)
    for prof in (outer, inner):
        assert sum(c.rows_received for c in prof.counts.values()) == 0
    assert "layer 'convs.1' (SAGEConv), forward" in inner.counts
    assert outer.seconds > inner.seconds
    assert outer.table(all_ranks=True).startswith('1 ranks')


@pytest.mark.gpu
def test_on_a_gpu():
    data = pyg_sar.load_shard(parts_of(2)).to('cuda')
    model = _model().cuda()
    with pyg_sar.profile() as prof:
        _step(model, data)
    assert _passes(prof, 1)[0].computing > 0
