"""Edges turned around: their sums are those of the transposed matrix, and the way back adjoint."""

from __future__ import annotations

import pytest
import torch
from layouts import layouts
from on_ranks import on_ranks
from small_graphs import assert_close, small_graph
from torch import Tensor

from pyg_sar.comm.collectives import all_reduce_sum
from pyg_sar.comm.derive_shard import reverse
from pyg_sar.comm.exchange import exchange_of
from pyg_sar.ops.weighted_sum import weighted_sum
from pyg_sar.shard.blocks import plan_of


@layouts()
@on_ranks(by='threads', is_local=True)
def test_the_way_back_is_the_adjoint(data, world_size, num_parts, kind):
    handle = data.edge_index.handle
    shard = handle.shard
    rev = reverse(handle.ids, shard)
    generator = torch.Generator().manual_seed(shard.rank)

    def normal(rows: int) -> Tensor:
        values = torch.randn(rows, 2, dtype=torch.float64, generator=generator)
        return values.requires_grad_()

    x, y = normal(handle.num_edges), normal(rev.edge_index.num_edges)
    moved, returned = rev.edges.to_reversed(x), rev.edges.to_forward(y)
    (grad_x,) = torch.autograd.grad(moved, x, y.detach())
    (grad_y,) = torch.autograd.grad(returned, y, x.detach())
    assert torch.equal(grad_x, returned)
    assert torch.equal(grad_y, moved)
    there, back = all_reduce_sum(torch.stack([(moved * y).sum(), (x * grad_x).sum()]).detach())
    assert there != 0
    assert_close(there, back, tolerance=1e-12)


@pytest.mark.parametrize('one_shot', [False, True])
@layouts()
@on_ranks(by='threads', is_local=True)
def test_a_sum_is_that_of_the_transposed_matrix(data, world_size, num_parts, kind, one_shot):
    rev = reverse(data.edge_index.handle.ids, data.edge_index.handle.shard)
    weight = rev.edges.to_reversed(data.edge_weight)
    x, plan = data.x.requires_grad_(), plan_of(rev.edge_index)
    out = weighted_sum(x, weight, plan, exchange_of(rev.shard), one_shot=one_shot)
    (grad,) = torch.autograd.grad(out.square().sum(), x)

    graph = small_graph()
    src, dst = graph.edge_index
    matrix = torch.zeros(40, 40, dtype=torch.float64)
    matrix.index_put_((dst, src), graph.edge_weight, accumulate=True)
    want = matrix.t() @ graph.x
    assert_close(out.detach(), want[data.n_id])
    assert_close(grad, (matrix @ (2 * want))[data.n_id])
