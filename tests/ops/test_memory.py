"""What is kept for backward: own rows, by default no halo and no message; of edges one chunk."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from weakref import WeakSet

import gather_memory
import pytest
import torch
from alike import cut_of
from ranks import run_ranks
from started import ROOT
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINEConv, SAGEConv, TransformerConv

import pyg_sar

NUM_NODES, DEGREE = 64, 4

CONVS = {
    'SAGE': lambda: SAGEConv(8, 8),
    'GCN': lambda: GCNConv(8, 8),
    'GINE': lambda: GINEConv(torch.nn.Linear(8, 8)),
    'GAT': lambda: GATConv(8, 4, heads=2),
    'GATv2': lambda: GATv2Conv(8, 4, heads=2),
    'Transformer': lambda: TransformerConv(8, 4, heads=2),
}


def _graph(distance: int) -> Data:
    """Every node has DEGREE in-edges, from nodes `distance` and more further on: with a small
    distance almost all stay in a part of consecutive nodes, with a large one most leave it."""
    dst = torch.arange(NUM_NODES).repeat_interleave(DEGREE)
    src = (dst + distance + torch.arange(DEGREE).repeat(NUM_NODES)) % NUM_NODES
    x = torch.randn(NUM_NODES, 8, dtype=torch.float64)
    return Data(x=x, edge_index=torch.stack([src, dst]))


GRAPHS = {'near': partial(_graph, 1), 'far': partial(_graph, NUM_NODES // 2 - 1)}


def _saved(name: str, graph: str, mode: str = 'sequential') -> list[tuple[int, int]]:
    """What :func:`_saved_rows` tells on two ranks."""
    halves = torch.arange(NUM_NODES) // (NUM_NODES // 2)
    return run_ranks(_saved_rows, 2, name, cut_of(GRAPHS[graph], 2, halves.tolist()), mode)


def _saved_rows(name: str, root: str, mode: str) -> tuple[int, int]:
    """Numbers kept for backward by one layer, and halo rows of this rank."""
    data = pyg_sar.load_shard(root)
    conv = pyg_sar.SARConv(CONVS[name]().double(), mode=mode)
    edge_attr = [torch.ones(data.num_edges, 8, dtype=torch.float64)] if name == 'GINE' else []
    x = data.x.detach().clone().requires_grad_()
    conv(x, data.edge_index, *edge_attr)  # what is made once per shard is made now
    saved: WeakSet[_Saved] = WeakSet()

    def pack(tensor: Tensor) -> _Saved:
        entry = _Saved(tensor)
        saved.add(entry)
        return entry

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda entry: entry.tensor):
        out = conv(x, data.edge_index, *edge_attr)
    assert out.requires_grad
    tensors = [pyg_sar.local(entry.tensor) for entry in saved]  # of rows the own ones
    kept = {tensor.data_ptr(): tensor.numel() for tensor in tensors}
    return sum(kept.values()), data.edge_index.handle.shard.num_halo


class _Saved:
    """A tensor kept for backward; it lives as long as the graph that keeps it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@pytest.mark.parametrize('name', CONVS)
def test_saved_tensors_do_not_grow_with_the_halo(name: str) -> None:
    near, far = _saved(name, 'near'), _saved(name, 'far')
    assert [rows for _, rows in near] == [4, 4]
    assert [rows for _, rows in far] == [32, 32]
    assert [saved for saved, _ in far] == [saved for saved, _ in near]


@pytest.mark.parametrize(
    ('name', 'mode', 'num_kept'),
    [
        ('GINE', 'sequential_no_remat', 32 * 8),
        ('Transformer', 'sequential_no_remat', 32 * 16),
        ('Transformer', 'one_shot', NUM_NODES // 2 * DEGREE * 8),
    ],
)
def test_other_modes_keep_the_rows_received_or_the_messages(
    name: str, mode: str, num_kept: int
) -> None:
    keeps, drops = _saved(name, 'far', mode), _saved(name, 'far')
    for (kept, num_halo), (dropped, _) in zip(keeps, drops, strict=True):
        assert num_halo == 32
        assert kept - dropped >= num_kept


MANY_NODES, MANY_EDGES = 3_000, 50_000


def _many_edges() -> Data:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(MANY_NODES, (2, MANY_EDGES), generator=generator)
    return Data(x=torch.randn(MANY_NODES, gather_memory.WIDTH), edge_index=edge_index)


def _peaks(aggr: str, min_edges: int, world_size: int, store: Path) -> list[int]:
    """Bytes above what was held before, of fresh processes."""
    root = cut_of(_many_edges, 2, 'random')
    command = [sys.executable, gather_memory.__file__, root, aggr, str(min_edges)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world_size), str(store)],
            stdout=subprocess.PIPE,
            text=True,
            env={'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'},
        )
        for rank in range(world_size)
    ]
    try:
        return [int(rank.communicate(timeout=600)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.bench
@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='reads /proc')
@pytest.mark.parametrize(('aggr', 'world_size'), [('median', 2), ('lstm', 1)])
def test_chunks_bound_memory(tmp_path: Path, aggr: str, world_size: int) -> None:
    everything = _peaks(aggr, 10**9, world_size, tmp_path / 'one')
    chunks = _peaks(aggr, 500, world_size, tmp_path / 'many')
    # All messages at once are one float32 matrix, and several like it live together.
    messages = MANY_EDGES // world_size * gather_memory.WIDTH * 4
    assert all(peak > 2 * messages for peak in everything), everything
    # What does not grow with them: indices of all edges, own rows, the interpreter's own.
    assert all(4 * own < peak for own, peak in zip(chunks, everything, strict=True)), chunks
