"""What a batch holds, against sampling by hand."""

from __future__ import annotations

import itertools
from typing import Any

import by_hand
import pytest
import torch
from joined import batches
from ranks import run_as_threads
from small_graphs import assign, cut, small_graph

import pyg_sar


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(cut(small_graph(), 8, tmp_path_factory.mktemp('parts') / 'small'))


@pytest.mark.parametrize('size', [1, 5])
def test_one_process_takes_seeds_in_their_order(folder: str, size: int) -> None:
    graph, data = small_graph(), pyg_sar.load_shard(folder)
    loader = pyg_sar.NeighborLoader(data, [-1], batch_size=size)
    for batch in loader:
        assert batch.num_classes == 3
        assert batch.batch_size == batch.num_sampled_nodes[0]
    found = [batch.x[: batch.batch_size] for batch in loader]
    assert torch.equal(torch.cat(found), graph.x)
    assert [rows.size(0) for rows in found] == [size] * (40 // size)
    seeds, time = torch.tensor([7, 3, 3, 30, 0]), torch.tensor([5, 6, 7, 8, 9])
    loader = pyg_sar.NeighborLoader(
        data, [2], seeds, batch_size=size, time_attr='y', input_time=time
    )
    assert torch.equal(torch.cat([batch.n_id[: batch.batch_size] for batch in loader]), seeds)
    assert torch.equal(torch.cat([batch.seed_time for batch in loader]), time)


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
    options = {'seed': 0, **options}
    taken = run_as_threads(batches, 2, folder, 2, batch_size=7, **options)
    fans, replace = options['num_neighbors'], options.get('replace', False)
    train, of_epoch = graph.train_mask.nonzero().view(-1), len(taken[0]) // 2
    for rank, number in itertools.product(range(2), range(2 * of_epoch)):
        batch = taken[rank][number]
        epoch, index = divmod(number, of_epoch)
        seeds = train[7 * index : 7 * index + 7]
        drawn = by_hand.sample(
            graph.edge_index,
            parts,
            seeds[parts[seeds] // 4 == rank].tolist(),
            fans,
            batch=index,
            seed=options['seed'],
            epoch=epoch,
            replace=replace,
        )
        nodes, edges = batch['nodes'][None], batch['edges'][None]
        wanted = [edge for hop in drawn.edges for edge in hop]
        assert nodes['n_id'].tolist() == [node for hop in drawn.nodes for node in hop]
        assert edges['e_id'].tolist() == [edge for _, _, edge in wanted]
        ends = nodes['n_id'][edges['edge_index']].t().tolist()
        assert ends == [[src, dst] for src, dst, _ in wanted]
        assert nodes['num_sampled_nodes'] == [len(hop) for hop in drawn.nodes]
        assert edges['num_sampled_edges'] == [len(hop) for hop in drawn.edges]
        for name in ('x', 'y', 'pos', 'train_mask'):
            assert torch.equal(nodes[name], graph[name][nodes['n_id']])
        for name in ('edge_attr', 'edge_weight', 'edge_type'):
            assert torch.equal(edges[name], graph[name][edges['e_id']])
