"""Every map of rows against its adjoint: ``<A x, y> == <x, A' y>``, summed over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from layouts import layouts
from on_ranks import on_ranks, on_threads
from small_graphs import assert_close, small_graph
from torch import Tensor
from torch_geometric.data import Data
from traffic import give_back

from pyg_sar.comm.collectives import all_reduce_sum
from pyg_sar.comm.derive_shard import reverse
from pyg_sar.comm.exchange import Exchange, exchange_of
from pyg_sar.comm.ranks import rank, world_size
from pyg_sar.comm.row_map import RowMap, linear
from pyg_sar.comm.rows_by_id import from_halo, places_of, rows, with_halo
from pyg_sar.comm.send_recv import Wire
from pyg_sar.ops.weighted_sum import weighted_sum
from pyg_sar.shard.blocks import plan_of

Way = Callable[[Tensor], Tensor]


def _random(num_rows: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(17 * rank() + seed)
    return torch.randn(num_rows, 2, 3, generator=generator, dtype=torch.float64)


def _check_adjoint(way: Way, num_rows: int) -> None:
    x = _random(num_rows).requires_grad_()
    out = way(x)
    y = _random(out.size(0), 1)
    (grad,) = torch.autograd.grad(out, x, y)
    dots = torch.stack([(out * y).sum(), (x * grad).sum(), (out * y).abs().sum()]).detach()
    there, back, scale = all_reduce_sum(dots).tolist()
    assert scale > 0 or world_size() == 2  # where one of two parts is empty nothing moves
    assert abs(there - back) <= 1e-14 * scale


def _check_once(way: Way, num_rows: int) -> None:
    """A second derivative is an error, not a wrong number."""
    x = _random(num_rows).requires_grad_()
    y = torch.ones_like(way(x)).requires_grad_()
    (grad,) = torch.autograd.grad(way(x), x, y, create_graph=True)
    with pytest.raises(RuntimeError, match='first derivatives only'):
        grad.sum().backward()


def _of_halo(data: Data) -> dict[str, tuple[Way, int]]:
    """The maps of a cut graph, each with its number of own rows."""
    handle = data.edge_index.handle
    shard = handle.shard
    exchange, edges = Exchange(shard), reverse(handle.ids, shard)
    blocks = [*map(shard.source_range, [*shard.parts, *(step.part for step in shard.steps)])]
    sizes = [end - start for start, end in blocks]
    own = shard.num_own

    def of_blocks(x: Tensor) -> Tensor:
        return torch.cat([rows.clone() for (rows,) in exchange.all_gather_halo([x])])

    def to_owners(grad: Tensor) -> Tensor:
        zeros = [grad.new_zeros(own, *grad.shape[1:])]
        return give_back(exchange, zeros, ([rows] for rows in grad.split(sizes)))[0]

    def from_readers(grad: Tensor) -> Tensor:
        zeros = grad.new_zeros(own, *grad.shape[1:])
        exchange.give_back([grad], [zeros])
        return zeros

    every_second = torch.arange(0, shard.num_halo, 2)
    none = torch.arange(shard.num_halo if rank() else 0)  # rank 0 reads nothing
    second, some = exchange.parts([every_second, none])
    ids = (data.n_id.repeat(2) + rank() + 1) % shard.num_nodes if rank() else data.n_id[:0]
    return {
        'block by block': (lambda x: linear(x, of_blocks, to_owners), own),
        'fetched at once': (
            lambda x: linear(x, lambda t: exchange.fetch([t])[0], from_readers),
            own,
        ),
        'all of the halo': (exchange.halo.forward, own),
        'part of the halo': (second.forward, own),
        'nothing for rank 0': (some.forward, own),
        'with_halo': (lambda x: with_halo(x, exchange), own),
        'from_halo': (lambda x: from_halo(x, exchange), own + shard.num_halo),
        'by ids': (lambda x: rows(x, ids, data.n_id), own),
        'to_reversed': (edges.edges.to_reversed, handle.num_edges),
        'to_forward': (edges.edges.to_forward, edges.edge_index.num_edges),
    }


@layouts(first=2)
@on_ranks(is_local=True)
def test_the_way_back_is_the_adjoint(data, world_size, num_parts, kind):
    for way, num_rows in _of_halo(data).values():
        _check_adjoint(way, num_rows)
        _check_once(way, num_rows)


def _num_rows() -> int:
    return (4, 0, 5)[rank()]


def _maps() -> list[RowMap]:
    """To ranks, and from ranks, which have 4, no and 5 own rows."""
    wanted = torch.tensor([[2, 4], [0, 0], [2, 1], [2, 4], [0, 3]])[: rank() * 5]
    to_ranks = RowMap.to_ranks(torch.arange(_num_rows()) * 2 % world_size())
    return [to_ranks, RowMap.from_ranks(*wanted.t().contiguous())]


@on_threads(3)
def test_adjoints_with_empty_ranks():
    for row_map in _maps():
        _check_adjoint(row_map.forward, _num_rows())
        moved = partial(linear, there=row_map.move, back=row_map.move_back)
        _check_adjoint(moved, row_map.send_index.numel())
        added = _random(_num_rows())
        gradients = _random(row_map.fetch(added).size(0), 1)
        leaf = added.clone().requires_grad_()
        row_map.give_back(gradients, added)
        (want,) = torch.autograd.grad(row_map.forward(leaf), leaf, gradients)
        assert_close(added - leaf.detach(), want, tolerance=1e-14)


@on_threads(3)
def test_rows_come_from_where_they_are_asked():
    x = (100 * rank() + torch.arange(_num_rows())).double().view(-1, 1)
    found = _maps()[1].fetch(x).view(-1)
    assert found.tolist() == [204, 0, 201, 204, 3][: rank() * 5]


@on_threads(3)
def test_the_inverse_of_a_map_to_one_place_each():
    row_map = _maps()[0]
    x = _random(_num_rows())
    assert torch.equal(row_map.inverse(row_map.fetch(x)), x)
    _check_adjoint(lambda t: linear(t, row_map.fetch, row_map.inverse), _num_rows())


@on_threads(3)
def test_rows_are_rounded_on_the_way():
    wire = Wire(torch.bfloat16)
    for row_map in _maps():
        x = _random(_num_rows()).requires_grad_()
        rounded = x.detach().bfloat16().double()
        out = row_map.forward(x, wire)
        assert torch.equal(out, row_map.forward(rounded))
        ones = torch.ones_like(out)  # their sums are representable
        (found,), leaf = torch.autograd.grad(out, x, ones), rounded.requires_grad_()
        (want,) = torch.autograd.grad(row_map.forward(leaf), leaf, ones)
        assert found.dtype == torch.float64
        assert torch.equal(found, want)


@on_threads(3)
def test_places_among_the_ids_of_all_ranks():
    ids = torch.tensor([[9, 3, 0], [], [11, 4, 10, 2]][rank()], dtype=torch.int64)
    places = places_of(ids, 14)
    assert places.tolist() == [[4, 2, 0], [], [6, 3, 5, 1]][rank()]
    assert places_of(ids[:0], 14).numel() == places_of(ids[:0], 0).numel() == 0


@pytest.mark.parametrize('one_shot', [False, True])
@layouts()
@on_ranks(by='threads', is_local=True)
def test_a_sum_over_reversed_edges(data, world_size, num_parts, kind, one_shot):
    """Of the transposed matrix."""
    rev = reverse(data.edge_index.handle.ids, data.edge_index.handle.shard)
    weight = rev.edges.to_reversed(data.edge_weight)
    x, plan = data.x.requires_grad_(), plan_of(rev.edge_index)
    out = weighted_sum(x, weight, plan, exchange_of(rev.shard), one_shot=one_shot)
    (grad,) = torch.autograd.grad(out.square().sum(), x)
    graph, matrix = small_graph(), torch.zeros(40, 40, dtype=torch.float64)
    src, dst = graph.edge_index
    matrix.index_put_((dst, src), graph.edge_weight, accumulate=True)
    want = matrix.t() @ graph.x
    assert_close(out.detach(), want[data.n_id])
    assert_close(grad, (matrix @ (2 * want))[data.n_id])
