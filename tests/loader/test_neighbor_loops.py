"""Loops over batches: several at once, and ranks that leave them, or end, in the middle."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from alike import assert_bits
from few import few
from joined import Taken, batches, take
from on_ranks import on_ranks
from ranks import run_as_threads, run_once, run_ranks
from small_graphs import attempt
from torch_geometric.data import Data

import pyg_sar
from pyg_sar import partition_graph
from pyg_sar.comm.ranks import rank, set_timeout
from pyg_sar.comm.vote import agree
from pyg_sar.loader.loader import ROUND
from pyg_sar.utils import hook


def _loader(of: Any, **options: Any) -> pyg_sar.NeighborLoader:
    """Of data, or of a folder."""
    data = pyg_sar.load_shard(of) if isinstance(of, str) else of
    given = {'seed': 3, 'shuffle': True, 'batch_size': 2, **options}
    return pyg_sar.NeighborLoader(data, [2, 2], **given)


def _leave(loader: pyg_sar.NeighborLoader, num: int) -> None:
    for taken, _ in enumerate(loader, 1):
        if taken == num:
            break


@on_ranks(2, 4, by='threads')
def test_all_ranks_leave_at_the_same_batch(data):
    loader = _loader(data)
    want = [take(batch) for batch in loader]
    _leave(loader, 3)
    third = [take(batch) for batch in loader]
    again = _loader(data)
    assert_bits([take(batch) for batch in again], want)
    _leave(again, 5)
    assert_bits([take(batch) for batch in again], third)


@on_ranks(2, 4, by='threads')
def test_leaving_at_different_batches_of_a_round_is_an_error_on_all(data):
    loader = _loader(data)
    _leave(loader, 1 + rank())
    with pytest.raises(ValueError, match=r'number of batches taken before .*: 2 on rank 1'):
        iter(loader)


def _left_rounds_apart(root: str) -> tuple[str, str]:
    set_timeout(timedelta(seconds=20))
    loader = _loader(root)
    assert len(loader) > ROUND + 1
    first = attempt(_leave, loader, 1 + ROUND * dist.get_rank())
    return first, attempt(iter, loader)


def test_leaving_in_different_rounds_is_an_error_on_all(folder: str) -> None:
    (left, other), (goes_on, later) = run_once(_left_rounds_apart, 2, folder)
    assert left == 'no error'
    for text in (other, goes_on, later):
        assert text.startswith(('ExchangeError', 'PartedError')), text


def _interleaved(root: str) -> tuple[Taken, Taken]:
    one, other = _loader(root), _loader(root, seed=4, shuffle=False)
    pairs = [(take(a), take(b)) for a, b in zip(one, other, strict=True)]
    for batch in one:  # another loop inside of a loop, with collectives of the program's own
        inner = sum(each.num_nodes for each in other)
        assert sum(agree(inner)) > batch.num_nodes
        break
    return [a for a, _ in pairs], [b for _, b in pairs]


def test_two_loaders_at_once(folder: str) -> None:
    options = {'num_neighbors': [2, 2], 'mask': None, 'batch_size': 2}
    one = run_as_threads(batches, 2, folder, seed=3, shuffle=True, **options)
    other = run_as_threads(batches, 2, folder, seed=4, **options)
    for got, *want in zip(run_ranks(_interleaved, 2, folder), one, other, strict=True):
        for taken, wanted in zip(got, want, strict=True):
            assert_bits(taken, wanted)


@on_ranks(2, 4, by='threads')
def test_only_the_newest_iteration_goes_on(data):
    loader = _loader(data)
    first = iter(loader)
    next(first)
    next(iter(loader))
    with pytest.raises(ValueError, match='newest iteration'):
        next(first)


@pytest.mark.parametrize('world_size', [1, 2])
@on_ranks(num_parts=4, by='threads')
def test_attributes_in_another_order(data, world_size):
    """Row i of the whole is that of node or edge i; a selection is in every batch as it is."""
    mask, first = data.train_mask, data.edge_weight < 0.5
    data.x = torch.cat([data.x[mask], data.x[~mask]])
    data.edge_weight = torch.cat([data.edge_weight[first], data.edge_weight[~first]])
    data.of_train, data.flat = data.y[mask], data.x.t()
    x, weight, of_train = (pyg_sar.gather(v) for v in (data.x, data.edge_weight, data.of_train))
    for batch in pyg_sar.NeighborLoader(data, [-1], batch_size=8):
        assert torch.equal(batch.x, x[batch.n_id])
        assert torch.equal(batch.edge_weight, weight[batch.e_id])
        assert torch.equal(pyg_sar.gather(batch.of_train), of_train)
        assert torch.equal(pyg_sar.gather(batch.flat), x.t())


CHANGED_IN_EPOCH = {
    'replaced': lambda data: setattr(data, 'x', data.x * 10),
    'in place': lambda data: data.x.mul_(10),
    'an edge weight': lambda data: data.edge_weight.mul_(2),
    'removed': lambda data: delattr(data, 'pos'),
}


@pytest.mark.parametrize('change', CHANGED_IN_EPOCH)
@pytest.mark.parametrize('world_size', [1, 2])
@on_ranks(num_parts=4, by='threads')
def test_data_that_changes_in_an_epoch_is_refused(data, change, world_size):
    loader = pyg_sar.NeighborLoader(data, [2], batch_size=8)
    with torch.inference_mode():
        data.score = data.y * 2  # whose changes nobody counts
    iteration = iter(loader)
    next(iteration)
    data.to('cpu').new = data.x * 10  # which changes nothing that ranks have sent
    next(iteration)
    CHANGED_IN_EPOCH[change](data)
    with pytest.raises(RuntimeError, match='change data between epochs'):
        next(iteration)
    assert len(list(loader)) == len(loader)


def _dies(root: str) -> tuple[str, str]:
    set_timeout(timedelta(seconds=20))
    iteration = iter(_loader(root))
    next(iteration)
    if dist.get_rank() == 1:
        os._exit(7)
    try:
        for _ in iteration:
            pass
    except pyg_sar.ExchangeError as error:
        first = f'{error.peer} {error}'
    return first, attempt(agree, 1)


def test_a_rank_that_dies_ends_the_others(folder: str) -> None:
    (first, later), _ = run_once(_dies, 2, folder, may_die=(1,))
    assert first.startswith('1 ')
    assert 'NeighborLoader' in first
    assert 'ended before' in later


@on_ranks(2, 4, by='own processes')
def test_a_loader_that_fails_ends_all_ranks(data):
    set_timeout(timedelta(seconds=20))
    loader = _loader(data)
    if dist.get_rank() == 1:
        ptr = loader._graph.edges[None].ptr
        ptr.copy_(torch.arange(ptr.numel()) * 10**6)  # no such edges
        with pytest.raises((IndexError, RuntimeError)):
            list(loader)
    else:
        with pytest.raises(pyg_sar.ExchangeError, match='rank 1 failed with'):
            list(loader)


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


def _operations(root: str, fans: list[int], options: dict[str, Any]) -> tuple[int, int]:
    data = pyg_sar.load_shard(root)
    make = pyg_sar.LinkNeighborLoader if 'neg_sampling' in options else pyg_sar.NeighborLoader
    loader = make(data, fans, batch_size=16, **options)
    iteration, operations = iter(loader), _Operations()
    hook.add(operations)
    try:
        num = sum(1 for _ in iteration)
    finally:
        hook.remove(operations)
    return len(operations.names), num


CASES: list[tuple[int, list[int], dict[str, Any]]] = [
    (12, [3, 2, 2], {}),
    (4, [3], {}),
    (20, [3, 2, 2], {'neg_sampling': 'binary'}),
    (8, [3, 2], {}),
    (18, [3, 2, 2], {'neg_sampling': None, 'exclude_edges': True}),
    (20, [3, 2, 2], {'neg_sampling': 'triplet'}),
]


@pytest.mark.parametrize(('of_round', 'fans', 'options'), few(CASES, every=2))
def test_collectives_of_a_round(tmp_path: Path, of_round: int, fans: Any, options: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    edges = torch.stack([torch.randint(600, (384,), generator=generator), torch.arange(384)])
    graph = Data(x=torch.rand(600, 3), edge_index=edges)
    partition_graph(graph, 4, tmp_path, method=torch.arange(600) % 4)
    for operations, num in run_ranks(_operations, 4, str(tmp_path), fans, options):
        assert num > 2 * ROUND - 2
        assert operations == of_round * -(-num // ROUND) <= 2 * num
