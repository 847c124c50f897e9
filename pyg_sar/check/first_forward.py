"""The check of a model at its first forward in training."""

from __future__ import annotations

import logging
from typing import Any

import torch

from pyg_sar.check.compare import difference
from pyg_sar.check.run import CannotRun
from pyg_sar.check.small_graph import SmallGraph
from pyg_sar.comm import raise_together, transport
from pyg_sar.monitor import say

_logger = logging.getLogger(__name__)
_MOST_BYTES = 2**28


class FirstForward:
    """A forward pre-hook that checks its model once, with the arguments it is called with.

    Where several ranks train. A copy of the model is not checked again.
    """

    def __init__(self, *, is_done: bool = False) -> None:
        self.is_done = is_done

    def __reduce__(self) -> Any:
        return _done, ()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Runs the check if this is the first forward in training.

        Raises:
            ValueError: On all ranks, if the model is not exact on a cut graph.
        """
        is_first = not self.is_done and model.training and torch.is_grad_enabled()
        if not is_first or transport.world() is not None or transport.world_size() == 1:
            return
        self.is_done = True
        error = None
        try:
            found = check_model(model, args, kwargs)
            error = None if found is None else ValueError(found)
        except CannotRun as reason:
            say(_logger, logging.WARNING, f'{type(model).__name__} was not checked: {reason}')
        raise_together(error)


def _done() -> FirstForward:
    return FirstForward(is_done=True)


def check_model(model: torch.nn.Module, args: Any, kwargs: Any) -> str | None:
    """What a model does not compute exactly on a cut graph, in a sentence; None if nothing.

    Raises:
        CannotRun: If it cannot be run on a small graph.
    """
    tensors = [*model.parameters(), *model.buffers()]
    if sum(t.nbytes for t in tensors) > _MOST_BYTES:
        raise CannotRun('its parameters are large, and the check makes copies of them')

    def program(model: torch.nn.Module, arguments: Any) -> Any:
        args, kwargs = arguments
        return model(*args, **kwargs)

    try:
        taken = {size for t in tensors for size in t.shape}
        small = SmallGraph((args, kwargs), taken)
        return difference(model, program, small)
    except CannotRun:
        raise
    except Exception as error:
        raise CannotRun(f'{type(error).__name__}: {error}') from error
