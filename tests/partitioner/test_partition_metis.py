"""METIS: what it is given, what it balances, and the graphs it stumbles over."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_sar.partitioner import partition_graph
from pyg_sar.partitioner.assignment import assign_nodes, choose
from pyg_sar.partitioner.graph.typed import typed_graph
from pyg_sar.partitioner.methods.given import fill_empty_parts
from pyg_sar.partitioner.on_disk.neighbours import undirected_csr
from pyg_sar.partitioner.sources.synthetic import GraphShape, synthetic_graph


@pytest.fixture(scope='module')
def power_law() -> Data:
    return synthetic_graph(GraphShape(3000, 12_000, 4, 6, community_size=100), seed=0)


def _assign(data: Data, num_parts: int, **options) -> Tensor:
    return assign_nodes(typed_graph(data), num_parts, choose('metis', **options))[None]


def test_undirected_csr_against_sets(any_graph):
    neighbours: list[set[int]] = [set() for _ in range(any_graph.num_nodes)]
    for src, dst in any_graph.edge_index.t().tolist():
        if src != dst:
            neighbours[src].add(dst)
            neighbours[dst].add(src)
    indptr, index = undirected_csr(any_graph.edge_index, any_graph.num_nodes)
    assert len(indptr) == any_graph.num_nodes + 1
    for node, expected in enumerate(neighbours):
        assert index[indptr[node] : indptr[node + 1]].tolist() == sorted(expected)


def test_finds_communities(tmp_path, make_graph):
    summary = partition_graph(make_graph('communities'), 3, tmp_path / 'out')
    assert summary.part_num_nodes == (10, 10, 10)
    assert summary.edge_cut == 4  # The two bridges, both ways.
    assert summary.communication_volume == 4


def test_cuts_far_less_than_random(tmp_path, power_law):
    metis = partition_graph(power_law, 4, tmp_path / 'metis')
    random = partition_graph(power_law, 4, tmp_path / 'random', method='random')
    assert metis.edge_cut < 0.5 * random.edge_cut
    assert metis.communication_volume < 0.7 * random.communication_volume
    assert metis.node_imbalance < 1.01
    assert random.node_imbalance < 1.01


def test_balances_edges(tmp_path, power_law):
    """Most edges lie in one class: with as many nodes, its parts have more edges."""
    hub = power_law.y == 0
    keep = hub[power_law.edge_index[1]] | (torch.arange(power_law.num_edges) % 4 == 0)
    data = Data(edge_index=power_law.edge_index[:, keep], num_nodes=power_law.num_nodes)
    by_nodes = partition_graph(data, 4, tmp_path / 'nodes')
    by_edges = partition_graph(data, 4, tmp_path / 'edges', balance='edges')
    assert by_nodes.edge_imbalance > 1.3
    weights = torch.tensor(by_edges.part_num_edges) + torch.tensor(by_edges.part_num_nodes)
    assert weights.max() < 1.02 * weights.float().mean()


def test_balances_training_nodes(tmp_path, power_law):
    """Training nodes in two classes alone, which METIS would otherwise keep together."""
    data = power_law.clone()
    data.train_mask = (data.y == 0) | (data.y == 3)

    def imbalance(name: str, **kwargs: str) -> float:
        partition_graph(data, 4, tmp_path / name, **kwargs)
        part = torch.load(tmp_path / name / 'node_map.pt')
        count = torch.bincount(part[data.train_mask], minlength=4).double()
        return float(count.max() / count.mean())

    assert imbalance('nodes') > 1.3
    assert imbalance('train', balance='train') < 1.08


def test_seed_reaches_metis(power_law):
    def assign(seed: int) -> list[int]:
        return _assign(power_law, 4, seed=seed).tolist()

    assert assign(3) == assign(3)
    assert assign(3) != assign(4)


@pytest.mark.parametrize('num_parts', [2, 3, 8, 20])
def test_isolated_and_disconnected_nodes(tmp_path, check_partition, num_parts):
    data = Data(edge_index=torch.tensor([[3, 7], [7, 9]]), num_nodes=20)
    summary = partition_graph(data, num_parts, tmp_path / 'out')
    check_partition(tmp_path / 'out', data, num_parts)
    assert min(summary.part_num_nodes) >= 1


def test_no_edges_balances_weights():
    loops = torch.zeros(2, 5, dtype=torch.int64)
    data = Data(edge_index=loops, num_nodes=7)
    assert _assign(data, 2, balance=('edges',)).tolist() == [0, 1, 1, 1, 1, 1, 1]
    assert _assign(data, 3).bincount().tolist() == [2, 3, 2]


def test_only_self_loops():
    loops = Data(edge_index=torch.arange(6).repeat(2, 1), num_nodes=6)
    assert _assign(loops, 3).bincount().tolist() == [2, 2, 2]


def test_fill_empty_parts():
    assert fill_empty_parts(torch.tensor([2, 2, 2, 2, 0]), 4).tolist() == [2, 2, 3, 1, 0]
    whole = torch.tensor([1, 0, 2])
    assert fill_empty_parts(whole, 3) is whole


def test_one_part_needs_no_metis(monkeypatch, tmp_path, graph):
    import pymetis

    monkeypatch.setattr(pymetis, 'part_graph', None)
    assert partition_graph(graph, 1, tmp_path / 'out').part_num_nodes == (50,)


@pytest.mark.parametrize(
    ('backend', 'package'),
    [('auto', 'pymetis'), ('pyg-lib', 'pyg_lib'), ('torch-sparse', 'torch_sparse')],
)
def test_missing_backend(monkeypatch, tmp_path, graph, backend, package):
    monkeypatch.setitem(sys.modules, package, None)
    name = package.replace('_', '-')
    message = f"backend '{name}' needs the package '{name}' .* install it"
    with pytest.raises(ValueError, match=message):
        partition_graph(graph, 2, tmp_path / 'out', backend=backend)
    assert list(tmp_path.iterdir()) == []


def test_pyg_lib_is_called_as_it_wants(monkeypatch, power_law):
    """Its signature is metis(rowptr, col, num_partitions, node_weight, edge_weight, recursive)."""

    def metis(
        rowptr: Tensor,
        col: Tensor,
        num_partitions: int,
        node_weight: Tensor | None = None,
        edge_weight: Tensor | None = None,
        recursive: bool = False,
    ) -> Tensor:
        assert rowptr.tolist() == indptr.tolist()
        assert col.tolist() == index.tolist()
        assert torch.equal(node_weight, degree + 1)
        assert edge_weight is None
        return torch.arange(rowptr.numel() - 1) % num_partitions

    edges, num_nodes = power_law.edge_index, power_law.num_nodes
    indptr, index = undirected_csr(edges, num_nodes)
    degree = torch.bincount(edges[1], minlength=num_nodes)
    package = SimpleNamespace(partition=SimpleNamespace(metis=metis))
    monkeypatch.setitem(sys.modules, 'pyg_lib', package)
    parts = _assign(power_law, 4, backend='pyg-lib', balance='edges')
    assert parts.tolist() == [node % 4 for node in range(num_nodes)]


@pytest.mark.parametrize(
    ('backend', 'package'),
    [('pymetis', 'pymetis'), ('pyg-lib', 'pyg_lib'), ('torch-sparse', 'torch_sparse')],
)
@pytest.mark.parametrize('balance', ['nodes', 'edges'])
def test_backends(tmp_path, power_law, check_partition, make_graph, backend, package, balance):
    pytest.importorskip(package)
    summary = partition_graph(power_law, 4, tmp_path / 'a', backend=backend, balance=balance)
    assert summary.edge_cut < 0.5 * power_law.num_edges
    data = make_graph('communities')
    partition_graph(data, 3, tmp_path / 'b', backend=backend, balance=balance)
    check_partition(tmp_path / 'b', data, 3)
