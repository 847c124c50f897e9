"""Every norm over the rows of all ranks is PyG's on one process: all options, train and eval."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from few import few
from ranks import run_as_threads, run_ranks
from small_graphs import assert_close
from torch import Tensor
from torch_geometric import nn as pyg

from pyg_sar import wrap
from pyg_sar.comm import rank

LAYOUTS = [[11], [3, 8], [6, 0, 5], [0, 0, 9], [1, 7, 2, 1], [0, 1, 0]]
"""Rows of every rank: unequal, one, none, all on one, one of all."""


@dataclass(frozen=True)
class Case:
    """A norm and what its forward is given beside x: names of row tensors, and options."""

    make: Callable[[], torch.nn.Module]
    rows: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    is_constant: bool = False


def _graph_cases() -> dict[str, Case]:
    makes: dict[str, Callable[[], torch.nn.Module]] = {
        'GraphNorm': lambda: pyg.GraphNorm(4),
        'GraphNorm eps': lambda: pyg.GraphNorm(4, eps=0.5),
        'GraphSizeNorm': pyg.GraphSizeNorm,
        'InstanceNorm': lambda: pyg.InstanceNorm(4),
        'InstanceNorm affine': lambda: pyg.InstanceNorm(4, affine=True, eps=0.5),
        'InstanceNorm running': lambda: pyg.InstanceNorm(4, track_running_stats=True),
        'InstanceNorm all': lambda: pyg.InstanceNorm(
            4, momentum=0.5, affine=True, track_running_stats=True
        ),
        'LayerNorm': lambda: pyg.LayerNorm(4),
        'LayerNorm not affine': lambda: pyg.LayerNorm(4, affine=False, eps=0.5),
        'LayerNorm node': lambda: pyg.LayerNorm(4, mode='node'),
        'PairNorm': pyg.PairNorm,
        'PairNorm individually': lambda: pyg.PairNorm(scale_individually=True),
        'PairNorm scale': lambda: pyg.PairNorm(scale=2.5, eps=0.5),
        'MeanSubtractionNorm': pyg.MeanSubtractionNorm,
    }
    cases = {}
    for name, make in makes.items():
        size = 'dim_size' if name == 'MeanSubtractionNorm' else 'batch_size'
        cases[name] = Case(make)
        cases[f'{name}, batch'] = Case(make, ('batch',))
        cases[f'{name}, batch and size'] = Case(make, ('batch',), {size: 7})
    return cases


def _batch_norm_without_bias() -> torch.nn.Module:
    module = pyg.BatchNorm(4)
    module.module.register_parameter('bias', None)
    return module


CASES: dict[str, Case] = {
    **_graph_cases(),
    'LayerNorm, constant': Case(lambda: pyg.LayerNorm(4), is_constant=True),
    'LayerNorm, constant, batch': Case(lambda: pyg.LayerNorm(4), ('batch',), is_constant=True),
    'BatchNorm1d': Case(lambda: torch.nn.BatchNorm1d(4)),
    'SyncBatchNorm': Case(lambda: torch.nn.SyncBatchNorm(4)),
    'BatchNorm': Case(lambda: pyg.BatchNorm(4)),
    'BatchNorm options': Case(lambda: pyg.BatchNorm(4, eps=0.5, momentum=None, affine=False)),
    'BatchNorm without bias': Case(_batch_norm_without_bias),
    'BatchNorm no running': Case(lambda: pyg.BatchNorm(4, track_running_stats=False)),
    'BatchNorm one element': Case(lambda: pyg.BatchNorm(4, allow_single_element=True)),
    'HeteroBatchNorm': Case(lambda: pyg.HeteroBatchNorm(4, 5), ('type_vec',)),
    'HeteroBatchNorm options': Case(
        lambda: pyg.HeteroBatchNorm(4, 5, eps=0.5, momentum=None, affine=False), ('type_vec',)
    ),
    'HeteroBatchNorm no running': Case(
        lambda: pyg.HeteroBatchNorm(4, 5, track_running_stats=False), ('type_vec',)
    ),
    'HeteroLayerNorm': Case(lambda: pyg.HeteroLayerNorm(4, 5), ('type_vec',)),
    'HeteroLayerNorm not affine': Case(
        lambda: pyg.HeteroLayerNorm(4, 5, affine=False), ('type_vec',)
    ),
    'MessageNorm': Case(pyg.MessageNorm, ('msg',)),
    'MessageNorm learned': Case(lambda: pyg.MessageNorm(learn_scale=True), ('msg',), {'p': 1.5}),
    'DiffGroupNorm': Case(lambda: pyg.DiffGroupNorm(4, 3, lamda=0.5)),
    'DiffGroupNorm options': Case(
        lambda: pyg.DiffGroupNorm(4, 3, eps=0.5, momentum=None, affine=False)
    ),
    'DiffGroupNorm no running': Case(
        lambda: pyg.DiffGroupNorm(4, 3, lamda=0.5, track_running_stats=False)
    ),
}


def _make(case: Case, dtype: torch.dtype) -> torch.nn.Module:
    module = case.make().to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) + 0.5)
    return module


def _steps(case: Case, num_rows: int, dtype: torch.dtype) -> list[dict[str, Tensor]]:
    """x, the gradient of the output and the other row tensors of three steps.

    Graph 4 and type 4 have no rows; the graphs are cut by every rank's rows.
    """
    generator = torch.Generator().manual_seed(num_rows)
    steps = []
    for i in range(3):
        x, grad, msg = (
            torch.randn(num_rows, 4, generator=generator, dtype=torch.float64) for _ in range(3)
        )
        x = torch.full_like(x, 2.0) if case.is_constant else x * (i + 1) + i
        groups = torch.tensor([0, 2, 1, 0, 5, 2, 3, 1, 0, 2, 0])[:num_rows]
        step = {'x': x.to(dtype), 'grad': grad.to(dtype), 'msg': msg.to(dtype)}
        steps.append({**step, 'batch': groups, 'type_vec': groups % 4})
    return steps


def _run(
    module: torch.nn.Module,
    case: Case,
    steps: list[dict[str, Tensor]],
    rows: slice,
    device: str = 'cpu',
) -> list[dict[str, Tensor]] | str:
    """Training steps on some rows, then an evaluation on them, or the kind of error."""
    results = []
    module.to(device)
    for step in [*steps, steps[0]]:
        module.train(len(results) < len(steps))
        values = {name: value[rows].clone().to(device) for name, value in step.items()}
        given = [name for name in ('x', *case.rows) if values[name].is_floating_point()]
        for name in given:
            values[name].requires_grad_()
        for buffer in module.buffers():
            buffer.detach_()  # PyG's InstanceNorm leaves a history on them.
        module.zero_grad()
        try:
            out = module(values['x'], *(values[name] for name in case.rows), **case.options)
        except ValueError:
            return 'ValueError'
        out.backward(values['grad'])
        result = {'out': out.detach()}
        result |= {f'grad of {name}': values[name].grad for name in given}
        result |= {name: p.grad.clone() for name, p in _trained(module)}
        result |= {f'buffer {name}': b.detach().clone() for name, b in module.named_buffers()}
        results.append({name: value.cpu() for name, value in result.items()})
    return results


def _trained(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def _wrapped(module: torch.nn.Module) -> torch.nn.Module:
    return wrap(torch.nn.ModuleList([pyg.SAGEConv(4, 4), module]))[1]


def _run_rank(counts: list[int], dtype: torch.dtype, device: str) -> dict[str, Any]:
    start = sum(counts[: rank()])
    rows = slice(start, start + counts[rank()])
    found = {}
    for name, case in CASES.items():
        steps = _steps(case, sum(counts), dtype)
        found[name] = _run(_wrapped(_make(case, dtype)), case, steps, rows, device)
    return found


def _reference(case: Case, num_rows: int, dtype: torch.dtype) -> list[dict[str, Tensor]] | str:
    module = _make(case, dtype)
    if isinstance(module, torch.nn.SyncBatchNorm):  # It does not run on a CPU.
        module = torch.nn.BatchNorm1d(4).to(dtype)
        module.load_state_dict(_make(case, dtype).state_dict())
    return _run(module, case, _steps(case, num_rows, dtype), slice(None))


def _check(
    counts: list[int],
    dtype: torch.dtype,
    tolerance: float,
    device: str = 'cpu',
    on_ranks: Callable[..., list[Any]] = run_as_threads,
) -> None:
    results = on_ranks(_run_rank, len(counts), counts, dtype, device)
    for name, case in CASES.items():
        expected = _reference(case, sum(counts), dtype)
        found = [result[name] for result in results]
        if isinstance(expected, str):
            assert found == [expected] * len(counts), name
            continue
        for i, want in enumerate(expected):
            assert all(set(f[i]) == set(want) for f in found), name
            for key, value in want.items():
                try:
                    _compare(key, [f[i][key] for f in found], value, tolerance)
                except AssertionError as error:
                    raise AssertionError(f'{name}, step {i}, {key}: {error}') from None


def _compare(key: str, pieces: list[Tensor], want: Tensor, tolerance: float) -> None:
    if key == 'out' or key.startswith('grad of'):
        assert_close(torch.cat(pieces), want, tolerance=tolerance)
    elif key.startswith('buffer'):
        for piece in pieces:
            assert torch.equal(piece, pieces[0])
            assert_close(piece, want, tolerance=tolerance)
    else:
        assert_close(torch.stack(pieces).sum(0), want, tolerance=tolerance)


@pytest.mark.parametrize('counts', few(LAYOUTS, every=5), ids=str)
def test_is_the_norm_of_all_rows(counts):
    """Output, all gradients and buffers over three training steps, then evaluation."""
    _check(counts, torch.float64, 1e-10)


def test_one_process_is_the_plain_norm():
    """Bit for bit, without torch.distributed."""
    for name, case in CASES.items():
        want = _reference(case, 11, torch.float64)
        steps = _steps(case, 11, torch.float64)
        found = _run(_wrapped(_make(case, torch.float64)), case, steps, slice(None))
        assert len(found) == len(want) == 4, name
        for a, b in zip(found, want, strict=True):
            assert list(a) == list(b), name
            assert all(torch.equal(a[key], b[key]) for key in a), name


def _low_precision() -> dict[str, tuple[torch.dtype, bool]]:
    """The dtype of the output, and whether it is that of float64 within a bfloat16's precision."""
    results = {}
    for name, case in CASES.items():
        if name.startswith(('MessageNorm', 'DiffGroupNorm')):
            continue
        start = (0, 4)[dist.get_rank()]
        rows = slice(start, start + (4, 7)[dist.get_rank()])
        outs = []
        for dtype in (torch.bfloat16, torch.float64):
            step = {k: v[rows] for k, v in _steps(case, 11, torch.bfloat16)[1].items()}
            step['x'] = step['x'].to(dtype)
            args = [step[name] for name in case.rows]
            module = _wrapped(_make(case, torch.bfloat16).to(dtype))
            outs.append(module(step['x'], *args, **case.options).detach())
        is_close = torch.allclose(outs[0].double(), outs[1], rtol=0.05, atol=0.05)
        results[name] = outs[0].dtype, is_close
    return results


