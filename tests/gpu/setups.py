"""How ranks share devices: as threads of a process, or as processes with a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ranks import run_as_threads, run_ranks

WORLD_SIZE = 3
BACKENDS = ['nccl', 'cpu:gloo,cuda:nccl']
"""NCCL alone, or gloo for what is on the host."""

SETUPS = ['one process', 'threads', 'gloo', *BACKENDS]
"""gloo alone goes by way of the host's memory."""

IN_SIMULATION = [pytest.param(s, marks=pytest.mark.cuda_sim) for s in SETUPS[2:]]
ALL = [*SETUPS[:2], *IN_SIMULATION]


def on(setup: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """What `fn` gives on every rank."""
    if setup == 'one process':
        return [fn(*args, **kwargs)]
    if setup == 'threads':
        return run_as_threads(fn, WORLD_SIZE, *args, **kwargs)
    return run_ranks(fn, WORLD_SIZE, *args, backend=setup, timeout=300, **kwargs)
