"""Rows that are kept change no batch, and fewer rows travel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from hetero_graphs import assignment, hetero_graph
from joined import Taken, assert_same, batches, join, take
from ranks import run_as_threads, run_ranks
from small_graphs import cut, small_graph

import pyg_sar
from pyg_sar import partition_graph
from pyg_sar.comm import rank
from pyg_sar.sampling import rounds


@pytest.mark.parametrize('cache', few(['100KB', 700, 1]))
def test_a_cache_changes_no_batch(tmp_path: Path, cache: int | str) -> None:
    root = str(cut(small_graph(), 4, tmp_path / 'parts'))
    options: dict[str, Any] = {'num_neighbors': [3, 2, 2], 'shuffle': True, 'batch_size': 2}
    want = join([batches(root, 2, **options)])
    for world_size in (1, 4):
        got = run_as_threads(batches, world_size, root, 2, cache=cache, **options)
        assert_same(join(got), want)


def test_a_cache_changes_no_batch_by_type(tmp_path: Path) -> None:
    partition_graph(hetero_graph(), 4, tmp_path / 'parts', method=assignment(4))
    root, kind = str(tmp_path / 'parts'), {'input_type': 'paper'}
    options: dict[str, Any] = {'num_neighbors': [3, -1], 'batch_size': 2, **kind}
    want = join([batches(root, **options)])
    assert_same(join(run_as_threads(batches, 4, root, cache=3000, **options)), want)


def _fetched(root: str, cache: int | None) -> tuple[int, float, int]:
    """Rows fetched in an epoch, the hit rate, and the kept rows."""
    data, count, real = pyg_sar.local(pyg_sar.load_shard(root)), 0, rounds.ask_for_rows

    def counting(graph: Any, attributes: Any, wanted: Any) -> Any:
        nonlocal count
        count += sum(position.numel() for position in wanted.values())
        return real(graph, attributes, wanted)

    loader = pyg_sar.NeighborLoader(data, [4, 4], batch_size=2, shuffle=True, cache=cache)
    iteration = iter(loader)
    rounds.ask_for_rows = counting
    try:
        for _ in iteration:
            pass
    finally:
        rounds.ask_for_rows = real
    kept = loader._sampler.kept
    return count, loader.hit_rate, 0 if kept is None else kept.position[None].numel()


def test_fewer_rows_travel(tmp_path: Path) -> None:
    root = str(cut(small_graph(), 2, tmp_path / 'parts'))
    none = run_ranks(_fetched, 2, root, None)
    few = run_ranks(_fetched, 2, root, 1000)
    every = run_ranks(_fetched, 2, root, 10**9)
    for (most, zero, _), (some, rate, kept), (least, best, _) in zip(none, few, every, strict=True):
        assert zero == 0.0 < rate < best
        assert most > some > least
        assert 0 < kept < 20


def test_the_log_tells_the_hit_rate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = str(cut(small_graph(), 2, tmp_path / 'parts'))
    caplog.set_level('INFO', logger='pyg_sar.sampling')
    options: dict[str, Any] = {'num_neighbors': [4, 4], 'batch_size': 4}
    run_as_threads(batches, 2, root, 2, cache='1MB', **options)
    found = [re.search(r'epoch (\d): (\d+) of (\d+) rows', line) for line in caplog.messages]
    assert sorted(line[1] for line in found if line) == ['0', '0', '1', '1']
    assert all(line and 0 < int(line[2]) <= int(line[3]) for line in found)
    caplog.clear()
    run_as_threads(batches, 2, root, **options)
    assert not caplog.messages


def _changed(root: str) -> list[Taken]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    loader = pyg_sar.NeighborLoader(data, [4, 4], batch_size=4, cache='1MB')
    epochs = [[take(batch) for batch in loader]]
    data.x.mul_(2)
    epochs.append([take(batch) for batch in loader])
    if rank() == 1:
        data.x = data.x + 1
    epochs.append([take(batch) for batch in loader])
    data.more = data.n_id * 3
    epochs.append([take(batch) for batch in loader])
    return epochs


def test_kept_rows_are_those_of_the_epoch(tmp_path: Path) -> None:
    graph = small_graph()
    root = str(cut(graph, 2, tmp_path / 'parts'))
    results = run_as_threads(_changed, 2, root)
    own = pyg_sar.local(pyg_sar.load_shard(root))
    second = own.n_id[own.edge_index.shard.own_ptr[1] :]  # the nodes of rank 1
    x = graph.x * 2
    moved = x.clone()
    moved[second] += 1
    for epochs in results:
        for number, want in enumerate((graph.x, x, moved, moved)):
            for batch in epochs[number]:
                nodes = batch['nodes'][None]
                assert torch.equal(nodes['x'], want[nodes['n_id']])
                assert ('more' in nodes) == (number == 3)
                if number == 3:
                    assert torch.equal(nodes['more'], nodes['n_id'] * 3)
