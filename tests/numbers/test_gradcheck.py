"""torch's own gradcheck, in float64, of every path on two ranks: all inputs and parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alike import cut_of
from ranks import run_ranks
from replicated import LAYERS, Replicated, replicated_graph
from torch import Tensor

TOLERANCE = 1e-10

ALWAYS = [
    *('narrow', 'weighted', 'attention with edge features', 'softmax in one pass', 'max'),
    *('median', 'batch norm', 'std at once'),
]
"""One of every path; the others run with what takes long."""

EACH = [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.bench) for name in LAYERS]


PARTS = [int(i % 3 == 0) for i in range(14)]
"""Of unequal size, with edges from one to the other both ways."""


def _on_ranks(function: Callable[..., Any], name: str) -> list[Any]:
    return run_ranks(function, 2, name, cut_of(replicated_graph, 2, PARTS))


def _checked(name: str, root: str) -> tuple[Tensor, ...]:
    """Along random directions of all inputs at once."""
    function = Replicated(name, root)
    # Twice the same bits (nondet_tol): sums do not depend on what arrives first.
    assert torch.autograd.gradcheck(
        function, function.inputs, atol=1e-6, rtol=1e-5, nondet_tol=0.0, fast_mode=True
    )
    return _value_and_gradients(function)


def _value_and_gradients(function: Replicated) -> tuple[Tensor, ...]:
    value = function(*function.inputs)
    return value.detach(), *torch.autograd.grad(value, function.inputs)


@pytest.mark.parametrize('name', EACH)
def test_gradcheck(name: str) -> None:
    """And the gradient is one-process PyG's."""
    expected = _value_and_gradients(Replicated(name, None))
    for found in _on_ranks(_checked, name):
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
def test_second_derivatives(name: str) -> None:
    """They are not supported: an error, never other numbers."""
    expected = _second(name, None)
    for found in _on_ranks(_second, name):
        if isinstance(found, str):
            assert found.startswith(NOT_TWICE), found
        else:
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
