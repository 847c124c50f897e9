"""All that is asked of whoever carries messages between ranks.

Mostly this is ``torch.distributed``. A thread may also be in a :class:`World` of another kind, such
as that of ranks which are threads of one process (:mod:`pyg_sar.comm.threads`). Then every
function here asks that world, and nothing else in the package has to know.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


class Work(Protocol):
    """A transfer that is under way."""

    def wait(self) -> Any:
        """Returns once it is done."""


class World:
    """One rank of a world that ``torch.distributed`` does not know; the functions here tell more.

    It has no group and no connections that could break.

    Attributes:
        rank: The rank.
        size: Number of ranks.
        operation: What the rank is doing, for messages.
        travelling: Transfers that are under way.
    """

    rank: int
    size: int
    operation = ''
    group = None
    debug = False

    def __init__(self) -> None:
        self.travelling: set[Any] = set()

    def check(self, operation: str) -> None:
        """Raises if the world has ended."""

    def sum_alike(
        self, operation: str, alike: str = '', *, number: int = 0, state: str = ''
    ) -> int | None:
        """The sum of the ranks' numbers, or None if their states differ.

        Raises:
            RuntimeError: If they are at different operations.
        """
        raise NotImplementedError

    def start_swap(
        self,
        received: Sequence[Tensor],
        recv_rank: int,
        sent: Sequence[Tensor],
        send_rank: int,
        tag: int,
    ) -> list[Work]:
        """See :func:`start_swap`."""
        raise NotImplementedError

    def all_to_all(
        self, received: Tensor, sent: Tensor, recv_sizes: list[int], send_sizes: list[int]
    ) -> None:
        """See :func:`all_to_all`."""
        raise NotImplementedError

    def all_reduce(self, tensor: Tensor) -> None:
        """See :func:`all_reduce`."""
        raise NotImplementedError

    def all_gather(self, own: Tensor) -> Tensor:
        """See :func:`all_gather`."""
        raise NotImplementedError

    def broadcast(self, tensor: Tensor) -> None:
        """See :func:`broadcast`."""
        raise NotImplementedError


class _Here(threading.local):
    world: World | None = None


_here = _Here()


def world() -> World | None:
    """The world that this thread is in; None for that of ``torch.distributed``."""
    return _here.world


@contextmanager
def inside(entered: World) -> Iterator[None]:
    """This thread is in another world while it lasts."""
    before, _here.world = _here.world, entered
    try:
        yield
    finally:
        _here.world = before


def is_distributed() -> bool:
    """Whether there are ranks: ``torch.distributed`` is initialised, or this is another world."""
    return _here.world is not None or (dist.is_available() and dist.is_initialized())


def rank() -> int:
    """The own rank; 0 of a process by itself."""
    if _here.world is not None:
        return _here.world.rank
    return dist.get_rank() if is_distributed() else 0


def world_size() -> int:
    """Number of ranks; 1 of a process by itself."""
    if _here.world is not None:
        return _here.world.size
    return dist.get_world_size() if is_distributed() else 1


def start_swap(
    received: Iterable[Tensor],
    recv_rank: int,
    sent: Iterable[Tensor],
    send_rank: int,
    tag: int,
    group: Group,
) -> Sequence[Work]:
    """Begins to receive tensors from one rank and to send others to another.

    Receives come first: a send completes early only if its receive is posted already. Messages
    meet if their tags are equal, where the backend knows tags (gloo).
    """
    if _here.world is not None:
        return _here.world.start_swap(list(received), recv_rank, list(sent), send_rank, tag)
    ops = [dist.P2POp(dist.irecv, t, recv_rank, group, tag) for t in received]
    ops += [dist.P2POp(dist.isend, t, send_rank, group, tag) for t in sent]
    return dist.batch_isend_irecv(ops) if ops else []


def all_to_all(
    received: Tensor, sent: Tensor, recv_sizes: list[int], send_sizes: list[int], group: Group
) -> None:
    """Sends runs of a vector to rank 0, 1, ...; what comes from them fills another one."""
    if _here.world is not None:
        _here.world.all_to_all(received, sent, recv_sizes, send_sizes)
    else:
        dist.all_to_all_single(received, sent, recv_sizes, send_sizes, group=group)


def all_reduce(tensor: Tensor, group: Group) -> Tensor:
    """Sums a tensor over the ranks in place."""
    if _here.world is not None:
        _here.world.all_reduce(tensor)
    else:
        dist.all_reduce(tensor, group=group)
    return tensor


def all_gather(own: Tensor, group: Group) -> Tensor:
    """The tensors of all ranks, of one shape, ``[world_size, ...]``."""
    if _here.world is not None:
        return _here.world.all_gather(own)
    out = own.new_empty(dist.get_world_size(group), *own.shape)
    dist.all_gather(list(out.unbind()), own, group=group)
    return out


def broadcast(tensor: Tensor, group: Group) -> None:
    """Gives all ranks what rank 0 has in a tensor."""
    if _here.world is not None:
        _here.world.broadcast(tensor)
    else:
        dist.broadcast(tensor, src=0, group=group)


def small_device(group: Group) -> torch.device:
    """Where tensors of a few bytes must be to travel: on the CPU, if the group can do that."""
    types: Sequence[torch.device] = getattr(group, '_device_types', ())
    if not types or torch.device('cpu') in types:
        return torch.device('cpu')
    if torch.device('cuda') in types:
        return torch.device('cuda', torch.cuda.current_device())
    return torch.device(types[0])