def test_bfloat16():
    for results in run_ranks(_low_precision, 2):
        assert results == dict.fromkeys(results, (torch.bfloat16, True))


@pytest.mark.parametrize('name', CASES)
def test_conversion_shares_everything(name):
    module = CASES[name].make()
    kind, text, keys = type(module), module.extra_repr(), list(module.state_dict())
    calls = []
    module.register_forward_pre_hook(lambda *_: calls.append(1))
    before = dict(module.named_parameters()) | dict(module.named_buffers())
    converted = _wrapped(module)
    after = dict(converted.named_parameters()) | dict(converted.named_buffers())
    assert list(after) == list(before)
    assert all(after[key] is before[key] for key in after)
    assert converted is module
    assert list(converted.state_dict()) == keys
    assert converted.extra_repr() == text
    assert converted.training
    if kind is not torch.nn.SyncBatchNorm:
        assert isinstance(converted, kind)
    is_local = 'Message' in name or 'HeteroLayer' in name or 'node' in name
    assert (type(converted) is kind) is is_local
    assert getattr(converted, 'is_global', False) is not is_local
    step = _steps(CASES[name], 11, torch.float32)[0]
    twin = copy.deepcopy(converted)
    for norm in (converted, twin):
        norm(step['x'], *(step[key] for key in CASES[name].rows), **CASES[name].options)
    assert len(calls) == 2
    assert not {id(p) for p in twin.parameters()} & {id(p) for p in converted.parameters()}


