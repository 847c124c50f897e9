"""What a result follows from, told to the recorder that computes activations again in backward."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Step = Callable[..., Tensor]


class Recorder(Protocol):
    """Keeps recipes in place of results; see :mod:`pyg_sar.recompute.recorder`."""

    def remember(self, out: Tensor, step: Step, inputs: tuple[Tensor | None, ...]) -> None:
        """Notes that ``out`` is ``step(*inputs)``."""


class _Here(threading.local):
    recorder: Recorder | None = None


here = _Here()


def remember(out: Tensor, step: Step, *inputs: Tensor | None) -> None:
    """Notes that ``out`` is ``step(*inputs)``, if activations are recomputed at the moment.

    Args:
        out: The result, as autograd will save it.
        step: Gives the same bits again; runs without autograd.
        *inputs: What it follows from.
    """
    if here.recorder is not None and torch.is_grad_enabled() and out.requires_grad:
        here.recorder.remember(out, step, inputs)
