"""What a batch holds, against sampling by hand."""

from __future__ import annotations

from typing import Any

import by_hand
import pytest
import torch
from joined import batches, join
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
    assert [rows.size(0) for rows in found[:-1]] == [8 * size] * (len(found) - 1)
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
    taken = join(run_as_threads(batches, 2, folder, 2, batch_size=2, prefetch=0, **options))
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
