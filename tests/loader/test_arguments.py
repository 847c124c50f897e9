"""What loaders refuse, on all ranks alike; and where they go on after they were saved."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest
import torch
from alike import assert_bits
from few import few
from hetero_graphs import CITES, WRITES
from joined import Own, Taken, batches, content, link_batches, take
from on_ranks import on_ranks
from ranks import run_as_threads
from small_graphs import assert_all_raise, assign, attempt, small_graph
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling
from torch_geometric.sampler.base import NumNeighbors, SubgraphType

import pyg_sar
from pyg_sar.comm.ranks import rank
from pyg_sar.loader.arguments import LoaderOptions, Options

Wrong = list[tuple[dict[str, Any], list[str]]]
LOADERS = {'nodes': pyg_sar.NeighborLoader, 'links': pyg_sar.LinkNeighborLoader}
PAIRS = torch.tensor([[0, 1, 2], [3, 4, 5]])
SHARES = Own(PAIRS[:, :2], PAIRS[:, 2:])
NONE = torch.empty(2, 0, dtype=torch.int64)


def _make(root: str, loader: str, options: dict[str, Any], change: str = '') -> str:
    data = pyg_sar.load_shard(root)
    given = {k: v.values[rank()] if isinstance(v, Own) else v for k, v in options.items()}
    names = {'data': data, 'rank': rank(), 'torch': torch, 'given': given, 'pyg_sar': pyg_sar}
    exec(change, names)
    return attempt(LOADERS[loader], data, **{'num_neighbors': [2, 2], **given})


CHANGE_BATCHES = ['generator', 'sampler', 'collate_fn', 'transform_sampler_output', 'colour']


@pytest.mark.parametrize('loader', LOADERS)
@pytest.mark.parametrize('name', CHANGE_BATCHES)
def test_arguments_that_would_change_batches(folder: str, loader: str, name: str) -> None:
    assert_all_raise([_make(folder, loader, {name: 1})], 'TypeError', name)


DEFAULTS: dict[str, Any] = {'num_workers': 0, 'directed': True, 'collate_fn': None}
OF_WORKERS: dict[str, Any] = {
    'num_workers': 4,
    'persistent_workers': True,
    'prefetch_factor': 2,
    'worker_init_fn': print,
    'multiprocessing_context': 'spawn',
    'timeout': 60,
    'in_order': True,
    'pin_memory': True,
    'pin_memory_device': 'cuda',
    'filter_per_worker': True,
    'is_sorted': True,
}


@pytest.mark.parametrize('loader', LOADERS)
def test_the_log_tells_what_changes_nothing(folder, loader, caplog):
    caplog.set_level('INFO', logger='pyg_sar.loader')
    _make(folder, loader, DEFAULTS)
    assert not caplog.messages
    assert _make(folder, loader, OF_WORKERS) == 'no error'
    (line,) = caplog.messages
    assert line.endswith(f'makes batches in the loop: {", ".join(OF_WORKERS)} change nothing')


MEANS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ('nodes', {**DEFAULTS, **OF_WORKERS, 'batch_size': 3}, {'batch_size': 3}),
    ('nodes', {'directed': False}, {'subgraph_type': 'induced'}),
    ('links', {**DEFAULTS, 'neg_sampling_ratio': 0.0}, {}),
    ('links', {'neg_sampling_ratio': 2.0}, {'neg_sampling': NegativeSampling('binary', 2.0)}),
]


@pytest.mark.parametrize(('loader', 'says', 'means'), MEANS)
def test_arguments_of_pyg(folder, loader, says, means):
    data = pyg_sar.load_shard(folder)
    of_many = {'seed': 0, 'batch_size': 16}
    made = [LOADERS[loader](data, [2, 2], **{**of_many, **each}) for each in (says, means)]
    assert_bits(*([take(batch) for batch in each] for each in made))
    assert made[0].data is data
    assert made[0].batch_size == made[1].batch_size


OF_NODES: Wrong = [
    ({'num_neighbors': 5}, ['num_neighbors', '5']),
    ({'num_neighbors': [2, -2]}, ['num_neighbors', '-2']),
    ({'num_neighbors': {('a', 'to', 'b'): [2]}}, ['num_neighbors', 'a__to__b']),
    ({'batch_size': 0}, ['batch_size', '0']),
    ({'subgraph_type': 'undirected'}, ['subgraph_type', 'undirected']),
    ({'temporal_strategy': 'first'}, ['temporal_strategy', 'first']),
    ({'temporal_strategy': 'last'}, ['temporal_strategy', 'time_attr']),
    ({'temporal_strategy': 'last', 'time_attr': 'y', 'replace': True}, ['replace']),
    ({'input_time': torch.zeros(40)}, ['input_time', 'time_attr']),
    ({'input_time': torch.zeros(3), 'time_attr': 'y'}, ['input_time', '40 seeds', '(3,)']),
    ({'time_attr': 'edge_type', 'input_nodes': [0]}, ['input_time', 'None']),
    ({'time_attr': 'when'}, ['time_attr', 'when']),
    ({'weight_attr': 'heavy'}, ['weight_attr', 'heavy']),
    ({'transform': 3}, ['transform', '3']),
    ({'input_nodes': Own([0], [40])}, ['input_nodes', '40 nodes', 'got 40']),
    ({'input_nodes': Own([0], [1])}, ['input_nodes', '1 of the whole graph']),
    ({'input_nodes': [-1]}, ['input_nodes', '-1']),
    ({'input_nodes': torch.zeros(7, dtype=torch.bool)}, ['input_nodes', '(7,)']),
    ({'input_nodes': 'paper'}, ['input_nodes', 'paper']),
    ({'input_nodes': []}, ['input_nodes', '0 seeds']),
    ({'batch_size': 41, 'drop_last': True}, ['drop_last', '40 seeds']),
    ({'batch_size': Own(2, 4)}, ['batch_size', '2', '4']),
    ({'seed': Own(0, 1)}, ['seed', '0', '1']),
    ({'num_neighbors': Own([2, 2], [2, 3])}, ['num_neighbors', '2', '3']),
    ({'shuffle': Own(True, False)}, ['shuffle', 'True']),
]


def _weighted(mode: str, weight: torch.Tensor) -> NegativeSampling:
    return NegativeSampling(mode, 1, None, weight)


OF_LINKS: Wrong = [
    ({'edge_label_index': SHARES}, ['edge_label_index', '2 of the whole', '1 of the whole']),
    ({'edge_label_index': Own(PAIRS, PAIRS * 10)}, ['edge_label_index', '40']),
    ({'edge_label_index': PAIRS.float()}, ['edge_label_index', 'float32']),
    ({'edge_label_index': NONE}, ['edge_label_index', '0 seeds']),
    ({'edge_label_index': Own(PAIRS, None)}, ['edge_label_index', 'Tensor', 'None']),
    ({'edge_label': torch.zeros(3)}, ['edge_label', '228 seeds', '(3,)']),
    (
        {'edge_label_index': PAIRS, 'edge_label': Own(torch.zeros(3), torch.zeros(3).long())},
        ['edge_label', 'differs'],
    ),
    ({'edge_label_index': PAIRS, 'edge_label': torch.zeros(1)}, ['edge_label', '3 seeds']),
    ({'edge_label_index': PAIRS, 'edge_label': Own(torch.zeros(3), None)}, ['edge_label', 'None']),
    ({'edge_label_time': torch.zeros(228)}, ['edge_label_time', 'time_attr', 'None']),
    ({'time_attr': 'y'}, ['edge_label_time', 'time_attr', "'y'"]),
    ({'edge_label_time': torch.zeros(3), 'time_attr': 'y'}, ['edge_label_time', '228 seeds']),
    ({'neg_sampling': 'ternary'}, ['neg_sampling', 'ternary']),
    ({'neg_sampling': {'mode': 'binary', 'amount': 0}}, ['neg_sampling', '0']),
    ({'neg_sampling': {'mode': 'triplet', 'amount': 0.5}}, ['neg_sampling', '0.5']),
    ({'neg_sampling': NegativeSampling('binary', float('inf'))}, ['neg_sampling', 'inf']),
    ({'neg_sampling': Own('binary', 'triplet')}, ['neg_sampling', 'binary', 'triplet']),
    ({'neg_sampling': _weighted('binary', torch.ones(3))}, ['dst_weight', '40 seeds', '(3,)']),
    ({'neg_sampling': NegativeSampling('triplet', 1, torch.ones(40))}, ['src_weight', 'triplets']),
    ({'exclude_edges': 'both'}, ['exclude_edges', 'both']),
    ({'exclude_edges': True, 'subgraph_type': 'bidirectional'}, ['exclude_edges', 'reverse']),
    ({'exclude_edges': Own(True, False)}, ['exclude_edges', 'True', 'False']),
    ({'batch_size': Own(2, 4)}, ['batch_size', '2', '4']),
    ({'batch_size': 300, 'drop_last': True}, ['edge_label_index', 'drop_last', '228 seeds']),
    ({'edge_label': torch.zeros(228), 'neg_sampling': 'triplet'}, ['edge_label', 'triplet']),
    ({'neg_sampling': _weighted('binary', torch.zeros(40))}, ['dst_weight', '0 for all']),
    ({'neg_sampling': _weighted('triplet', torch.zeros(40) / 0)}, ['finite']),
]


CHANGED: list[tuple[str, dict[str, Any], list[str]]] = [
    ('data.edge_index = data.edge_index[:, 1:]', {}, ['edge_index', 'unchanged']),
    ('data.edge_index = data.edge_index.flip(0)', {}, ['edge_index', 'unchanged']),
    ('del data.n_id', {}, ['n_id']),
    ('data.x.requires_grad_()', {}, ["'x'", 'gradients']),
    ('data.x = data.x.float() if rank else data.x', {}, ["'x'", 'float32', 'float64']),
    ('data.x = data.x[:, 1:] if rank else data.x', {}, ["'x'", '(5,)']),
    ('data.edge_weight[3] = -1', {'weight_attr': 'edge_weight'}, ['weight_attr', 'at least 0']),
    ('data.t = data.y / 0', {'time_attr': 't'}, ['time_attr', 'NaN']),
]


NO_LINKS = [
    'data.edge_index.flip(0)',
    'data.edge_index[0]',
    "'edges'",
    'torch.rand(2, 3)',
    'pyg_sar.load_shard(data.edge_index.handle.shard.root).edge_index',
]


NODES_BY_TYPE: Wrong = [
    ({'input_nodes': None}, ['input_nodes', 'paper']),
    ({'input_nodes': 'book'}, ['input_nodes', 'book']),
    ({'input_nodes': 'lonely'}, ['input_nodes', 'lonely']),
    ({'num_neighbors': {('author', 'reads', 'paper'): [2]}}, ['author__reads__paper']),
    ({'num_neighbors': {('author', 'writes', 'paper'): [2]}}, ['every relation']),
    ({'time_attr': 'age'}, ['input_time', 'None']),
]


LINKS_BY_TYPE: Wrong = [
    ({'edge_label_index': None}, ['edge_label_index', 'cites']),
    ({'edge_label_index': ('author', 'reads', 'paper')}, ['edge_label_index', 'reads']),
    ({'edge_label_index': PAIRS}, ['edge_label_index', 'Tensor']),
    ({'edge_label_index': (CITES, Own)}, ['edge_label_index', 'tensor']),
    ({'exclude_edges': 'reverse'}, ['exclude_edges', 'writes', 'two types']),
    ({'exclude_edges': WRITES}, ['exclude_edges', 'paper', 'author']),
]


PAPERS, OF_PAPERS = {'input_nodes': 'paper'}, {'edge_label_index': WRITES}
LINKS = "given['edge_label_index'] = "
REFUSED = [
    *(('folder', 'nodes', '', options, words) for options, words in OF_NODES),
    *(('folder', 'nodes', *case) for case in CHANGED),
    *(('folder', 'links', '', options, words) for options, words in OF_LINKS),
    *(('folder', 'links', f'{LINKS}{links}', {}, ['edge_label_index']) for links in NO_LINKS),
    *(('hetero_folder', 'nodes', '', {**PAPERS, **o}, words) for o, words in NODES_BY_TYPE),
    *(('hetero_folder', 'links', '', {**OF_PAPERS, **o}, words) for o, words in LINKS_BY_TYPE),
]


@pytest.mark.parametrize(('graph', 'loader', 'change', 'options', 'words'), REFUSED)
def test_wrong_arguments_and_changed_data(request, graph, loader, change, options, words):
    root = request.getfixturevalue(graph)
    outcomes = run_as_threads(_make, 2, root, loader, options, change)
    assert_all_raise(outcomes, 'ValueError', *words)


@pytest.mark.parametrize('loader', LOADERS)
@pytest.mark.parametrize('world_size', [1, 2])
@on_ranks(num_parts=4, by='threads')
def test_own_data_is_refused(data, loader, world_size):
    message = rf'{LOADERS[loader].__name__}.*pyg_sar\.local'
    with pytest.raises(ValueError, match=message):
        LOADERS[loader](pyg_sar.local(data), [2])


def test_what_pyg_takes_is_taken(hetero_folder: str, folder: str) -> None:
    data = pyg_sar.load_shard(hetero_folder)
    fans = NumNeighbors({('author', 'writes', 'paper'): [3, 3]}, default=[1, 1])
    loader = pyg_sar.NeighborLoader(data, fans, 'paper', seed=0, batch_size=8)
    text = {'__'.join(key): [1, 1] for key in data.edge_types}
    text['author__writes__paper'] = [3, 3]
    same = pyg_sar.NeighborLoader(data, text, ('paper', None), seed=0, batch_size=8)
    assert_bits([take(b) for b in loader], [take(b) for b in same])
    data = pyg_sar.load_shard(folder)
    induced = pyg_sar.NeighborLoader(data, (2,), [0, 3, 1], subgraph_type=SubgraphType.induced)
    assert sum(batch.batch_size for batch in induced) == 3
    assert torch.cat([batch.input_id for batch in induced]).sort().values.tolist() == [0, 1, 2]


def test_transforms_run_in_the_program(folder: str) -> None:
    data = pyg_sar.load_shard(folder)

    def transform(batch: Data) -> Data:
        batch.draw = torch.rand(())
        return batch

    torch.manual_seed(1)
    loader = pyg_sar.NeighborLoader(data, [2], transform=transform, seed=0)
    draws = [float(b.draw) for b in loader]
    torch.manual_seed(1)
    assert draws == [float(torch.rand(())) for _ in draws]


def test_attributes_are_those_of_the_epoch(folder: str) -> None:
    data = pyg_sar.load_shard(folder)
    loader = pyg_sar.NeighborLoader(data, [2])
    data.score = data.n_id.double().unsqueeze(1) * torch.ones(2)
    data.x = data.x * 2
    del data.pos
    data.edge_new = torch.arange(data.num_edges)
    for batch in loader:
        assert torch.equal(batch.score, batch.n_id.double().unsqueeze(1) * torch.ones(2))
        assert torch.equal(batch.x, small_graph().x[batch.n_id] * 2)
        assert 'pos' not in batch
        assert torch.equal(data.e_id[batch.edge_new], batch.e_id)


SHUFFLED: dict[str, Any] = {'num_neighbors': [2, 2], 'shuffle': True, 'seed': 2}
OF_LOADER: dict[str, dict[str, Any]] = {
    'nodes': {**SHUFFLED, 'batch_size': 4, 'disjoint': True},
    'links': {**SHUFFLED, 'batch_size': 36, 'neg_sampling': 'binary', 'exclude_edges': True},
}


def _half(
    root: str, loader: str, num: int, state: dict[str, Any] | None
) -> tuple[Taken, dict[str, Any]]:
    torch.manual_seed(rank())
    made = LOADERS[loader](pyg_sar.load_shard(root), **OF_LOADER[loader])
    if state is not None:
        made.load_state_dict(state)
    out: Taken = []
    while len(out) < num:
        for batch in made:
            out.append(take(batch))
            if len(out) == num:
                break
    return out, made.state_dict()


@pytest.mark.parametrize(
    ('loader', 'num'), few([('nodes', 1), ('nodes', 5), ('nodes', 8), ('links', 3)])
)
def test_resumes_on_another_number_of_ranks(folder: str, loader: str, num: int) -> None:
    of_links, options = loader == 'links', OF_LOADER[loader]
    taken = (
        link_batches(folder, 3, **options) if of_links else batches(folder, 3, mask=None, **options)
    )
    want = content([taken])
    of_epoch = len(want) // 3
    num += of_epoch  # in the middle of the second epoch
    results = run_as_threads(_half, 4, folder, loader, num, None)
    state = results[0][1]
    assert all(other == state for _, other in results)
    assert (state['epoch'], state['batch']) == (1, num - of_epoch)
    for world_size in (2, 1):
        rest = run_as_threads(_half, world_size, folder, loader, len(want) - num, state)
        assert content([taken for taken, _ in rest]) == want[num:]
        assert (rest[0][1]['epoch'], rest[0][1]['batch']) == (2, of_epoch)


@on_ranks(2, 4, by='threads')
def test_a_state_on_one_rank_is_refused(data):
    loader = pyg_sar.NeighborLoader(data, [2])
    state = {**loader.state_dict(), 'epoch': 4, 'batch': 2}
    if rank() == 1:
        loader.load_state_dict(state)
    with pytest.raises(ValueError, match=r'epoch and batch.*\(4, 2\)'):
        iter(loader)


@on_ranks(4, by='threads')
def test_ranks_without_seeds_take_part(data):
    seeds, sizes = (assign(40, 4) == 1).nonzero().view(-1)[:5], []
    for batch in pyg_sar.NeighborLoader(data, [2, 2], seeds, batch_size=2, disjoint=True):
        assert batch.x.shape[1:] == (6,)
        assert batch.edge_attr.shape[1:] == (4,)
        assert batch.edge_index.shape[0] == 2
        assert batch.x.dtype == torch.float64
        assert batch.batch.dtype == batch.n_id.dtype == torch.int64
        assert batch.num_sampled_nodes[0] == batch.batch_size
        sizes.append(batch.batch_size)
    assert sizes == ([2, 2, 1] if rank() == 1 else [0, 0, 0])


OTHERS = {'batch_size': 7, 'num_neighbors': [3], 'seed': 3}
OTHERS |= dict.fromkeys(['replace', 'shuffle', 'disjoint'], True)


@pytest.mark.parametrize('name', OTHERS)
def test_the_state_of_other_batches_is_refused(folder: str, name: str) -> None:
    data, given = pyg_sar.load_shard(folder), {'num_neighbors': [2]}
    made = pyg_sar.NeighborLoader(data, **given)
    other = pyg_sar.NeighborLoader(data, **{**given, name: OTHERS[name]})
    links = pyg_sar.LinkNeighborLoader(data, **given)
    for state in (made.state_dict(), links.state_dict(), {}):
        assert_all_raise([attempt(other.load_state_dict, state)], 'ValueError', 'of this one')
    pyg_sar.NeighborLoader(data, **given).load_state_dict(made.state_dict())


def test_the_state_of_another_mask_is_refused(folder: str) -> None:
    data = pyg_sar.load_shard(folder)
    mask = torch.arange(data.num_nodes) % 2 == 0
    made, again, other = (pyg_sar.NeighborLoader(data, [2], m) for m in (mask, mask, ~mask))
    again.load_state_dict(made.state_dict())
    with pytest.raises(ValueError, match='of this one'):
        other.load_state_dict(made.state_dict())


def test_type_checkers_know_all_options() -> None:
    names = [field.name for field in fields(Options)]
    assert [*LoaderOptions.__annotations__] == [*OF_WORKERS, *names]
    for loader in LOADERS.values():
        given = inspect.signature(loader).parameters['options']
        assert (given.kind, given.annotation) == (given.VAR_KEYWORD, 'Unpack[LoaderOptions]')
