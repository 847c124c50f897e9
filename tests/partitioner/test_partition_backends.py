"""The libraries behind the methods: METIS by its C functions, KaHIP, Mt-KaHyPar."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pymetis
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from pyg_sar import partition_graph
from pyg_sar.partitioner.assignment import assign_nodes, choose
from pyg_sar.partitioner.graph.typed import typed_graph
from pyg_sar.partitioner.methods import metis
from pyg_sar.partitioner.methods.balance import Balance
from pyg_sar.partitioner.methods.kahip import _initialized
from pyg_sar.partitioner.methods.method import Problem
from pyg_sar.partitioner.on_disk.neighbours import undirected_csr
from pyg_sar.partitioner.sources.synthetic import GraphShape, synthetic_graph


@pytest.fixture(scope='module')
def power_law() -> Data:
    return synthetic_graph(GraphShape(3000, 12_000, 4, 6, community_size=100), seed=0)


def _assign(data: Data | HeteroData, num_parts: int, method: str = 'metis', **options) -> dict:
    graph = typed_graph(data)
    has_train_mask = any('train_mask' in nodes.attrs for nodes in graph.nodes.values())
    is_hetero = isinstance(data, HeteroData)
    options = choose(method, is_hetero=is_hetero, has_train_mask=has_train_mask, **options)
    return assign_nodes(graph, num_parts, options)


def test_metis_with_one_of_two_weights_is_metis(power_law):
    """The C functions, called without pymetis between, do what it does."""
    indptr, index = undirected_csr(power_law.edge_index, 3000)
    weights = np.ones((3000, 1), dtype=np.int64)
    for recursive in (True, False):
        _, expected = pymetis.part_graph(
            7,
            pymetis.CSRAdjacency(indptr, index),
            options=pymetis.Options(seed=5),
            recursive=recursive,
        )
        problem = Problem(indptr, index, Balance(weights, weights), 7, choose('metis'))
        parts = metis.part_graph(problem, 5, recursive=recursive, volume=False)
        assert parts.tolist() == list(expected)


@pytest.mark.parametrize(
    ('package', 'got'),
    [
        (SimpleNamespace(), "no attribute '_internal'"),
        (
            SimpleNamespace(
                _internal=SimpleNamespace(
                    _idx_type_width=lambda: 32,
                    options_indices=None,
                    __file__=pymetis._internal.__file__,
                )
            ),
            '32-bit indices',
        ),
        (
            SimpleNamespace(
                _internal=SimpleNamespace(
                    _idx_type_width=lambda: 64, options_indices=None, __file__=None
                )
            ),
            'METIS',
        ),
    ],
)
def test_a_pymetis_without_metis_is_refused(package, got):
    with pytest.raises(
        ValueError, match=f"balancing several things needs a pymetis .*{got}.*'ldg'"
    ):
        metis._library(package)


@pytest.mark.parametrize(
    'options',
    [
        {'method': 'metis', 'backend': 'torch-sparse'},
        {'method': 'kahip'},
        {'method': 'mtkahypar'},
    ],
)
def test_one_weight_only(monkeypatch, options):
    for name in ('torch_sparse', 'kahip', 'mtkahypar'):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    assert choose(**options, is_hetero=True).balance == ('nodes',)
    with pytest.raises(ValueError, match=r"'balance' must be 'nodes' or 'edges' with .*'types'"):
        choose(**options, balance='types', is_hetero=True)


@pytest.mark.parametrize('package', ['kahip', 'mtkahypar'])
def test_missing_package(monkeypatch, tmp_path, graph, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"method '{package}' needs .*'pyg_sar\[{package}\]'"):
        partition_graph(graph, 2, tmp_path / 'out', method=package)


@pytest.mark.parametrize('method', ['kahip', 'mtkahypar'])
def test_optional_packages(tmp_path, power_law, check_partition, make_graph, method):
    pytest.importorskip(method)
    metis = partition_graph(power_law, 4, tmp_path / 'a')
    for name in ('b', 'c'):
        other = partition_graph(power_law, 4, tmp_path / name, method=method, seed=1)
        assert other.edge_cut < 1.1 * metis.edge_cut
        assert other.node_imbalance < 1.04
    same = [torch.load(tmp_path / name / 'node_map.pt') for name in ('b', 'c')]
    assert torch.equal(*same)
    data = make_graph('communities')
    partition_graph(data, 3, tmp_path / 'd', method=method, balance='edges')
    check_partition(tmp_path / 'd', data, 3)


def test_kahip_is_called_as_it_wants(monkeypatch):
    """kaffpa(vwgt, xadj, adjcwgt, adjncy, nblocks, imbalance, suppress_output, seed, mode)."""

    def kaffpa(vwgt, xadj, adjcwgt, adjncy, nblocks, imbalance, suppress_output, seed, mode):
        assert (vwgt, xadj, adjcwgt, adjncy) == ([1] * 4, [0, 1, 2, 3, 4], [1] * 4, [1, 0, 3, 2])
        assert (nblocks, imbalance, suppress_output, seed, mode) == (2, 0.03, True, 7, 3)
        return 0, [0, 0, 1, 1]

    package = SimpleNamespace(kaffpa=kaffpa, FASTSOCIAL=3)
    monkeypatch.setitem(sys.modules, 'kahip', package)
    data = Data(edge_index=torch.tensor([[0, 3], [1, 2]]), num_nodes=4)
    assert _assign(data, 2, 'kahip', seed=7)[None].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize('objective', ['cut', 'volume'])
def test_mtkahypar_is_called_as_it_wants(monkeypatch, objective):
    calls = []

    def create(kind):
        def call(context, num_nodes, count, edges, node_weights, edge_weights):
            calls.append((kind, context.parameters, num_nodes, count, edges))
            assert node_weights == [1] * 5
            assert edge_weights == [1] * count
            parts = [0, 0, 1, 1, 1] if kind == 'hypergraph' else [0, 1, 0, 1, 0]
            return SimpleNamespace(partition=lambda _: SimpleNamespace(block_id=parts.__getitem__))

        return call

    class Context:
        def set_partitioning_parameters(self, *parameters):
            self.parameters = parameters

    threads = SimpleNamespace(
        context_from_preset=lambda preset: Context() if preset == 'fixed' else None,
        create_graph=create('graph'),
        create_hypergraph=create('hypergraph'),
    )
    package = SimpleNamespace(
        initialize=lambda num_threads, print_warnings: threads,
        set_seed=calls.append,
        PresetType=SimpleNamespace(DETERMINISTIC='fixed'),
        Objective=SimpleNamespace(CUT='cut', KM1='km1'),
    )
    monkeypatch.setitem(sys.modules, 'mtkahypar', package)
    _initialized.cache_clear()
    data = Data(edge_index=torch.tensor([[0, 3], [1, 2]]), num_nodes=5)
    parts = _assign(data, 2, 'mtkahypar', seed=7, objective=objective)[None].tolist()
    _initialized.cache_clear()
    by_cut = [7, ('graph', (2, 0.03, 'cut'), 5, 2, [(0, 1), (2, 3)])]
    nets = [[0, 1], [1, 0], [2, 3], [3, 2]]
    by_volume = [7, ('hypergraph', (2, 0.03, 'km1'), 5, 4, nets)]
    assert calls == (by_cut if objective == 'cut' else by_cut + by_volume)
    assert parts == ([0, 1, 0, 1, 0] if objective == 'cut' else [0, 0, 1, 1, 1])
