"""The gradient of every training program is that of one process of plain PyG."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ddp_model import make_model
from few import few
from gradient_programs import PROGRAMS, run_program
from on_ranks import on_ranks
from ranks import run_once, run_ranks
from small_graphs import assert_close, assign, attempt, cut, small_graph
from torch import Tensor
from torch_geometric.data import Data

import pyg_sar
from pyg_sar import DistributedDataParallel
from pyg_sar.comm.errors import PartedError


@pytest.fixture(scope='module')
def graph() -> Data:
    return small_graph()


@pytest.fixture(scope='module')
def roots(graph: Data, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    folder = tmp_path_factory.mktemp('gradients')
    return {size: str(cut(graph, size, folder / str(size))) for size in (1, 2, 3)}


def _of_rank(root: str, name: str, parts: list[Tensor], x: Tensor) -> dict[str, Any]:
    data = pyg_sar.load_shard(root)
    assert torch.equal(pyg_sar.local(data.n_id), parts[dist.get_rank()])
    return run_program(name, data, parts, x)


@pytest.mark.parametrize(
    'world_size', [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2)), 3]
)
@pytest.mark.parametrize('name', few(PROGRAMS, every=4))
def test_program(name: str, world_size: int, graph: Data, roots: dict[int, str]) -> None:
    owner = assign(graph.num_nodes, world_size)
    parts = [(owner == rank).nonzero().view(-1) for rank in range(world_size)]
    want = run_program(name, graph.clone(), parts, graph.x)
    results = run_ranks(_of_rank, world_size, roots[world_size], name, parts, graph.x)
    for rank, found in enumerate(results):
        for key in ('parameters', 'gradients'):
            for a, b, first in zip(found[key], want[key], results[0][key], strict=True):
                assert (a is None) == (b is None)
                if b is not None:
                    assert_close(a, b, tolerance=1e-10)
                    assert torch.equal(a, first), 'the ranks differ'
        for (value, gradient), (a, b) in zip(found['rows'], want['rows'], strict=True):
            assert_close(value, a[parts[rank]], tolerance=1e-10)
            assert_close(gradient, b[parts[rank]], tolerance=1e-10)
    assert want['parameters']


@on_ranks(3)
def test_autograd_grad_that_nothing_would_sum_is_refused(data):
    model = DistributedDataParallel(make_model())
    parameters = list(model.parameters())
    loss = model(data.x, data.edge_index).square().mean()
    penalty = sum(p.square().sum() for p in parameters)
    with pytest.raises(RuntimeError, match='share'):
        torch.autograd.grad(penalty, parameters, create_graph=True)
    with model.no_sync(), pytest.raises(RuntimeError, match='share'):
        torch.autograd.grad(loss, parameters)


@on_ranks(3, by='threads')
def test_a_loss_of_one_rank_that_reads_a_value_of_the_whole(data):
    """Its gradient of that value is another one on every rank."""
    x = data.x.clone().requires_grad_()
    (pyg_sar.local(x).sum() * x.square().sum()).backward()
    with pytest.raises(PartedError, match='gradient of a sum over all ranks'):
        data.x.sum()


@on_ranks(2, 0)
def test_create_graph_is_refused():
    model = DistributedDataParallel(make_model())
    loss = model.module.head(torch.ones(2, 8).double()).square().sum()
    with pytest.raises(RuntimeError, match='create_graph'):
        loss.backward(create_graph=True)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        raise ValueError('not today')


def _failing_once(root: str) -> tuple[str, list[Tensor], int]:
    """A backward that fails on all ranks after some parameters have their gradients."""
    data = pyg_sar.load_shard(root)
    model = DistributedDataParallel(make_model())
    calls: list[Tensor] = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(calls.append)
    out = model(Fails.apply(data.x.clone().requires_grad_()), data.edge_index)
    outcome = attempt(out.square().mean().backward)
    assert not calls
    model.zero_grad()
    model(data.x, data.edge_index).square().mean().backward()
    return outcome, [p.grad for p in model.parameters()], len(calls)


def test_a_backward_that_failed_leaves_nothing_behind(graph: Data, roots: dict[int, str]) -> None:
    model = make_model()
    for _ in range(2):  # running statistics aside, the first does not count
        model.zero_grad()
        model(graph.x, graph.edge_index).square().mean().backward()
    for outcome, gradients, num_calls in run_ranks(_failing_once, 3, roots[3]):
        assert outcome == 'ValueError: not today'
        assert num_calls == len(gradients)
        for found, p in zip(gradients, model.parameters(), strict=True):
            assert_close(found, p.grad, tolerance=1e-10)


_SENDING = 'all_reduce', 'all_gather'


def _counted(root: str) -> list[int]:
    """Messages of a loss, of backward inside no_sync, of backward; of rows that are centred."""
    data = pyg_sar.load_shard(root)
    model = DistributedDataParallel(make_model())
    counts = []
    sum_, gather = (mock.patch.object(dist, n, wraps=getattr(dist, n)) for n in _SENDING)
    with sum_ as all_reduce, gather as all_gather:

        def count() -> None:
            counts.append(all_reduce.call_count + all_gather.call_count - sum(counts))

        out = model.module.second(model.module.first(data.x, data.edge_index), data.edge_index)
        counts.append(all_reduce.call_count + all_gather.call_count)
        loss = out.square().mean()
        count()
        with model.no_sync():
            loss.backward(retain_graph=True)
        count()
        loss.backward()
        count()
        head = DistributedDataParallel(torch.nn.Linear(6, 3).double())
        for _ in range(3):  # a sum that followed before is announced
            count()
            hidden = head(data.x)
            loss = (hidden - hidden.mean(0)).square().mean()
            count()
            loss.backward()
            count()
    return [*counts[:4], *counts[-2:]]


def test_one_reduction_per_backward(roots: dict[int, str]) -> None:
    """And one by the mean in forward; a plain tensor that meets rows takes one in backward."""
    for _, loss, without, with_sum, *centred in run_once(_counted, 3, roots[3]):
        assert loss == 1
        assert with_sum == without + 2  # and the one that collectives begin with
        assert centred == [2, 2]
    assert run_ranks(_counted, 1, roots[1])[0][1:] == [0] * 5


def _drawn(root: str) -> tuple[Tensor, Tensor, Tensor]:
    data, generator = pyg_sar.load_shard(root), torch.Generator().manual_seed(3)
    keep = torch.bernoulli(torch.full_like(data.x, 0.5), generator=generator)
    noise = torch.empty_like(data.x).normal_(generator=generator)
    both = torch.normal(noise, 1.0, generator=generator)
    return pyg_sar.gather(keep), pyg_sar.gather(both), torch.rand(3, generator=generator)


def test_rows_that_a_generator_draws(roots: dict[int, str]) -> None:
    """They differ from rank to rank, and what is drawn later for the whole is equal."""
    results = run_ranks(_drawn, 3, roots[3])
    for found in results:
        for a, b in zip(found, results[0], strict=True):
            assert torch.equal(a, b)
    keep, noise, _ = results[0]
    assert 0.3 < keep.mean() < 0.7
    assert len(noise.unique()) == noise.numel()
