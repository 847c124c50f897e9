"""With rows that are kept fewer travel, and they are those of the epoch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from joined import Taken, batches, take
from ranks import run_as_threads, run_ranks
from small_graphs import cut, small_graph

import pyg_sar
from pyg_sar.comm import rank
from pyg_sar.monitor import hook


class _Bytes(hook.Watcher):
    def __init__(self) -> None:
        self.came = 0

    def moved(self, transfer: hook.Transfer) -> None:
        self.came += transfer.bytes_received


def _fetched(root: str, cache: int | None) -> tuple[int, float]:
    """Bytes that come in an epoch, and the hit rate."""
    data, watcher = pyg_sar.local(pyg_sar.load_shard(root)), _Bytes()
    loader = pyg_sar.NeighborLoader(
        data, [4, 4], batch_size=2, shuffle=True, cache=cache, prefetch=0
    )
    iteration = iter(loader)
    hook.add(watcher)
    try:
        for _ in iteration:
            pass
    finally:
        hook.remove(watcher)
    return watcher.came, loader.hit_rate


def test_fewer_rows_travel(tmp_path: Path) -> None:
    root = str(cut(small_graph(), 2, tmp_path / 'parts'))
    none, some, every = (run_ranks(_fetched, 2, root, cache) for cache in (None, 1000, 10**9))
    for (most, zero), (fewer, rate), (least, best) in zip(none, some, every, strict=True):
        assert zero == 0.0 < rate < best
        assert most > fewer > least


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
