"""The exchange: the owner's rows arrive, gradients go back, and nothing else is sent."""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from alike import cut_of
from layouts import layouts, same
from on_ranks import on_ranks
from partition_files import load_shard_files
from ranks import run_ranks
from small_graphs import attempt
from torch import Tensor
from torch_geometric.data import Data
from traffic import give_back

import pyg_sar
from pyg_sar.comm.collectives import all_reduce_sum
from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.new_group import new_group
from pyg_sar.comm.process_group import GroupComm
from pyg_sar.comm.vote import agree, raise_error_on_all
from pyg_sar.shard.blocks import plan_of
from pyg_sar.shard.read_shard import read_shard


def _values(ids: Tensor) -> list[Tensor]:
    """Several tensors of a node, of several dtypes and shapes, known from its global id."""
    i = ids.view(-1, 1).double()
    return [
        i * torch.arange(1, 4) + 0.25,
        ids.clone(),
        (ids % 3 == 0).view(-1, 1).expand(-1, 5),
        (i * torch.ones(2)).half(),
        (i.view(-1, 1, 1) - torch.arange(6).view(2, 3)).float(),
        i.to(torch.bfloat16),
        ids.view(-1, 1).to(torch.uint8),
        torch.empty(ids.numel(), 0),
    ]


def _block_ids(data: Data) -> list[Tensor]:
    """The global ids that the rows of every block must have, from the files of all parts."""
    shard = data.edge_index.handle.shard
    if shard.is_whole_graph:
        return [torch.arange(shard.num_own)]
    parts = [load_shard_files(Path(shard.root), part) for part in range(shard.num_parts)]
    ids = []
    for block in plan_of(data.edge_index.handle).blocks:
        n_id = parts[block.part]['n_id']
        if block.part not in shard.parts:
            ptr, pos = (parts[block.part][f'boundary_{name}'] for name in ('ptr', 'pos'))
            rows = torch.cat([pos[ptr[own] : ptr[own + 1]] for own in shard.parts])
            n_id = n_id[rows.long().unique()]
        ids.append(n_id)
    return ids


def _check_fetch(data: Data, *, keep: bool = False) -> None:
    exchange = Exchange(data.edge_index.handle.shard)
    want = [_values(ids) for ids in _block_ids(data)]
    kept = []
    for _ in range(2):
        rows = exchange.all_gather_halo(_values(data.n_id), keep=keep)
        for expected in want:
            block = next(rows)
            kept.append((block, expected))
            assert same(block, expected)
        assert next(rows, None) is None
    assert not keep or all(same(*each) for each in kept)
    halo = exchange.fetch(_values(data.n_id))
    assert same(halo, _in_halo_order(data, want))


def _in_halo_order(data: Data, of_blocks: list[list[Tensor]]) -> list[Tensor]:
    """The rows of the remote blocks by the part that owns them."""
    parts, blocks = data.edge_index.handle.shard.parts, plan_of(data.edge_index.handle).blocks
    pairs = zip(blocks, of_blocks, strict=True)
    by_part = {block.part: rows for block, rows in pairs if block.part not in parts}
    if not by_part:
        return [rows[:0] for rows in of_blocks[0]]
    return [torch.cat(each) for each in zip(*(by_part[p] for p in sorted(by_part)), strict=True)]


@layouts()
@on_ranks(is_local=True)
def test_fetch_gives_the_owners_rows(data, world_size, num_parts, kind):
    for keep in (False, True):
        _check_fetch(data, keep=keep)


def _two_triangles() -> Data:
    edge_index = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]])
    return Data(edge_index=edge_index, num_nodes=6)


def _fetch_of(root: str) -> None:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    _check_fetch(data)
    exchange = Exchange(data.edge_index.handle.shard)
    out = [torch.zeros(3, 2)]
    assert give_back(exchange, out, [[torch.ones(3, 2)], [torch.ones(0, 2)]])[0].eq(1).all()


def test_nothing_to_exchange():
    """Two triangles that never meet."""
    run_ranks(_fetch_of, 2, cut_of(_two_triangles, 2, [0, 0, 0, 1, 1, 1]))


@pytest.mark.parametrize('world_size', [1, 2, 4])
@on_ranks(num_parts=0)
def test_agree_and_raise_error_on_all(world_size):
    rank, ranks = dist.get_rank(), range(world_size)
    values = agree({'rank': rank, 'tensor': torch.arange(rank)})
    assert [value['rank'] for value in values] == [*ranks]
    assert [value['tensor'].tolist() for value in values] == [[*range(other)] for other in ranks]
    raise_error_on_all(None)
    for who, kind in product(ranks, (ValueError, FileNotFoundError)):
        error = kind(f'trouble {who}') if rank == who else None
        at = '' if rank == who else f'rank {who}: '
        assert attempt(raise_error_on_all, error) == f'{kind.__name__}: {at}trouble {who}'
    assert attempt(raise_error_on_all, ValueError(f'all {rank}')) == f'ValueError: all {rank}'


def test_without_other_processes():
    assert agree('alone') == ['alone']
    raise_error_on_all(None)
    with pytest.raises(FileNotFoundError, match='alone'):
        raise_error_on_all(FileNotFoundError('alone'))
    values = torch.arange(3)
    assert all_reduce_sum(values) is values
    assert values.tolist() == [0, 1, 2]


@pytest.mark.parametrize('world_size', [1, 3])
@on_ranks(num_parts=3, is_local=True)
def test_another_ranks_shard(data, world_size):
    """It has neighbours that this process does not have."""
    own, root = dist.get_rank(), data.edge_index.handle.shard.root
    other = read_shard(root, (own + 1) % 3, 3).edge_index.handle.shard
    with pytest.raises(ValueError, match=f'rank {own} of {world_size}'):
        Exchange(other)


@on_ranks(is_local=True)
def test_a_process_group_of_its_own(data):
    """The user's own collectives in between cross nothing."""
    exchange = Exchange(data.edge_index.handle.shard)
    want = [_values(ids)[0] for ids in _block_ids(data)]
    for (rows,), expected in zip(
        exchange.all_gather_halo([_values(data.n_id)[0]]), want, strict=True
    ):
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.tolist() == [3.0] * 3
        assert torch.equal(rows, expected)


@on_ranks(3, 0)
def test_no_rank_leaves_a_group_that_another_still_connects():
    agree(0)  # the group of the program is there
    store = dist.distributed_c10d._get_default_store()

    def slow(limit):
        group = new_group(limit)
        if dist.get_rank() == 0:
            time.sleep(0.3)
            store.set('all are connected', '')
        return group

    with mock.patch('pyg_sar.comm.connection.new_group', slow):
        comm = GroupComm()
        comm.connect()
    assert store.check(['all are connected'])
    comm.close()
