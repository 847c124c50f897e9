"""What is kept for backward: own rows, never the halo nor messages; and of edges one chunk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from weakref import WeakSet

import gather_memory
import pytest
import torch
from ranks import run_ranks
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


@pytest.fixture(scope='module')
def partitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('memory')
    halves = torch.arange(NUM_NODES) // (NUM_NODES // 2)
    for name, distance in (('near', 1), ('far', NUM_NODES // 2 - 1)):
        pyg_sar.partition_graph(_graph(distance), 2, root / name, method=halves)
    return root


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
def test_saved_tensors_do_not_grow_with_the_halo(partitions: Path, name: str) -> None:
    near = run_ranks(_saved_rows, 2, name, str(partitions / 'near'), 'sequential')
    far = run_ranks(_saved_rows, 2, name, str(partitions / 'far'), 'sequential')
    assert [rows for _, rows in near] == [4, 4]
    assert [rows for _, rows in far] == [32, 32]
    assert [saved for saved, _ in far] == [saved for saved, _ in near]


@pytest.mark.parametrize('name', ['GINE', 'Transformer'])
def test_without_remat_the_rows_received_are_kept(partitions: Path, name: str) -> None:
    far = str(partitions / 'far')
    keeps = run_ranks(_saved_rows, 2, name, far, 'sequential_no_remat')
    drops = run_ranks(_saved_rows, 2, name, far, 'sequential')
    width = {'GINE': 8, 'Transformer': 16}[name]
    for (kept, num_halo), (dropped, _) in zip(keeps, drops, strict=True):
        assert kept - dropped >= num_halo * width


def test_one_shot_keeps_halo_rows_and_messages(partitions: Path) -> None:
    far = str(partitions / 'far')
    one_shot = run_ranks(_saved_rows, 2, 'Transformer', far, 'one_shot')
    sequential = run_ranks(_saved_rows, 2, 'Transformer', far, 'sequential')
    num_messages = NUM_NODES // 2 * DEGREE * 8
    for (all_at_once, _), (by_block, _) in zip(one_shot, sequential, strict=True):
        assert all_at_once - by_block >= num_messages


MANY_NODES, MANY_EDGES = 3_000, 50_000


@pytest.fixture(scope='module')
def many_edges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(MANY_NODES, (2, MANY_EDGES), generator=generator)
    graph = Data(x=torch.randn(MANY_NODES, gather_memory.WIDTH), edge_index=edge_index)
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


@pytest.mark.bench
@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='reads /proc')
@pytest.mark.parametrize(('aggr', 'world_size'), [('median', 2), ('lstm', 1)])
def test_chunks_bound_memory(many_edges: Path, tmp_path: Path, aggr: str, world_size: int) -> None:
    everything = _peaks(many_edges, aggr, 10**9, world_size, tmp_path / 'one')
    chunks = _peaks(many_edges, aggr, 500, world_size, tmp_path / 'many')
    # All messages at once are one float32 matrix, and several like it live together.
    messages = MANY_EDGES // world_size * gather_memory.WIDTH * 4
    assert all(peak > 2 * messages for peak in everything), everything
    # What does not grow with them: indices of all edges, own rows, the interpreter's own.
    assert all(4 * own < peak for own, peak in zip(chunks, everything, strict=True)), chunks
