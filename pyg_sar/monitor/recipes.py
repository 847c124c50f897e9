"""Notes how results were computed, for a recorder that recomputes activations in backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from pyg_sar.utils.scoped import Scoped

Step = Callable[..., Tensor]


class Recorder(Protocol):
    """Keeps recipes in place of results; see :mod:`pyg_sar.nn.recompute.recorder`."""

    def remember(self, out: Tensor, step: Step, inputs: tuple[Tensor | None, ...]) -> None:
        """Notes that ``out`` is ``step(*inputs)``."""


recorder = Scoped[Recorder | None](None)
"""The active recorder; None while activations are kept."""


def remember(out: Tensor, step: Step, *inputs: Tensor | None) -> None:
    """Notes that `out`, which autograd saves, has the bits of ``step(*inputs)``."""
    recipes = recorder.value
    if recipes is not None and torch.is_grad_enabled() and out.requires_grad:
        recipes.remember(out, step, inputs)
