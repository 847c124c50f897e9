"""GlobalBatchNorm on all ranks' rows is BatchNorm1d on one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from small_graphs import assert_all_raise, assert_close, attempt
from torch import Tensor

from pyg_sar.norm import GlobalBatchNorm
from pyg_sar.over_all_nodes.batch_norm import _local_moments

COUNTS = {1: [11], 2: [3, 8], 3: [6, 0, 5], 4: [1, 7, 2, 1]}
"""Rows of every rank: unequal, one, none."""

OPTIONS: dict[str, dict[str, Any]] = {
    'default': {},
    'momentum 0.5': {'momentum': 0.5},
    'momentum None': {'momentum': None},
    'not affine': {'affine': False},
    'no running statistics': {'track_running_stats': False},
    'eps': {'eps': 0.5},
}


def _batches(
    num_rows: int, trailing: tuple[int, ...] = (), dtype: torch.dtype = torch.float64
) -> list[tuple[Tensor, Tensor]]:
    """Input and output gradient of three steps."""
    generator = torch.Generator().manual_seed(num_rows)
    shape = (num_rows, 4, *trailing)
    return [
        tuple(
            (torch.randn(shape, generator=generator, dtype=torch.float64) * (i + 1) + i).to(dtype)
            for _ in range(2)
        )
        for i in range(3)
    ]


def _make(options: dict[str, Any], dtype: torch.dtype = torch.float64) -> torch.nn.BatchNorm1d:
    module = torch.nn.BatchNorm1d(4, **options).to(dtype)
    if module.affine:
        with torch.no_grad():
            module.weight.copy_(torch.tensor([0.5, -1.0, 2.0, 1.5]))
            module.bias.copy_(torch.tensor([1.0, 0.0, -3.0, 0.25]))
    return module


def _run(
    module: torch.nn.Module, batches: list[tuple[Tensor, Tensor]], rows: slice
) -> list[dict[str, Tensor]]:
    """Training steps on some rows, then an evaluation on them: output, gradients, buffers."""
    results = []
    for x, grad in [*batches, batches[0]]:
        is_training = len(results) < len(batches)
        module.train(is_training)
        x = x[rows].clone().requires_grad_()
        module.zero_grad()
        out = module(x)
        out.backward(grad[rows])
        result = {'out': out.detach(), 'x': x.grad}
        result |= {name: p.grad.clone() for name, p in module.named_parameters()}
        result |= {f'buffer {name}': b.clone() for name, b in module.named_buffers()}
        results.append(result)
    return results


def _run_rank(
    options: dict[str, Any], counts: list[int], trailing: tuple[int, ...], dtype: torch.dtype
) -> list[dict[str, Tensor]]:
    rank = dist.get_rank()
    start = sum(counts[:rank])
    module = GlobalBatchNorm.convert(_make(options, dtype))
    batches = _batches(sum(counts), trailing, dtype)
    return _run(module, batches, slice(start, start + counts[rank]))


def _check(
    options: dict[str, Any],
    counts: list[int],
    trailing: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-12,
) -> None:
    results = run_ranks(_run_rank, len(counts), options, counts, trailing, dtype)
    batches = _batches(sum(counts), trailing, dtype)
    expected = _run(_make(options, dtype), batches, slice(None))
    for step, want in enumerate(expected):
        found = [result[step] for result in results]
        assert all(set(f) == set(want) for f in found)
        for name, value in want.items():
            pieces = [f[name] for f in found]
            if name in ('out', 'x'):
                assert_close(torch.cat(pieces), value, tolerance=tolerance)
            elif name.startswith('buffer'):
                for piece in pieces:
                    assert torch.equal(piece, pieces[0]), name
                    assert_close(piece, value, tolerance=tolerance)
            else:
                assert_close(torch.stack(pieces).sum(0), value, tolerance=tolerance)


@pytest.mark.parametrize('world_size', COUNTS)
@pytest.mark.parametrize('options', OPTIONS)
def test_is_batch_norm_of_all_rows(options, world_size):
    """Output, all gradients and running statistics over three steps, then evaluation."""
    _check(OPTIONS[options], COUNTS[world_size])


@pytest.mark.parametrize('options', ['default', 'not affine', 'no running statistics'])
def test_three_dimensions(options):
    _check(OPTIONS[options], COUNTS[3], (5,))


def test_float32():
    _check({}, COUNTS[3], dtype=torch.float32, tolerance=2e-5)


def test_float32_three_dimensions():
    _check({}, COUNTS[2], (3,), dtype=torch.float32, tolerance=2e-5)


@pytest.mark.parametrize('counts', [[2, 0, 0], [0, 1, 1], [1, 0, 1]], ids=str)
def test_two_rows_are_enough(counts):
    _check({}, counts)


def _too_few(counts: list[int]) -> tuple[list[str], bool, Tensor]:
    rank = dist.get_rank()
    module = GlobalBatchNorm.convert(_make({}))
    x = torch.randn(counts[rank], 4, dtype=torch.float64)
    outcomes = [attempt(module, x)]
    untouched = int(module.num_batches_tracked) == 0
    dist.all_reduce(torch.ones(1))
    module.eval()
    return outcomes, untouched, module(x)


@pytest.mark.parametrize('counts', [[0, 0, 0], [0, 1, 0], [1, 0, 0]], ids=str)
def test_fewer_than_two_rows(counts):
    results = run_ranks(_too_few, 3, counts)
    message = f'expected more than 1 row on all ranks together when training (got {sum(counts)})'
    assert_all_raise([outcomes[0] for outcomes, _, _ in results], 'ValueError', message)
    assert all(untouched for _, untouched, _ in results)
    assert [out.size(0) for _, _, out in results] == counts


def _wrong_shapes() -> list[str]:
    module = GlobalBatchNorm.convert(_make({}))
    return [attempt(module, torch.randn(shape)) for shape in ((4,), (2, 4, 3, 3))]


def test_wrong_dimensions():
    for outcomes in run_ranks(_wrong_shapes, 2):
        assert_all_raise(outcomes, 'ValueError', 'expected 2D or 3D input')


def _input_without_grad(counts: list[int]) -> tuple[Tensor, Tensor]:
    rank = dist.get_rank()
    start = sum(counts[:rank])
    (x, grad) = _batches(sum(counts))[0]
    module = GlobalBatchNorm.convert(_make({}))
    module(x[start : start + counts[rank]]).backward(grad[start : start + counts[rank]])
    return module.weight.grad, module.bias.grad


def test_input_that_needs_no_gradient():
    counts = COUNTS[3]
    (x, grad) = _batches(sum(counts))[0]
    module = _make({})
    module(x).backward(grad)
    results = run_ranks(_input_without_grad, 3, counts)
    assert_close(sum(weight for weight, _ in results), module.weight.grad)
    assert_close(sum(bias for _, bias in results), module.bias.grad)


def _frozen(counts: list[int]) -> Tensor:
    rank = dist.get_rank()
    start = sum(counts[:rank])
    (x, grad) = _batches(sum(counts))[0]
    module = GlobalBatchNorm.convert(_make({})).requires_grad_(False)
    x = x[start : start + counts[rank]].clone().requires_grad_()
    module(x).backward(grad[start : start + counts[rank]])
    assert module.weight.grad is None
    return x.grad


def test_frozen_parameters():
    counts = COUNTS[3]
    (x, grad) = _batches(sum(counts))[0]
    x = x.clone().requires_grad_()
    _make({})(x).backward(grad)
    assert_close(torch.cat(run_ranks(_frozen, 3, counts)), x.grad)


OFFSETS = {
    'float64, mean 1e8': (torch.float64, 1e8, 1.0),
    'float64, mean 1e4, deviation 1e-4': (torch.float64, 1e4, 1e-4),
    'float32, mean 1e3': (torch.float32, 1e3, 1.0),
    'float32, mean 1e4, deviation 0.1': (torch.float32, 1e4, 0.1),
}


def _far_from_zero(
    dtype: torch.dtype, mean: float, deviation: float
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=generator, dtype=torch.float64) * deviation + mean
    grad = torch.randn(300, 4, generator=generator, dtype=torch.float64)
    grad = grad + (x - mean) / deviation
    # Unequal means on the ranks, so that their deviations from the common one count.
    x[:100] += deviation
    return x.to(dtype), grad.to(dtype), torch.tensor([0, 40, 230, 300])


def _run_far_from_zero(dtype: torch.dtype, mean: float, deviation: float) -> tuple[Tensor, ...]:
    x, grad, ptr = _far_from_zero(dtype, mean, deviation)
    rows = slice(int(ptr[dist.get_rank()]), int(ptr[dist.get_rank() + 1]))
    module = GlobalBatchNorm(4, momentum=1.0, eps=1e-30).to(dtype)
    x = x[rows].clone().requires_grad_()
    out = module(x)
    out.backward(grad[rows])
    return out.detach(), x.grad, module.running_mean, module.running_var


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
    x, grad, _ = _far_from_zero(dtype, mean, deviation)
    results = run_ranks(_run_far_from_zero, 3, dtype, mean, deviation)
    out, grad_x, running_mean, running_var = _reference(x, grad)
    rounding = torch.finfo(dtype).eps * mean / deviation
    pieces = [torch.cat([result[i] for result in results]).double() for i in (0, 1)]
    assert_close(pieces[0], out, tolerance=4 * rounding)
    scale = grad_x.abs().max()
    assert_close(pieces[1] / scale, grad_x / scale, tolerance=4 * rounding)
    for result in results:
        assert_close(result[2].double() / mean, running_mean / mean, tolerance=4 * rounding)
        assert_close(
            result[3].double() / deviation**2, running_var / deviation**2, tolerance=rounding
        )


def test_conversion_shares_parameters_and_buffers():
    module = _make({'momentum': 0.3, 'eps': 1e-3}).eval()
    converted = GlobalBatchNorm.convert(module)
    assert converted.weight is module.weight
    assert converted.bias is module.bias
    assert converted.running_mean is module.running_mean
    assert converted.running_var is module.running_var
    assert converted.num_batches_tracked is module.num_batches_tracked
    assert (converted.momentum, converted.eps, converted.training) == (0.3, 1e-3, False)
    assert list(converted.state_dict()) == list(module.state_dict())
    assert isinstance(converted, torch.nn.BatchNorm1d)


@pytest.mark.parametrize('options', OPTIONS)
def test_conversion_keeps_options(options):
    module = _make(OPTIONS[options])
    converted = GlobalBatchNorm.convert(module)
    for name in ('num_features', 'eps', 'momentum', 'affine', 'track_running_stats'):
        assert getattr(converted, name) == getattr(module, name)
    assert list(converted.state_dict()) == list(module.state_dict())
    assert [b is None for b in converted._buffers.values()] == [
        b is None for b in module._buffers.values()
    ]


def test_one_process_is_batch_norm():
    for options in OPTIONS.values():
        batches = _batches(9)
        found = _run(GlobalBatchNorm.convert(_make(options)), batches, slice(None))
        want = _run(_make(options), batches, slice(None))
        for a, b in zip(found, want, strict=True):
            assert list(a) == list(b)
            assert all(torch.equal(a[name], b[name]) for name in a)


def test_state_moves_both_ways():
    plain = _make({})
    plain(torch.randn(5, 4, dtype=torch.float64))
    converted = GlobalBatchNorm(4).double()
    converted.load_state_dict(plain.state_dict())
    again = torch.nn.BatchNorm1d(4).double()
    again.load_state_dict(converted.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16])
def test_moments_of_many_chunks(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr('pyg_sar.over_all_nodes.batch_norm._CHUNK_BYTES', 1000)
    rows = (torch.randn(997, 5, dtype=torch.float64) * 3 + 20).to(dtype)
    mean, squares = _local_moments(rows, torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert_close(mean, rows.double().mean(0), tolerance=tolerance)
    assert_close(squares / 997, rows.double().var(0, correction=0), tolerance=tolerance)
