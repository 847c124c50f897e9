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
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


class Work(Protocol):
    """A transfer that is under way."""

    def wait(self) -> Any:
        """Returns once it is done."""


class Watch(Protocol):
    """Sees that transfers of devices end."""

    def add(self, work: Any) -> None:
        """To be told of one that has begun."""


watches: WeakKeyDictionary[dist.ProcessGroup, Watch] = WeakKeyDictionary()
"""Of groups whose transfers are watched."""


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


def takes_turns() -> bool:
    """Whether ranks are threads of a world of another kind, which would not know a rank's own."""
    return _here.world is not None


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
    meet if their tags are equal, where the backend knows tags (gloo). Tensors are contiguous.
    """
    received, sent = list(received), list(sent)
    if _here.world is not None:
        return _here.world.start_swap(received, recv_rank, sent, send_rank, tag)
    come, go = ([_carried(t, group) for t in tensors] for tensors in (received, sent))
    for message, tensor in zip(go, sent, strict=True):
        if message.device != tensor.device:
            message.copy_(tensor)
    ops = [dist.P2POp(dist.irecv, t, recv_rank, group, tag) for t in come]
    ops += [dist.P2POp(dist.isend, t, send_rank, group, tag) for t in go]
    works: list[Work] = [*dist.batch_isend_irecv(ops)] if ops else []
    for work in works:
        _watch(work, (come or go)[0].device, group)
    for i, (message, tensor) in enumerate(zip(come, received, strict=True)):
        if message.device != tensor.device:
            works[i] = _Landing(works[i], message, tensor)
    return works


class _Landing:
    """A transfer into memory of the host, from where it goes on to a device."""

    def __init__(self, work: Work, host: Tensor, place: Tensor) -> None:
        self._work, self._host, self._place = work, host, place

    def wait(self) -> None:
        self._work.wait()
        self._place.copy_(self._host, non_blocking=True)


def goes_by_host(device: torch.device, group: Group) -> bool:
    """Whether tensors of a device travel from host to host: by gloo; so ranks may share a GPU."""
    if device.type == 'cpu' or _here.world is not None:
        return True
    chosen = group or dist.group.WORLD
    assert chosen is not None
    return chosen._get_backend(device).name() == 'gloo'


def _carried(tensor: Tensor, group: Group) -> Tensor:
    """What a backend carries for a contiguous tensor: itself, memory of the host, or its bytes."""
    if tensor.device.type == 'cpu':
        return tensor
    if goes_by_host(tensor.device, group):  # gloo takes every address for one of the host
        return torch.empty(tensor.shape, dtype=tensor.dtype, device='cpu', pin_memory=True)
    return tensor.view(-1).view(torch.uint8)  # NCCL does not know all dtypes


def all_to_all(
    received: Tensor, sent: Tensor, recv_sizes: list[int], send_sizes: list[int], group: Group
) -> None:
    """Sends runs of a vector to rank 0, 1, ...; what comes from them fills another one."""
    if _here.world is not None:
        _here.world.all_to_all(received, sent, recv_sizes, send_sizes)
    else:
        _wait(
            dist.all_to_all_single(
                received, sent, recv_sizes, send_sizes, group=group, async_op=True
            ),
            sent,
            group,
        )


def all_reduce(tensor: Tensor, group: Group) -> Tensor:
    """Sums a tensor over the ranks in place."""
    if _here.world is not None:
        _here.world.all_reduce(tensor)
    else:
        _wait(dist.all_reduce(tensor, group=group, async_op=True), tensor, group)
    return tensor


def all_gather(own: Tensor, group: Group) -> Tensor:
    """The tensors of all ranks, of one shape, ``[world_size, ...]``."""
    if _here.world is not None:
        return _here.world.all_gather(own)
    out = own.new_empty(dist.get_world_size(group), *own.shape)
    _wait(dist.all_gather(list(out.unbind()), own, group=group, async_op=True), own, group)
    return out


def broadcast(tensor: Tensor, group: Group) -> None:
    """Gives all ranks what rank 0 has in a contiguous tensor."""
    if _here.world is not None:
        _here.world.broadcast(tensor)
    else:
        is_host = goes_by_host(tensor.device, group)
        sent = tensor if is_host else _carried(tensor, group)
        _wait(dist.broadcast(sent, src=0, group=group, async_op=True), tensor, group)


def _wait(work: Any, tensor: Tensor, group: Group) -> None:
    """Waits for a collective; on a device by NCCL its stream does."""
    _watch(work, tensor.device, group)
    work.wait()


def _watch(work: Any, device: torch.device, group: Group) -> None:
    """Has a transfer watched whose own wait tells nothing."""
    if device.type != 'cpu' and not goes_by_host(device, group):
        chosen = group or dist.group.WORLD
        assert chosen is not None
        watch = watches.get(chosen)
        if watch is not None:
            watch.add(work)


def small_device(group: Group) -> torch.device:
    """Where tensors of a few bytes must be to travel: on the CPU, if the group can do that."""
    types: Sequence[torch.device] = getattr(group, '_device_types', ())
    return torch.device('cpu' if not types or torch.device('cpu') in types else types[0])
