"""Steps that all ranks take, and errors that all ranks raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from pyg_sar.comm import agree, is_distributed

T = TypeVar('T')

_KINDS = {k.__name__: k for k in (FileNotFoundError, OSError, TypeError, ValueError, RuntimeError)}


def world() -> tuple[int, int]:
    """This rank and the number of ranks; 0 and 1 of a process that is the only one."""
    return (dist.get_rank(), dist.get_world_size()) if is_distributed() else (0, 1)


def together(step: Callable[[], T]) -> list[T]:
    """What `step` gives on every rank, in rank order (collective: one all-gather).

    Args:
        step: Gives plain values, as :func:`pyg_sar.comm.agree` sends them.

    Raises:
        Exception: If `step` raised anywhere, the error of the first such rank, on all ranks alike.
    """
    result, error, told = None, None, None
    try:
        result = step()
    except Exception as caught:
        error = caught
        kinds = (name for name, kind in _KINDS.items() if isinstance(caught, kind))
        told = next(kinds, 'RuntimeError'), str(caught)
    answers = agree((result, told))
    for number, (_, failure) in enumerate(answers):
        if failure is not None:
            kind, text = failure
            place = f'rank {number}: ' if is_distributed() else ''
            raise _KINDS[kind](place + text) from (error if number == world()[0] else None)
    return [answer for answer, _ in answers]


def on_rank_0(step: Callable[[], T]) -> T:
    """What `step` gives on rank 0, which alone takes it (collective: one all-gather)."""
    return together(lambda: step() if world()[0] == 0 else None)[0]  # type: ignore[return-value]
