"""Norms on rows of all ranks: few rows, wrong shapes, accuracy, classes of users; of messages."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from alike import Wrap, as_one_process, parallel
from copied_modules import WAYS, copied
from few import few
from graphs import awkward_graph
from norm_models import GIVEN
from norm_models import NORMS as OF_MODELS
from on_ranks import on_ranks, on_threads
from ranks import run_as_threads
from rows_by_hand import as_rows, sharding_of
from small_graphs import assert_close
from sum_conv import SumConv
from torch import Tensor
from torch_geometric.nn import GraphNorm, SAGEConv, Sequential

from pyg_sar import DistributedDataParallel, gather
from pyg_sar.ops.batch_norm import _local_moments


@pytest.mark.parametrize('counts', [[0, 0, 0], [0, 1, 0], [1, 0, 0]], ids=str)
@on_ranks(3, 0)
def test_fewer_than_two_rows(counts):
    module = DistributedDataParallel(torch.nn.BatchNorm1d(4).double())
    x = as_rows(torch.randn(sum(counts), 4, dtype=torch.float64), sharding_of(counts))
    with pytest.raises(ValueError, match=rf'on all ranks together.*\(got {sum(counts)}\)'):
        module(x)
    assert gather(module.eval()(x).detach()).size(0) == sum(counts)


@on_threads(2)
def test_wrong_dimensions():
    for shape in ((4,), (4, 4, 3, 3)):
        with pytest.raises(ValueError, match='expected 2D or 3D input'):
            torch.nn.BatchNorm1d(4)(as_rows(torch.randn(shape), sharding_of([2, 2])))


OFFSETS = {
    'float64, mean 1e8': (torch.float64, 1e8, 1.0),
    'float64, mean 1e4, deviation 1e-4': (torch.float64, 1e4, 1e-4),
    'float32, mean 1e3': (torch.float32, 1e3, 1.0),
    'float32, mean 1e4, deviation 0.1': (torch.float32, 1e4, 0.1),
}


def _far_from_zero(dtype: torch.dtype, mean: float, deviation: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=generator, dtype=torch.float64) * deviation + mean
    grad = torch.randn(300, 4, generator=generator, dtype=torch.float64)
    grad = grad + (x - mean) / deviation
    # Unequal means on the ranks, so that their deviations from the common one count.
    x[:100] += deviation
    return x.to(dtype), grad.to(dtype)


def _run_far_from_zero(dtype: torch.dtype, mean: float, deviation: float) -> tuple[Tensor, ...]:
    sharding = sharding_of([40, 190, 70])
    x, grad = (as_rows(t, sharding) for t in _far_from_zero(dtype, mean, deviation))
    module = torch.nn.BatchNorm1d(4, momentum=1.0, eps=1e-30).to(dtype)
    out = module(x.requires_grad_())
    (out * grad).sum().backward()
    return gather(out.detach()), gather(x.grad), module.running_mean, module.running_var


def _reference(x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """In float64, the mean subtracted first: no cancellation."""
    x, grad = x.double(), grad.double()
    mean = x[0] + (x - x[0]).mean(0)
    x = (x - mean).requires_grad_()
    module = torch.nn.BatchNorm1d(4, momentum=1.0, eps=1e-30).double()
    out = module(x)
    out.backward(grad)
    return out.detach(), x.grad, mean, module.running_var


@pytest.mark.parametrize('case', OFFSETS)
def test_large_mean_and_small_variance(case):
    """As accurate as the input allows: the mean is known to one rounding of its dtype."""
    dtype, mean, deviation = OFFSETS[case]
    out, grad_x, running_mean, running_var = _reference(*_far_from_zero(dtype, mean, deviation))
    rounding = torch.finfo(dtype).eps * mean / deviation
    scale = grad_x.abs().max()
    for found in run_as_threads(_run_far_from_zero, 3, dtype, mean, deviation):
        found = [t.double() for t in found]
        assert_close(found[0], out, tolerance=4 * rounding)
        assert_close(found[1] / scale, grad_x / scale, tolerance=4 * rounding)
        assert_close(found[2] / mean, running_mean / mean, tolerance=4 * rounding)
        assert_close(found[3] / deviation**2, running_var / deviation**2, tolerance=rounding)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16])
def test_moments_of_many_chunks(dtype: torch.dtype) -> None:
    rows = (torch.randn(997, 5, dtype=torch.float64) * 3 + 20).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    mean, squares = _local_moments(rows, wide, 1000)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert_close(mean, rows.double().mean(0), tolerance=tolerance)
    assert_close(squares / 997, rows.double().var(0, correction=0), tolerance=tolerance)


# Norms of classes that users derive


class SlowNorm(torch.nn.BatchNorm1d):
    """Other defaults."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, momentum=0.01)


class NamedNorm(GraphNorm):
    """More methods."""

    def scale(self) -> Tensor:
        return self.weight


class DoubledNorm(torch.nn.BatchNorm1d):
    """Another forward."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


NORMS = {
    'batch': lambda: SlowNorm(8),
    'graph': lambda: NamedNorm(8),
    'another forward': lambda: DoubledNorm(8),
    'lazy': torch.nn.LazyBatchNorm1d,
}


CASES = [*product(NORMS, ['']), *product(['batch', 'graph', 'another forward'], WAYS[:2])]
"""torch itself cannot copy lazy norms."""


@pytest.mark.parametrize(('name', 'way'), CASES)
@as_one_process(tolerance=1e-12)
def test_a_subclass_is_of_all_ranks(data: Any, wrap: Wrap, name: str, way: str) -> list[Tensor]:
    layers = [(SAGEConv(6, 8), 'x, edge_index -> x'), NORMS[name]()]
    model = wrap(Sequential('x, edge_index', layers).double())
    model = copied(model, way) if way else model
    assert type(model[1]) is type(NORMS[name]()) or name == 'lazy'
    return [
        model.train(is_training)(data.x, data.edge_index).detach() for is_training in (True, False)
    ]


# Norms of messages: their statistics are those of the messages of all edges


class NormInMessage(SumConv):
    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def message(self, x_j: Tensor) -> Tensor:
        # Random numbers: nothing could be compared.
        return torch.nn.functional.dropout(self.norm(x_j), 1e-9).tanh()


IN_MESSAGES = [
    *product(sorted(set(OF_MODELS) - set(GIVEN)), [(True,), (False,)], ['sequential']),
    *few(product(['BatchNorm1d'], [(True,), (False,)], ['one_shot']), every=3),
    *few(product(['BatchNorm1d'], [(False, True), (False, False)], ['sequential', 'one_shot']), 2),
]


@pytest.mark.parametrize(('name', 'modes', 'mode'), IN_MESSAGES)
@as_one_process(graph=awkward_graph, ranks=(1, 3), tolerance=1e-12)
def test_norms_in_messages(
    data: Any, wrap: Wrap, name: str, modes: tuple[bool, ...], mode: Any
) -> list[Tensor]:
    """Forwards in training or in evaluation, at once and after an evaluation; and the buffers."""
    conv: Any = NormInMessage(OF_MODELS[name]()).double()
    if name == 'BatchNorm1d':
        conv.norm.running_mean.fill_(0.3)
        conv.norm.running_var.fill_(2.0)
    model = parallel(conv, wrap, mode=mode)
    found = [model.train(each)(data.x, data.edge_index).detach() for each in modes]
    return [*found, *conv.buffers()]
