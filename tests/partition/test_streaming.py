"""Streaming: what the papers say, node by node; parts that never overflow; passes that help."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_sar.partition import ldg
from pyg_sar.partition.external_sort import neighbours
from pyg_sar.partition.ldg import batch_size, ldg_parts
from pyg_sar.partition.options import CutOptions, Problem


def _csr(edge_index: Tensor, num_nodes: int) -> Any:
    return neighbours(edge_index, num_nodes, keep_duplicates=True).csr(dtype=np.int32)


def _cut(data: Data, parts: torch.Tensor) -> float:
    src, dst = parts[data.edge_index]
    return float((src != dst).double().mean())


def test_node_by_node_as_in_the_paper(graph, monkeypatch):
    """Batches of one node: the sequential rule, written out."""
    num_parts, cap = 4, 13  # ceil(50 / 4)
    assert batch_size(50, num_parts) == 1
    indptr, index = _csr(graph.edge_index, 50)
    order = np.random.default_rng(3).permutation(num_parts)
    parts = [-1] * 50
    for _ in range(2):
        sizes = [0] * num_parts
        for node in range(50):
            near = [0] * num_parts
            for other in index[indptr[node] : indptr[node + 1]]:
                if parts[other] >= 0:
                    near[parts[other]] += 1

            def score(part, near=near, sizes=sizes):
                value = near[part] * (1 - sizes[part] / cap)
                return (round(value, 9), -sizes[part], -order[part])

            best = max((p for p in range(num_parts) if sizes[p] < cap), key=score)
            parts[node] = best
            sizes[best] += 1
    monkeypatch.setattr(ldg, 'PASSES', 2)
    found = ldg_parts(Problem(indptr, index, None, num_parts, CutOptions('ldg', seed=3)))
    assert found.tolist() == parts


def test_passes_help_and_the_cap_holds(power_law, monkeypatch):
    weights = 1 + 5 * (power_law.y == 0).long().numpy()
    problem = Problem(*_csr(power_law.edge_index, 3000), weights, 6, CutOptions('ldg'))
    cuts = []
    for passes in (1, 5):
        monkeypatch.setattr(ldg, 'PASSES', passes)
        parts = ldg_parts(problem)
        assert problem.loads(parts.numpy()).max() <= problem.cap
        cuts.append(_cut(power_law, parts))
    assert cuts[1] < 0.9 * cuts[0] < 0.9 * 0.8 * 5 / 6  # Random parts cut five in six.


def test_a_node_heavier_than_any_part_goes_where_there_is_most_room(monkeypatch):
    monkeypatch.setattr(ldg, 'PASSES', 1)
    csr = _csr(torch.tensor([[0, 1], [2, 2]]), 3)
    parts = ldg_parts(Problem(*csr, np.array([5, 1, 100]), 2, CutOptions('ldg'))).tolist()
    assert parts[0] != parts[1] == parts[2]
