"""Edges turned around: each once, at the owner of its source, with its values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from ranks import run_as_threads
from small_graphs import assemble, assert_close, cut
from small_graphs import small_graph as graph
from torch import Tensor

import pyg_sar
from pyg_sar import partition_graph
from pyg_sar.aggregate.weighted_sum import weighted_sum
from pyg_sar.comm import Exchange
from pyg_sar.comm.reshard.reverse_edges import reverse
from pyg_sar.shard.plan import plan_of

LAYOUTS = [(1, 1), (1, 3), (2, 2), (3, 3), (2, 6), (4, 4), (4, 8)]
"""World sizes and numbers of parts."""

layouts = pytest.mark.parametrize(
    ('world_size', 'num_parts'), LAYOUTS, ids=lambda n: str(n) if isinstance(n, int) else None
)


def _on_ranks(world_size: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    return [fn(*args)] if world_size == 1 else run_as_threads(fn, world_size, *args)


def _adjoint(root: Path) -> dict[str, float]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    shard = data.edge_index.shard
    rev = reverse(data.edge_index, shard)
    generator = torch.Generator().manual_seed(shard.rank)

    def normal(rows: int) -> Tensor:
        values = torch.randn(rows, 2, dtype=torch.float64, generator=generator)
        return values.requires_grad_()

    x, y = normal(data.edge_index.size(1)), normal(rev.edge_index.size(1))
    moved, returned = rev.edges.to_reversed(x), rev.edges.to_forward(y)
    (grad_x,) = torch.autograd.grad(moved, x, y.detach())
    (grad_y,) = torch.autograd.grad(returned, y, x.detach())
    assert torch.equal(grad_x, returned)
    assert torch.equal(grad_y, moved)
    return {'<Ax, y>': (moved * y).sum().item(), "<x, A'y>": (x * grad_x).sum().item()}


@layouts
def test_the_way_back_is_the_adjoint(world_size: int, num_parts: int, tmp_path: Path) -> None:
    answers = _on_ranks(world_size, _adjoint, cut(graph(), num_parts, tmp_path / 'parts'))
    there, back = (sum(answer[side] for answer in answers) for side in ('<Ax, y>', "<x, A'y>"))
    assert there != 0
    assert there == pytest.approx(back, rel=1e-13, abs=1e-12)


def _transposed(root: Path, one_shot: bool) -> tuple[Tensor, Tensor, Tensor]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    rev = reverse(data.edge_index, data.edge_index.shard)
    weight = rev.edges.to_reversed(data.edge_weight)
    plan = plan_of(rev.edge_index, rev.shard)
    x = data.x.requires_grad_()
    out = weighted_sum(x, weight, plan, Exchange(rev.shard), one_shot=one_shot)
    (grad,) = torch.autograd.grad(out.square().sum(), x)
    return data.n_id, out.detach(), grad


@pytest.mark.parametrize('method', few(['metis', 'random', 'empty part']))
@pytest.mark.parametrize('one_shot', [False, True])
@layouts
def test_a_sum_is_that_of_the_transposed_matrix(
    world_size: int, num_parts: int, one_shot: bool, method: str, tmp_path: Path
) -> None:
    data = graph()
    if method == 'empty part':
        root = cut(data, num_parts, tmp_path / 'parts', method)
    else:
        root = tmp_path / 'parts'
        partition_graph(data, num_parts, root, method=method)
    answers = _on_ranks(world_size, _transposed, root, one_shot)

    src, dst = data.edge_index
    matrix = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.float64)
    matrix.index_put_((dst, src), data.edge_weight, accumulate=True)
    out = matrix.t() @ data.x
    assert_close(assemble([a[:2] for a in answers], data.num_nodes), out)
    assert_close(assemble([(a[0], a[2]) for a in answers], data.num_nodes), matrix @ (2 * out))
