"""Methods behind one interface: what each promises of cut, balance and repeatability."""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pymetis
import pytest
import torch
from few import few
from partition_files import meta_of
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar import partition_graph
from pyg_sar.partition import ldg
from pyg_sar.partition.external_sort import neighbours
from pyg_sar.partition.graph import typed_graph
from pyg_sar.partition.ldg import batch_size, ldg_parts
from pyg_sar.partition.metis import find_sub_parts, pymetis_parts
from pyg_sar.partition.options import CutOptions, Problem, check_options
from pyg_sar.partition.partition_graph import assign_nodes

NO_METIS = 'Not compiled with METIS support'
KAMINPAR = pytest.param(
    'kaminpar', marks=pytest.mark.skipif(find_spec('kaminpar') is None, reason='no kaminpar')
)


@pytest.fixture(scope='module')
def venues() -> HeteroData:
    """Papers by community, their authors, and few venues that are hubs of one community each."""
    rng = np.random.default_rng(0)
    paper, author = rng.integers(0, 24, 2400), rng.integers(0, 24, 900)
    by_community = [np.flatnonzero(paper == c) for c in range(24)]

    def near(community: np.ndarray, times: int) -> Tensor:
        src = np.repeat(np.arange(len(community)), times)
        dst = [rng.choice(by_community[c]) for c in community[src]]
        return torch.from_numpy(np.stack([src, dst]))

    data = HeteroData()
    data['paper'].num_nodes, data['author'].num_nodes, data['venue'].num_nodes = 2400, 900, 26
    data['topic'].num_nodes = 10  # No edges.
    data['paper', 'cites', 'paper'].edge_index = near(paper, 4)
    data['author', 'writes', 'paper'].edge_index = near(author, 3)
    venue = torch.from_numpy(paper) // 6 + 4 * torch.randint(0, 6, (2400,))
    data['paper', 'in', 'venue'].edge_index = torch.stack([torch.arange(2400), venue])
    return data


def _assign(data: Data | HeteroData, num_parts: int, method: str = 'metis', **options: Any) -> Any:
    """The part of every node, by type of a HeteroData."""
    asked = CutOptions(method, **options)
    check_options(asked)
    found = assign_nodes(typed_graph(data), num_parts, asked)
    return found if isinstance(data, HeteroData) else found[None]


def _cut(edge_index: Tensor, parts: Tensor) -> int:
    src, dst = parts[edge_index]
    return int((src != dst).sum())


def _excess(parts: Tensor, weight: Tensor, num_parts: int) -> float:
    """The largest load over the mean."""
    loads = torch.bincount(parts, weight.double(), num_parts)
    return float(loads.max() / loads.mean())


