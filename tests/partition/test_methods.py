"""Methods behind one interface: what each promises of cut, balance and repeatability."""

from __future__ import annotations

import sys
import tempfile
from types import SimpleNamespace
from typing import Any

import numpy as np
import pymetis
import pytest
import torch
from few import few
from partition_files import meta_of
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar import partition_graph
from pyg_sar.partition.assignment import assign_nodes, choose
from pyg_sar.partition.balance import Balance
from pyg_sar.partition.method import CutOptions, Problem
from pyg_sar.partition.metis import metis_assignment
from pyg_sar.partition.neighbours import neighbours
from pyg_sar.partition.typed import typed_graph

STREAMING = ('ldg', 'fennel')


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
    graph = typed_graph(data)
    has_train_mask = any('train_mask' in nodes.attrs for nodes in graph.nodes.values())
    is_hetero = isinstance(data, HeteroData)
    if method in STREAMING:
        options = {'passes': 2, **options}
    asked = CutOptions(method, **options)
    chosen = choose(asked, is_hetero=is_hetero, has_train_mask=has_train_mask)
    found = assign_nodes(graph, num_parts, *chosen)
    return found if is_hetero else found[None]


def _cut(edge_index: Tensor, parts: Tensor) -> int:
    src, dst = parts[edge_index]
    return int((src != dst).sum())


def _volume(edge_index: Tensor, parts: Tensor) -> int:
    src, dst = edge_index.tolist()
    pairs = {(s, int(parts[d])) for s, d in zip(src, dst, strict=True)}
    return sum(int(parts[s]) != part for s, part in pairs)


def _excess(parts: Tensor, weight: Tensor, num_parts: int) -> float:
    """The largest load over the mean."""
    loads = torch.bincount(parts, weight.double(), num_parts)
    return float(loads.max() / loads.mean())


