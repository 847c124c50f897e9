"""Every norm over the rows of all ranks is PyG's on one process: all options, train and eval."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from alike import assert_bits
from few import few
from norm_cases import CASES, NormCase
from on_ranks import on_ranks, on_threads
from ranks import run_as_threads
from rows_by_hand import as_rows, sharding_of
from small_graphs import assert_close
from torch import Tensor
from traffic import counted

from pyg_sar import DistributedDataParallel, gather
from pyg_sar.rows.sharding import Sharding

LAYOUTS = [[11], [3, 8], [1, 7, 2, 1], [0, 0, 9], [6, 0, 1], [0, 1, 1], [0, 1, 0]]
"""Rows of every rank: unequal, one, none, all on one, one of all."""


def _make(case: NormCase, dtype: torch.dtype) -> torch.nn.Module:
    module = case.make().to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) + 0.5)
    return module


def _steps(case: NormCase, num_rows: int, dtype: torch.dtype) -> list[dict[str, Tensor]]:
    """x, the gradient of the output and the other row tensors of three steps.

    Graph 4 and type 4 have no rows; the graphs are cut by every rank's rows.
    """
    generator = torch.Generator().manual_seed(num_rows)
    steps = []
    for i in range(3):
        x, grad, msg = (
            torch.randn(num_rows, 4, *case.trailing, generator=generator, dtype=torch.float64)
            for _ in range(3)
        )
        x = torch.full_like(x, 2.0) if case.is_constant else x * (i + 1) + i
        groups = torch.tensor([0, 2, 1, 0, 5, 2, 3, 1, 0, 2, 0])[:num_rows]
        step = {'x': x.to(dtype), 'grad': grad.to(dtype), 'msg': msg.to(dtype)}
        steps.append({**step, 'batch': groups, 'type_vec': groups % 4})
    return steps


def _run(
    module: torch.nn.Module,
    case: NormCase,
    steps: list[dict[str, Tensor]],
    sharding: Sharding | None = None,
    device: str = 'cpu',
) -> list[dict[str, Tensor]] | str:
    """Training steps, then an evaluation, or the kind of error; on ranks with sharded rows."""
    results = []
    model = module.to(device) if sharding is None else DistributedDataParallel(module.to(device))
    for step in [*steps, steps[0]]:
        module.train(len(results) < len(steps))
        values = {name: value.clone().to(device) for name, value in step.items()}
        if sharding is not None:
            values = {name: as_rows(value, sharding) for name, value in values.items()}
        given = [name for name in ('x', *case.rows) if values[name].is_floating_point()]
        given = given[case.is_fixed :]
        for name in given:
            values[name].requires_grad_()
        for buffer in module.buffers():
            buffer.detach_()  # PyG's InstanceNorm leaves a history on them.
        module.zero_grad()
        try:
            out = model(values['x'], *(values[name] for name in case.rows), **case.options)
        except ValueError:
            return 'ValueError'
        (out * values['grad']).sum().backward()
        result = {'out': gather(out.detach())}
        result |= {f'grad of {name}': gather(values[name].grad) for name in given}
        result |= {name: p.grad.clone() for name, p in _trained(module)}
        result |= {f'buffer {name}': b.detach().clone() for name, b in module.named_buffers()}
        results.append({name: value.cpu() for name, value in result.items()})
    return results


def _trained(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def _run_rank(
    counts: list[int], dtype: torch.dtype, device: str, names: list[str]
) -> dict[str, Any]:
    found, sharding = {}, sharding_of(counts)
    for name in names:
        case = CASES[name]
        steps = _steps(case, sum(counts), dtype)
        found[name] = _run(_make(case, dtype), case, steps, sharding, device)
    return found


def _reference(case: NormCase, num_rows: int, dtype: torch.dtype) -> list[dict[str, Tensor]] | str:
    module = _make(case, dtype)
    if isinstance(module, torch.nn.SyncBatchNorm):  # It does not run on a CPU.
        module = torch.nn.BatchNorm1d(4).to(dtype)
        module.load_state_dict(_make(case, dtype).state_dict())
    return _run(module, case, _steps(case, num_rows, dtype))


def _check(
    counts: list[int],
    dtype: torch.dtype,
    tolerance: float,
    device: str = 'cpu',
    run: Callable[..., list[Any]] = run_as_threads,
    names: Sequence[str] = tuple(CASES),
) -> None:
    results = run(_run_rank, len(counts), counts, dtype, device, names)
    for name in names:
        case = CASES[name]
        expected = _reference(case, sum(counts), dtype)
        for result in results:
            found = result[name]
            if isinstance(expected, str):
                assert found == expected, name
                continue
            for i, want in enumerate(expected):
                assert set(found[i]) == set(want), name
                for key, value in want.items():
                    place = f'{name}, step {i}, {key}'
                    assert_close(found[i][key], value, tolerance=tolerance)
                    assert torch.equal(found[i][key], results[0][name][i][key]), place


@pytest.mark.parametrize('counts', few(LAYOUTS, every=4), ids=str)
def test_is_the_norm_of_all_rows(counts):
    """Output, all gradients and buffers over three training steps, then evaluation."""
    _check(counts, torch.float64, 1e-10)


BATCH_NORMS = [name for name in CASES if name.startswith('BatchNorm1d')]


def test_batch_norms_closely():
    _check([6, 0, 5], torch.float64, 1e-12, names=BATCH_NORMS)
    _check([6, 0, 5], torch.float32, 2e-5, names=['BatchNorm1d', 'BatchNorm1d, 3D'])


@on_threads(2)
def test_bfloat16():
    """The dtype of the output, and that of float64 within a bfloat16's precision."""
    sharding = sharding_of([4, 7])
    for name, case in CASES.items():
        if name.startswith(('MessageNorm', 'DiffGroupNorm')):
            continue
        step = {k: as_rows(v, sharding) for k, v in _steps(case, 11, torch.bfloat16)[1].items()}
        outs = []
        for dtype in (torch.bfloat16, torch.float64):
            module = DistributedDataParallel(_make(case, torch.bfloat16).to(dtype))
            args = [step['x'].to(dtype), *(step[key] for key in case.rows)]
            outs.append(gather(module(*args, **case.options).detach()))
        assert outs[0].dtype == torch.bfloat16, name
        assert torch.allclose(outs[0].double(), outs[1], rtol=0.05, atol=0.05), name


