"""Norms of batches: PyG's on every rank's rows, and running statistics equal on all ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from norm_cases import CASES
from on_ranks import on_threads
from ranks import run_as_threads
from small_graphs import assert_close
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn as pyg

from pyg_sar import DistributedDataParallel
from pyg_sar.comm.ranks import rank
from pyg_sar.nn.wrap import wrap

NORMS = [
    name
    for name, case in CASES.items()
    if 'msg' not in case.rows and not (case.options or case.trailing or case.is_fixed)
    if name not in ('BatchNorm1d frozen', 'SyncBatchNorm')
]
COUNTS = [[5, 0, 7], [9, 4, 0], [6, 8, 3]]
"""Rows of every step and rank."""


class Net(nn.Module):
    """A norm in a model with a conv."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.conv = norm, pyg.SimpleConv('sum')

    def forward(self, x: Tensor, edge_index: Tensor, *groups: Tensor) -> Tensor:
        return self.conv(self.norm(x, *groups), edge_index)


def _kind(name: str) -> str:
    """What a norm takes beside rows: 'batch', 'type_vec' or nothing."""
    return ''.join(CASES[name].rows)


def _net(name: str) -> Net:
    torch.manual_seed(2)
    return Net(CASES[name].make()).double()


def _batch(step: int, number: int, kind: str) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(10 * step + number)
    count = COUNTS[step][number]
    x = torch.randn(count, 4, generator=generator, dtype=torch.float64) * (1 + number) + step
    groups = torch.arange(count) * (2 if kind == 'type_vec' else 3) // max(count, 1)
    edge_index = torch.randint(max(count, 1), (2, 2 * count), generator=generator)
    return x.requires_grad_(), edge_index, *([groups] if kind else [])


def _steps(name: str) -> list[Any]:
    """Outputs, gradients of inputs and parameters, and buffers of every step."""
    model, found = DistributedDataParallel(_net(name)), []
    for step in range(len(COUNTS)):
        x, *rest = _batch(step, rank(), _kind(name))
        out = model(x, *rest)
        model.zero_grad()
        (out * torch.arange(4)).sum().backward()
        grads = {n: p.grad for n, p in model.module.named_parameters()}
        buffers = {n: b.clone() for n, b in model.module.named_buffers()}
        found.append((out.detach(), x.grad, grads, buffers))
    return found


@pytest.mark.parametrize('name', NORMS)
def test_norms_of_batches(name: str) -> None:
    results = run_as_threads(_steps, 3, name)
    kind = _kind(name)
    net = _net(name)
    for step, counts in enumerate(COUNTS):
        before = {n: b.clone() for n, b in net.named_buffers()}
        states, total = [], {n: torch.zeros_like(p) for n, p in net.named_parameters()}
        for number, count in enumerate(counts):
            out, grad, grads, buffers = results[number][step]
            assert out.shape == grad.shape == (count, 4)
            for n, b in buffers.items():
                assert torch.equal(b, results[0][step][3][n])
                assert b.isfinite().all()
            for n, g in grads.items():
                assert torch.equal(g, results[0][step][2][n])
            if not count:
                continue
            for n, b in net.named_buffers():
                b.data = before[n].clone()
            net.zero_grad()
            x, *rest = _batch(step, number, kind)
            want = net(x, *rest)
            (want * torch.arange(4)).sum().backward()
            assert_close(out, want.detach())
            assert_close(grad, x.grad)  # of the rank's own loss
            for n, p in net.named_parameters():
                total[n] += p.grad / 3
            present = torch.ones(1)
            if kind == 'type_vec':
                present = torch.bincount(rest[1], minlength=5).bool().double()
            states.append((present, {n: b.detach().clone() for n, b in net.named_buffers()}))
        for n, g in total.items():
            assert_close(results[0][step][2][n], g)
        for n, b in net.named_buffers():
            b.data = _mean(before[n], [(w, state[n]) for w, state in states])
            assert_close(results[0][step][3][n], b)


