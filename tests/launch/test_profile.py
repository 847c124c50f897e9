"""``pyg_sar.profile``: its counts follow from the shard, and nothing else changes."""

from __future__ import annotations

import copy
import io
import json
import os
import time
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from few import few
from on_ranks import on_ranks
from ranks import run_once
from small_graphs import cut, small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, MedianAggregation, SAGEConv
from traffic import counted

import pyg_sar
from pyg_sar.comm.collectives import agree, all_reduce_sum
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


def _sage() -> torch.nn.Module:
    return SAGEConv(WIDTH, WIDTH)


def _gat() -> torch.nn.Module:
    return GATConv(WIDTH, WIDTH, add_self_loops=False)


def _median() -> torch.nn.Module:
    return SAGEConv(WIDTH, WIDTH, aggr=MedianAggregation())


def _model(make: Callable[[], torch.nn.Module] = _sage, **options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return pyg_sar.DistributedDataParallel(Net(make).double(), **options)


def _step(model: torch.nn.Module, data: Data) -> list[Tensor]:
    model.zero_grad()
    out = model(data.x, data.edge_index)
    out.square().sum().backward()
    return [pyg_sar.local(out.detach()), *(p.grad.clone() for p in model.parameters())]


@pytest.fixture
def root(tmp_path: Path) -> Callable[[int], str]:
    return lambda num_parts: str(cut(small_graph(), num_parts, tmp_path / 'parts'))


def _counts(passes: Any) -> tuple[int, ...]:
    return passes.rows_received, passes.rows_sent, passes.bytes_received, passes.bytes_sent


def _expected(data: Data, *, reverse: bool = False, times: int = 1, width: int = 8) -> Any:
    """What travels when every halo row does, `times` times, from the shard's own numbers."""
    shard = data.edge_index.handle.shard
    sent = sum(step.send_index.numel() for step in shard.steps)
    rows = (sent, shard.num_halo) if reverse else (shard.num_halo, sent)
    return tuple(times * n for n in (*rows, *(n * WIDTH * width for n in rows)))


def _profiled(data: Data, mode: str, kind: str) -> tuple[list[Any], Any, Any, tuple[str, ...]]:
    """What passes have moved in two steps; what every halo row is, forward and backward."""
    dtype = torch.bfloat16 if kind == 'bfloat16' else None
    options = {} if mode == 'one_shot' else {'partial_sums': False}
    model = _model(_gat if kind == 'gat' else _sage, mode=mode, exchange_dtype=dtype, **options)
    _step(model, data)  # plans
    with pyg_sar.profile(model) as prof:
        _step(model, data)
        _step(model, data)
    layers = prof.summary.layers
    conv = 'GATConv' if kind == 'gat' else 'SAGEConv'
    names = [(layer.path, layer.conv, layer.mode) for layer in layers]
    assert names == [(f'convs.{i}', conv, mode) for i in range(2)]
    assert all(layer.forward.calls == layer.backward.calls == 2 for layer in layers)
    sizes = {'width': 2} if dtype else {}
    found = [(_counts(layer.forward), _counts(layer.backward)) for layer in layers]
    halo = _expected(data, times=2, **sizes)
    return found, halo, _expected(data, times=2, reverse=True, **sizes), layers[0].paths


@pytest.mark.slow
@pytest.mark.parametrize('kind_', ['float64', 'bfloat16'])
@pytest.mark.parametrize(
    ('world_size', 'mode'),
    [(1, 'sequential'), (3, 'sequential'), (3, 'sequential_no_remat'), (3, 'one_shot')],
)
@of_rows
def test_rows_and_bytes_of_sums(data, world_size, mode, kind_):
    """A sum sends every halo row once in forward, and its gradient once in backward."""
    found, halo, back, paths = _profiled(data, mode, kind_)
    assert found == [(halo, back)] * 2
    assert paths == ('linear',)
    assert (halo[0] > 0) == (world_size > 1)


@pytest.mark.parametrize('mode', ['sequential', 'sequential_no_remat'])
@of_rows
def test_rows_of_attention(data, mode):
    """Logits and features travel; only without rows kept are they received again in backward."""
    found, halo, back, paths = _profiled(data, mode, 'gat')
    assert 'weighted' in paths
    for forward, backward in found:
        assert forward[0] == 2 * halo[0]  # a row of logits and one of features
        assert forward[2] == halo[2] + halo[2] // WIDTH
        again = halo[2] if mode == 'sequential' else 0
        assert backward[2] >= back[2] + again
        assert (backward[2] == back[2] + back[2] // WIDTH) == (mode != 'sequential')


@pytest.mark.slow
@pytest.mark.parametrize(
    ('make', 'options'),
    [
        (_sage, {}),
        (_gat, {'mode': 'one_shot'}),
        (_median, {}),
    ],
)
@of_rows
def test_bytes_are_those_of_the_messages(data, make, options):
    """Also plans and requests of the first epoch."""
    model = _model(make, **options)
    with pyg_sar.profile(model) as prof, counted() as traffic:
        for _ in range(2):
            _step(model, data)
    s = prof.summary
    passes = [s.outside, *(p for layer in s.layers for p in (layer.forward, layer.backward))]
    counts = torch.tensor([_counts(each) for each in passes]).sum(0)
    assert counts[3] == traffic.bytes_sent > 0
    rows_received, rows_sent, bytes_received, bytes_sent = all_reduce_sum(counts).tolist()
    assert rows_received == rows_sent > 0
    assert bytes_received == bytes_sent


@of_rows
def test_kept_sums_move_no_rows(data):
    model = pyg_sar.DistributedDataParallel(_sage().double())
    _step(model, data)
    with pyg_sar.profile(model) as prof:
        _step(model, data)
    (layer,) = prof.summary.layers
    assert layer.forward.calls == layer.backward.calls == 1
    assert layer.path == ''
    assert _counts(layer.forward) == _counts(layer.backward) == (0, 0, 0, 0)


def _hooks(conv: torch.nn.Module) -> list[int]:
    return [*conv._forward_hooks, *conv._forward_pre_hooks]


@pytest.mark.parametrize('world_size', few([3, 1]))
@on_ranks(num_parts=3)
def test_same_bits(data, world_size):
    answers = []
    for is_profiled in (False, True):
        model = pyg_sar.DistributedDataParallel(_model(_gat))
        hooks = [_hooks(conv) for conv in model.module.convs]
        with pyg_sar.profile(model) if is_profiled else nullcontext():
            answers.append([each for _ in range(2) for each in _step(model, data)])
        assert [_hooks(conv) for conv in model.module.convs] == hooks
    assert all(map(torch.equal, *answers))
    assert hook.watchers == ()


@of_rows
def test_times_and_tables(data):
    model = _model(_gat)
    before = time.perf_counter()
    with pyg_sar.profile(model) as prof:
        _step(model, data)
        with torch.no_grad():
            model(data.x, data.edge_index)
    s = prof.summary
    assert s.seconds <= time.perf_counter() - before
    assert (s.rank, s.world_size) == (dist.get_rank(), 3)
    passes = [p for layer in s.layers for p in (layer.forward, layer.backward)]
    assert all(p.waiting > 0 for p in (*passes, s.outside))  # the norm waits outside
    assert all(p.computing > 0 for p in passes)
    spent = sum(p.waiting + p.computing for p in (*passes, s.outside))
    assert spent == pytest.approx(s.seconds)
    assert 0 <= s.outside_share <= 1
    assert [(layer.forward.calls, layer.backward.calls) for layer in s.layers] == [(2, 1)] * 2
    is_linux = os.access('/proc/self/clear_refs', os.W_OK)
    for peak in (s.start_bytes, *(p.peak_bytes for p in passes)):
        assert peak > 1 << 20 if is_linux else peak is None
    assert json.loads(json.dumps(asdict(s)))['layers'][1]['path'] == 'convs.1'

    table, all_ranks, summaries = prof.table(), prof.table(all_ranks=True), prof.all_ranks()
    assert summaries[s.rank] == s
    assert str(prof) == table
    rows = [each.layers[1].forward.rows_received for each in summaries]
    assert len(set(rows)) > 1
    lines = [line.split() for line in all_ranks.splitlines()]
    start = next(i for i, line in enumerate(lines) if line[0] == 'convs.1')
    numbers = {'least': min(rows), 'mean': sum(rows) / 3, 'most': max(rows)}
    for line, (name, number) in zip(lines[start:], numbers.items(), strict=False):
        assert line[line.index(name) + 2] == f'{number:,.0f}'
    assert table.startswith(f'rank {s.rank} of 3: ')
    for line in ('convs.0', 'convs.1', 'all layers', 'outside of layers'):
        assert sum(found.startswith(line) for found in table.splitlines()) == 1
    assert f'{rows[s.rank]:,}' in table
    assert agree(all_ranks) == [all_ranks] * 3


@on_ranks(2)
def test_ranges_of_torch_profiler(data):
    """None without a profile of ours."""
    model, found = _model(), []
    for is_profiled in (False, True):
        with (
            pyg_sar.profile(model) if is_profiled else nullcontext(),
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


@on_ranks(2)
def test_trace(data, tmp_path):
    """A timeline for each rank, with the ranges of layers; refused outside of the profile."""
    model, path = _model(), tmp_path / f'rank{dist.get_rank()}.json'
    with pyg_sar.profile(model) as prof:
        with prof.trace(path):
            _step(model, data)
        with pytest.raises(FileNotFoundError), prof.trace(tmp_path / 'none' / 'x.json'):
            pass
    names = {event.get('name') for event in json.loads(path.read_text())['traceEvents']}
    assert names >= {
        "pyg_sar::layer 'convs.1' (SAGEConv), backward",
        f'pyg_sar::wait: receiving the rows of part {1 - dist.get_rank()}',
    }
    with pytest.raises(ValueError, match="inside of the profile's 'with' block"), prof.trace(path):
        pass
    with pyg_sar.profile(model) as second, second.trace(path):  # replaces the file
        pass
    assert "layer 'convs.1'" not in path.read_text()


def _fail_halfway(model: torch.nn.Module, data: Data) -> None:
    model(data.x, data.edge_index)
    model(data.x[:-1], data.edge_index)


@on_ranks(1, 3)
def test_exceptions(data):
    """In a layer and in backward: what came before counts, nothing is left."""
    model = _model()
    prof = pyg_sar.profile(model)
    model(data.x, data.edge_index)
    with pytest.raises(ValueError, match='rows'), prof:
        _fail_halfway(model, data)
    assert prof.summary.layers[0].forward.calls == 2
    assert prof.summary.layers[1].forward.calls == 1
    assert hook.watchers == ()

    def fail(grad: Tensor) -> None:
        raise ArithmeticError

    with pyg_sar.profile(model) as prof:
        out = model(data.x, data.edge_index)
        out.register_hook(fail)
        with pytest.raises(ArithmeticError):
            out.sum().backward()
        _step(model, data)
    (first, _) = prof.summary.layers
    assert (first.forward.calls, first.backward.calls) == (2, 1)


def _rank_ends(root: str) -> str:
    data = pyg_sar.load_shard(root)
    model = _model(log='debug')
    error: Exception | None = None
    with redirect_stderr(io.StringIO()), pyg_sar.profile(model) as prof:
        _step(model, data)
        if dist.get_rank() == 1:
            os._exit(0)
        try:
            _step(model, data)
        except pyg_sar.ExchangeError as lost:
            error = lost
    assert prof.summary.layers[0].forward.calls >= 1
    return str(error)


@pytest.mark.bench
def test_a_lost_rank_is_known_at_once(root):
    """Whoever looks on keeps no connection open."""
    for rank, text in enumerate(run_once(_rank_ends, 3, root(3), may_die=[1])):
        assert rank == 1 or 'rank 1' in text


def test_without_a_process_group(root):
    """All parts on one process, a plain edge_index, two models, a copy, profiles within others."""
    data = pyg_sar.load_shard(root(3))
    graph = small_graph()
    first, second = _model(), _model()
    late = first(data.x, data.edge_index).sum()
    with pyg_sar.profile(first) as outer, pyg_sar.profile(torch.nn.ModuleList([second])) as inner:
        late.backward()  # of a forward before: not a layer's
        _step(first, data)
        _step(copy.deepcopy(first), data)
        second(graph.x, graph.edge_index)
        left = second(graph.x, graph.edge_index).sum()
    left.backward()
    assert [layer.path for layer in inner.summary.layers] == ['0.convs.0', '0.convs.1']
    for prof, calls, paths in ((outer, (1, 1), ('linear',)), (inner, (2, 0), ())):
        for layer in prof.summary.layers:
            assert (layer.forward.calls, layer.backward.calls) == calls
            assert layer.paths == paths
            assert _counts(layer.forward) == _counts(layer.backward) == (0, 0, 0, 0)
    assert outer.all_ranks() == [outer.summary]
    assert outer.table(all_ranks=True).startswith('1 ranks')


@on_ranks(2)
def test_profiles_of_other_models(data):
    net = Net(lambda: pyg_sar.SARConv(_sage()), 1 + dist.get_rank())
    with pyg_sar.profile(net) as prof:
        pass
    with pytest.raises(ValueError, match='number of profiled layers'):
        prof.table(all_ranks=True)


def test_refused():
    with pytest.raises(ValueError, match='wrapped'):
        pyg_sar.profile(torch.nn.Linear(1, 1))
    prof = pyg_sar.profile(_model())
    with pytest.raises(ValueError, match='end of the profile'):
        prof.table()
    with prof:
        pass
    with pytest.raises(ValueError, match='entered before'), prof:
        pass
    assert hook.watchers == ()


@pytest.mark.gpu
def test_on_a_gpu(root):
    data = pyg_sar.load_shard(root(2)).to('cuda')
    model = _model().cuda()
    with pyg_sar.profile(model) as prof:
        _step(model, data)
    assert prof.summary.memory == 'CUDA allocated'
    assert all(
        layer.backward.calls == 1 and layer.backward.peak_bytes for layer in prof.summary.layers
    )
