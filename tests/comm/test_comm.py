"""The exchange: the owner's rows arrive, gradients go back, and nothing else is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from few import few
from ranks import run_ranks
from small_graphs import ASSIGNMENTS, assert_all_raise, attempt, cut, small_graph
from torch import Tensor
from torch_geometric.data import Data
from traffic import put

import pyg_sar
from pyg_sar import partition_graph
from pyg_sar.aggregate.halo import from_halo, with_halo
from pyg_sar.comm import Exchange, GradientReturn, agree, all_reduce_sum, raise_together
from pyg_sar.shard.plan import plan_of
from pyg_sar.shard.read.read_shard import read_shard

LAYOUTS = [(1, 1), (1, 4), (2, 2), (2, 6), (3, 3), (3, 6), (4, 4)]
"""World sizes and numbers of parts."""


RELATIVE = 1e-14


@pytest.fixture(params=ASSIGNMENTS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


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


def _block_ids(data: Data, root: str) -> list[Tensor]:
    """The global ids that the rows of every block must have, from the files of all parts."""
    shard = data.edge_index.shard
    parts = [
        torch.load(Path(root) / f'part_{p}' / 'sar.pt', weights_only=True)
        for p in range(shard.num_parts)
    ]
    ids = []
    for block in plan_of(data.edge_index, shard).blocks:
        n_id = parts[block.part]['n_id']
        if block.part not in shard.parts:
            ptr, pos = (parts[block.part][f'boundary_{name}'] for name in ('ptr', 'pos'))
            rows = torch.cat([pos[ptr[own] : ptr[own + 1]] for own in shard.parts])
            n_id = n_id[rows.long().unique()]
        ids.append(n_id)
    return ids


def _fetched(root: str, depth: int, keep: bool) -> list[str]:
    """What is wrong with the rows of all blocks."""
    data = pyg_sar.local(pyg_sar.load_shard(root))
    exchange = Exchange(data.edge_index.shard, depth=depth)
    want = [_values(ids) for ids in _block_ids(data, root)]
    wrong, kept = [], []
    for _ in range(2):
        rows = exchange.fetch(_values(data.n_id), keep=keep)
        for i, expected in enumerate(want):
            block = next(rows)
            kept.append((i, block))
            wrong += _differences(f'block {i}', block, expected)
        assert next(rows, None) is None
    if keep:
        for i, block in kept:
            wrong += _differences(f'block {i} kept', block, want[i])
    halo = exchange.fetch_all(_values(data.n_id))
    wrong += _differences('halo', halo, _in_halo_order(data, want))
    return wrong


def _in_halo_order(data: Data, of_blocks: list[list[Tensor]]) -> list[Tensor]:
    """The rows of the remote blocks by the part that owns them."""
    shard = data.edge_index.shard
    by_part = {
        block.part: rows
        for block, rows in zip(plan_of(data.edge_index, shard).blocks, of_blocks, strict=True)
        if block.part not in shard.parts
    }
    if not by_part:
        return [rows[:0] for rows in of_blocks[0]]
    return [
        torch.cat(tensors) for tensors in zip(*(by_part[p] for p in sorted(by_part)), strict=True)
    ]


def _differences(name: str, found: list[Tensor], expected: list[Tensor]) -> list[str]:
    return [
        f'{name}, tensor {k}'
        for k, (a, b) in enumerate(zip(found, expected, strict=True))
        if a.dtype != b.dtype or not torch.equal(a, b)
    ]


@pytest.mark.parametrize('keep', [False, True])
@pytest.mark.parametrize('depth', few([1, 2, 5]))
@pytest.mark.parametrize(('world_size', 'num_parts'), LAYOUTS)
def test_fetch_gives_the_owners_rows(tmp_path, world_size, num_parts, depth, keep):
    root = cut(small_graph(), num_parts, tmp_path / 'parts')
    wrong = run_ranks(_fetched, world_size, str(root), depth, keep)
    assert wrong == [[]] * world_size


@pytest.mark.parametrize(('world_size', 'num_parts'), [(2, 4), (3, 3), (4, 4)])
def test_awkward_cuts(tmp_path, world_size, num_parts, kind):
    root = cut(small_graph(), num_parts, tmp_path / 'parts', kind)
    wrong = run_ranks(_fetched, world_size, str(root), 1, False)
    assert wrong == [[]] * world_size


def _fetched_with_own_depth(root: str) -> list[str]:
    return _fetched(root, dist.get_rank() + 1, False)


def test_ranks_may_prefetch_differently(tmp_path):
    root = cut(small_graph(), 4, tmp_path / 'parts')
    assert run_ranks(_fetched_with_own_depth, 4, str(root)) == [[]] * 4


def _graph_without_cut_edges() -> Data:
    """Two triangles that never meet."""
    src = torch.tensor([0, 1, 2, 3, 4, 5])
    dst = torch.tensor([1, 2, 0, 4, 5, 3])
    return Data(edge_index=torch.stack([src, dst]), num_nodes=6)


def test_nothing_to_exchange(tmp_path):
    parts = torch.tensor([0, 0, 0, 1, 1, 1])
    partition_graph(_graph_without_cut_edges(), 2, tmp_path / 'parts', method=parts)
    assert run_ranks(_fetched, 2, str(tmp_path / 'parts'), 1, False) == [[]] * 2
    assert run_ranks(_adjoint_errors, 2, str(tmp_path / 'parts')) == [[0.0] * 4] * 2


def _dot(a: list[Tensor], b: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The inner product, and the sum of absolute products as its scale."""
    products = [(x * y).view(-1) for x, y in zip(a, b, strict=True)]
    all_products = torch.cat(products)
    return all_products.sum(), all_products.abs().sum()