@pytest.mark.parametrize('method', ['metis', 'ldg', 'fennel', 'random', 'range'])
def test_same_seed_same_parts(power_law, method):
    first, second, other = (_assign(power_law, 4, method, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert torch.equal(first, other) is (method == 'range')


def test_finds_communities(tmp_path, make_graph):
    summary = partition_graph(make_graph('communities'), 3, tmp_path / 'out')
    assert summary.part_num_nodes == (10, 10, 10)
    assert summary.edge_cut == 4  # The two bridges, both ways.
    assert summary.communication_volume == 4


def test_range(tmp_path, graph, check_partition):
    summary = partition_graph(graph, 4, tmp_path / 'out', method='range')
    assert summary.part_num_nodes == (13, 12, 13, 12)
    found = check_partition(tmp_path / 'out', graph, 4)
    assert found == sorted(found)


@pytest.mark.parametrize('num_parts', [4, 16])
def test_cuts_no_more_than_pymetis(power_law, num_parts):
    indptr, index = neighbours(power_law.edge_index, 3000).csr()
    _, direct = pymetis.part_graph(num_parts, pymetis.CSRAdjacency(indptr, index))
    parts = _assign(power_law, num_parts)
    expected = _cut(power_law.edge_index, torch.tensor(direct))
    assert _cut(power_law.edge_index, parts) <= 1.02 * expected
    assert (parts.tolist() == list(direct)) is (num_parts == 4)  # Where it bisects, as we do.


@pytest.mark.parametrize('num_parts', [3, 12])
def test_volume_keeps_the_better(power_law, num_parts):
    parts = [_assign(power_law, num_parts, objective=objective) for objective in ('volume', 'cut')]
    volume, of_cut = (_volume(power_law.edge_index, found) for found in parts)
    assert volume <= of_cut


@pytest.mark.parametrize('method', ['metis', *STREAMING])
def test_several_things_balanced_at_once(power_law, method):
    """Most edges, and all training nodes, lie in two classes."""
    is_kept = (power_law.y == 0)[power_law.edge_index[1]] | (torch.arange(24_000) % 4 == 0)
    data = Data(edge_index=power_law.edge_index[:, is_kept], num_nodes=3000)
    data.train_mask = (power_law.y == 0) | (power_law.y == 3)
    degree = torch.bincount(data.edge_index[1], minlength=3000)
    weights = {'nodes': torch.ones(3000), 'edges': degree, 'train': data.train_mask}
    passes = {} if method == 'metis' else {'passes': 10}

    def excess(balance: str) -> dict[str, float]:
        parts = _assign(data, 4, method, balance=balance, **passes)
        return {name: _excess(parts, weight, 4) for name, weight in weights.items()}

    alone = excess('nodes')
    assert max(alone['edges'], alone['train']) > 1.2
    assert max(excess('nodes,edges,train').values()) <= 1.051
    if method == 'metis':
        assert excess('train')['train'] < 1.08
        parts = _assign(data, 4, balance='edges')
        assert _excess(parts, degree + 1, 4) < 1.02


@pytest.mark.parametrize('method', ['metis', *STREAMING])
@pytest.mark.parametrize('num_parts', few([2, 8]))
def test_every_type_is_balanced_by_default(venues, method, num_parts):
    """Within 5 %, or to the mean rounded up."""

    def overfull(**options: Any) -> list[str]:
        found = _assign(venues, num_parts, method, **options)
        caps = {
            n: max(-(-len(p) // num_parts), 1.05 * len(p) / num_parts) for n, p in found.items()
        }
        return [n for n, p in found.items() if int(p.bincount().max()) > caps[n]]

    assert overfull() == overfull(balance='types') == []
    assert overfull(balance='nodes') != [] or method != 'metis'


def test_balanced_types_cut_hardly_more(venues):
    edge_index = typed_graph(venues).homogeneous_edge_index()
    cuts = {
        balance: _cut(edge_index, torch.cat([*_assign(venues, 8, balance=balance).values()]))
        for balance in ('nodes', 'types')
    }
    assert cuts['types'] < 1.2 * cuts['nodes']


@pytest.mark.parametrize(
    ('options', 'want'),
    [
        ({}, ('metis', 'pymetis', 'cut', 'types', None, 0)),
        (
            {'method': 'ldg', 'passes': 3, 'balance': ['types', 'edges'], 'seed': 4},
            ('ldg', None, 'cut', 'types,edges', 3, 4),
        ),
        ({'method': 'range'}, ('range', None, None, None, None, 0)),
    ],
)
def test_provenance(tmp_path, venues, options, want):
    partition_graph(venues, 2, tmp_path / 'out', **options)
    names = ('method', 'backend', 'objective', 'balance', 'passes', 'seed')
    assert tuple(meta_of(tmp_path / 'out')['partition'][name] for name in names) == want


# The packages behind them


def test_one_part_needs_no_metis(monkeypatch, tmp_path, graph):
    monkeypatch.setattr(pymetis, 'part_graph', None)
    assert partition_graph(graph, 1, tmp_path / 'out').part_num_nodes == (50,)


@pytest.mark.parametrize(
    ('options', 'package'),
    [
        ({}, 'pymetis'),
        ({'method': 'range', 'order': 'cache'}, 'pymetis'),
        ({'backend': 'pyg-lib'}, 'pyg_lib'),
        ({'backend': 'torch-sparse'}, 'torch_sparse'),
        ({'method': 'kaminpar'}, 'kaminpar'),
    ],
)
def test_missing_package(monkeypatch, tmp_path, graph, options, package):
    monkeypatch.setitem(sys.modules, package, None)
    name = package.replace('_', '-')
    with pytest.raises(ValueError, match=f"'{name}'"):
        partition_graph(graph, 2, tmp_path / 'out', **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ('width', 'file', 'got'),
    [
        (None, None, "no attribute '_internal'"),
        (32, pymetis._internal.__file__, '32-bit indices'),
        (64, None, 'METIS'),
    ],
)
def test_a_pymetis_without_metis_is_refused(monkeypatch, venues, width, file, got):
    package = SimpleNamespace(__spec__=pymetis.__spec__)
    if width is not None:
        package._internal = SimpleNamespace(
            _idx_type_width=lambda: width, options_indices=None, __file__=file
        )
    monkeypatch.setitem(sys.modules, 'pymetis', package)
    with pytest.raises(ValueError, match=f"pymetis .*{got}.*'ldg'"):
        _assign(venues, 2)


@pytest.mark.parametrize(
    'options', [{'method': 'metis', 'backend': 'torch-sparse'}, {'method': 'kaminpar'}]
)
def test_one_weight_only(monkeypatch, options):
    for name in ('torch_sparse', 'kaminpar'):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    assert choose(CutOptions(**options), is_hetero=True)[1].balance == ('nodes',)
    with pytest.raises(ValueError, match="'balance' beyond"):
        choose(CutOptions(**options, balance='types'), is_hetero=True)


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
    package = SimpleNamespace(partition=SimpleNamespace(metis=part))
    monkeypatch.setitem(sys.modules, 'pyg_lib', package)
    parts = _assign(power_law, 4, backend='pyg-lib', balance='edges')
    # All but the few that had to move, as these parts are uneven.
    assert 0.95 < (parts == torch.arange(3000) % 4).double().mean() < 1
    assert torch.bincount(parts, degree + 1).max() <= 1.05 * (degree + 1).sum() / 4


def test_metis_takes_the_better_of_both_ways():
    """A grid is cut less by k-way, of few parts too."""
    nodes = torch.arange(3600).view(60, 60)
    edges = [
        torch.stack([a.flatten(), b.flatten()])
        for a, b in ((nodes[:-1], nodes[1:]), (nodes[:, :-1], nodes[:, 1:]))
    ]
    edge_index = torch.cat(edges, dim=1)
    graph = Data(edge_index=torch.cat([edge_index, edge_index.flip(0)], dim=1), num_nodes=3600)
    csr = neighbours(edge_index, 3600).csr()
    ones = np.broadcast_to(np.int64(1), (3600, 1))
    for num_parts in (2, 3, 4, 8):
        options = choose(CutOptions())[1]
        problem = Problem(*csr, Balance(ones, ones), num_parts, options)
        cuts = [
            _cut_edges(graph, parts)
            for parts in (
                _assign(graph, num_parts),
                metis_assignment(problem, recursive=True),
                metis_assignment(problem, recursive=False),
            )
        ]
        assert cuts[0] <= 1.02 * min(cuts[1:])
        if num_parts < 8:
            assert cuts[0] < 0.95 * cuts[1]


def _cut_edges(graph: Data, parts: Tensor) -> int:
    src, dst = parts[graph.edge_index]
    return int((src != dst).sum())


@pytest.mark.parametrize('method', ['metis', 'kaminpar', 'ldg'])
def test_a_hub_that_weighs_more_than_a_part_lies_alone(method):
    if method == 'kaminpar':
        pytest.importorskip('kaminpar')
    generator = torch.Generator().manual_seed(0)
    to_hub = torch.stack([torch.arange(1, 900), torch.zeros(899).long()]).repeat(1, 4)
    edges = torch.randint(900, (2, 1800), generator=generator)
    edge_index = torch.cat([edges, to_hub], dim=1)
    parts = _assign(Data(edge_index=edge_index, num_nodes=900), 4, method, balance='edges')
    loads = torch.bincount(parts, torch.bincount(edge_index[1], minlength=900) + 1)
    assert (parts == parts[0]).sum() == 1
    assert sorted(loads.tolist())[-2] <= 1.05 * loads.sum() / 4


def test_kaminpar_writes_beside_the_parts(monkeypatch, tmp_path, power_law):
    pytest.importorskip('kaminpar')
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'none'))
    partition_graph(power_law, 4, tmp_path / 'parts', method='kaminpar')
    assert [path.name for path in tmp_path.iterdir()] == ['parts']


def test_kaminpar_gives_the_same_parts_again(power_law):
    pytest.importorskip('kaminpar')
    first, again, other = (_assign(power_law, 8, method='kaminpar', seed=s) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    many = _assign(power_law, 8, method='kaminpar', threads=4)
    assert torch.bincount(many).max() < 1.04 * power_law.num_nodes / 8


@pytest.mark.parametrize(
    ('options', 'package'),
    [
        ({'backend': 'pymetis'}, 'pymetis'),
        ({'backend': 'pyg-lib'}, 'pyg_lib'),
        ({'backend': 'torch-sparse'}, 'torch_sparse'),
        ({'method': 'kaminpar'}, 'kaminpar'),
    ],
)
def test_what_is_installed(tmp_path, power_law, check_partition, make_graph, options, package):
    pytest.importorskip(package)
    for balance in ('nodes', 'edges'):
        root = tmp_path / balance
        summary = partition_graph(power_law, 4, root, balance=balance, **options)
        assert summary.edge_cut < 0.5 * power_law.num_edges
        assert summary.node_imbalance < 1.04 or balance == 'edges'
        data = make_graph('communities')
        partition_graph(data, 3, root, balance=balance, force=True, **options)
        check_partition(root, data, 3)
