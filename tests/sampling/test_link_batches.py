"""What a batch of links holds, and that it is the same on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hetero_graphs import CITES, HAS, WRITES, assignment, hetero_graph
from joined import assert_same, join, link_batches
from ranks import run_as_threads, run_ranks
from small_graphs import assign, cut, small_graph
from torch import Tensor
from torch_geometric.data import Data

import pyg_sar
from pyg_sar import partition_graph
from pyg_sar.monitor import hook

SIZES = [8, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 4))]


def _few(cases: list[Any], num: int) -> list[Any]:
    """The first ones; the others take part in the slow tests."""
    return cases[:num] + [pytest.param(c, marks=pytest.mark.slow) for c in cases[num:]]


BINARY = {'neg_sampling': 'binary'}


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(cut(small_graph(), 8, tmp_path_factory.mktemp('parts') / 'small'))


@pytest.fixture(scope='module')
def hetero_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp('parts') / 'hetero'
    partition_graph(hetero_graph(), 8, root, method=assignment(8))
    return str(root)


def _pairs(num: int = 60, limits: tuple[int, int] = (40, 40)) -> Tensor:
    """Some edges or none, the same pair several times."""
    generator = torch.Generator().manual_seed(4)
    pairs = torch.stack([torch.randint(limit, (num,), generator=generator) for limit in limits])
    pairs[:, 20:24] = pairs[:, :4]
    return pairs


HOMOGENEOUS: list[dict[str, Any]] = [
    {'num_neighbors': [3, 2], 'shuffle': True, 'seed': 5, 'neg_sampling': 'binary'},
    {'num_neighbors': [3, 2], 'neg_sampling': {'mode': 'triplet', 'amount': 3}, 'disjoint': True},
    {'num_neighbors': [2, 2], 'exclude_edges': 'reverse', 'subgraph_type': 'induced'},
    {'num_neighbors': [-1, 1], 'exclude_edges': True, 'disjoint': True, **BINARY, 'replace': True},
    {'num_neighbors': [2], 'neg_sampling': {'mode': 'binary', 'amount': 0.4}, 'drop_last': True},
    {'num_neighbors': [], 'neg_sampling': 'triplet', 'shuffle': True},
]


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('options', _few(HOMOGENEOUS, 2))
def test_ranks_have_the_links_of_their_parts(
    folder: str, options: dict[str, Any], size: int
) -> None:
    options = {'batch_size': 12, **options}
    epochs = 2 if 'shuffle' in options else 1
    want = join([link_batches(folder, epochs, **options)])
    assert_same(join(run_as_threads(link_batches, size, folder, epochs, **options)), want)


PAIRS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({'num_neighbors': [3, 2], 'shuffle': True, **BINARY}, ('edge_label',)),
    ({'num_neighbors': [2, 2], 'time_attr': 'y', **BINARY}, ('edge_label_time',)),
    (
        {'num_neighbors': [2, 2], 'time_attr': 'y', 'neg_sampling': 'triplet', 'shuffle': True},
        ('edge_label_time',),
    ),
    ({'num_neighbors': [2], 'time_attr': 'edge_type'}, ('edge_label_time', 'edge_label')),
]


def _more(names: tuple[str, ...], num: int = 60) -> dict[str, Tensor]:
    values = {'edge_label': torch.arange(num) % 3, 'edge_label_time': torch.arange(num) % 3}
    return {name: values[name] for name in names}


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('case', _few(PAIRS, 2))
def test_pairs_from_any_rank_go_to_their_parts(
    folder: str, case: tuple[dict[str, Any], tuple[str, ...]], size: int
) -> None:
    options, names = case
    options = {'batch_size': 5, 'pairs': _pairs(), 'more': _more(names), **options}
    want = join([link_batches(folder, **options)])
    assert_same(join(run_as_threads(link_batches, size, folder, **options)), want)


HETERO: list[dict[str, Any]] = [
    {'relation': WRITES, **BINARY, 'exclude_edges': ('paper', 'rev_writes', 'author')},
    {'relation': WRITES, 'neg_sampling': 'triplet', 'disjoint': True},
    {'relation': CITES, **BINARY, 'exclude_edges': 'reverse', 'shuffle': True},
    {'relation': HAS, 'pairs': _pairs(30, (34, 7)), 'subgraph_type': 'induced', **BINARY},
]


@pytest.mark.parametrize('size', [4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize('options', _few(HETERO, 1))
def test_ranks_have_the_links_of_their_parts_by_type(
    hetero_folder: str, options: dict[str, Any], size: int
) -> None:
    options = {'batch_size': 5, 'num_neighbors': [3, 2], **options}
    want = join([link_batches(hetero_folder, **options)])
    assert_same(join(run_as_threads(link_batches, size, hetero_folder, **options)), want)


@pytest.mark.parametrize('disjoint', [False, True])
def test_a_batch_tells_of_its_links(folder: str, disjoint: bool) -> None:
    graph, data = small_graph(), pyg_sar.local(pyg_sar.load_shard(folder))
    pairs, parts, batch_size = _pairs(), assign(40, 8), 3
    label = torch.arange(60) % 3
    loader = pyg_sar.LinkNeighborLoader(
        data,
        [2, 2],
        pairs,
        label,
        disjoint=disjoint,
        neg_sampling={'mode': 'binary', 'amount': 1.5},
        batch_size=batch_size,
        prefetch=0,
    )
    edges = set(map(tuple, graph.edge_index.t().tolist()))
    seen = []
    for number, batch in enumerate(loader):
        own = [(parts[pairs[1]] == part).nonzero().view(-1) for part in range(8)]
        cut = slice(batch_size * number, batch_size * (number + 1))
        own = [each[cut] for each in own]
        assert batch.input_id.tolist() == torch.cat(own).tolist()
        num = batch.input_id.numel()
        ends = batch.n_id[batch.edge_label_index]
        assert torch.equal(ends[:, :num], pairs[:, batch.input_id])
        num_negatives = sum(-(-3 * each.numel() // 2) for each in own)
        assert ends.size(1) == batch.edge_label.numel() == num + num_negatives
        assert torch.equal(batch.edge_label[:num], label[batch.input_id] + 1)
        assert not batch.edge_label[num:].any()
        assert edges.isdisjoint(map(tuple, ends[:, num:].t().tolist()))
        assert torch.equal(batch.x, graph.x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], graph.edge_index[:, batch.e_id])
        first = batch.num_sampled_nodes[0]
        assert int(batch.edge_label_index.max()) < first
        if disjoint:
            assert batch.edge_label_index.unique().numel() == first == 2 * ends.size(1)
            trees = batch.batch[batch.edge_label_index]
            assert torch.equal(trees[0], trees[1])
            assert torch.equal(trees[0, :num], torch.arange(num))
            assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])
        seen.append(batch.input_id)
    assert torch.cat(seen).sort().values.tolist() == list(range(60))


def test_triplets(folder: str) -> None:
    graph, data = small_graph(), pyg_sar.local(pyg_sar.load_shard(folder))
    edges = set(map(tuple, graph.edge_index.t().tolist()))
    for amount in (1, 2):
        sampling = {'mode': 'triplet', 'amount': amount}
        loader = pyg_sar.LinkNeighborLoader(data, [2], batch_size=4, neg_sampling=sampling)
        for batch in loader:
            src, dst = batch.n_id[batch.src_index], batch.n_id[batch.dst_pos_index]
            own = data.edge_index.as_subclass(Tensor)[:, batch.input_id]
            assert torch.equal(torch.stack([src, dst]), data.n_id[own])
            other = batch.n_id[batch.dst_neg_index]
            assert other.shape == ((len(src),) if amount == 1 else (len(src), amount))
            pairs = zip(
                src.repeat_interleave(amount).tolist(), other.view(-1).tolist(), strict=True
            )
            assert edges.isdisjoint(pairs)
            assert 'edge_label_index' not in batch
            assert 'edge_label' not in batch


def test_selected_edges_are_own_ones(folder: str) -> None:
    data = pyg_sar.local(pyg_sar.load_shard(folder))
    mask = data.edge_type == 1
    for links in (data.edge_index[:, mask], data.edge_index[:, mask.nonzero().view(-1)]):
        weight = data.edge_weight[mask]
        found = []
        for batch in pyg_sar.LinkNeighborLoader(data, [2], links, weight, batch_size=2):
            ends = batch.n_id[batch.edge_label_index]
            at = mask.nonzero().view(-1)[batch.input_id]
            assert torch.equal(data.n_id[data.edge_index.as_subclass(Tensor)[:, at]], ends)
            assert torch.equal(batch.edge_label, data.edge_weight[at])
            found.append(data.e_id[at])
        assert torch.equal(torch.cat(found).sort().values, data.e_id[mask].sort().values)


@pytest.mark.parametrize('kind', ['directional', 'induced', 'bidirectional'])
@pytest.mark.parametrize('disjoint', [False, True])
@pytest.mark.parametrize('exclude', [False, True, 'reverse'])
def test_links_are_no_edges_of_their_batch(
    tmp_path_factory: pytest.TempPathFactory, kind: str, disjoint: bool, exclude: bool | str
) -> None:
    if kind == 'bidirectional' and (exclude is True or disjoint):
        pytest.skip('refused; PyG has no trees there')
    graph = small_graph(num_edges=90)
    reverse = graph.edge_index[:, ::2].flip(0)  # half of the edges have their reverse
    graph.edge_index = torch.cat([graph.edge_index, reverse], dim=1)
    graph = type(graph)(x=graph.x, edge_index=graph.edge_index)
    root = cut(graph, 1, tmp_path_factory.mktemp('parts') / 'both')
    data, leaks = pyg_sar.local(pyg_sar.load_shard(root)), [0, 0]
    loader = pyg_sar.LinkNeighborLoader(
        data,
        [-1, -1],
        batch_size=9,
        shuffle=True,
        subgraph_type=kind,
        disjoint=disjoint,
        exclude_edges=exclude,
        neg_sampling='binary',
    )
    kept = 0
    for batch in loader:
        num = batch.input_id.numel()
        ends = batch.n_id[batch.edge_label_index[:, :num]]
        links = set(map(tuple, ends.t().tolist()))
        back = {(dst, src) for src, dst in links} - links
        edges = list(map(tuple, batch.n_id[batch.edge_index].t().tolist()))
        leaks[0] += sum(edge in links for edge in edges)
        leaks[1] += sum(edge in back for edge in edges)
        if kind != 'bidirectional':
            assert torch.equal(graph.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
            if kind == 'directional':
                assert sum(batch.num_sampled_edges) == batch.edge_index.size(1)
        # All others are there.
        gone = (links if exclude else set()) | (back if exclude == 'reverse' else set())
        first = set(ends.view(-1).tolist())
        into = [e for e in graph.edge_index.t().tolist() if e[1] in first and tuple(e) not in gone]
        assert set(map(tuple, into)) <= set(edges)
        kept += len(into)
    assert kept > 100
    assert (leaks[0] == 0) == (exclude is not False)
    assert (leaks[1] == 0) == (exclude == 'reverse')


def _mine(root: str) -> list[tuple[int, int, bool]]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    pairs = torch.tensor([[3, 9], [0, 1]]) if pyg_sar.comm.rank() == 1 else torch.empty(2, 0).long()
    loader = pyg_sar.LinkNeighborLoader(data, [2, 2], pairs, batch_size=4, neg_sampling='binary')
    return [(b.input_id.numel(), b.edge_label_index.size(1), b.x.dim() == 2) for b in loader]


def test_ranks_without_links_take_part(folder: str) -> None:
    results = run_as_threads(_mine, 4, folder)
    assert sum(num for each in results for num, _, _ in each) == 2
    assert sum(num for each in results for _, num, _ in each) == 4
    assert all(fine for each in results for _, _, fine in each)


class _Operations(hook.Watcher):
    """What ranks do together, in turn; not what such an operation consists of."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._depth = 0

    def enter_operation(self, operation: str, peer: int | None) -> None:
        if not self._depth:
            self.names.append(operation)
        self._depth += 1

    def leave_operation(self) -> None:
        self._depth -= 1


def _operations(root: str, sampling: str | None) -> tuple[int, int]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    loader = pyg_sar.LinkNeighborLoader(
        data, [3, 2, 2], batch_size=4, neg_sampling=sampling, prefetch=0
    )
    iteration, operations = iter(loader), _Operations()
    hook.add(operations)
    try:
        num = sum(1 for _ in iteration)
    finally:
        hook.remove(operations)
    return len(operations.names), num


@pytest.mark.parametrize(
    ('sampling', 'of_round'),
    [
        ('binary', 20),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in ((None, 16), ('triplet', 20))),
    ],
)
def test_at_most_two_collectives_for_a_batch(
    tmp_path: Path, sampling: str | None, of_round: int
) -> None:
    """Three hops on four ranks, with negatives; a round has 12 batches."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.stack([torch.randint(600, (384,), generator=generator), torch.arange(384)])
    partition_graph(
        Data(x=torch.rand(600, 3), edge_index=edges), 4, tmp_path, method=torch.arange(600) % 4
    )
    for operations, num in run_ranks(_operations, 4, str(tmp_path), sampling):
        assert num == 24
        assert operations == of_round * 2 <= 2 * num
