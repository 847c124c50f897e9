"""With rows that are kept fewer travel, and they are those of the epoch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from joined import batches
from on_ranks import on_ranks
from ranks import run_as_threads
from small_graphs import cut, small_graph
from torch import Tensor
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.comm.ranks import rank
from pyg_sar.utils import hook


class _Bytes(hook.Watcher):
    def __init__(self) -> None:
        self.came = 0

    def moved(self, transfer: hook.Transfer) -> None:
        self.came += transfer.bytes_received


def _fetched(data: Data, cache: int | None) -> tuple[int, float]:
    """Bytes that come in an epoch, and the hit rate."""
    watcher = _Bytes()
    loader = pyg_sar.NeighborLoader(
        data, [4, 4], batch_size=4, shuffle=True, cache=cache, prefetch=0, seed=0
    )
    iteration = iter(loader)
    hook.add(watcher)
    try:
        for _ in iteration:
            pass
    finally:
        hook.remove(watcher)
    return watcher.came, loader.hit_rate


@on_ranks(2)
def test_fewer_rows_travel(data):
    (most, zero), (fewer, rate), (least, best) = (
        _fetched(data, cache) for cache in (None, 1000, 10**9)
    )
    assert zero == 0.0 < rate < best
    assert most > fewer > least


def test_the_log_tells_the_hit_rate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = str(cut(small_graph(), 2, tmp_path / 'parts'))
    caplog.set_level('INFO', logger='pyg_sar.loader')
    options: dict[str, Any] = {'num_neighbors': [4, 4], 'batch_size': 4}
    run_as_threads(batches, 2, root, 2, cache='1MB', **options)
    found = [re.search(r'epoch (\d): (\d+) of (\d+) rows', line) for line in caplog.messages]
    assert sorted(line[1] for line in found if line) == ['0', '0', '1', '1']
    assert all(line and 0 < int(line[2]) <= int(line[3]) for line in found)
    caplog.clear()
    run_as_threads(batches, 2, root, **options)
    assert not caplog.messages


@on_ranks(2, by='threads')
def test_kept_rows_are_those_of_the_epoch(data):
    loader = pyg_sar.NeighborLoader(data, [4, 4], batch_size=4, cache='1MB')
    graph = small_graph()
    of_rank_1 = torch.load(f'{data.edge_index.handle.shard.root}/node_map.pt') == 1

    def check(x: Tensor) -> None:
        for batch in loader:
            assert torch.equal(batch.x, x[batch.n_id])
            assert ('more' in batch) == ('more' in data)
            if 'more' in data:
                assert torch.equal(batch.more, batch.n_id * 3)

    check(graph.x)
    data.x.mul_(2)
    check(2 * graph.x)
    if rank() == 1:
        data.x = data.x + 1
    check(2 * graph.x + of_rank_1[:, None])
    data.more = data.n_id * 3
    check(2 * graph.x + of_rank_1[:, None])
