"""Runs a program on the small graph whole and in two parts, and says where they differ."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from pyg_sar.checking.run import CannotRun, Run, Step, no_collectives, run
from pyg_sar.checking.small_graph import NUM_PARTS
from pyg_sar.checking.view import View, rows_of
from pyg_sar.comm import transport
from pyg_sar.comm.threads import run_threads
from pyg_sar.own_rows import OwnRows

Program = Callable[[torch.nn.Module, Any], Any]


class Small(Protocol):
    """What a program is run on.

    Attributes:
        views: What the run of the whole has of it, and those of the parts.
    """

    views: list[View]

    def cut(self, view: View, dtype: torch.dtype | None) -> Any:
        """The arguments of the program as a run has them; float32 numbers in `dtype`."""

    def learned(self, rows: OwnRows, view: View) -> OwnRows:
        """The rows of a node embedding as a run has them."""


_TOLERANCE = {torch.float64: 1e-7, torch.complex128: 1e-7}
_SINGLE = 1e-3  # of any other dtype

_INSTEAD = {
    'mean': 'pyg_sar.global_mean',
    'std': 'pyg_sar.global_std',
    'max': 'pyg_sar.global_max',
    'amax': 'pyg_sar.global_max',
    'min': 'pyg_sar.global_min',
    'amin': 'pyg_sar.global_min',
    'softmax': 'pyg_sar.global_softmax',
    'sum': 'pyg_sar.global_sum',
    'batch_norm': 'torch.nn.BatchNorm1d as a module',
}
"""What computes over the nodes of all ranks, by the name of what computes over those of one."""


def difference(model: torch.nn.Module, program: Program, small: Small) -> str | None:
    """What differs between the whole small graph and its two parts, in words; None if nothing.

    The convs and norms of the model are converted. It runs in float64 if it can, so that rounding
    is no difference. Raises CannotRun if the program does not run on the small graph.
    """
    dtypes: list[torch.dtype | None] = [torch.float64, None]
    error: Exception | None = None
    for dtype in dtypes:
        try:
            runs = _all_runs(model, program, small, dtype)
        except CannotRun:
            raise
        except Exception as found:
            error = error or found
            continue
        where = _where(runs)
        if where is None:
            return None
        if any(each.has_odd_draws for each in runs):
            raise CannotRun('it draws random numbers that no single node or edge has')
        runs = _all_runs(model, program, small, dtype, records=True)
        return _sentence(model, where, _first_step(runs))
    raise CannotRun(f'{type(error).__name__}: {error}') from error


def _all_runs(
    model: torch.nn.Module,
    program: Program,
    small: Small,
    dtype: torch.dtype | None,
    *,
    records: bool = False,
) -> list[Run]:
    """The run of the whole, and those of the parts."""

    def of_rank(first: int) -> Run:
        view = small.views[first + transport.rank()]
        own = [p for p in model.parameters() if isinstance(p, OwnRows)]
        instead: dict[int, Any] = {id(p): small.learned(p, view) for p in own}
        copied = copy.deepcopy(model, instead).cpu()
        copied = copied if dtype is None else copied.to(dtype)
        return run(copied, program, small.cut(view, dtype), view, records=records)

    with _default(dtype), no_collectives(), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # the program itself will give them
        return [*run_threads(of_rank, 1, 0), *run_threads(of_rank, NUM_PARTS, 1)]


@contextmanager
def _default(dtype: torch.dtype | None) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _where(runs: Sequence[Run]) -> str | None:
    """What differs first between the whole and the parts: an output, a gradient, a buffer."""
    whole, views = runs[0], [each.view for each in runs]
    if len({len(each.outputs) for each in runs}) > 1:
        return 'the number of its outputs differs'
    for i in range(len(whole.outputs)):
        found = _compared([each.outputs[i] for each in runs], views)
        if found is not None:
            name = 'its output' if len(whole.outputs) == 1 else f'its output {i}'
            return f'{name} differs {found}'
    # One that is zero but for rounding, of a bias before a norm, has no scale of its own.
    given = [g for g in (*whole.gradients.values(), *whole.input_gradients) if g is not None]
    least = 1e-3 * max((float(g.abs().max()) for g in given if g.numel()), default=0.0)
    for i in range(len(whole.input_gradients)):
        found = _gradients([each.input_gradients[i] for each in runs], views, least)
        if found is not None:
            return f'the gradient of its input differs {found}'
    for name in whole.gradients:
        found = _gradients([each.gradients[name] for each in runs], views, least, alike=True)
        if found is not None:
            return f"the gradient of '{name}' differs {found}"
    for name in whole.buffers:
        found = _compared([each.buffers[name] for each in runs], views, alike=True)
        if found is not None:
            return f"the buffer '{name}' differs {found}"
    return None


def _gradients(
    grads: Sequence[Tensor | None], views: Sequence[View], least: float, *, alike: bool = False
) -> str | None:
    given = [grad for grad in grads if grad is not None]
    if not given:
        return None
    if alike:
        given = [torch.zeros_like(given[0]) if grad is None else grad for grad in grads]
    if len(given) < len(grads):
        return 'as it is there on some ranks only'
    return _compared(given, views, alike=alike, least=least)


def _compared(
    tensors: Sequence[Tensor], views: Sequence[View], *, alike: bool = False, least: float = 1e-30
) -> str | None:
    """By how much a tensor of the whole, the first, differs from those of the parts; None if not.

    One that is `alike` has no rows of nodes or edges: it is the same on all ranks. Numbers smaller
    than `least` are rounding alone.
    """
    whole, *parts = tensors
    found = None if alike else rows_of(whole, views[0])
    worst = 0.0
    for part, view in zip(parts, views[1:], strict=True):
        expected = whole
        if found is not None:
            expected = whole.index_select(found[0], view.rows_of(found[1]).ids)
        if expected.shape != part.shape:
            return f'in shape: {tuple(whole.shape)} of the whole, {tuple(part.shape)} of a part'
        if expected.numel() == 0:
            continue
        finite = whole[torch.isfinite(whole)].abs()
        scale = max(float(finite.max()) if finite.numel() else 0.0, least)
        same = torch.isclose(
            part, expected, rtol=0, atol=_TOLERANCE.get(part.dtype, _SINGLE) * scale, equal_nan=True
        )
        if not same.all():
            distance = (part - expected)[~same].abs()
            distance = distance[torch.isfinite(distance)]
            worst = max(worst, float(distance.max()) / scale if distance.numel() else float('inf'))
    return f'by {worst:.1g} of its largest value' if worst else None


def _first_step(runs: Sequence[Run]) -> Step | None:
    """The first tensor on the way that differs, as far as steps of the runs belong together."""
    views = [each.view for each in runs]
    for steps in zip(*(each.steps for each in runs), strict=False):
        if len({(step.function, step.path) for step in steps}) > 1:
            return None
        values = [step.value for step in steps]
        if rows_of(values[0], views[0]) is None and len({value.shape for value in values}) > 1:
            continue  # rows of something else, such as of selected nodes
        if _compared(values, views) is not None:
            return steps[0]
    return None


def _sentence(model: torch.nn.Module, where: str, step: Step | None) -> str:
    at = ''
    instead = 'what needs all nodes must come from pyg_sar (docs/porting.md)'
    if step is not None:
        place = f"'{step.path}' ({step.kind})" if step.path else f'{step.kind}.forward'
        at = (
            f', first at {place}'
            if not step.function
            else f", first at '{step.function}' in {place}"
        )
        better = _INSTEAD.get(step.function)
        if better is not None:
            instead = f'it sees the nodes of one rank only: use {better} (docs/porting.md)'
    return (
        f'{type(model).__name__} does not give on a cut graph what it gives on the whole one: '
        f'{where}{at}; {instead}, or say check=False if you mean it so'
    )