def _relative_error(ax: list[Tensor], y: list[Tensor], x: list[Tensor], aty: list[Tensor]) -> float:
    """``|<A x, y> - <x, A' y>|`` over the scale, all summed over the ranks."""
    left, scale = _dot(ax, y)
    right, _ = _dot(x, aty)
    sums = all_reduce_sum(torch.stack([left, right, scale]))
    return float((sums[0] - sums[1]).abs() / sums[2].clamp(min=1e-300))


def _adjoint_errors(root: str) -> list[float]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    exchange = Exchange(data.edge_index.shard)
    torch.manual_seed(dist.get_rank())
    n = exchange.shard.num_own
    num_local = n + exchange.shard.num_halo

    def random(rows: int) -> list[Tensor]:
        shapes = [(3,), (2, 2)]
        return [torch.randn(rows, *shape, dtype=torch.float64) for shape in shapes]

    x = random(n)
    errors = []

    ax = [[t.clone() for t in rows] for rows in exchange.fetch(x)]
    y = [random(rows[0].size(0)) for rows in ax]
    aty = [torch.zeros_like(t) for t in x]
    returned = GradientReturn(exchange, aty)
    for gradients in y:
        put(returned, gradients)
    returned.finish()
    flat_ax, flat_y = [t for rows in ax for t in rows], [t for rows in y for t in rows]
    errors.append(_relative_error(flat_ax, flat_y, x, aty))

    y = random(exchange.shard.num_halo)
    aty = [torch.zeros_like(t) for t in x]
    ax = exchange.fetch_all(x)
    exchange.return_all(y, aty)
    errors.append(_relative_error(ax, y, x, aty))

    leaf = x[0].clone().requires_grad_()
    out = with_halo(leaf, exchange)
    y = [torch.randn(num_local, 3, dtype=torch.float64)]
    (aty_0,) = torch.autograd.grad(out, leaf, y)
    errors.append(_relative_error([out.detach()], y, [x[0]], [aty_0]))

    z = torch.randn(num_local, 3, dtype=torch.float64, requires_grad=True)
    out = from_halo(z, exchange)
    (atx,) = torch.autograd.grad(out, z, x[0])
    errors.append(_relative_error([out.detach()], [x[0]], [z.detach()], [atx]))
    return errors


