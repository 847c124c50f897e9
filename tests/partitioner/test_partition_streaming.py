"""Streaming: what the papers say, node by node; parts that never overflow; passes that help."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_sar.partitioner.assignment import choose
from pyg_sar.partitioner.methods import streaming
from pyg_sar.partitioner.methods.balance import Balance, batch_size
from pyg_sar.partitioner.methods.method import Problem
from pyg_sar.partitioner.methods.streaming import _start, stream_assignment
from pyg_sar.partitioner.on_disk import rows
from pyg_sar.partitioner.on_disk.neighbours import neighbours_by_part, symmetric_csr
from pyg_sar.partitioner.sources.synthetic import GraphShape, synthetic_graph


@pytest.fixture(scope='module')
def power_law() -> Data:
    return synthetic_graph(GraphShape(3000, 12_000, 4, 6, community_size=100), seed=0)


def _balance(*columns: np.ndarray) -> Balance:
    weights = np.stack(columns, axis=1).astype(np.int64)
    return Balance(weights, weights)


def _cut(data: Data, parts: torch.Tensor) -> float:
    src, dst = parts[data.edge_index]
    return float((src != dst).double().mean())


def test_symmetric_csr(any_graph, monkeypatch):
    monkeypatch.setattr(rows, 'CHUNK_ROWS', 7)
    expected: list[list[int]] = [[] for _ in range(any_graph.num_nodes)]
    for src, dst in any_graph.edge_index.t().tolist():
        expected[src].append(dst)
        expected[dst].append(src)
    indptr, index = symmetric_csr(any_graph.edge_index, any_graph.num_nodes)
    assert index.dtype == np.int32
    for node, neighbours in enumerate(expected):
        assert sorted(index[indptr[node] : indptr[node + 1]].tolist()) == sorted(neighbours)


def test_neighbours_by_part(graph):
    indptr, index = symmetric_csr(graph.edge_index, 50)
    parts = np.arange(50) % 4 - 1  # -1 is no part yet.
    expected = [
        [int((parts[index[indptr[v] : indptr[v + 1]]] == p).sum()) for p in range(3)]
        for v in range(50)
    ]
    assert neighbours_by_part(indptr, index, parts, slice(10, 30), 3).tolist() == expected[10:30]
    some = np.array([7, 3, 49, 3])
    found = neighbours_by_part(indptr, index, parts, some, 3).tolist()
    assert found == [expected[node] for node in some]


def _stream(indptr, index, balance: Balance, num_parts: int, method='ldg', **options) -> Tensor:
    problem = Problem(indptr, index, balance, num_parts, choose(method, **options))
    return stream_assignment(problem, method)


@pytest.mark.parametrize('method', ['ldg', 'fennel'])
def test_node_by_node_as_in_the_papers(graph, method):
    """Batches of one node: the sequential rule, written out."""
    num_parts, cap = 4, 13  # ceil(50 / 4)
    assert batch_size(50, num_parts) == 1
    indptr, index = symmetric_csr(graph.edge_index, 50)
    order = np.random.default_rng(3).permutation(num_parts)
    alpha = 2.0 * graph.num_edges / 50**1.5  # sqrt(P) m / N ** 1.5
    parts = [-1] * 50
    for _ in range(2):
        sizes = [0] * num_parts
        for node in range(50):
            near = [0] * num_parts
            for other in index[indptr[node] : indptr[node + 1]]:
                if parts[other] >= 0:
                    near[parts[other]] += 1

            def score(part, near=near, sizes=sizes):
                if method == 'ldg':
                    value = near[part] * (1 - sizes[part] / cap)
                else:
                    # Of alpha * n ** 1.5; a full part is one of N / P nodes, 12.5 and not 13.
                    value = near[part] - 1.5 * alpha * (sizes[part] / cap * 12.5) ** 0.5
                return (round(value, 9), -sizes[part], -order[part])

            best = max((p for p in range(num_parts) if sizes[p] < cap), key=score)
            parts[node] = best
            sizes[best] += 1
    options = {'method': method, 'passes': 2, 'seed': 3}
    balance = _balance(np.ones(50))
    assert _stream(indptr, index, balance, num_parts, **options).tolist() == parts


@pytest.mark.parametrize('method', ['ldg', 'fennel'])
def test_passes_help_and_caps_hold(power_law, method):
    indptr, index = symmetric_csr(power_law.edge_index, 3000)
    balance = _balance(np.ones(3000), power_law.y.numpy() == 0, power_law.y.numpy() == 3)
    cuts = []
    for passes in (1, 5):
        parts = _stream(indptr, index, balance, 6, method=method, passes=passes)
        for weight, cap in zip(balance.weights.T, balance.caps(6), strict=True):
            assert np.bincount(parts.numpy(), weight, 6).max() <= cap
        cuts.append(_cut(power_law, parts))
    assert cuts[1] < 0.9 * cuts[0] < 0.9 * 0.8 * 5 / 6  # Random parts cut five in six.


@pytest.mark.parametrize('method', ['ldg', 'fennel'])
def test_runs_of_ids_are_the_start_where_they_cut_little(power_law, method, monkeypatch):
    """Sorted by class they help the first pass; in random order they say nothing."""
    order = torch.argsort(power_law.y, stable=True)
    place = torch.empty(3000, dtype=torch.int64)
    place[order] = torch.arange(3000)
    data = Data(edge_index=place[power_law.edge_index], num_nodes=3000)
    indptr, index = symmetric_csr(data.edge_index, 3000)
    assert _start(indptr, index, 4).tolist() == [4 * node // 3000 for node in range(3000)]
    assert set(_start(*symmetric_csr(power_law.edge_index, 3000), 4)) == {-1}

    def cut() -> float:
        balance = _balance(np.ones(3000))
        return _cut(data, _stream(indptr, index, balance, 4, method=method, passes=1))

    informed = cut()
    nothing = np.full(3000, -1)
    monkeypatch.setattr(streaming, '_start', lambda *_: nothing.copy())
    assert informed < cut()


def test_a_memory_map_and_64_bit_ids_are_read_alike(tmp_path, power_law):
    indptr, index = symmetric_csr(power_law.edge_index, 3000)
    np.save(tmp_path / 'index.npy', index)
    balance = _balance(np.ones(3000))
    expected = _stream(indptr, index, balance, 3, passes=2)
    for same in (np.load(tmp_path / 'index.npy', mmap_mode='r'), index.astype(np.int64)):
        assert torch.equal(_stream(indptr, same, balance, 3, passes=2), expected)


def test_a_node_heavier_than_any_part_goes_where_there_is_most_room():
    index = symmetric_csr(torch.tensor([[0, 1], [2, 2]]), 3)
    weight = np.array([5, 1, 100])
    parts = _stream(*index, _balance(weight), 2, passes=1).tolist()
    assert parts[0] != parts[1] == parts[2]
