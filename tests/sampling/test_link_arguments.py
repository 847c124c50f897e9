"""What a loader of links refuses, on all ranks alike; and where it goes on after it was saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hetero_graphs import CITES, WRITES
from joined import Own, Taken, assert_same, join, link_batches, take
from ranks import run_as_threads, run_ranks
from small_graphs import assert_all_raise, attempt, small_graph
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

import pyg_sar
from pyg_sar.comm import rank
from pyg_sar.comm.process_group import GroupComm
from pyg_sar.sampling.sampler import ROUND


def _make(root: str, options: dict[str, Any], links: str = '') -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    given = {k: v.values[rank()] if isinstance(v, Own) else v for k, v in options.items()}
    if links:
        given['edge_label_index'] = eval(links, {'data': data, 'torch': torch})
    return attempt(pyg_sar.LinkNeighborLoader, data, **{'num_neighbors': [2, 2], **given})


PAIRS = torch.tensor([[0, 1, 2], [3, 4, 5]])
SHARES = Own(PAIRS, PAIRS + 1)
NONE = torch.empty(2, 0, dtype=torch.int64)

WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({'edge_label_index': PAIRS}, ['edge_label_index', 'rank::world_size', '3 pairs']),
    ({'edge_label_index': Own(PAIRS, PAIRS * 10)}, ['edge_label_index', '40']),
    ({'edge_label_index': Own(PAIRS, -PAIRS)}, ['edge_label_index', '-2']),
    ({'edge_label_index': PAIRS.float()}, ['edge_label_index', 'float32']),
    ({'edge_label_index': PAIRS[0]}, ['edge_label_index', '(3,)']),
    ({'edge_label_index': NONE}, ['edge_label_index', '0 seeds']),
    ({'edge_label_index': Own(PAIRS, None)}, ['edge_label_index', 'own edges', 'ids']),
    ({'edge_label': torch.zeros(3)}, ['edge_label', '(3,)']),
    (
        {'edge_label_index': SHARES, 'edge_label': Own(torch.zeros(3), torch.zeros(3).long())},
        ['edge_label', 'float32', 'int64'],
    ),
    ({'edge_label_index': SHARES, 'edge_label': Own(torch.zeros(3), None)}, ['edge_label', 'None']),
    ({'edge_label_time': torch.zeros(3)}, ['edge_label_time', 'time_attr', 'None']),
    ({'time_attr': 'y'}, ['edge_label_time', 'time_attr', "'y'"]),
    ({'edge_label_time': torch.zeros(3), 'time_attr': 'y'}, ['edge_label_time', '(3,)']),
    ({'neg_sampling': 'ternary'}, ['neg_sampling', 'ternary']),
    ({'neg_sampling': 3}, ['neg_sampling', '3']),
    ({'neg_sampling': {'mode': 'binary', 'amount': 0}}, ['neg_sampling', '0']),
    ({'neg_sampling': {'mode': 'triplet', 'amount': 0.5}}, ['neg_sampling', '0.5']),
    ({'neg_sampling': NegativeSampling('binary', float('inf'))}, ['neg_sampling', 'inf']),
    ({'neg_sampling': Own('binary', 'triplet')}, ['neg_sampling', 'binary', 'triplet']),
    ({'neg_sampling': NegativeSampling('binary', 1, None, torch.ones(3))}, ['dst_weight', '(3,)']),
    ({'neg_sampling': NegativeSampling('triplet', 1, torch.ones(3))}, ['src_weight', 'triplets']),
    ({'exclude_edges': 1}, ['exclude_edges', '1']),
    ({'exclude_edges': 'both'}, ['exclude_edges', 'both']),
    ({'exclude_edges': True, 'subgraph_type': 'bidirectional'}, ['exclude_edges', 'reverse']),
    ({'exclude_edges': Own(True, False)}, ['exclude_edges', 'True', 'False']),
    ({'batch_size': Own(2, 4)}, ['batch_size', '2', '4']),
    ({'batch_size': 300, 'drop_last': True}, ['edge_label_index', 'drop_last', '228 seeds']),
]


@pytest.mark.parametrize(('options', 'words'), WRONG)
def test_wrong_arguments(folder: str, options: dict[str, Any], words: list[str]) -> None:
    assert_all_raise(run_as_threads(_make, 2, folder, options), 'ValueError', *words)


@pytest.mark.parametrize('mode', ['binary', 'triplet'])
def test_weights_that_draw_nothing(folder: str, mode: str) -> None:
    sampling = {'mode': mode, 'dst_weight': torch.zeros(40)}
    text = _make(folder, {'neg_sampling': sampling})
    assert_all_raise([text], 'ValueError', 'dst_weight', '0 for all')
    sampling['dst_weight'][3] = float('nan')
    assert_all_raise([_make(folder, {'neg_sampling': sampling})], 'ValueError', 'finite')


def test_labels_of_triplets_are_refused(folder: str) -> None:
    options = {'edge_label': torch.zeros(228), 'neg_sampling': 'triplet'}
    assert_all_raise([_make(folder, options)], 'ValueError', 'edge_label', 'triplets')


@pytest.mark.parametrize('name', ['neg_sampling_ratio', 'input_nodes', 'num_workers'])
def test_arguments_without_meaning(folder: str, name: str) -> None:
    assert_all_raise([_make(folder, {name: 1})], 'TypeError', name)


@pytest.mark.parametrize(
    'links', ['data.edge_index.flip(0)', 'data.edge_index[0]', "'edges'", 'data.edge_index.float()']
)
def test_links_that_are_none(folder: str, links: str) -> None:
    if 'float' in links:
        links = 'torch.rand(2, 3)'
    assert_all_raise([_make(folder, {}, links)], 'ValueError', 'edge_label_index')


def test_a_graph_that_is_not_cut_is_refused() -> None:
    text = attempt(pyg_sar.LinkNeighborLoader, small_graph(), [2])
    assert_all_raise([text], 'ValueError', 'torch_geometric.loader.LinkNeighborLoader')


def test_edges_of_another_shard_are_refused(folder: str) -> None:
    data, other = (
        pyg_sar.local(pyg_sar.load_shard(folder)),
        pyg_sar.local(pyg_sar.load_shard(folder)),
    )
    text = attempt(pyg_sar.LinkNeighborLoader, data, [2], other.edge_index)
    assert_all_raise([text], 'ValueError', 'edge_label_index', 'this shard')


HETERO: list[tuple[dict[str, Any], list[str]]] = [
    ({'edge_label_index': None}, ['edge_label_index', 'cites']),
    ({'edge_label_index': ('author', 'reads', 'paper')}, ['edge_label_index', 'reads']),
    ({'edge_label_index': PAIRS}, ['edge_label_index', 'Tensor']),
    ({'edge_label_index': (CITES, Own)}, ['edge_label_index', 'tensor']),
    ({'exclude_edges': 'reverse'}, ['exclude_edges', 'writes', 'two types']),
    ({'exclude_edges': WRITES}, ['exclude_edges', 'paper', 'author']),
]


@pytest.mark.parametrize(('options', 'words'), HETERO)
def test_wrong_arguments_by_type(
    hetero_folder: str, options: dict[str, Any], words: list[str]
) -> None:
    options = {'edge_label_index': WRITES, **options}
    assert_all_raise(run_as_threads(_make, 2, hetero_folder, options), 'ValueError', *words)


OPTIONS = {
    'num_neighbors': [2, 2],
    'shuffle': True,
    'seed': 2,
    'batch_size': 9,
    'neg_sampling': 'binary',
    'exclude_edges': True,
}


def _half(root: str, num: int, state: dict[str, Any] | None) -> tuple[Taken, dict[str, Any]]:
    loader = pyg_sar.LinkNeighborLoader(pyg_sar.local(pyg_sar.load_shard(root)), **OPTIONS)
    if state is not None:
        loader.load_state_dict(state)
    out: Taken = []
    while len(out) < num:
        for batch in loader:
            out.append(take(batch))
            if len(out) == num:
                break
    return out, loader.state_dict()


def test_resumes_on_another_number_of_ranks(folder: str) -> None:
    want = join([link_batches(folder, 2, **OPTIONS)])
    num = len(want) // 2 + 3
    results = run_as_threads(_half, 4, folder, num, None)
    states = [state for _, state in results]
    assert all(state == states[0] for state in states)
    rest = run_as_threads(_half, 2, folder, len(want) - num, states[0])
    assert_same(join([taken for taken, _ in rest]), want[num:])
    other = pyg_sar.LinkNeighborLoader(
        pyg_sar.local(pyg_sar.load_shard(folder)), **{**OPTIONS, 'seed': 3}
    )
    assert 'seed' in attempt(other.load_state_dict, states[0])
    nodes = pyg_sar.NeighborLoader(pyg_sar.local(pyg_sar.load_shard(folder)), [2, 2])
    assert 'of this one' in attempt(nodes.load_state_dict, states[0])


CASES = [(2, '1MB'), *(pytest.param(c, marks=pytest.mark.slow) for c in ((0, 700), (1, None)))]


@pytest.mark.parametrize('case', CASES)
def test_prefetch_and_cache_change_nothing(folder: str, case: tuple[int, Any]) -> None:
    prefetch, cache = case
    want = join([link_batches(folder, **OPTIONS)])
    got = run_ranks(link_batches, 2, folder, prefetch=prefetch, cache=cache, **OPTIONS)
    assert_same(join(got), want)


def _count(root: str, options: dict[str, Any]) -> tuple[int, int]:
    loader = pyg_sar.LinkNeighborLoader(
        pyg_sar.local(pyg_sar.load_shard(root)), prefetch=0, **options
    )
    iteration, count, real = iter(loader), 0, {}
    for name in ('all_to_all', 'all_reduce', 'all_gather', 'broadcast', 'start_swap'):
        real[name] = getattr(GroupComm, name)

        def call(*args: Any, name: str = name) -> Any:
            nonlocal count
            count += 1
            return real[name](*args)

        setattr(GroupComm, name, call)
    try:
        num = sum(1 for _ in iteration)
    finally:
        for name, function in real.items():
            setattr(GroupComm, name, function)
    return count, num


def test_collectives_of_a_round(folder: str) -> None:
    options = {'num_neighbors': [3, 2, 2], 'batch_size': 3}
    for count, num in run_ranks(_count, 4, folder, options):
        assert count == 16 * -(-num // ROUND)
        assert num > 8
    options['neg_sampling'] = 'binary'
    for count, num in run_ranks(_count, 4, folder, options):
        assert count % 4 == 0
        assert 20 <= count / -(-num // ROUND) <= 28  # many of 40 nodes are neighbours


def test_what_is_wanted_of_attributes_of_links(folder: str) -> None:
    """A shard that has an edge_label_index of its own does not show it in batches."""
    data = pyg_sar.local(pyg_sar.load_shard(folder))
    data.edge_label_index, data.edge_label = torch.zeros(2, 3), torch.zeros(3)
    (batch, *_) = pyg_sar.LinkNeighborLoader(data, [2], neg_sampling='triplet', batch_size=4)
    assert 'edge_label_index' not in batch
    assert 'edge_label' not in batch
    assert isinstance(batch.src_index, Tensor)
