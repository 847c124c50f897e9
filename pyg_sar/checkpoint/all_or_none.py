"""Steps that all ranks take, and errors that all ranks raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from pyg_sar.comm import agree, is_distributed

T = TypeVar('T')


def rank() -> int:
    """Of this process; 0 if it is the only one."""
    return dist.get_rank() if is_distributed() else 0


def num_ranks() -> int:
    """How many there are."""
    return dist.get_world_size() if is_distributed() else 1


def together(step: Callable[[], T]) -> list[T]:
    """What `step` gives on every rank, in rank order (collective: one all-gather).

    Args:
        step: Gives plain values, as :func:`pyg_sar.comm.agree` sends them.

    Raises:
        Exception: If `step` raised anywhere, the error of the first such rank, on all ranks alike.
    """
    result, error = None, None
    try:
        result = step()
    except Exception as caught:
        error = caught
    answers = agree((result, None if error is None else (_kind(error), str(error))))
    for number, (_, failure) in enumerate(answers):
        if failure is not None:
            raise _error(number, *failure) from (error if number == rank() else None)
    return [answer for answer, _ in answers]


def on_rank_0(step: Callable[[], T]) -> T | None:
    """What `step` gives on rank 0, which alone takes it (collective: one all-gather)."""
    return together(lambda: step() if rank() == 0 else None)[0]


_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (FileNotFoundError, OSError, TypeError, ValueError)
}


def _kind(error: BaseException) -> str:
    return next((name for name, kind in _KINDS.items() if isinstance(error, kind)), '')


def _error(number: int, kind: str, text: str) -> Exception:
    error = _KINDS.get(kind, RuntimeError)
    return error(f'rank {number}: {text}' if is_distributed() else text)