@pytest.mark.parametrize('name', CASES)
def test_a_wrapped_norm_stays_what_it_is(name):
    module = CASES[name].make()
    kind, text, keys = type(module), module.extra_repr(), list(module.state_dict())
    calls = []
    module.register_forward_pre_hook(lambda *_: calls.append(1))
    before = dict(module.named_parameters()) | dict(module.named_buffers())
    wrapped = DistributedDataParallel(module)
    after = dict(wrapped.named_parameters()) | dict(wrapped.named_buffers())
    assert list(after) == list(before)
    assert all(after[key] is before[key] for key in after)
    assert wrapped is module
    assert isinstance(wrapped, kind)
    assert list(wrapped.state_dict()) == keys
    assert wrapped.extra_repr() == text
    step = _steps(CASES[name], 11, torch.float32)[0]
    twin = copy.deepcopy(wrapped)
    for norm in (wrapped, twin):
        norm(step['x'], *(step[key] for key in CASES[name].rows), **CASES[name].options)
    assert len(calls) == 2
    assert_bits(twin.state_dict(), wrapped.state_dict())  # each has seen one batch
    assert not {id(p) for p in twin.parameters()} & {id(p) for p in wrapped.parameters()}


COLLECTIVES = {
    'BatchNorm1d': (1, 0),
    'BatchNorm': (1, 0),
    'DiffGroupNorm': (1, 0),
    'InstanceNorm': (1, 1),
    'InstanceNorm running': (1, 0),
    'GraphNorm': (4, 4),
    'LayerNorm': (3, 3),
    'LayerNorm node': (0, 0),
    'HeteroLayerNorm': (0, 0),
    'MessageNorm': (0, 0),
}

SMALL = {'LayerNorm', 'GraphNorm'}
"""Their sums have few numbers here."""


@on_ranks(2, 0)
def test_collectives():
    """None where running statistics are used, or rows alone."""
    sharding = sharding_of([5, 5])
    for name, counts in COLLECTIVES.items():
        case = CASES[name]
        module = DistributedDataParallel(_make(case, torch.float64))
        rows = _steps(case, 10, torch.float64)[0]
        args = [as_rows(rows[key], sharding) for key in ('x', *case.rows)]
        for training, count in zip((True, False), counts, strict=True):
            with counted() as traffic:
                module.train(training)(*args, **case.options)
            # Before more than 1016 bytes goes a small message, so that different sums never meet.
            assert traffic.others == count * (1 if name in SMALL else 2), name
