"""Dropout that keeps its random state and draws the mask again."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_sar.utils.random_states import random_states, random_states_kept, set_random_states


class Draw:
    """The mask of one dropout, drawn again from the same random state."""

    def __init__(self, p: float, device: torch.device) -> None:
        self.p, self.states = p, random_states(device)
        self.mask: Tensor | None = None

    def first(self, x: Tensor) -> Tensor:
        """The rows after dropout; :meth:`draw` draws the same mask again."""
        return F.dropout(x, self.p)

    def __call__(self, x: Tensor) -> Tensor:
        """The rows again; the mask is kept, as its backward comes next."""
        self.mask = self.draw(x)
        return x * self.mask

    def draw(self, like: Tensor) -> Tensor:
        """The factors of the rows."""
        with random_states_kept(like.device):
            set_random_states(self.states, like.device)
            return F.dropout(torch.ones_like(like), self.p)


class Dropout(torch.autograd.Function):
    """A dropout that keeps the draw of its mask and not the mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, draw: Draw) -> Tensor:
        """The rows after dropout; `draw` has not drawn yet."""
        ctx.draw = draw
        return draw.first(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The gradient through the same mask."""
        mask = ctx.draw.mask
        ctx.draw.mask = None
        return grads[0] * (ctx.draw.draw(grads[0]) if mask is None else mask), None


def dropout_arguments(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    train: bool | None = None,  # torch.dropout's name for it
) -> tuple[Tensor, float, bool, bool]:
    """Input, p, training and inplace of a call of ``F.dropout`` or ``torch.dropout``."""
    return input, p, training if train is None else train, inplace
