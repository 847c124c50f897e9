"""What a batch holds: against sampling by hand, and the same on any number of ranks."""

from __future__ import annotations

from typing import Any

import by_hand
import pytest
import torch
from few import few
from hetero_graphs import assignment, hetero_graph
from joined import assert_same, batches, join
from ranks import run_as_threads
from small_graphs import assign, cut, small_graph

from pyg_sar import partition_graph

SIZES = [8, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 4))]


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(cut(small_graph(), 8, tmp_path_factory.mktemp('parts') / 'small'))


@pytest.fixture(scope='module')
def hetero_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp('parts') / 'hetero'
    partition_graph(hetero_graph(), 8, root, method=assignment(8))
    return str(root)


@pytest.mark.parametrize(
    'options',
    [
        {'num_neighbors': [3, 2, 2]},
        {'num_neighbors': [-1, 0, 4], 'replace': True},
        {'num_neighbors': [2, 3], 'replace': True, 'seed': -7},
    ],
)
def test_batches_are_those_drawn_by_hand(folder: str, options: dict[str, Any]) -> None:
    graph, parts = small_graph(), assign(40, 8)
    taken = batches(folder, 2, batch_size=2, prefetch=0, **options)
    fans, replace = options['num_neighbors'], options.get('replace', False)
    of_epoch = len(taken) // 2
    for number, batch in enumerate(taken):
        epoch, index = divmod(number, of_epoch)
        drawn = []
        for part in range(8):
            seeds = (graph.train_mask & (parts == part)).nonzero().view(-1).tolist()
            own = seeds[2 * index : 2 * index + 2]
            drawn.append(
                by_hand.sample(
                    graph.edge_index,
                    parts,
                    own,
                    fans,
                    part=part,
                    batch=index,
                    seed=options.get('seed', 0),
                    epoch=epoch,
                    replace=replace,
                )
            )
        nodes, edges = batch['nodes'][None], batch['edges'][None]
        hops = range(len(fans) + 1)
        n_id = [node for hop in hops for each in drawn for node in each.nodes[hop]]
        wanted = [edge for hop in hops[:-1] for each in drawn for edge in each.edges[hop]]
        assert nodes['n_id'].tolist() == n_id
        assert edges['e_id'].tolist() == [edge for _, _, edge in wanted]
        ends = nodes['n_id'][edges['edge_index']].t().tolist()
        assert ends == [[src, dst] for src, dst, _ in wanted]
        assert nodes['num_sampled_nodes'] == [sum(len(e.nodes[h]) for e in drawn) for h in hops]
        per_hop = [sum(len(e.edges[h]) for e in drawn) for h in hops[:-1]]
        assert edges['num_sampled_edges'] == per_hop
        for name in ('x', 'y', 'pos', 'train_mask'):
            assert torch.equal(nodes[name], graph[name][nodes['n_id']])
        for name in ('edge_attr', 'edge_weight', 'edge_type'):
            assert torch.equal(edges[name], graph[name][edges['e_id']])
        assert nodes['num_classes'] == 3
        assert nodes['batch_size'] == nodes['num_sampled_nodes'][0]


HOMOGENEOUS: list[dict[str, Any]] = [
    {'num_neighbors': [3, 2, 2], 'shuffle': True, 'seed': 5},
    {'num_neighbors': [-1, 2], 'replace': True},
    {'num_neighbors': [3, 2], 'weight_attr': 'edge_weight'},
    {'num_neighbors': [3, 2], 'weight_attr': 'edge_weight', 'replace': True, 'disjoint': True},
    {'num_neighbors': [2, 2], 'disjoint': True, 'mask': None},
    {'num_neighbors': [2, 1], 'subgraph_type': 'induced'},
    {'num_neighbors': [2, 2], 'time_attr': 'y', 'drop_last': True},
    {'num_neighbors': [2, 2], 'time_attr': 'y', 'temporal_strategy': 'last', 'shuffle': True},
    {'num_neighbors': [], 'mask': None},
]


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('options', few(HOMOGENEOUS, every=2))
def test_ranks_have_the_batches_of_their_parts(
    folder: str, options: dict[str, Any], size: int
) -> None:
    options = {'batch_size': 2, **options}
    want = join([batches(folder, 2, **options)])
    assert_same(join(run_as_threads(batches, size, folder, 2, **options)), want)


HETERO: list[dict[str, Any]] = [
    {'input_type': 'paper', 'num_neighbors': [3, 2, 2], 'shuffle': True},
    {'input_type': 'author', 'num_neighbors': [2, 2], 'time_attr': 'age'},
    {'input_type': 'author', 'num_neighbors': [2, -1], 'disjoint': True},
    {'input_type': 'term', 'mask': None, 'num_neighbors': [2, 2], 'subgraph_type': 'induced'},
]
HETERO_CASES = [*HETERO[:2], *(pytest.param(each, marks=pytest.mark.slow) for each in HETERO[2:])]


@pytest.mark.slow
@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('options', HETERO_CASES)
def test_ranks_have_the_batches_of_their_parts_by_type(
    hetero_folder: str, options: dict[str, Any], size: int
) -> None:
    options = {'batch_size': 2, **options}
    graph = hetero_graph()
    want = batches(hetero_folder, **options)
    for batch in want:
        for key, values in batch['nodes'].items():
            for name in values.keys() & {'x', 'y', 'age', 'train_mask'}:
                assert torch.equal(values[name], graph[key][name][values['n_id']])
        for key, values in batch['edges'].items():
            src, dst = (batch['nodes'][end]['n_id'] for end in (key[0], key[2]))
            row, col = values['edge_index']
            ends = torch.stack([src[row], dst[col]])
            assert torch.equal(ends, graph[key].edge_index[:, values['e_id']])
    assert_same(join(run_as_threads(batches, size, hetero_folder, **options)), join([want]))