def _count_collectives() -> dict[str, list[tuple[int, int]]]:
    """All-reduces of a forward and its backward, in training and in evaluation."""
    rows = slice(5 * dist.get_rank(), 5 * dist.get_rank() + 5)
    calls = 0
    all_reduce = dist.all_reduce

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return all_reduce(*args, **kwargs)

    dist.all_reduce = counting
    found = {}
    try:
        for name, case in CASES.items():
            module = _wrapped(_make(case, torch.float64))
            step = {k: v[rows] for k, v in _steps(case, 10, torch.float64)[0].items()}
            found[name] = []
            for training in (True, False):
                module.train(training)
                calls = 0
                args = [step[key] for key in case.rows]
                out = module(step['x'].clone().requires_grad_(), *args, **case.options)
                num_forward, calls = calls, 0
                out.backward(step['grad'])
                found[name].append((num_forward, calls))
    finally:
        dist.all_reduce = all_reduce
    return found


def test_collectives():
    """As many as the docstrings say; none where running statistics are used, or rows alone."""
    first, second = run_ranks(_count_collectives, 2)
    assert first == second
    expected = {
        'GraphNorm': [(3, 2), (3, 2)],
        'GraphSizeNorm': [(1, 0), (1, 0)],
        'InstanceNorm': [(3, 2), (3, 2)],
        'InstanceNorm running': [(3, 2), (0, 0)],
        'LayerNorm': [(3, 2), (3, 2)],
        'LayerNorm node': [(0, 0), (0, 0)],
        'PairNorm': [(3, 2), (3, 2)],
        'PairNorm individually': [(2, 1), (2, 1)],
        'MeanSubtractionNorm': [(2, 1), (2, 1)],
        'BatchNorm': [(2, 1), (0, 0)],
        'BatchNorm one element': [(3, 1), (0, 0)],
        'HeteroBatchNorm': [(3, 0), (0, 0)],
        'HeteroLayerNorm': [(0, 0), (0, 0)],
        'MessageNorm': [(0, 0), (0, 0)],
        'DiffGroupNorm': [(2, 1), (0, 0)],
    }
    # Before each of them goes one number, so that different sums never meet.
    twice = {name: [(2 * f, 2 * b) for f, b in counts] for name, counts in expected.items()}
    twice['HeteroBatchNorm'] = [(7, 0), (0, 0)]  # the first for a comparison
    assert {name: first[name] for name in expected} == twice
