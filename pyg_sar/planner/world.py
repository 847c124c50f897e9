"""A world of equal ranks of which only one exists.

Rank 0 of P runs the real code while every other rank is thought to hold the same shard, shifted: so
what rank r sends to rank 0 is what rank 0 itself sends to rank -r. Nothing else is needed to
answer every exchange with tensors of the right sizes and sensible values, in one process and
without a process group. The rehearsal knows :func:`equal_ranks` alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch.distributed
from torch import Tensor

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
        meter = Meter(counts)
        hook.add(meter)
        stack.callback(hook.remove, meter)
        yield counts


class _Op(NamedTuple):
    op: Any
    tensor: Tensor
    peer: int
    group: Any = None
    tag: int = 0


class _Done:
    """A transfer that is complete."""

    def wait(self, *_: Any) -> bool:
        return True

    is_completed = wait


class _Group:
    """Stands for a process group."""


class _World:
    """Stands in for ``torch.distributed``; all ranks hold the same."""

    P2POp, isend, irecv = _Op, 'isend', 'irecv'

    def __init__(self, size: int) -> None:
        self.size = size
        self.group = type('group', (), {'WORLD': _Group()})

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.distributed, name)  # what is not collective: types, constants

    def is_initialized(self) -> bool:
        return self.size > 1

    def get_rank(self, group: Any = None) -> int:
        return 0

    def get_world_size(self, group: Any = None) -> int:
        return self.size

    def new_group(self, *_: Any, **__: Any) -> _Group:
        return _Group()

    def batch_isend_irecv(self, ops: Sequence[_Op]) -> list[_Done]:
        """In one step as many rows come from rank -s as go to rank +s."""
        sent = [op.tensor for op in ops if op.op == self.isend]
        received = [op.tensor for op in ops if op.op == self.irecv]
        for to, come in zip(sent, received, strict=True):
            come.copy_(to)
        return [_Done() for _ in ops]

    def all_to_all_single(
        self, output: Tensor, input: Tensor, came: list[int], went: list[int], **_: Any
    ) -> None:
        """What comes from rank r is what goes to rank -r."""
        parts = torch.split(input, went)
        for rank, place in enumerate(torch.split(output, came)):
            place.copy_(parts[-rank % self.size])

    def all_reduce(self, tensor: Tensor, op: Any = torch.distributed.ReduceOp.SUM, **_: Any) -> Any:
        if op == torch.distributed.ReduceOp.SUM:
            tensor *= self.size
        return _Done()

    def all_gather(self, tensors: list[Tensor], tensor: Tensor, group: Any = None) -> None:
        for each in tensors:
            each.copy_(tensor)

    def barrier(self, *_: Any, **__: Any) -> _Done:
        return _Done()
