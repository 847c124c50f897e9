"""Methods behind one interface: what each promises of cut, balance and repeatability."""

from __future__ import annotations

import json

import numpy as np
import pymetis
import pytest
import torch
from few import few
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar import partition_graph
from pyg_sar.partitioner.assignment import assign_nodes, choose
from pyg_sar.partitioner.graph.typed import typed_graph
from pyg_sar.partitioner.methods import METHODS
from pyg_sar.partitioner.methods.balance import Balance
from pyg_sar.partitioner.methods.method import Method, Problem
from pyg_sar.partitioner.methods.rebalance import rebalance, refine
from pyg_sar.partitioner.on_disk.neighbours import symmetric_csr, undirected_csr
from pyg_sar.partitioner.sources.synthetic import GraphShape, synthetic_graph

STREAMING = ('ldg', 'fennel')


@pytest.fixture(scope='module')
def power_law() -> Data:
    return synthetic_graph(GraphShape(3000, 12_000, 4, 6, community_size=100), seed=0)


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


def _assign(data: Data | HeteroData, num_parts: int, method: str = 'metis', **options) -> dict:
    graph = typed_graph(data)
    has_train_mask = any('train_mask' in nodes.attrs for nodes in graph.nodes.values())
    is_hetero = isinstance(data, HeteroData)
    options = choose(method, is_hetero=is_hetero, has_train_mask=has_train_mask, **options)
    return assign_nodes(graph, num_parts, options)


def _cut(edge_index: Tensor, parts: Tensor) -> int:
    src, dst = parts[edge_index]
    return int((src != dst).sum())


def _volume(edge_index: Tensor, parts: Tensor) -> int:
    src, dst = edge_index.tolist()
    pairs = {(s, int(parts[d])) for s, d in zip(src, dst, strict=True)}
    return sum(int(parts[s]) != part for s, part in pairs)


def _most(parts: Tensor, weight: Tensor, num_parts: int) -> tuple[float, float]:
    """The largest load, and the mean."""
    loads = torch.bincount(parts, weight.double(), num_parts)
    return float(loads.max()), float(loads.mean())


