"""Ranks that come to different operations: all raise, none waits, and no process is ended by gloo.

gloo aborts a process in which messages of different sizes meet: "8 vs 4" where a sum of the loss
met a decision of a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from on_ranks import on_ranks
from small_graphs import attempt
from torch_geometric.nn import SAGEConv

import pyg_sar
from pyg_sar.comm.collectives import all_reduce_sum, all_to_all
from pyg_sar.comm.errors import in_layer
from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.ranks import set_timeout
from pyg_sar.comm.vote import agree, vote


def _decides() -> None:
    vote('a decision of all ranks', True)


def _moves(width: int) -> None:
    ones = [1] * dist.get_world_size()
    all_to_all(torch.ones(len(ones), width), ones, ones)


OPERATIONS: dict[str, tuple[Callable[[], object], str]] = {
    'decision': (_decides, 'a decision of all ranks'),
    'short values': (lambda: agree('a'), 'a comparison of all ranks'),
    'long values': (lambda: agree(['abc' * 1000]), 'a comparison of all ranks'),
    'short sum': (lambda: all_reduce_sum(torch.ones(3).double()), 'a sum over all ranks'),
    'long sum': (lambda: all_reduce_sum(torch.ones(900)), 'a sum over all ranks'),
    'narrow rows': (lambda: _moves(2), 'an exchange of rows with all ranks at once'),
    'wide rows': (lambda: _moves(9), 'an exchange of rows with all ranks at once'),
}
PAIRS = [
    ('decision', 'short sum'),
    ('long sum', 'decision'),
    ('short sum', 'long sum'),
    ('short values', 'long sum'),
    ('decision', 'long values'),
    ('narrow rows', 'wide rows'),
    ('wide rows', 'short values'),
]


@pytest.mark.parametrize(('one', 'other'), PAIRS)
@on_ranks(3, 0, by='own processes')
def test_different_operations_end_in_an_error_that_names_both(one, other):
    rank = dist.get_rank()
    own, theirs, guilty = (other, one, 0) if rank else (one, other, 1)
    set_timeout(timedelta(seconds=20))
    agree(None)
    with in_layer(f"layer '{own}'"):
        first = attempt(OPERATIONS[own][0])
    assert attempt(agree, None).startswith('ExchangeError: ')
    assert first.startswith(f'ExchangeError: rank {guilty} is at {OPERATIONS[theirs][1]}')
    assert f'; rank {rank} stopped at {OPERATIONS[own][1]}' in first
    assert f"in layer '{own}', forward" in first
    assert f"in layer '{theirs}', forward" in first


@on_ranks(3, 0, by='own processes')
def test_one_operation_of_two_layers():
    with in_layer(f"layer 'convs.{min(dist.get_rank(), 1)}'"):
        found = attempt(_decides)
    assert found.startswith('ExchangeError: ')
    assert "in layer 'convs.0', forward" in found
    assert "in layer 'convs.1', forward" in found


@on_ranks(by='own processes')
def test_an_extra_forward_of_one_rank(data):
    """8 vs 4: a layer's decision on rank 0 met the sum of the others' loss."""
    model = torch.nn.ModuleDict({'conv': SAGEConv(6, 3)}).double()
    pyg_sar.DistributedDataParallel(model, timeout=20)

    def forward() -> torch.Tensor:
        return model['conv'](data.x, data.edge_index)

    def epoch() -> None:
        forward().square().sum(1).mean().backward()

    epoch()
    is_first = dist.get_rank() == 0
    found = attempt(lambda: (forward() if is_first else epoch(), epoch()))
    assert found.startswith('ExchangeError: ')
    if is_first:
        assert "layer 'conv' (SAGEConv), forward" in found
        assert 'a sum over all ranks' in found
    if dist.get_rank() == 1:
        assert 'rank 0 is at a comparison of forwards in layer' in found
        assert 'rank 1 stopped at a sum over all ranks, called at' in found


@pytest.mark.parametrize(
    ('kind', 'word'), [('a mask', "'eq' of rows at"), ('a temperature', "'div' of rows at")]
)
@on_ranks(2, by='own processes')
def test_other_numbers_beside_rows(data, kind, word):
    rank, model = dist.get_rank(), pyg_sar.DistributedDataParallel(SAGEConv(6, 3).double())

    def step() -> None:
        out = model(data.x, data.edge_index) / (1 + rank * (kind == 'a temperature'))
        mask = data.y % 2 == rank if kind == 'a mask' else data.train_mask
        F.cross_entropy(out[mask], data.y[mask] % 3).backward()

    found = attempt(step)
    assert found.startswith('PartedError: expected one value on all ranks in ')
    assert word in found


@on_ranks(2, is_local=True, by='own processes')
def test_rows_of_two_layers_never_meet(data):
    """They have one shape, so without a mark the layers would compute with each other's rows."""
    rank, exchange = dist.get_rank(), Exchange(data.edge_index.handle.shard)
    set_timeout(timedelta(seconds=3))
    with in_layer(f"layer 'convs.{rank}'"):
        found = attempt(lambda: list(exchange.all_gather_halo([torch.ones(len(data.x), 6)])))
    assert f'; rank {rank} stopped at receiving the rows of part {1 - rank}' in found
    if rank == 0:
        text = 'rank 1 was silent for too long: it waits at receiving the rows of part 0'
        assert text in found
        assert "in layer 'convs.1', forward" in found


@pytest.mark.parametrize('world_size', [1, 2, 3])
@on_ranks(num_parts=0)
def test_the_same_operations_give_their_values(world_size):
    rank, ranks = dist.get_rank(), range(world_size)
    for length in (0, 507, 508, 509, 510, 511, 5000):
        found = agree('x' * length + str(rank))
        assert [len(text) for text in found] == [length + 1] * world_size
    assert [len(text) for text in agree('y' * (2000 * rank))] == [2000 * r for r in ranks]
    counts = [1, world_size - 1, world_size, sum(r % 3 == 1 for r in ranks)]
    for text in ('', 'alike', str(min(rank, 1))):
        said = rank == 0, rank > 0, True, rank % 3 == 1
        is_alike = text in ('', 'alike') or world_size == 1
        assert vote('a decision', *said, fingerprint=text) == (counts if is_alike else None)
    total = all_reduce_sum(torch.tensor([2**53 + rank]))
    assert int(total) == sum(2**53 + r for r in ranks)
