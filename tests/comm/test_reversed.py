"""Edges turned around: each once, at the owner of its source, with its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from hetero_graphs import WRITES, hetero_graph
from ranks import run_as_threads
from small_graphs import ASSIGNMENTS, assemble, assert_all_raise, assert_close, attempt, cut
from small_graphs import small_graph as graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops

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


def _with_loops(data: Data) -> tuple[Tensor, Tensor]:
    """The edge_index with a self loop more per node, and an id of every edge of the graph.

    Loops have the ids after those of the edges.
    """
    edge_index, _ = add_self_loops(data.edge_index, num_nodes=data.num_nodes)
    return edge_index, torch.cat([data.e_id, 10_000 + data.n_id])


def _sources(shard: Any, n_id: Tensor) -> Tensor:
    """Original ids of all local ids of a shard."""
    return torch.cat([n_id, *Exchange(shard).fetch_all([n_id])])


def _moved(root: Path) -> dict[str, Any]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    edge_index, ids = _with_loops(data)
    rev = reverse(edge_index, data.edge_index.shard)
    n_id = _sources(rev.shard, data.n_id)
    assert rev.edge_index.is_whole
    assert rev.edge_index.shard is rev.shard
    ids_rev = rev.edges.to_reversed(ids)
    # Of every type and shape: one row per edge comes back bit for bit.
    for values in (
        ids,
        ids.to(torch.int8),
        ids % 2 == 0,
        ids.view(-1, 1, 1).half().expand(-1, 2, 3),
    ):
        back = rev.edges.to_forward(rev.edges.to_reversed(values))
        assert back.dtype == values.dtype
        assert torch.equal(back, values)
    halo = rev.edge_index.as_subclass(Tensor)[0].unique()
    return {
        'ids': ids_rev,
        'edges': n_id[rev.edge_index.as_subclass(Tensor)].t(),
        'reads all of its halo': int((halo >= rev.shard.num_own).sum()) == rev.shard.num_halo,
        'blocks': [
            (block.num_edges, block.num_rows, block.edge_index.tolist())
            for block in plan_of(rev.edge_index, rev.shard).blocks
        ],
        'sorted blocks': [
            (block.num_edges, block.num_rows, block.edge_index.tolist())
            for block in plan_of(
                rev.edge_index.as_subclass(Tensor).clone(), replace(rev.shard, cache={})
            ).blocks
        ],
    }


@layouts
@pytest.mark.parametrize('kind', few(ASSIGNMENTS))
def test_every_edge_once_at_the_owner_of_its_source(
    world_size: int, num_parts: int, kind: str, tmp_path: Path
) -> None:
    data = graph()
    root = cut(data, num_parts, tmp_path / 'parts', kind)
    answers = _on_ranks(world_size, _moved, root)
    ids = torch.cat([answer['ids'] for answer in answers])
    nodes = torch.arange(data.num_nodes)
    expected = dict(enumerate(data.edge_index.t().tolist()))
    expected.update({10_000 + n: [n, n] for n in nodes.tolist()})
    assert sorted(ids.tolist()) == sorted(expected)
    edges = torch.cat([answer['edges'] for answer in answers]).tolist()
    for edge, (old_dst, old_src) in zip(ids.tolist(), edges, strict=True):
        assert expected[edge] == [old_src, old_dst]
    for answer in answers:
        assert answer['reads all of its halo']
        assert answer['blocks'] == answer['sorted blocks']


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


def _wrong(root: Path) -> tuple[str, str, str]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    shard = data.edge_index.shard
    rev = reverse(data.edge_index, shard)
    bad = data.edge_index.as_subclass(Tensor).clone()
    if shard.rank == shard.world_size - 1:
        bad[1, 0] = shard.num_own
    return (
        attempt(reverse, bad, shard),
        attempt(reverse, data.edge_index.as_subclass(Tensor)[0].double(), shard),
        attempt(rev.edges.to_reversed, torch.ones(data.edge_index.size(1) + 1)),
    )


@pytest.mark.parametrize('world_size', [1, 2])
def test_wrong_input_raises_on_all_ranks(world_size: int, tmp_path: Path) -> None:
    answers = _on_ranks(world_size, _wrong, cut(graph(), 2, tmp_path / 'parts'))
    ids, dtype, rows = zip(*answers, strict=True)
    assert_all_raise(ids, 'ValueError', 'local ids in [0, ')
    assert_all_raise(dtype, 'ValueError', "int64 'edge_index' of shape [2, E]")
    assert_all_raise(rows, 'ValueError', 'one row per edge')


def _reverse_bipartite(root: Path) -> tuple[Tensor, Tensor]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    edges, authors, papers = data[WRITES], data['author'].n_id, data['paper'].n_id
    shard = edges.edge_index.shard
    rev = reverse(edges.edge_index, shard, shard.e_id)
    assert (rev.shard.num_own, rev.shard.num_dst) == (papers.numel(), authors.numel())
    ends = rev.edge_index.as_subclass(Tensor)
    ids = torch.stack([_sources(rev.shard, papers)[ends[0]], authors[ends[1]]])
    assert torch.equal(rev.edges.to_reversed(shard.e_id), rev.shard.e_id)
    values = torch.randn(edges.edge_index.size(1), dtype=torch.float64)
    assert torch.equal(rev.edges.to_forward(rev.edges.to_reversed(values)), values)
    plan_of(rev.edge_index, rev.shard)
    twice = reverse(rev.edge_index, rev.shard)
    moved = twice.edges.to_reversed(rev.shard.e_id)
    assert torch.equal(moved.sort().values, shard.e_id.sort().values)
    return ids, rev.shard.e_id


@pytest.mark.parametrize(('world_size', 'num_parts'), [(1, 2), (3, 3), (3, 6)])
def test_bipartite(world_size: int, num_parts: int, tmp_path: Path) -> None:
    whole, root = hetero_graph(), tmp_path / 'parts'
    partition_graph(whole, num_parts, root, method='random')
    ids, e_id = zip(*_on_ranks(world_size, _reverse_bipartite, root), strict=True)
    edges = torch.cat(e_id)
    edge_index = whole[WRITES].edge_index
    assert torch.equal(edges.sort().values, torch.arange(edge_index.size(1)))
    assert torch.equal(torch.cat(ids, dim=1), edge_index.flip(0)[:, edges])