@pytest.mark.parametrize('method', ['metis', 'ldg', 'fennel', 'random', 'range'])
def test_same_seed_same_parts(power_law, method):
    passes = {'passes': 2} if method in STREAMING else {}
    first, second, other = (
        _assign(power_law, 4, method, seed=seed, **passes)[None] for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert torch.equal(first, other) is (method == 'range')


@pytest.mark.parametrize('num_parts', [4, 16])
def test_cuts_no_more_than_pymetis(power_law, num_parts):
    indptr, index = undirected_csr(power_law.edge_index, 3000)
    _, direct = pymetis.part_graph(num_parts, pymetis.CSRAdjacency(indptr, index))
    parts = _assign(power_law, num_parts)[None]
    expected = _cut(power_law.edge_index, torch.tensor(direct))
    assert _cut(power_law.edge_index, parts) <= 1.02 * expected
    assert (parts.tolist() == list(direct)) is (num_parts == 4)  # Where it bisects, as we do.


def test_kway_is_taken_where_it_cuts_less(monkeypatch):
    """With a METIS that returns what the test says."""
    good, bad = torch.arange(40) // 4, torch.arange(40) % 10

    clique = torch.combinations(torch.arange(4)).t()
    edges = torch.cat([clique + 4 * start for start in range(10)], dim=1)
    for best in (False, True):
        monkeypatch.setattr(
            pymetis,
            'part_graph',
            lambda *_, recursive, best=best, **__: (
                0,
                (good if recursive is best else bad).tolist(),
            ),
        )
        parts = _assign(Data(edge_index=edges, num_nodes=40), 10)[None]
        assert torch.equal(parts, good)


def test_volume_keeps_the_better(power_law):
    for num_parts in (3, 12):
        volume = {
            objective: _volume(
                power_law.edge_index, _assign(power_law, num_parts, objective=objective)[None]
            )
            for objective in ('cut', 'volume')
        }
        assert volume['volume'] <= volume['cut']


def test_volume_is_asked_of_metis(tmp_path, power_law, monkeypatch):
    seen = []
    part_graph = pymetis.part_graph

    def spy(*args, options, recursive, **kwargs):
        seen.append((recursive, options.objtype))
        return part_graph(*args, options=options, recursive=recursive, **kwargs)

    monkeypatch.setattr(pymetis, 'part_graph', spy)
    summary = partition_graph(power_law, 3, tmp_path / 'out', objective='volume')
    assert seen == [(True, -1), (False, int(pymetis.ObjType.VOL))]
    parts = torch.load(tmp_path / 'out' / 'node_map.pt')
    assert summary.communication_volume == _volume(power_law.edge_index, parts)


@pytest.mark.parametrize('method', few(['metis', 'ldg', 'fennel']))
def test_several_things_balanced_at_once(power_law, method):
    data = Data(edge_index=power_law.edge_index, num_nodes=3000)
    data.edge_index = data.edge_index[
        :, (power_law.y == 0)[data.edge_index[1]] | (torch.arange(24_000) % 4 == 0)
    ]
    data.train_mask = (power_law.y == 0) | (power_law.y == 3)
    degree = torch.bincount(data.edge_index[1], minlength=3000)
    weights = {'nodes': torch.ones(3000), 'edges': degree, 'train': data.train_mask}
    largest = {}
    for balance in ('nodes', 'nodes,edges,train'):
        parts = _assign(data, 4, method, balance=balance)[None]
        for name, weight in weights.items():
            most, mean = _most(parts, weight, 4)
            largest[balance, name] = most / mean
    assert max(largest['nodes', 'edges'], largest['nodes', 'train']) > 1.2
    for name in weights:
        assert largest['nodes,edges,train', name] <= 1.051


@pytest.mark.parametrize('method', ['metis', 'ldg', 'fennel'])
@pytest.mark.parametrize('num_parts', few([2, 8]))
def test_every_type_is_balanced_by_default(venues, method, num_parts):
    """Within 5 %, or to the mean rounded up."""
    passes = {} if method == 'metis' else {'passes': 2}

    def overfull(**options) -> list[str]:
        found = _assign(venues, num_parts, method, **options, **passes)
        loads = {name: _most(p, torch.ones(len(p)), num_parts) for name, p in found.items()}
        return [n for n, (most, mean) in loads.items() if most > max(np.ceil(mean), 1.05 * mean)]

    assert overfull() == overfull(balance='types') == []
    assert overfull(balance='nodes') != [] or method != 'metis'


def test_balanced_types_cut_hardly_more(venues):
    edge_index = typed_graph(venues).homogeneous_edge_index()
    cuts = {
        balance: _cut(edge_index, torch.cat([*_assign(venues, 8, balance=balance).values()]))
        for balance in ('nodes', 'types')
    }
    assert cuts['types'] < 1.2 * cuts['nodes']


def _problem(indptr, index, balance: Balance, num_parts: int) -> Problem:
    return Problem(indptr, index, balance, num_parts, choose('ldg'))


def _single(num_nodes: int) -> Balance:
    ones = np.ones((num_nodes, 1), dtype=np.int64)
    return Balance(ones, ones)


def test_rebalance_moves_what_costs_least():
    """A clique of 6 with a tail of 2, against 4 loose nodes: the tail goes."""
    clique = torch.combinations(torch.arange(6)).t()
    tail = torch.tensor([[5, 6, 0], [6, 7, 8]])
    indptr, index = symmetric_csr(torch.cat([clique, tail], dim=1), 12)
    parts = np.array([0] * 8 + [1] * 4)
    problem = _problem(indptr, index, _single(12), 2)
    moved = rebalance(problem, parts)
    assert moved.tolist() == [0] * 6 + [1] * 6
    assert rebalance(problem, moved) is moved


@pytest.mark.parametrize('seed', range(3))
def test_refine_never_cuts_more_and_keeps_the_caps(power_law, seed):
    rng = np.random.default_rng(seed)
    indptr, index = symmetric_csr(power_law.edge_index, 3000)
    weights = np.stack([np.ones(3000), rng.integers(0, 9, 3000)], axis=1).astype(np.int64)
    balance = Balance(weights, weights)
    problem = _problem(indptr, index, balance, 5)
    parts = rebalance(problem, rng.integers(0, 5, 3000))
    refined = refine(problem, parts)
    loads = np.stack([np.bincount(refined, w, 5) for w in weights.T])
    assert (loads.max(axis=1) <= balance.caps(5)).all()
    before, after = (_cut(power_law.edge_index, torch.from_numpy(p)) for p in (parts, refined))
    assert after < 0.9 * before


def test_range(tmp_path, graph, check_partition):
    summary = partition_graph(graph, 4, tmp_path / 'out', method='range')
    assert summary.part_num_nodes == (13, 12, 13, 12)
    assert check_partition(tmp_path / 'out', graph, 4) == sorted(
        torch.load(tmp_path / 'out' / 'node_map.pt').tolist()
    )


@pytest.mark.parametrize('method', ['ldg', 'fennel', 'range'])
def test_small_graphs(tmp_path, any_graph, check_partition, method):
    for num_parts in (1, 3):
        root = tmp_path / f'{num_parts}'
        passes = {'passes': 2} if method in STREAMING else {}
        summary = partition_graph(any_graph, num_parts, root, method=method, **passes)
        check_partition(root, any_graph, num_parts)
        assert min(summary.part_num_nodes) > 0


def test_provenance(tmp_path, venues):
    def provenance(**options) -> dict:
        partition_graph(venues, 2, tmp_path / 'out', force=True, **options)
        partition = json.loads((tmp_path / 'out' / 'META.json').read_text())['pyg_sar']['partition']
        names = ('method', 'backend', 'objective', 'balance', 'passes', 'seed')
        return {name: partition[name] for name in names}

    expected = {'objective': 'cut', 'balance': 'types', 'passes': None, 'seed': 0}
    assert provenance() == {**expected, 'method': 'metis', 'backend': 'pymetis'}
    ldg = provenance(method='ldg', passes=3, balance=['types', 'edges'], seed=4)
    assert ldg == {
        'method': 'ldg',
        'backend': None,
        'objective': 'cut',
        'balance': 'types,edges',
        'passes': 3,
        'seed': 4,
    }
    assert provenance(method='range') == {
        **dict.fromkeys(expected),
        'method': 'range',
        'backend': None,
        'seed': 0,
    }


def test_a_method_is_known_by_its_file_alone(tmp_path, graph, monkeypatch):
    """What it says of itself is all that the checks, the run and META.json go by."""

    def odd_and_even(problem) -> list[Tensor]:
        assert (problem.num_parts, problem.options.seed) == (2, 5)
        return [torch.arange(len(problem.indptr) - 1) % 2]

    monkeypatch.setitem(METHODS, 'parity', Method('parity', odd_and_even))
    partition_graph(graph, 2, tmp_path / 'out', method='parity', seed=5, balance='edges')
    assert torch.load(tmp_path / 'out' / 'node_map.pt').tolist() == [0, 1] * 25
    partition = json.loads((tmp_path / 'out' / 'META.json').read_text())['pyg_sar']['partition']
    assert (partition['method'], partition['balance']) == ('parity', 'edges')
    with pytest.raises(ValueError, match=r"'balance' must be 'nodes' or 'edges' with .*parity"):
        partition_graph(graph, 2, tmp_path / 'a', method='parity', balance='nodes,edges')
    with pytest.raises(ValueError, match=r"objective='volume' applies to .* alone .*parity"):
        partition_graph(graph, 2, tmp_path / 'a', method='parity', objective='volume')