@pytest.mark.parametrize('method', ['metis', KAMINPAR, 'ldg', 'random', 'range'])
def test_same_seed_same_parts(power_law, method):
    first, second, other = (_assign(power_law, 4, method, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert torch.equal(first, other) is (method == 'range')


def test_finds_communities(tmp_path, make_graph):
    summary = partition_graph(make_graph('communities'), 3, tmp_path / 'out')
    assert summary.part_num_nodes == (10, 10, 10)
    assert summary.edge_cut == 4  # The two bridges, both ways.
    assert summary.communication_volume == 4


def _of_pymetis(data: Data, num_parts: int, **options: Any) -> list[int]:
    csr = pymetis.CSRAdjacency(*neighbours(data.edge_index, data.num_nodes).csr())
    return list(pymetis.part_graph(num_parts, csr, **options)[1])


@pytest.mark.parametrize('num_parts', [4, 16])
def test_cuts_no_more_than_pymetis(power_law, num_parts):
    direct = _of_pymetis(power_law, num_parts)
    parts = _assign(power_law, num_parts)
    expected = _cut(power_law.edge_index, torch.tensor(direct))
    assert _cut(power_law.edge_index, parts) <= 1.02 * expected
    assert (parts.tolist() == direct) is (num_parts == 4)  # Where it bisects, as we do.


@pytest.mark.parametrize('num_parts', [3, 12])
def test_volume_is_the_objective_of_metis(power_law, num_parts):
    options = pymetis.Options(objtype=int(pymetis.ObjType.VOL))
    direct = _of_pymetis(power_law, num_parts, options=options, recursive=False)
    assert _assign(power_law, num_parts, objective='volume').tolist() == direct


@pytest.mark.parametrize('method', ['metis', 'ldg'])
def test_edges_balanced(power_law, method):
    """Most edges lie in one class."""
    is_kept = (power_law.y == 0)[power_law.edge_index[1]] | (torch.arange(24_000) % 4 == 0)
    data = Data(edge_index=power_law.edge_index[:, is_kept], num_nodes=3000)
    weight = torch.bincount(data.edge_index[1], minlength=3000) + 1
    assert _excess(_assign(data, 4, method), weight, 4) > 1.2
    assert _excess(_assign(data, 4, method, balance='edges'), weight, 4) <= 1.051


@pytest.mark.parametrize('method', ['metis', 'ldg'])
@pytest.mark.parametrize('num_parts', few([2, 8]))
@pytest.mark.parametrize('balance', ['nodes', 'edges'])
def test_nodes_of_all_types_weigh_together(venues, method, num_parts, balance):
    found = _assign(venues, num_parts, method, balance=balance)
    assert found['topic'].tolist() == [i * num_parts // 10 for i in range(10)]  # has no edges
    weights = {key: torch.ones(venues[key].num_nodes) for key in ('paper', 'author', 'venue')}
    if balance == 'edges':
        for (_, _, dst), edge_index in venues.edge_index_dict.items():
            weights[dst] += edge_index[1].bincount(minlength=venues[dst].num_nodes)
    parts = torch.cat([found[key] for key in weights])
    assert _excess(parts, torch.cat([*weights.values()]), num_parts) <= 1.051


@pytest.mark.parametrize(
    ('options', 'more'),
    [
        ({}, {'method': 'metis', 'objective': 'cut', 'balance': 'nodes'}),
        ({'method': 'ldg', 'balance': 'edges', 'seed': 4}, {'objective': 'cut'}),
        ({'method': 'range'}, {}),
    ],
)
def test_provenance(tmp_path, venues, options, more):
    partition_graph(venues, 2, tmp_path / 'out', **options)
    want = {'seed': 0, **more, **options}
    assert want.items() <= meta_of(tmp_path / 'out')['partition'].items()


# The packages behind them


def test_one_part_needs_no_metis(monkeypatch, tmp_path, graph):
    monkeypatch.setattr(pymetis, 'part_graph', None)
    assert partition_graph(graph, 1, tmp_path / 'out').part_num_nodes == (50,)


@pytest.mark.parametrize(
    ('options', 'packages', 'told'),
    [
        ({}, ('pymetis', 'pyg_lib', 'torch_sparse'), "'pymetis'"),
        ({'objective': 'volume'}, ('pymetis',), "'pymetis'"),
        ({'method': 'kaminpar'}, ('kaminpar',), "'kaminpar'"),
    ],
)
def test_missing_package(monkeypatch, tmp_path, graph, options, packages, told):
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=told):
        partition_graph(graph, 2, tmp_path / 'out', **options)
    assert list(tmp_path.iterdir()) == []


def _only_pyg_lib(monkeypatch: pytest.MonkeyPatch, part: Any) -> None:
    """With a function of its that cuts."""
    package = SimpleNamespace(partition=SimpleNamespace(metis=part))
    monkeypatch.setitem(sys.modules, 'pyg_lib', package)
    monkeypatch.setitem(sys.modules, 'pymetis', None)


def test_pyg_lib_is_called_as_it_wants(monkeypatch, power_law):
    """Its signature is metis(rowptr, col, num_partitions, node_weight, edge_weight, recursive)."""

    def part(
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

    indptr, index = neighbours(power_law.edge_index, 3000).csr()
    degree = torch.bincount(power_law.edge_index[1], minlength=3000)
    _only_pyg_lib(monkeypatch, part)
    parts = _assign(power_law, 4, balance='edges')
    assert parts.tolist() == [node % 4 for node in range(3000)]


def test_a_package_that_was_built_without_metis(monkeypatch, power_law):
    """As torch_sparse from its sources is, for which pyg_lib stands here."""
    _only_pyg_lib(monkeypatch, mock.Mock(side_effect=RuntimeError(NO_METIS)))
    with pytest.raises(ValueError, match=rf'{NO_METIS}\): take --method'):
        _assign(power_law, 4)


def test_metis_takes_the_better_of_both_ways():
    """A grid is cut less by k-way, of few parts too."""
    nodes = torch.arange(3600).view(60, 60)
    pairs = (nodes[:-1], nodes[1:]), (nodes[:, :-1], nodes[:, 1:])
    edge_index = torch.cat([torch.stack([a.flatten(), b.flatten()]) for a, b in pairs], dim=1)
    graph = Data(edge_index=torch.cat([edge_index, edge_index.flip(0)], dim=1), num_nodes=3600)
    csr = neighbours(edge_index, 3600).csr()
    for num_parts in (2, 3, 4, 8):
        problem = Problem(*csr, None, num_parts, CutOptions())
        ways = [pymetis_parts(problem, recursive=recursive)[1] for recursive in (True, False)]
        cut, by_two, at_once = (
            _cut(graph.edge_index, parts) for parts in (_assign(graph, num_parts), *ways)
        )
        assert cut <= 1.02 * min(by_two, at_once)
        assert num_parts == 8 or cut < 0.95 * by_two


def test_nodes_without_an_edge_are_dealt_out():
    """METIS takes minutes for them; the cut is that of the other nodes alone."""
    edges = torch.randint(3000, (2, 9000), generator=torch.Generator().manual_seed(0))
    parts = _assign(Data(edge_index=7 * edges, num_nodes=21_000), 4)
    assert parts.bincount().tolist() == [5250] * 4
    assert torch.equal(parts[::7][edges.unique()], _assign(_dense(edges), 4))
    graph = Data(edge_index=torch.tensor([[0, 1], [1, 399_999]]), num_nodes=400_000)
    assert _assign(graph, 5).bincount().tolist() == [80_000] * 5
    found = find_sub_parts(
        typed_graph(graph), {None: torch.zeros(400_000, dtype=torch.int32)}, 1, 0
    )[None]
    assert len({*found[[0, 1, -1]].tolist()} & {*found[2:-1].tolist()}) == 0


def _dense(edges: Tensor) -> Data:
    """The graph of the nodes with an edge."""
    ids, dense = edges.unique(return_inverse=True)
    return Data(edge_index=dense, num_nodes=len(ids))


@pytest.mark.parametrize('method', ['metis', KAMINPAR, 'ldg'])
def test_a_hub_that_weighs_more_than_a_part_leaves_the_others_even(method):
    generator = torch.Generator().manual_seed(0)
    to_hub = torch.stack([torch.arange(1, 900), torch.zeros(899).long()]).repeat(1, 4)
    edges = torch.randint(900, (2, 1800), generator=generator)
    edge_index = torch.cat([edges, to_hub], dim=1)
    parts = _assign(Data(edge_index=edge_index, num_nodes=900), 4, method, balance='edges')
    weight = torch.bincount(edge_index[1], minlength=900) + 1
    *others, largest = sorted(torch.bincount(parts, weight).tolist())
    part = (weight.sum() - weight[0]) / 3
    assert len(others) == 3
    assert max(others) <= 1.06 * part
    assert largest <= weight[0] + 0.06 * part


def test_kaminpar_writes_beside_the_parts(monkeypatch, tmp_path, power_law):
    pytest.importorskip('kaminpar')
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'none'))
    partition_graph(power_law, 4, tmp_path / 'parts', method='kaminpar')
    assert [path.name for path in tmp_path.iterdir()] == ['parts']


def _lacks_metis() -> bool:
    """Whether torch_sparse was built without METIS."""
    csr = torch.tensor([0, 1, 2]), torch.tensor([1, 0])
    try:
        torch.ops.torch_sparse.partition(*csr, None, 2, True)
    except RuntimeError as error:
        return NO_METIS in str(error)
    return False


@pytest.mark.parametrize('package', ['pymetis', 'pyg_lib', 'torch_sparse', 'kaminpar'])
def test_what_is_installed(monkeypatch, tmp_path, power_law, check_partition, make_graph, package):
    pytest.importorskip(package)
    if package == 'torch_sparse' and _lacks_metis():
        pytest.skip('torch_sparse was built without METIS')
    method = package if package == 'kaminpar' else 'metis'
    for other in ('pymetis', 'pyg_lib', 'torch_sparse'):
        if other != package:
            monkeypatch.setitem(sys.modules, other, None)
    for balance in ('nodes', 'edges'):
        root = tmp_path / balance
        summary = partition_graph(power_law, 4, root, balance=balance, method=method)
        assert summary.edge_cut < 0.5 * power_law.num_edges
        assert summary.node_imbalance < 1.04 or balance == 'edges'
        data = make_graph('communities')
        partition_graph(data, 3, root, balance=balance, force=True, method=method)
        check_partition(root, data, 3)


# Streaming: what the papers say, node by node


def _csr(edge_index: Tensor, num_nodes: int) -> Any:
    return neighbours(edge_index, num_nodes, keep_duplicates=True).csr(dtype=np.int32)


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
        cuts.append(_cut(power_law.edge_index, parts))
    assert cuts[1] < 0.9 * cuts[0] < 0.9 * 0.8 * 5 / 6 * 24_000  # Random parts cut five in six.


def test_a_node_heavier_than_any_part_goes_where_there_is_most_room(monkeypatch):
    monkeypatch.setattr(ldg, 'PASSES', 1)
    csr = _csr(torch.tensor([[0, 1], [2, 2]]), 3)
    parts = ldg_parts(Problem(*csr, np.array([5, 1, 100]), 2, CutOptions('ldg'))).tolist()
    assert parts[0] != parts[1] == parts[2]