@pytest.mark.parametrize(('world_size', 'num_parts'), LAYOUTS)
def test_adjoints(tmp_path, world_size, num_parts, kind):
    """fetch, fetch_all, with_halo and from_halo, each against its way back."""
    root = cut(small_graph(), num_parts, tmp_path / 'parts', kind)
    for errors in run_ranks(_adjoint_errors, world_size, str(root)):
        assert len(errors) == 4
        assert max(errors) <= RELATIVE


def _answers() -> tuple[list[Any], list[str]]:
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    values = agree({'rank': rank, 'tensor': torch.arange(rank)})
    errors = [attempt(raise_together, None)]
    for who in range(world_size):
        for kind in (ValueError, FileNotFoundError):
            error = kind(f'trouble {who}') if rank == who else None
            errors.append(attempt(raise_together, error))
    errors.append(attempt(raise_together, ValueError(f'all {rank}')))
    return values, errors


@pytest.mark.parametrize('world_size', [1, 2, 4])
def test_agree_and_raise_together(world_size):
    for rank, (values, errors) in enumerate(run_ranks(_answers, world_size)):
        assert [value['rank'] for value in values] == list(range(world_size))
        assert [value['tensor'].tolist() for value in values] == [
            list(range(other)) for other in range(world_size)
        ]
        expected = ['no error']
        for who in range(world_size):
            at = '' if rank == who else f'rank {who}: '
            expected += [
                f'{kind}: {at}trouble {who}' for kind in ('ValueError', 'FileNotFoundError')
            ]
        assert errors == [*expected, f'ValueError: all {rank}']


def test_without_other_processes():
    assert agree('alone') == ['alone']
    raise_together(None)
    with pytest.raises(FileNotFoundError, match='alone'):
        raise_together(FileNotFoundError('alone'))
    values = torch.arange(3)
    assert all_reduce_sum(values) is values
    assert values.tolist() == [0, 1, 2]


@pytest.mark.parametrize('depth', [0, -1])
def test_depth_must_be_positive(tmp_path, depth):
    shard = read_shard(cut(small_graph(), 2, tmp_path / 'parts'), 0, 1).edge_index.shard
    with pytest.raises(ValueError, match=rf"'depth' must be at least 1 \(got {depth}\)"):
        Exchange(shard, depth=depth)


def test_a_ranks_shard_in_one_process(tmp_path):
    """A shard of rank 1 of 2 has neighbours that this process does not have."""
    shard = read_shard(cut(small_graph(), 2, tmp_path / 'parts'), 1, 2).edge_index.shard
    with pytest.raises(ValueError, match=r'expected a shard of rank 0 of 1.*got.*rank 1 of 2'):
        Exchange(shard)


def _exchange_of(root: str, shift: int) -> str:
    rank = (dist.get_rank() + shift) % dist.get_world_size()
    shard = read_shard(root, rank, dist.get_world_size()).edge_index.shard
    return attempt(Exchange, shard)


def test_another_ranks_shard(tmp_path):
    root = cut(small_graph(), 3, tmp_path / 'parts')
    assert run_ranks(_exchange_of, 3, str(root), 0) == ['no error'] * 3
    assert_all_raise(run_ranks(_exchange_of, 3, str(root), 1), 'ValueError', 'expected a shard of')


def _exchange_beside_collectives(root: str) -> bool:
    """The user's own collectives in between cross nothing."""
    data = pyg_sar.local(pyg_sar.load_shard(root))
    exchange = Exchange(data.edge_index.shard, depth=2)
    sums = []
    want = [_values(ids)[0] for ids in _block_ids(data, root)]
    for (rows,), expected in zip(exchange.fetch([_values(data.n_id)[0]]), want, strict=True):
        total = torch.ones(3)
        dist.all_reduce(total)
        sums.append(total.tolist() == [float(dist.get_world_size())] * 3)
        sums.append(torch.equal(rows, expected))
    return all(sums)


def test_a_process_group_of_its_own(tmp_path):
    root = cut(small_graph(), 3, tmp_path / 'parts')
    assert run_ranks(_exchange_beside_collectives, 3, str(root)) == [True] * 3
