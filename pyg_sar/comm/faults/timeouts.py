"""How a timeout is shared out: most of it for the operation, the end of it to learn who is lost."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from pyg_sar.comm.faults.reports import PATIENCE


def for_operations(limit: timedelta | None) -> timedelta | None:
    """How long an operation may take, so that with the reports all ends within the timeout."""
    if limit is None:
        return None
    return limit - timedelta(seconds=for_reports(limit.total_seconds()))


def for_reports(seconds: float) -> float:
    """The seconds of a timeout in which ranks that have come to it read the others' reports."""
    return min(max(seconds / 5, PATIENCE), seconds / 2, 5.0)


def timeout_of(group: dist.ProcessGroup | None) -> timedelta | None:
    """The timeout of a group, which torch does not hand on to new ones; None if unknown."""
    try:
        backend = group._get_backend(torch.device('cpu'))  # type: ignore[union-attr]
        found = backend.options._timeout
    except (AttributeError, RuntimeError):
        return None
    return found if isinstance(found, timedelta) else None


def is_timeout(error: Exception) -> bool:
    """Whether an error of torch's is that of an operation that took too long."""
    text = str(error)
    return 'imed out' in text or 'timeout' in text
