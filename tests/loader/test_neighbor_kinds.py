"""Trees, times, induced and bidirectional subgraphs: against sets of nodes and edges by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from joined import batches, take
from small_graphs import cut, small_graph
from torch import Tensor
from torch_geometric.nn.models import SGFormer
from torch_geometric.utils import to_dense_batch

import pyg_sar
from pyg_sar.rows.patches import ask_for_rows

Edges = set[tuple[int, int, int]]


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    graph = small_graph()
    graph.when, graph.begins = NODE_TIMES, EDGE_TIMES
    return str(cut(graph, 4, tmp_path_factory.mktemp('parts') / 'small'))


NODE_TIMES, EDGE_TIMES = torch.arange(40) * 7 % 11, torch.arange(228) * 5 % 13
SOURCE_TIMES = NODE_TIMES[small_graph().edge_index[0]]


def _tree(seed: int, k: int, times: Tensor, until: int | None) -> tuple[list[set[int]], Edges]:
    """The nodes that each of two hops adds, and the edges (source, destination, id)."""
    ends = small_graph().edge_index.t().tolist()
    nodes, known, edges = [{seed}], {seed}, set()
    for _ in range(2):
        found: set[int] = set()
        for node in nodes[-1]:
            into = [(int(times[e]), e, src) for e, (src, dst) in enumerate(ends) if dst == node]
            into = sorted(each for each in into if until is None or each[0] <= until)
            for _, e, src in into[-k:] if k > 0 else into:
                edges.add((src, node, e))
                found.add(src)
        nodes.append(found - known)
        known |= found
    return nodes, edges


def _check_trees(
    taken: list[dict[str, Any]],
    k: int,
    times: Tensor = SOURCE_TIMES,
    until_of: Callable[[int], int] | None = None,
) -> None:
    seen = 0
    for batch in taken:
        nodes, edges = batch['nodes'][None], batch['edges'][None]
        row, col = edges['edge_index']
        assert torch.equal(nodes['batch'][row], nodes['batch'][col])
        assert torch.equal(nodes['batch'][: nodes['batch_size']], torch.arange(nodes['batch_size']))
        hop_of = torch.repeat_interleave(torch.tensor(nodes['num_sampled_nodes']))
        for tree in range(nodes['batch_size']):
            seed = int(nodes['n_id'][tree])
            until = None if until_of is None else until_of(seed)
            assert until is None or int(nodes['seed_time'][tree]) == until
            want, want_edges = _tree(seed, k, times, until)
            for hop, of_hop in enumerate(want):
                at = (nodes['batch'] == tree) & (hop_of == hop)
                assert sorted(nodes['n_id'][at].tolist()) == sorted(of_hop)
            at = nodes['batch'][col] == tree
            ends = nodes['n_id'][edges['edge_index'][:, at]]
            found = list(zip(*ends.tolist(), edges['e_id'][at].tolist(), strict=True))
            assert set(found) == want_edges
            assert len(found) == len(want_edges)
            seen += 1
    assert seen == int(small_graph().train_mask.sum())


def test_trees_of_seeds(folder: str) -> None:
    _check_trees(batches(folder, num_neighbors=[-1, -1], batch_size=3, disjoint=True), -1)


@pytest.mark.parametrize('k', [-1, 2])
def test_trees_by_times_of_nodes(folder: str, k: int) -> None:
    how: dict[str, Any] = {} if k < 0 else {'temporal_strategy': 'last'}
    taken = batches(folder, num_neighbors=[k, k], batch_size=3, time_attr='when', **how)
    _check_trees(taken, k, until_of=lambda seed: seed * 7 % 11)


@pytest.mark.parametrize('dtype', [torch.int64, torch.int32, torch.float32])
@pytest.mark.parametrize('k', [-1, 2])
def test_trees_by_times_of_edges(folder, k, dtype):
    data = pyg_sar.load_shard(folder)
    rows = data.train_mask.nonzero().view(-1)
    time = (data.n_id[rows] % 13).to(dtype) + (0.5 if dtype.is_floating_point else 0)
    how = {'time_attr': 'begins', 'temporal_strategy': 'uniform' if k < 0 else 'last'}
    loader = pyg_sar.NeighborLoader(data, [k, k], rows, time, batch_size=3, **how)
    _check_trees([take(batch) for batch in loader], k, EDGE_TIMES, lambda seed: seed % 13)


def test_draws_respect_times(folder: str) -> None:
    for options in ({}, {'replace': True}, {'weight_attr': 'edge_weight'}):
        taken = batches(folder, num_neighbors=[2, 2], batch_size=3, time_attr='when', **options)
        num = 0
        for batch in taken:
            nodes = batch['nodes'][None]
            assert bool((nodes['when'] <= nodes['seed_time'][nodes['batch']]).all())
            num += batch['edges'][None]['e_id'].numel()
        assert num > 30


def _inside(ids: Tensor) -> Tensor:
    """Of every edge whether both ends are among these nodes."""
    have = torch.zeros(40, dtype=torch.bool).index_fill(0, ids, True)
    return have[small_graph().edge_index].all(0)


@pytest.mark.parametrize('disjoint', [False, True])
def test_induced(folder: str, disjoint: bool) -> None:
    how = {'num_neighbors': [2, 1], 'batch_size': 8, 'disjoint': disjoint, 'seed': 0}
    taken = batches(folder, subgraph_type='induced', **how)
    graph = small_graph()
    for batch, plain in zip(taken, batches(folder, **how), strict=True):
        nodes, edges = batch['nodes'][None], batch['edges'][None]
        assert torch.equal(nodes['n_id'], plain['nodes'][None]['n_id'])
        assert 'num_sampled_edges' not in edges
        # A node of two trees is there twice: by their edges.
        row, col = edges['edge_index']
        e_id = edges['e_id']
        assert torch.equal(nodes['n_id'][edges['edge_index']], graph.edge_index[:, e_id])
        assert torch.equal(edges['edge_attr'], graph.edge_attr[e_id])
        assert len(set(zip(e_id.tolist(), col.tolist(), strict=True))) == e_id.numel()
        if disjoint:
            group = nodes['batch']
            assert torch.equal(group[row], group[col])
            trees = (nodes['n_id'][group == tree] for tree in range(nodes['batch_size']))
            assert sum(int(_inside(ids).sum()) for ids in trees) == e_id.numel()


def test_induced_on_one_part(tmp_path: Path) -> None:
    graph = small_graph()
    root = str(cut(graph, 1, tmp_path / 'one'))
    for batch in batches(root, num_neighbors=[2, 1], batch_size=4, subgraph_type='induced'):
        nodes, edges = batch['nodes'][None], batch['edges'][None]
        want = _inside(nodes['n_id']).nonzero().view(-1)
        assert torch.equal(edges['e_id'].sort().values, want)


def test_bidirectional(folder: str) -> None:
    how = {'num_neighbors': [2, 1], 'batch_size': 8, 'seed': 0}
    taken = batches(folder, subgraph_type='bidirectional', **how)
    graph = small_graph()
    for batch, plain in zip(taken, batches(folder, **how), strict=True):
        edges, drawn = batch['edges'][None], plain['edges'][None]['edge_index']
        both = torch.cat([drawn, drawn.flip(0)], dim=1).unique(dim=1)
        assert torch.equal(edges['edge_index'].unique(dim=1), both)
        assert edges['edge_index'].size(1) == both.size(1)
        assert torch.equal(edges['edge_attr'], graph.edge_attr[edges['e_id']])
        assert 'num_sampled_nodes' not in batch['nodes'][None]


def test_repeated_seeds(folder: str) -> None:
    data = pyg_sar.load_shard(folder)
    rows = torch.tensor([3, 1, 3, 3, 7])
    degree = torch.bincount(small_graph().edge_index[1], minlength=40)
    for batch in pyg_sar.NeighborLoader(data, [-1], rows, batch_size=5):
        seeds = batch.n_id[: batch.batch_size]
        assert torch.equal(seeds, data.n_id[rows[batch.input_id]])
        into = torch.bincount(batch.edge_index[1], minlength=batch.batch_size)
        assert torch.equal(into[: batch.batch_size], degree[seeds])
    shuffled = pyg_sar.NeighborLoader(data, [1], rows.repeat(20), batch_size=2, shuffle=True)
    ids = torch.cat([batch.input_id for batch in shuffled])
    assert ids.sort().values.tolist() == list(range(100))


def test_a_model_that_reads_batch() -> None:
    ask_for_rows()  # as load_shard does
    x, batch = torch.zeros(0, 4, requires_grad=True), torch.zeros(0, dtype=torch.int64)
    dense, mask = to_dense_batch(x, batch)
    assert dense.shape == (1, 0, 4)
    assert mask.shape == (1, 0)
    model = SGFormer(4, 8, 3)
    out = model(x, torch.zeros(2, 0, dtype=torch.int64), batch)
    assert out.shape == (0, 3)
    out.sum().backward()
    assert all((p.grad == 0).all() for p in model.parameters())  # all ranks average them
