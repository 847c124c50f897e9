"""What a result follows from, told to the recorder that computes activations again in backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from pyg_sar.ground.scoped import Scoped

Step = Callable[..., Tensor]


class Recorder(Protocol):
    """Keeps recipes in place of results; see :mod:`pyg_sar.recompute.recorder`."""

    def remember(self, out: Tensor, step: Step, inputs: tuple[Tensor | None, ...]) -> None:
        """Notes that ``out`` is ``step(*inputs)``."""


recorder = Scoped[Recorder | None](None)
"""Who is told; None while activations are kept as they are."""


def remember(out: Tensor, step: Step, *inputs: Tensor | None) -> None:
    """Notes that `out`, which autograd saves, is the bits of ``step(*inputs)``."""
    told = recorder.value
    if told is not None and torch.is_grad_enabled() and out.requires_grad:
        told.remember(out, step, inputs)
