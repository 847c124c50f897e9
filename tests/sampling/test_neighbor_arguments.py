"""What a loader refuses, on all ranks alike; and where it goes on after it was saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from few import few
from joined import Own, Taken, assert_same, batches, join, take
from ranks import run_as_threads
from small_graphs import assert_all_raise, attempt, small_graph
from torch_geometric.data import Data
from torch_geometric.sampler.base import NumNeighbors, SubgraphType

import pyg_sar
from pyg_sar.comm import rank


def _make(root: str, options: dict[str, Any], change: str = '') -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    if change:
        exec(change, {'data': data, 'rank': rank(), 'torch': torch})
    given = {k: v.values[rank()] if isinstance(v, Own) else v for k, v in options.items()}
    return attempt(pyg_sar.NeighborLoader, data, **{'num_neighbors': [2, 2], **given})


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({'num_workers': 2}, ['num_workers', 'one thread of each rank']),
    ({'filter_per_worker': True}, ['filter_per_worker']),
    ({'is_sorted': True}, ['is_sorted', 'sorted once']),
    ({'pin_memory': True}, ['pin_memory']),
    ({'colour': 'red'}, ['colour']),
]


@pytest.mark.parametrize(('options', 'words'), REFUSED)
def test_arguments_without_meaning(folder: str, options: dict[str, Any], words: list[str]) -> None:
    assert_all_raise([_make(folder, options)], 'TypeError', *words)


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({'num_neighbors': 5}, ['num_neighbors', '5']),
    ({'num_neighbors': [2, -2]}, ['num_neighbors', '-2']),
    ({'num_neighbors': [2, 1.5]}, ['num_neighbors', '1.5']),
    ({'num_neighbors': {('a', 'to', 'b'): [2]}}, ['num_neighbors', 'a__to__b']),
    ({'batch_size': 0}, ['batch_size', '0']),
    ({'batch_size': True}, ['batch_size', 'True']),
    ({'prefetch': -1}, ['prefetch', '-1']),
    ({'seed': 0.5}, ['seed', '0.5']),
    ({'cache': '2 cups'}, ['cache', '2 cups', '64GB']),
    ({'cache': 0}, ['cache', '0']),
    ({'cache': Own(10, 20)}, ['cache', '10', '20']),
    ({'shuffle': 1}, ['shuffle', '1']),
    ({'subgraph_type': 'undirected'}, ['subgraph_type', 'undirected']),
    ({'temporal_strategy': 'first'}, ['temporal_strategy', 'first']),
    ({'temporal_strategy': 'last'}, ['temporal_strategy', 'time_attr']),
    ({'temporal_strategy': 'last', 'time_attr': 'y', 'replace': True}, ['replace']),
    ({'input_time': torch.zeros(3)}, ['input_time', 'time_attr']),
    ({'input_time': torch.zeros(3), 'time_attr': 'y'}, ['input_time', '(3,)']),
    ({'time_attr': 'edge_type', 'input_nodes': [0]}, ['input_time', 'None']),
    ({'time_attr': 'when'}, ['time_attr', 'when']),
    ({'time_attr': 'x'}, ['time_attr', "'x'"]),
    ({'weight_attr': 'heavy'}, ['weight_attr', 'heavy']),
    ({'weight_attr': 'edge_attr'}, ['weight_attr', 'edge_attr']),
    ({'transform': 3}, ['transform', '3']),
    ({'input_nodes': Own([0], [40])}, ['input_nodes', '40', 'n_id']),
    ({'input_nodes': [-1]}, ['input_nodes', '-1']),
    ({'input_nodes': torch.zeros(7, dtype=torch.bool)}, ['input_nodes', '(7,)']),
    ({'input_nodes': torch.zeros(2, 2)}, ['input_nodes', '(2, 2)']),
    ({'input_nodes': 'paper'}, ['input_nodes', 'paper']),
    ({'input_nodes': []}, ['input_nodes', '0 seeds']),
    ({'batch_size': 40, 'drop_last': True}, ['drop_last', '40 seeds']),
    ({'batch_size': Own(2, 4)}, ['batch_size', '2', '4']),
    ({'seed': Own(0, 1)}, ['seed', '0', '1']),
    ({'num_neighbors': Own([2, 2], [2, 3])}, ['num_neighbors', '2', '3']),
    ({'shuffle': Own(True, False)}, ['shuffle', 'True']),
]


@pytest.mark.parametrize(('options', 'words'), WRONG)
def test_wrong_arguments(folder: str, options: dict[str, Any], words: list[str]) -> None:
    outcomes = run_as_threads(_make, 2, folder, options)
    assert_all_raise(outcomes, 'ValueError', *words)


CHANGED: list[tuple[str, dict[str, Any], list[str]]] = [
    ('data.edge_index = data.edge_index[:, 1:]', {}, ['edge_index', 'unchanged']),
    ('data.edge_index = data.edge_index.flip(0)', {}, ['edge_index', 'unchanged']),
    ('del data.n_id', {}, ['n_id']),
    ('data.x.requires_grad_()', {}, ["'x'", 'gradients']),
    ('data.x = data.x.float() if rank else data.x', {}, ["'x'", 'float32', 'float64']),
    ('data.x = data.x[:, rank:]', {}, ["'x'", '(5,)']),
    ('data.edge_weight[3] = -1', {'weight_attr': 'edge_weight'}, ['weight_attr', 'at least 0']),
    ('data.t = data.y / 0', {'time_attr': 't'}, ['time_attr', 'NaN']),
]


@pytest.mark.parametrize(('change', 'options', 'words'), CHANGED)
def test_changed_data(folder: str, change: str, options: dict[str, Any], words: list[str]) -> None:
    outcomes = run_as_threads(_make, 2, folder, options, change)
    assert_all_raise(outcomes, 'ValueError', *words)


HETERO: list[tuple[dict[str, Any], list[str]]] = [
    ({'input_nodes': None}, ['input_nodes', 'paper']),
    ({'input_nodes': 'book'}, ['input_nodes', 'book']),
    ({'input_nodes': 'lonely'}, ['input_nodes', 'lonely']),
    ({'num_neighbors': {('author', 'reads', 'paper'): [2]}}, ['author__reads__paper']),
    ({'num_neighbors': {('author', 'writes', 'paper'): [2]}}, ['every relation']),
    ({'time_attr': 'age'}, ['input_time', 'None']),
]


@pytest.mark.parametrize(('options', 'words'), HETERO)
def test_wrong_arguments_by_type(
    hetero_folder: str, options: dict[str, Any], words: list[str]
) -> None:
    options = {'input_nodes': 'paper', **options}
    assert_all_raise(run_as_threads(_make, 2, hetero_folder, options), 'ValueError', *words)


def test_a_graph_that_is_not_cut_is_refused() -> None:
    text = attempt(pyg_sar.NeighborLoader, small_graph(), [2])
    assert_all_raise([text], 'ValueError', 'load_shard', 'torch_geometric.loader.NeighborLoader')
    assert_all_raise([attempt(pyg_sar.NeighborLoader, None, [2])], 'ValueError', 'NoneType')


def test_what_pyg_takes_is_taken(hetero_folder: str, folder: str) -> None:
    data = pyg_sar.local(pyg_sar.load_shard(hetero_folder))
    fans = NumNeighbors({('author', 'writes', 'paper'): [3, 3]}, default=[1, 1])
    loader = pyg_sar.NeighborLoader(data, fans, 'paper', prefetch=0)
    text = {'__'.join(key): [1, 1] for key in data.edge_types}
    text['author__writes__paper'] = [3, 3]
    same = pyg_sar.NeighborLoader(data, text, ('paper', None), prefetch=0)
    assert_same([take(b) for b in loader], [take(b) for b in same])
    data = pyg_sar.local(pyg_sar.load_shard(folder))
    induced = pyg_sar.NeighborLoader(data, (2,), [0, 3, 1], subgraph_type=SubgraphType.induced)
    assert sum(batch.batch_size for batch in induced) == 3
    assert torch.cat([batch.input_id for batch in induced]).sort().values.tolist() == [0, 1, 2]


def test_transforms_run_in_the_program(folder: str) -> None:
    data = pyg_sar.local(pyg_sar.load_shard(folder))

    def transform(batch: Data) -> Data:
        batch.draw = torch.rand(())
        return batch

    torch.manual_seed(1)
    draws = [float(b.draw) for b in pyg_sar.NeighborLoader(data, [2], transform=transform)]
    torch.manual_seed(1)
    assert draws == [float(torch.rand(())) for _ in draws]


def test_attributes_are_those_of_the_epoch(folder: str) -> None:
    data = pyg_sar.local(pyg_sar.load_shard(folder))
    loader = pyg_sar.NeighborLoader(data, [2], prefetch=0)
    data.score = data.n_id.double().unsqueeze(1) * torch.ones(2)
    data.x = data.x * 2
    del data.pos
    data.edge_new = torch.arange(data.num_edges)
    for batch in loader:
        assert torch.equal(batch.score, batch.n_id.double().unsqueeze(1) * torch.ones(2))
        assert torch.equal(batch.x, small_graph().x[batch.n_id] * 2)
        assert 'pos' not in batch
        assert torch.equal(data.e_id[batch.edge_new], batch.e_id)


def _half(root: str, num: int, state: dict[str, int] | None) -> tuple[Taken, dict[str, int]]:
    loader = pyg_sar.NeighborLoader(
        pyg_sar.local(pyg_sar.load_shard(root)), [2, 2], batch_size=1, shuffle=True, seed=2
    )
    if state is not None:
        loader.load_state_dict(state)
    out: Taken = []
    while len(out) < num:
        for batch in loader:
            out.append(take(batch))
            if len(out) == num:
                return out, loader.state_dict()
    return out, loader.state_dict()


@pytest.mark.parametrize('num', few([1, 5, 8]))
def test_resumes_on_another_number_of_ranks(folder: str, num: int) -> None:
    options = {'num_neighbors': [2, 2], 'shuffle': True, 'seed': 2, 'mask': None}
    want = join([batches(folder, 3, **options)])
    of_epoch = len(want) // 3
    num += of_epoch  # in the middle of the second epoch
    results = run_as_threads(_half, 4, folder, num, None)
    states = [state for _, state in results]
    assert all(state == states[0] for state in states)
    assert (states[0]['epoch'], states[0]['batch']) == (1, num - of_epoch)
    rest = run_as_threads(_half, 2, folder, len(want) - num, states[0])
    assert_same(join([taken for taken, _ in rest]), want[num:])
    (alone, state) = _half(folder, len(want) - num, states[0])
    assert_same(join([alone]), want[num:])
    assert (state['epoch'], state['batch']) == (2, of_epoch)


def test_resumes_before_and_after_an_epoch(folder: str) -> None:
    data = pyg_sar.local(pyg_sar.load_shard(folder))

    def loader() -> pyg_sar.NeighborLoader:
        return pyg_sar.NeighborLoader(data, [2], shuffle=True, prefetch=0)

    one = loader()
    epochs = [[take(batch) for batch in one] for _ in range(2)]
    fresh, other = loader(), loader()
    other.load_state_dict(fresh.state_dict())
    assert_same([take(batch) for batch in other], epochs[0])
    iteration = iter(fresh)
    next(iteration)
    fresh.load_state_dict(other.state_dict())
    assert 'newest iteration' in attempt(next, iteration)
    assert_same([take(batch) for batch in fresh], epochs[1])


def _loads(root: str, state: dict[str, Any]) -> str:
    loader = pyg_sar.NeighborLoader(pyg_sar.local(pyg_sar.load_shard(root)), [2])
    return attempt(loader.load_state_dict, state)


def _loads_on_one(root: str) -> str:
    loader = pyg_sar.NeighborLoader(pyg_sar.local(pyg_sar.load_shard(root)), [2])
    state = {**loader.state_dict(), 'epoch': 4, 'batch': 2}
    if rank() == 1:
        loader.load_state_dict(state)
    return attempt(iter, loader)


def test_states_that_do_not_fit(folder: str) -> None:
    other = pyg_sar.NeighborLoader(pyg_sar.local(pyg_sar.load_shard(folder)), [2], batch_size=7)
    assert_all_raise([_loads(folder, other.state_dict())], 'ValueError', 'batch_size', '7')
    assert_all_raise([_loads(folder, {})], 'ValueError', 'replace', 'None')
    outcomes = run_as_threads(_loads_on_one, 2, folder)
    assert_all_raise(outcomes, 'ValueError', 'epoch and batch', '(4, 2)')


def _idle(root: str) -> list[tuple[int, list[int], str]]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    rows = torch.arange(5) if rank() == 1 else []
    out = []
    for batch in pyg_sar.NeighborLoader(data, [2, 2], rows, batch_size=2, disjoint=True):
        assert batch.x.shape[1:] == (6,)
        assert batch.edge_attr.shape[1:] == (4,)
        assert batch.edge_index.shape[0] == 2
        assert batch.batch.dtype == batch.n_id.dtype == torch.int64
        out.append((batch.batch_size, batch.num_sampled_nodes[:1], str(batch.x.dtype)))
    return out


def test_ranks_without_seeds_take_part(folder: str) -> None:
    idle, busy, *_ = run_as_threads(_idle, 4, folder)
    assert [size for size, _, _ in busy] == [2, 2, 1]
    assert idle == [(0, [0], 'torch.float64')] * 3


@pytest.mark.parametrize(
    ('name', 'value'),
    [('num_neighbors', [3]), ('replace', True), ('shuffle', True), ('disjoint', True)],
)
def test_the_state_of_other_batches_is_refused(folder: str, name: str, value: Any) -> None:
    data, given = pyg_sar.local(pyg_sar.load_shard(folder)), {'num_neighbors': [2]}
    state = pyg_sar.NeighborLoader(data, **given).state_dict()
    other = pyg_sar.NeighborLoader(data, **{**given, name: value})
    with pytest.raises(ValueError, match=f"with the '{name}' of this one"):
        other.load_state_dict(state)
    pyg_sar.NeighborLoader(data, **given, prefetch=0).load_state_dict(state)
