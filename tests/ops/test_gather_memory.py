"""By destination holds the rows of one chunk, however many edges there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gather_memory
import pytest
import torch
from torch_geometric.data import Data

import pyg_sar

NUM_NODES, NUM_EDGES = 3_000, 50_000

pytestmark = [
    pytest.mark.bench,
    pytest.mark.skipif(not sys.platform.startswith('linux'), reason='reads /proc'),
]


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(NUM_NODES, (2, NUM_EDGES), generator=generator)
    graph = Data(x=torch.randn(NUM_NODES, gather_memory.WIDTH), edge_index=edge_index)
    root = tmp_path_factory.mktemp('gather') / 'parts'
    pyg_sar.partition_graph(graph, 2, root, method='random')
    return root


def _peaks(root: Path, aggr: str, min_edges: int, world_size: int, store: Path) -> list[int]:
    """Bytes above what was held before, of fresh processes."""
    command = [sys.executable, gather_memory.__file__, str(root), aggr, str(min_edges)]
    path = str(Path(pyg_sar.__file__).parent.parent)
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world_size), str(store)],
            stdout=subprocess.PIPE,
            text=True,
            env={'PYTHONPATH': path, 'OMP_NUM_THREADS': '1'},
        )
        for rank in range(world_size)
    ]
    try:
        return [int(rank.communicate(timeout=600)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.parametrize(('aggr', 'world_size'), [('median', 2), ('lstm', 1)])
def test_chunks_bound_memory(root: Path, tmp_path: Path, aggr: str, world_size: int) -> None:
    everything = _peaks(root, aggr, 10**9, world_size, tmp_path / 'one')
    chunks = _peaks(root, aggr, 500, world_size, tmp_path / 'many')
    # All messages at once are one float32 matrix, and several like it live together.
    messages = NUM_EDGES // world_size * gather_memory.WIDTH * 4
    assert all(peak > 2 * messages for peak in everything), everything
    # What does not grow with them: indices of all edges, own rows, the interpreter's own.
    assert all(4 * own < peak for own, peak in zip(chunks, everything, strict=True)), chunks