def _mean(before: Tensor, states: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Over the ranks that had rows, of the type."""
    if before.dim() == 0:
        return states[0][1]
    total, weights = torch.zeros_like(before), torch.zeros_like(before)
    for weight, state in states:
        weight = weight.view(-1, *[1] * (before.dim() - 1)).double().expand_as(before)
        total, weights = total + weight * state, weights + weight
    return torch.where(weights > 0, total / weights.clamp(min=1), before)


@on_threads(2)
def test_a_batch_of_one_row():
    rows = torch.randn(1, 4), torch.empty(2, 0, dtype=torch.int64)
    for norm in (nn.BatchNorm1d(4), pyg.InstanceNorm(4)):
        with pytest.raises(ValueError, match='Expected more than 1'):
            DistributedDataParallel(Net(norm))(*rows)
    DistributedDataParallel(Net(pyg.BatchNorm(4, allow_single_element=True)))(*rows)


def _synced() -> tuple[Any, ...]:
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(pyg.BatchNorm(4))
    model = DistributedDataParallel(Net(norm).double())
    rows = _batch(0, rank(), '')
    out = model(*rows)
    out.square().sum().backward()
    return out.detach(), rows[0].grad, model.module.norm.module.running_var


def test_a_sync_batch_norm_is_of_all_ranks() -> None:
    results = run_as_threads(_synced, 3)
    batches = [_batch(0, number, '')[:2] for number in range(3)]
    net = Net(pyg.BatchNorm(4)).double()
    x = torch.cat([rows for rows, _ in batches]).detach().requires_grad_()
    edges = torch.cat([batches[0][1], batches[2][1] + 5], dim=1)
    out = net(x, edges)
    out.square().sum().backward()
    assert_close(torch.cat([result[0] for result in results]), out.detach())
    assert_close(torch.cat([result[1] for result in results]), x.grad)
    for result in results:
        assert_close(result[2], net.norm.module.running_var)


def _without_a_backward() -> list[Tensor]:
    """Batches in training, and then evaluation: of a wrapped model, which nothing averages."""
    net = wrap(Net(nn.BatchNorm1d(4)).double())
    for step in range(2):
        with torch.no_grad():
            net(*_batch(step, rank(), ''))
    before = net.norm.running_mean.clone()
    net.eval()
    out = net(*_batch(2, rank(), ''))
    return [before, net.norm.running_mean, net.norm.running_var, net.norm.num_batches_tracked, out]


def test_running_statistics_that_no_backward_followed() -> None:
    results = run_as_threads(_without_a_backward, 3)
    assert not torch.equal(results[0][0], results[2][0])
    mean = torch.stack([before for before, *_ in results]).mean(0)
    for _, running_mean, running_var, count, _ in results:
        assert_close(running_mean, mean)
        assert torch.equal(running_mean, results[0][1])
        assert torch.equal(running_var, results[0][2])
        assert int(count) == 1  # of 2, 1 and 1


class Checkpointed(nn.Module):
    """A norm that a checkpoint computes again in backward."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.conv, self.norm = pyg.SAGEConv(4, 4), pyg.GraphNorm(4)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.conv(x, edge_index)
        if self.use_reentrant is None:
            return self.norm(h).tanh()
        return checkpoint(lambda h: self.norm(h).tanh(), h, use_reentrant=self.use_reentrant)


def _checkpointed(use_reentrant: bool | None) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Checkpointed(use_reentrant=use_reentrant).double())
    for step in range(2):
        model(*_batch(step, rank(), '')).square().sum().backward()
    return {name: p.grad for name, p in model.module.named_parameters()}


@pytest.mark.parametrize('use_reentrant', [True, False])
def test_checkpoints_compute_the_same_again(use_reentrant: bool) -> None:
    want = run_as_threads(_checkpointed, 3, None)[0]
    for found in run_as_threads(_checkpointed, 3, use_reentrant):
        for name, gradient in want.items():
            assert_close(found[name], gradient)
