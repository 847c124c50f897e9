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
from on_ranks import parts_of
from ranks import run_once, run_ranks
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


def _parts(one: str, other: str) -> tuple[str, str]:
    set_timeout(timedelta(seconds=20))
    agree(None)
    name = one if dist.get_rank() == 0 else other
    with in_layer(f"layer '{name}'"):
        found = attempt(OPERATIONS[name][0])
    return found, attempt(agree, None)


@pytest.mark.parametrize(('one', 'other'), PAIRS)
def test_different_operations_end_in_an_error_that_names_both(one: str, other: str) -> None:
    for rank, (first, later) in enumerate(run_once(_parts, 3, one, other)):
        own, theirs = (other, one) if rank else (one, other)
        guilty = 0 if rank else 1
        assert first.startswith(f'ExchangeError: rank {guilty} is at {OPERATIONS[theirs][1]}')
        assert f'; rank {rank} stopped at {OPERATIONS[own][1]}' in first
        assert f"in layer '{own}', forward" in first
        assert f"in layer '{theirs}', forward" in first
        assert later.startswith('ExchangeError: ')


def _the_same_in_another_layer() -> str:
    with in_layer(f"layer 'convs.{min(dist.get_rank(), 1)}'"):
        return attempt(lambda: vote('a decision of all ranks', True))


def test_one_operation_of_two_layers() -> None:
    for found in run_once(_the_same_in_another_layer, 3):
        assert found.startswith('ExchangeError: ')
        assert "in layer 'convs.0', forward" in found
        assert "in layer 'convs.1', forward" in found


def _extra_forward(root: str) -> str:
    data = pyg_sar.load_shard(root)
    model = torch.nn.ModuleDict({'conv': SAGEConv(6, 3)}).double()
    pyg_sar.DistributedDataParallel(model, timeout=20)

    def epoch() -> None:
        out = model['conv'](data.x, data.edge_index)
        out.square().sum(1).mean().backward()

    epoch()
    if dist.get_rank() == 0:
        return attempt(lambda: (model['conv'](data.x, data.edge_index), epoch()))
    return attempt(lambda: (epoch(), epoch()))


def test_an_extra_forward_of_one_rank():
    """8 vs 4: a layer's decision on rank 0 met the sum of the others' loss."""
    root = parts_of(3)
    found = run_once(_extra_forward, 3, str(root))
    assert all(text.startswith('ExchangeError: ') for text in found), found
    assert "layer 'conv' (SAGEConv), forward" in found[0]
    assert 'a sum over all ranks' in found[0]
    assert 'rank 0 is at a comparison of forwards in layer' in found[1]
    assert 'rank 1 stopped at a sum over all ranks, called at' in found[1]


NUMBERS = {'a mask': "'eq' of rows at", 'a temperature': "'div' of rows at"}


def _other_numbers(root: str, kind: str) -> str:
    data, rank = pyg_sar.load_shard(root), dist.get_rank()
    model = pyg_sar.DistributedDataParallel(SAGEConv(6, 3).double())

    def step() -> None:
        out = model(data.x, data.edge_index) / (1 + rank * (kind == 'a temperature'))
        mask = data.y % 2 == rank if kind == 'a mask' else data.train_mask
        F.cross_entropy(out[mask], data.y[mask] % 3).backward()

    return attempt(step)


@pytest.mark.parametrize('kind', NUMBERS)
def test_other_numbers_beside_rows(kind):
    root = parts_of(2)
    found = run_once(_other_numbers, 2, str(root), kind)
    for text in found:
        assert text.startswith('PartedError: expected one value on all ranks in '), text
        assert NUMBERS[kind] in text


def _rows_of_two_layers(root: str) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    set_timeout(timedelta(seconds=5))
    exchange = Exchange(data.edge_index.handle.shard)
    rank = dist.get_rank()
    with in_layer(f"layer 'convs.{min(rank, 1)}'"):
        return attempt(lambda: list(exchange.all_gather_halo([torch.ones(len(data.x), 6)])))


def test_rows_of_two_layers_never_meet():
    """They have one shape, so without a mark the layers would compute with each other's rows."""
    root = parts_of(2)
    first, second = run_once(_rows_of_two_layers, 2, str(root))
    assert '; rank 0 stopped at receiving the rows of part 1' in first
    assert 'rank 1 was silent for too long: it waits at receiving the rows of part 0' in first
    assert "in layer 'convs.1', forward" in first
    assert '; rank 1 stopped at receiving the rows of part 0' in second


def _values() -> list[object]:
    rank = dist.get_rank()
    texts = [agree('x' * length + str(rank)) for length in (0, 507, 508, 509, 510, 511, 5000)]
    uneven = agree('y' * (2000 * rank))
    votes = [
        vote('a decision', rank == 0, rank > 0, True, rank % 3 == 1, fingerprint=text)
        for text in ('', 'alike', str(min(rank, 1)))
    ]
    total = all_reduce_sum(torch.tensor([2**53 + rank]))
    return [[[len(t) for t in text] for text in texts], [len(t) for t in uneven], votes, int(total)]


@pytest.mark.parametrize('world_size', [1, 2, 3])
def test_the_same_operations_give_their_values(world_size: int) -> None:
    lengths = [[n + 1] * world_size for n in (0, 507, 508, 509, 510, 511, 5000)]
    ranks = range(world_size)
    counts = [1, world_size - 1, world_size, sum(r % 3 == 1 for r in ranks)]
    votes = [counts, counts, counts if world_size == 1 else None]
    total = sum(2**53 + r for r in ranks)
    want = [lengths, [2000 * r for r in ranks], votes, total]
    assert run_ranks(_values, world_size) == [want] * world_size
