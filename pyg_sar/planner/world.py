"""A world of equal ranks of which only one exists.

Rank 0 of P runs the real code while every other rank is thought to hold the same shard, shifted: so
what rank r sends to rank 0 is what rank 0 itself sends to rank -r. That answers every exchange with
tensors of the right sizes and sensible values, in one process and without a process group. The
rehearsal knows :func:`equal_ranks` alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch.distributed
from torch import Tensor

from pyg_sar.comm import transport
from pyg_sar.monitor import Counts, Meter, hook


@contextmanager
def equal_ranks(num_ranks: int) -> Iterator[Counts]:
    """While it lasts, pyg_sar takes this process for rank 0 of `num_ranks` equal ones.

    Yields:
        The rows and bytes that rank 0 has received so far.
    """
    world, counts = _World(num_ranks), Counts()
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            is_ours = name.startswith('pyg_sar.') and name != __name__
            if is_ours and vars(module).get('dist') is torch.distributed:
                stack.enter_context(patch.object(module, 'dist', world))
        for name in ('start_swap', 'all_to_all', 'all_reduce', 'all_gather'):
            stack.enter_context(patch.object(transport, name, getattr(world, name)))
        meter = Meter(counts)
        hook.add(meter)
        stack.callback(hook.remove, meter)
        yield counts


class _Group:
    """Stands for a process group."""


class _World:
    """Stands in for ``torch.distributed`` and for what pyg_sar asks of it; all ranks are alike."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.group = SimpleNamespace(WORLD=_Group())

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.distributed, name)  # what is not collective: types, constants

    def is_initialized(self) -> bool:
        return self.size > 1

    def get_rank(self) -> int:
        return 0

    def get_world_size(self) -> int:
        return self.size

    def new_group(self, **_: Any) -> _Group:
        return _Group()

    def start_swap(
        self, received: Iterable[Tensor], _: int, sent: Iterable[Tensor], *__: Any
    ) -> list[Any]:
        """In one step as many rows come from rank -s as go to rank +s."""
        for come, to in zip(received, sent, strict=True):
            come.copy_(to)
        return []

    def all_to_all(
        self, received: Tensor, sent: Tensor, came: list[int], went: list[int], _: Any
    ) -> None:
        """What comes from rank r is what goes to rank -r."""
        parts = torch.split(sent, went)
        for rank, place in enumerate(torch.split(received, came)):
            place.copy_(parts[-rank % self.size])

    def all_reduce(self, tensor: Tensor, _: Any) -> Tensor:
        tensor *= self.size
        return tensor

    def all_gather(self, own: Tensor, _: Any) -> Tensor:
        return torch.stack([own] * self.size)
