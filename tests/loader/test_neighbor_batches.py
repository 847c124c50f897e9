"""What a batch holds, against sampling by hand."""

from __future__ import annotations

import copy
import itertools
import pickle
from pathlib import Path
from typing import Any

import by_hand
import pytest
import torch
from alike import assert_bits
from joined import batches, content, take
from on_ranks import on_ranks, parts_of
from ranks import run_as_threads
from small_graphs import assign, cut, small_graph
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData, NeighborLoader

import pyg_sar
from pyg_sar import partition_graph
from pyg_sar.comm.vote import agree


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
    assert len(loader.dataset) == 40  # as training loops divide by
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
    graph, parts = small_graph(), assign(40, 4)
    options = {'seed': 0, 'replace': False, **options}
    taken = run_as_threads(batches, 2, folder, 2, batch_size=7, **options)
    fans = options.pop('num_neighbors')
    train, of_epoch = graph.train_mask.nonzero().view(-1), len(taken[0]) // 2
    for rank, number in itertools.product(range(2), range(2 * of_epoch)):
        epoch, index = divmod(number, of_epoch)
        seeds = train[7 * index : 7 * index + 7]
        own = seeds[parts[seeds] // 2 == rank].tolist()
        where = {'batch': index, 'epoch': epoch, **options}
        drawn = by_hand.sample(graph.edge_index, parts, own, fans, **where)
        nodes, edges = (taken[rank][number][kind][None] for kind in ('nodes', 'edges'))
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


@pytest.mark.parametrize('make', [lambda d: NeighborLoader(d, [2]), lambda d: ClusterData(d, 2)])
@pytest.mark.parametrize('is_local', [False, True])
def test_loaders_of_pyg_name_what_there_is_instead(make, is_local):
    data = pyg_sar.load_shard(parts_of(1))
    with pytest.raises(ValueError, match=r'of one process .*: use .*(NeighborLoader|full batch)'):
        make(pyg_sar.local(data) if is_local else data)


SEEDS = torch.tensor([5, 31, 7, 5, 0])


@pytest.mark.parametrize('world_size', [1, 3])
@on_ranks(num_parts=3, by='threads')
def test_seeds_of_the_whole_graph(data, world_size):
    """Ids in their order, masks, and rows that have the sharding of the graph."""
    mask = torch.zeros(data.num_nodes, dtype=torch.bool).index_fill(0, SEEDS, True)
    train = small_graph().train_mask.nonzero().view(-1)
    for given, want in (
        (SEEDS, SEEDS),
        (SEEDS.tolist(), SEEDS),
        (mask, SEEDS.unique()),
        (mask.nonzero().view(-1), SEEDS.unique()),
        (data.train_mask, train),
        (data.train_mask.nonzero().view(-1), train),
    ):
        found = list(pyg_sar.NeighborLoader(data, [2], given, batch_size=2))
        places = torch.cat([batch.input_id for batch in found])
        n_id = torch.cat([batch.n_id[: batch.batch_size] for batch in found])
        assert torch.equal(want[places], n_id)
        every = torch.cat(agree(places))
        assert every.sort().values.tolist() == list(range(len(want)))


def _graph() -> Data:
    graph, generator = small_graph(), torch.Generator().manual_seed(0)
    num_nodes, num_edges = graph.num_nodes, graph.num_edges
    graph.half = torch.randn(num_nodes, 3, generator=generator).half()
    graph.brain = torch.randn(num_nodes, generator=generator).bfloat16()
    graph.complex = torch.randn(num_nodes, 2, dtype=torch.complex128, generator=generator)
    graph.flags = torch.rand(num_nodes, 2, generator=generator) < 0.5
    graph.nothing = torch.zeros(num_nodes, 0)
    graph.edge_byte = torch.randint(255, (num_edges,), dtype=torch.uint8, generator=generator)
    graph.edge_wave = torch.randn(num_edges, dtype=torch.complex64, generator=generator)
    graph.number, graph.words = torch.tensor(3.0), 'hello'
    return graph


def _check_kinds(root: str) -> int:
    graph, data, seeds = _graph(), pyg_sar.load_shard(root), 0
    data.array = pyg_sar.gather(data.n_id).numpy() * 2
    data.listed, data.seven = list(range(5)), torch.arange(7)
    for batch in pyg_sar.NeighborLoader(data, [2, 2], batch_size=4):
        for name in ('half', 'brain', 'complex', 'flags', 'nothing', 'x'):
            assert torch.equal(batch[name], graph[name][batch.n_id]), name
        for name in ('edge_byte', 'edge_wave', 'edge_attr'):
            assert torch.equal(batch[name], graph[name][batch.e_id]), name
        assert torch.equal(batch.array, batch.n_id * 2)
        assert (batch.words, float(batch.number), batch.listed) == ('hello', 3.0, [0, 1, 2, 3, 4])
        assert batch.seven.numel() == 7
        assert type(batch.edge_index) is torch.Tensor
        assert batch.validate()
        assert pickle.loads(pickle.dumps(batch)).num_nodes == copy.deepcopy(batch).num_nodes
        batch.x.zero_()
        batch.n_id.zero_()
        seeds += batch.batch_size
    assert bool(data.x.any())
    assert bool(data.n_id.any())
    return seeds


@pytest.mark.parametrize('world_size', [1, 4])
def test_values_of_every_kind(tmp_path: Path, world_size: int) -> None:
    root = str(cut(_graph(), 4, tmp_path / 'parts'))
    assert sum(run_as_threads(_check_kinds, world_size, root)) == 40


@pytest.mark.parametrize('kind', ['empty part', 'one reader'])
def test_cuts_of_every_kind(kind: str) -> None:
    root = str(parts_of(4, kind))
    options = {'num_neighbors': [2, 2], 'batch_size': 12, 'shuffle': True, 'mask': None}
    options |= {'disjoint': True, 'seed': 0}
    want = content([batches(root, **options)])
    assert content(run_as_threads(batches, 4, root, **options)) == want


def _ring() -> Data:
    nodes = torch.arange(12)
    edge_index = torch.stack([nodes, (nodes + 1) % 12])
    return Data(edge_index=edge_index, num_nodes=12, score=nodes * 1.5, edge_weight=nodes * 2.5)


def _check_ring(root: str) -> None:
    graph, data = _ring(), pyg_sar.load_shard(root)
    for batch in pyg_sar.NeighborLoader(data, [2, -1], batch_size=2):
        assert torch.equal(batch.score, graph.score[batch.n_id])
        assert torch.equal(batch.edge_weight, graph.edge_weight[batch.e_id])


def test_as_many_edges_as_nodes(tmp_path: Path) -> None:
    partition_graph(_ring(), 2, tmp_path / 'parts', method=(torch.arange(12) > 5).long())
    for world_size in (1, 2):
        run_as_threads(_check_ring, world_size, str(tmp_path / 'parts'))


def test_a_graph_without_edges(tmp_path: Path) -> None:
    graph = Data(x=torch.randn(6, 2), edge_index=torch.empty(2, 0, dtype=torch.int64))
    partition_graph(graph, 2, tmp_path / 'parts', method=torch.tensor([0, 0, 0, 1, 1, 1]))
    data = pyg_sar.load_shard(tmp_path / 'parts')
    sizes = [batch.num_nodes for batch in pyg_sar.NeighborLoader(data, [2, -1], batch_size=4)]
    assert sizes == [4, 2]


def test_defaults_of_the_program_change_nothing(folder: str) -> None:
    data, how = pyg_sar.load_shard(folder), {'weight_attr': 'edge_weight', 'seed': 0}

    def loader() -> pyg_sar.NeighborLoader:
        return pyg_sar.NeighborLoader(data, [2, 2], batch_size=4, **how)

    want = [take(batch) for batch in loader()]
    torch.set_default_dtype(torch.float64)
    torch.set_default_device('meta')
    try:
        got = [take(batch) for batch in loader()]
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert_bits(got, want)
    with torch.inference_mode():
        made = loader()
    assert_bits([take(batch) for batch in made], want)
