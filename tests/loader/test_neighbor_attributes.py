"""Attributes of every kind, cuts of every kind, and programs with defaults of their own."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from joined import assert_same, batches, content, take
from ranks import run_as_threads
from small_graphs import cut, small_graph
from torch_geometric.data import Data

import pyg_sar
from pyg_sar import partition_graph


def _graph() -> Data:
    graph, generator = small_graph(), torch.Generator().manual_seed(0)
    num_nodes, num_edges = graph.num_nodes, graph.num_edges
    graph.half = torch.randn(num_nodes, 3, generator=generator).half()
    graph.brain = torch.randn(num_nodes, generator=generator).bfloat16()
    graph.complex = torch.randn(num_nodes, 2, dtype=torch.complex128, generator=generator)
    graph.flags = torch.rand(num_nodes, 2, generator=generator) < 0.5
    graph.nothing = torch.zeros(num_nodes, 0)
    graph.edge_byte = torch.randint(255, (num_edges,), dtype=torch.uint8, generator=generator)
    graph.edge_wave = torch.randn(num_edges, dtype=torch.complex64, generator=generator)
    graph.number, graph.words = torch.tensor(3.0), 'hello'
    return graph


def _check_kinds(root: str) -> int:
    graph, data, seeds = _graph(), pyg_sar.load_shard(root), 0
    data.array = pyg_sar.gather(data.n_id).numpy() * 2
    data.listed, data.seven = list(range(5)), torch.arange(7)
    for batch in pyg_sar.NeighborLoader(data, [2, 2], batch_size=4):
        for name in ('half', 'brain', 'complex', 'flags', 'nothing', 'x'):
            assert torch.equal(batch[name], graph[name][batch.n_id]), name
        for name in ('edge_byte', 'edge_wave', 'edge_attr'):
            assert torch.equal(batch[name], graph[name][batch.e_id]), name
        assert torch.equal(batch.array, batch.n_id * 2)
        assert (batch.words, float(batch.number), batch.listed) == ('hello', 3.0, [0, 1, 2, 3, 4])
        assert batch.seven.numel() == 7
        assert type(batch.edge_index) is torch.Tensor
        assert batch.validate()
        assert pickle.loads(pickle.dumps(batch)).num_nodes == copy.deepcopy(batch).num_nodes
        batch.x.zero_()
        batch.n_id.zero_()
        seeds += batch.batch_size
    assert bool(data.x.any())
    assert bool(data.n_id.any())
    return seeds


@pytest.mark.parametrize('world_size', [1, 4])
def test_values_of_every_kind(tmp_path: Path, world_size: int) -> None:
    root = str(cut(_graph(), 4, tmp_path / 'parts'))
    assert sum(run_as_threads(_check_kinds, world_size, root)) == 40


@pytest.mark.parametrize('kind', ['empty part', 'one reader'])
def test_cuts_of_every_kind(tmp_path: Path, kind: str) -> None:
    root = str(cut(small_graph(), 4, tmp_path / 'parts', kind))
    options = {'num_neighbors': [2, 2], 'batch_size': 12, 'shuffle': True, 'mask': None}
    options |= {'disjoint': True, 'seed': 0}
    want = content([batches(root, **options)])
    assert content(run_as_threads(batches, 4, root, **options)) == want


def _check_ring(root: str) -> None:
    graph, data = _ring(), pyg_sar.load_shard(root)
    for batch in pyg_sar.NeighborLoader(data, [2, -1], batch_size=2):
        assert torch.equal(batch.score, graph.score[batch.n_id])
        assert torch.equal(batch.edge_weight, graph.edge_weight[batch.e_id])


def _ring() -> Data:
    nodes = torch.arange(12)
    edge_index = torch.stack([nodes, (nodes + 1) % 12])
    return Data(edge_index=edge_index, num_nodes=12, score=nodes * 1.5, edge_weight=nodes * 2.5)


def test_as_many_edges_as_nodes(tmp_path: Path) -> None:
    partition_graph(_ring(), 2, tmp_path / 'parts', method=(torch.arange(12) > 5).long())
    for world_size in (1, 2):
        run_as_threads(_check_ring, world_size, str(tmp_path / 'parts'))


def test_a_graph_without_edges(tmp_path: Path) -> None:
    graph = Data(x=torch.randn(6, 2), edge_index=torch.empty(2, 0, dtype=torch.int64))
    partition_graph(graph, 2, tmp_path / 'parts', method=torch.tensor([0, 0, 0, 1, 1, 1]))
    data = pyg_sar.load_shard(tmp_path / 'parts')
    sizes = [batch.num_nodes for batch in pyg_sar.NeighborLoader(data, [2, -1], batch_size=4)]
    assert sizes == [4, 2]


def test_defaults_of_the_program_change_nothing(tmp_path: Path) -> None:
    data = pyg_sar.load_shard(cut(small_graph(), 4, tmp_path / 'parts'))

    def loader() -> pyg_sar.NeighborLoader:
        return pyg_sar.NeighborLoader(data, [2, 2], batch_size=4, weight_attr='edge_weight', seed=0)

    want = [take(batch) for batch in loader()]
    torch.set_default_dtype(torch.float64)
    torch.set_default_device('meta')
    try:
        got = [take(batch) for batch in loader()]
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert_same(got, want)
    with torch.inference_mode():
        made = loader()
    assert_same([take(batch) for batch in made], want)
