"""A world of equal ranks of which only one exists.

Rank 0 of P runs the real code while every other rank is thought to hold the same shard, shifted: so
what rank r sends to rank 0 is what rank 0 itself sends to rank -r. Nothing else is needed to
answer every exchange with tensors of the right sizes and sensible values, in one process and
without a process group.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch.distributed
from torch import Tensor

from pyg_sar.comm.all_to_all import all_to_all


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

    def is_completed(self) -> bool:
        return True


class _Group:
    """Stands for a process group."""


class World:
    """Stands in for ``torch.distributed`` in the eyes of pyg_sar.

    Args:
        size: Number of ranks P.

    Attributes:
        received_bytes: Bytes that rank 0 has received from other ranks, of rows and of whatever
            else travels by point-to-point messages or all-to-alls.
        received_rows: Rows that they were.
    """

    P2POp = _Op

    def __init__(self, size: int) -> None:
        self.size = size
        self.received_bytes = 0
        self.received_rows = 0
        self.group = type('group', (), {'WORLD': _Group()})

    def __getattr__(self, name: str) -> Any:
        """What is not collective: types, constants."""
        return getattr(torch.distributed, name)

    @contextmanager
    def in_force(self) -> Iterator[World]:
        """While it lasts, pyg_sar takes this process for rank 0 of this world."""
        with ExitStack() as stack:
            for name, module in list(sys.modules.items()):
                if not name.startswith('pyg_sar.') or name == __name__:
                    continue
                if vars(module).get('dist') is torch.distributed:
                    stack.enter_context(patch.object(module, 'dist', self))
                if vars(module).get('all_to_all') is all_to_all:
                    stack.enter_context(patch.object(module, 'all_to_all', self._all_to_all))
            yield self

    def _all_to_all(
        self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], group: Any
    ) -> Tensor:
        """Counts rows, which travel as bytes from there on."""
        self.received_rows += sum(recv_counts[1:])
        return all_to_all(rows, send_counts, recv_counts, group)

    def is_available(self) -> bool:
        """Yes."""
        return True

    def is_initialized(self) -> bool:
        """Whether there are other ranks."""
        return self.size > 1

    def get_rank(self, group: Any = None) -> int:
        """The one that exists."""
        return 0

    def get_world_size(self, group: Any = None) -> int:
        """All ranks."""
        return self.size

    def new_group(self, *_: Any, **__: Any) -> _Group:
        """All ranks, as every group is."""
        return _Group()

    def isend(self, *_: Any, **__: Any) -> None:
        """Names a direction; exchanges go through :meth:`batch_isend_irecv`."""
        raise NotImplementedError("expected 'isend' in batch_isend_irecv (got a call)")

    def irecv(self, *_: Any, **__: Any) -> None:
        """Names a direction; exchanges go through :meth:`batch_isend_irecv`."""
        raise NotImplementedError("expected 'irecv' in batch_isend_irecv (got a call)")

    def batch_isend_irecv(self, ops: Sequence[_Op]) -> list[_Done]:
        """In one step as many rows come from rank -s as go to rank +s."""
        sent = [op for op in ops if op.op == self.isend]
        received = [op for op in ops if op.op == self.irecv]
        for to, come in zip(sent, received, strict=True):
            come.tensor.copy_(to.tensor)
            self.received_bytes += come.tensor.nbytes
            self.received_rows += come.tensor.size(0)
        return [_Done() for _ in ops]

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        **_: Any,
    ) -> _Done:
        """What comes from rank r is what goes to rank -r."""
        parts = torch.split(input, input_split_sizes or len(input) // self.size)
        places = torch.split(output, output_split_sizes or len(output) // self.size)
        for rank, place in enumerate(places):
            place.copy_(parts[-rank % self.size])
        self.received_bytes += output.nbytes - places[0].nbytes
        return _Done()

    def all_reduce(self, tensor: Tensor, op: Any = torch.distributed.ReduceOp.SUM, **_: Any) -> Any:
        """All ranks hold the same."""
        if op == torch.distributed.ReduceOp.SUM:
            tensor *= self.size
        return _Done()

    def all_gather(self, tensors: list[Tensor], tensor: Tensor, group: Any = None) -> None:
        """All ranks hold the same."""
        for each in tensors:
            each.copy_(tensor)

    def broadcast(self, *_: Any, **__: Any) -> _Done:
        """All ranks hold the same."""
        return _Done()

    def barrier(self, *_: Any, **__: Any) -> _Done:
        """Nobody is late."""
        return _Done()
