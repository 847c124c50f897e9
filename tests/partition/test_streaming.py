"""Streaming: what the papers say, node by node; parts that never overflow; passes that help."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_sar.partition import ldg as streaming
from pyg_sar.partition import rebalance as module
from pyg_sar.partition.assignment import choose
from pyg_sar.partition.balance import Balance, batch_size
from pyg_sar.partition.method import CutOptions, Problem
from pyg_sar.partition.neighbours import neighbours
from pyg_sar.partition.rebalance import rebalance, refine


def _csr(edge_index: Tensor, num_nodes: int) -> Any:
    return neighbours(edge_index, num_nodes, keep_duplicates=True).csr(dtype=np.int32)


def _balance(*columns: np.ndarray) -> Balance:
    weights = np.stack(columns, axis=1).astype(np.int64)
    return Balance(weights, weights)


def _problem(csr: Any, balance: Balance, num_parts: int, method='ldg', **options: Any) -> Problem:
    return Problem(*csr, balance, num_parts, choose(CutOptions(method, **options))[1])


def _stream(csr: Any, balance: Balance, num_parts: int, method='ldg', **options: Any) -> Tensor:
    problem = _problem(csr, balance, num_parts, method, **options)
    return streaming.stream_assignment(problem, method)


def _cut(data: Data, parts: torch.Tensor) -> float:
    src, dst = parts[data.edge_index]
    return float((src != dst).double().mean())


@pytest.mark.parametrize('method', ['ldg', 'fennel'])
def test_node_by_node_as_in_the_papers(graph, method):
    """Batches of one node: the sequential rule, written out."""
    num_parts, cap = 4, 13  # ceil(50 / 4)
    assert batch_size(50, num_parts) == 1
    indptr, index = _csr(graph.edge_index, 50)
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
    balance = _balance(np.ones(50))
    found = _stream((indptr, index), balance, num_parts, method, passes=2, seed=3)
    assert found.tolist() == parts


@pytest.mark.parametrize('method', ['ldg', 'fennel'])
def test_passes_help_and_caps_hold(power_law, method):
    csr = _csr(power_law.edge_index, 3000)
    balance = _balance(np.ones(3000), power_law.y.numpy() == 0, power_law.y.numpy() == 3)
    cuts = []
    for passes in (1, 5):
        parts = _stream(csr, balance, 6, method, passes=passes)
        for weight, cap in zip(balance.weights.T, balance.caps(6), strict=True):
            assert np.bincount(parts.numpy(), weight, 6).max() <= cap
        cuts.append(_cut(power_law, parts))
    assert cuts[1] < 0.9 * cuts[0] < 0.9 * 0.8 * 5 / 6  # Random parts cut five in six.


def test_a_node_heavier_than_any_part_goes_where_there_is_most_room():
    csr = _csr(torch.tensor([[0, 1], [2, 2]]), 3)
    parts = _stream(csr, _balance(np.array([5, 1, 100])), 2, passes=1).tolist()
    assert parts[0] != parts[1] == parts[2]


def test_rebalance_moves_what_costs_least():
    """A clique of 6 with a tail of 2, against 4 loose nodes: the tail goes."""
    clique = torch.combinations(torch.arange(6)).t()
    tail = torch.tensor([[5, 6, 0], [6, 7, 8]])
    csr = _csr(torch.cat([clique, tail], dim=1), 12)
    problem = _problem(csr, _balance(np.ones(12)), 2)
    moved = rebalance(problem, np.array([0] * 8 + [1] * 4))
    assert moved.tolist() == [0] * 6 + [1] * 6
    assert rebalance(problem, moved) is moved


def test_rebalance_looks_at_few_nodes_at_a_time(monkeypatch, power_law):
    """And moves those that it would move of all."""
    weights = np.ones(3000), np.random.default_rng(0).integers(0, 9, 3000)
    problem = _problem(_csr(power_law.edge_index, 3000), _balance(*weights), 5)
    parts = np.where(np.arange(3000) < 2000, 0, np.arange(3000) % 5)
    at_once, sizes = rebalance(problem, parts), []
    look = module.neighbours_by_part
    monkeypatch.setattr(module, '_MOST_CELLS', 500)
    monkeypatch.setattr(
        module, 'neighbours_by_part', lambda *args: sizes.append(len(args[3])) or look(*args)
    )
    assert rebalance(problem, parts).tolist() == at_once.tolist()
    assert max(sizes) == 100


@pytest.mark.parametrize('seed', range(3))
def test_refine_never_cuts_more_and_keeps_the_caps(power_law, seed):
    rng = np.random.default_rng(seed)
    balance = _balance(np.ones(3000), rng.integers(0, 9, 3000))
    problem = _problem(_csr(power_law.edge_index, 3000), balance, 5)
    parts = rebalance(problem, rng.integers(0, 5, 3000))
    refined = refine(problem, parts)
    loads = np.stack([np.bincount(refined, w, 5) for w in balance.weights.T])
    assert (loads.max(axis=1) <= balance.caps(5)).all()
    before, after = (_cut(power_law, torch.from_numpy(found)) for found in (parts, refined))
    assert after < 0.9 * before
