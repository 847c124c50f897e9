"""What may go wrong while ranks take turns, and that it leaves nothing behind."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyg_sar.comm import collectives, ranks, vote
from pyg_sar.comm.ranks import chosen
from pyg_sar.utils import hook
from pyg_sar.utils import offload as evictable

NUM_PLACES = 20


def places(count: int, number: int = NUM_PLACES) -> list[int]:
    """So many of the calls 0 to `count` - 1, with the first and the last."""
    return sorted({round(i * (count - 1) / (number - 1)) for i in range(number)})


def small_program() -> list[float]:
    """Holds tensors over the turns of others, changes some, and hands rows over."""
    torch.manual_seed(ranks.rank())
    held = [torch.randn(1000, requires_grad=True) for _ in range(4)]
    found = []
    for step in range(4):
        total = collectives.all_reduce_sum(torch.stack([each.detach() for each in held]))
        out = sum((each * each).sigmoid().sum() for each in held) * total.mean()
        vote.agree(0)
        out.backward()
        with torch.no_grad():
            held[step % 4] += collectives.all_to_all(total[:2], [1, 1], [1, 1])[ranks.rank()]
        found.append(sum(each.sum().item() + each.grad.sum().item() for each in held))
    return found


class Calls:
    """Counts the calls of a function of `os`, and lets something happen at one of them."""

    def __init__(self, name: str, at: int = -1, happens: Callable[[], None] = lambda: None) -> None:
        self.count, self._at, self._happens, self._real = 0, at, happens, getattr(os, name)

    def __call__(self, *args: Any) -> Any:
        self.count += 1
        if self.count == self._at + 1:
            self._happens()
        return self._real(*args)


def fails(number: int) -> Callable[[], None]:
    """Raises what the system raises with this number."""

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    return fail


def _of_process(folder: Path) -> dict[str, Any]:
    names = {name: os.readlink(f'/proc/self/fd/{name}') for name in _file_numbers()}
    return {
        'files': sorted(path for path in folder.rglob('*') if 'epoch-' not in str(path)),
        'descriptors': {name: to for name, to in names.items() if to != '/proc/self/fd'},
        'threads': set(threading.enumerate()),
        'start of threads': threading.Thread.start,
        'torch': torch.get_rng_state().tolist(),
        'NumPy': str(np.random.get_state()),  # noqa: NPY002
        'Python': random.getstate(),
        'dtype': torch.get_default_dtype(),
        'watchers': hook.watchers,
        'rank': (chosen.value, hook.thread_rank.value, evictable.watcher.value),
        'modes': torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack(),
        'backward': torch.autograd.is_multithreading_enabled(),
    }


def _file_numbers() -> Iterator[str]:
    for name in os.listdir('/proc/self/fd'):
        if os.path.lexists(f'/proc/self/fd/{name}'):
            yield name


@contextmanager
def nothing_is_left(folder: Path) -> Iterator[None]:
    """What a process has is what it had: files in a folder, descriptors, threads, states."""
    before = _of_process(folder)
    yield
    after = _of_process(folder)
    for name, value in before.items():
        assert after[name] == value, name
