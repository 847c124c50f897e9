"""torch's own gradcheck, in float64, of every path on two ranks: all inputs and parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks import run_ranks
from replicated import LAYERS, Replicated, replicated_graph
from torch import Tensor

import pyg_sar

TOLERANCE = 1e-10

ALWAYS = [
    *('narrow', 'weighted', 'attention with edge features', 'softmax in one pass', 'max'),
    *('median', 'batch norm', 'std at once'),
]
"""One of every path; the others run with what takes long."""

EACH = [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.bench) for name in LAYERS]


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Parts of unequal size, with edges from one to the other both ways."""
    folder: Path = tmp_path_factory.mktemp('gradcheck') / 'parts'
    parts = (torch.arange(14) % 3 == 0).long()
    pyg_sar.partition_graph(replicated_graph(), 2, folder, method=parts)
    return str(folder)


def _check(name: str, root: str, fast_mode: bool) -> tuple[Tensor, ...]:
    function = Replicated(name, root)
    # Twice the same bits (nondet_tol): sums do not depend on what arrives first.
    assert torch.autograd.gradcheck(
        function, function.inputs, atol=1e-6, rtol=1e-5, nondet_tol=0.0, fast_mode=fast_mode
    )
    return _value_and_gradients(function)


def _value_and_gradients(function: Replicated) -> tuple[Tensor, ...]:
    value = function(*function.inputs)
    return value.detach(), *torch.autograd.grad(value, function.inputs)


@pytest.mark.parametrize('name', EACH)
def test_gradcheck(root: str, name: str) -> None:
    """Along random directions of all inputs at once; and the gradient is one-process PyG's."""
    _check_and_compare(root, name, fast_mode=True)


def _check_and_compare(root: str, name: str, *, fast_mode: bool) -> None:
    expected = _value_and_gradients(Replicated(name, None))
    for found in run_ranks(_check, 2, name, root, fast_mode):
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


def _second(name: str, root: str | None) -> str | list[Tensor]:
    """The gradients of the sum of all first gradients, or the error."""
    function = Replicated(name, root)
    try:
        value = function(*function.inputs)
        first = torch.autograd.grad(value, function.inputs, create_graph=True)
        found = torch.autograd.grad(sum(g.sum() for g in first), function.inputs)
    except RuntimeError as error:
        return f'{type(error).__name__}: {error}'
    return list(found)


NOT_TWICE = 'RuntimeError: expected first derivatives only (got a gradient of a gradient'


@pytest.mark.parametrize('name', EACH)
def test_second_derivatives(root: str, name: str) -> None:
    """They are not supported: an error, never other numbers."""
    expected = _second(name, None)
    for found in run_ranks(_second, 2, name, root):
        if isinstance(found, str):
            assert found.startswith(NOT_TWICE), found
        else:
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
