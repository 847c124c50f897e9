"""Steps that all ranks take, and errors that all ranks raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyg_sar.comm import agree, is_distributed, rank

T = TypeVar('T')

_KINDS = {k.__name__: k for k in (FileNotFoundError, OSError, TypeError, ValueError, RuntimeError)}


def together(step: Callable[[], T]) -> list[T]:
    """What `step` gives on every rank, in rank order (collective: one all-gather).

    It gives plain values, as :func:`pyg_sar.comm.agree` sends them. If it raised anywhere, all
    ranks raise the error of the first such rank.
    """
    result, error, told = None, None, None
    try:
        result = step()
    except Exception as caught:
        kinds = (name for name, kind in _KINDS.items() if isinstance(caught, kind))
        error, told = caught, (next(kinds, 'RuntimeError'), str(caught))
    answers = agree((result, told))
    for number, (_, failure) in enumerate(answers):
        if failure is not None:
            kind, text = failure
            place = f'rank {number}: ' if is_distributed() else ''
            raise _KINDS[kind](place + text) from (error if number == rank() else None)
    return [answer for answer, _ in answers]


def on_rank_0(step: Callable[[], T]) -> T:
    """What `step` gives on rank 0, which alone takes it (collective: one all-gather)."""
    return together(lambda: step() if rank() == 0 else None)[0]  # type: ignore[return-value]
