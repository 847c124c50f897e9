"""Rows that ranks of one machine read out of each other's memory: loopback would cost more.

Rows that are sent lie in a segment: memory that other processes can open. Their message tells only
which one. The reader copies the rows and marks the segment as read; then the sender fills it again.
A sender never waits for this: while all its segments are to be read it makes another one.
"""

from __future__ import annotations

import mmap
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np
import torch
from torch import Tensor

_NAME = 'pyg_sar'
_PAGE = mmap.PAGESIZE
_MANY = 16  # memory that is noted as sent; then what is read is struck off
_IS_SENT, _SECRET = 0, 1  # the numbers, int64, at the start of a segment

_segments: WeakValueDictionary[int, Segment] = WeakValueDictionary()  # by their address


class Segment(mmap.mmap):
    """Memory of this process that others can open: a page with two numbers, then bytes."""

    fd: int
    numbers: Any
    reader = 0  # its process

    @classmethod
    def new(cls, num_bytes: int) -> Segment:
        """A segment for so many bytes."""
        fd, size = os.memfd_create(_NAME), _PAGE + num_bytes
        try:
            os.ftruncate(fd, size)
            segment = cls(fd, size)
        except OSError:
            os.close(fd)
            raise
        # At the end of the process readers may still be about to open it.
        finalize(segment, os.close, fd).atexit = False
        # Of a mapping of their own: a view of this one would keep it.
        segment.fd, segment.numbers = fd, np.frombuffer(mmap.mmap(fd, _PAGE), np.int64, 2)
        segment.numbers[_SECRET] = secrets.randbits(62)
        return segment


@torch.inference_mode(False)  # it outlives the caller's mode
def allocated(num_bytes: int) -> Tensor:
    """A uint8 vector in a segment of its own."""
    segment = Segment.new(num_bytes)
    vector = torch.frombuffer(segment, dtype=torch.uint8)
    _segments[vector.data_ptr()] = segment
    return vector[_PAGE:]


def writable(memories: Iterable[Tensor]) -> list[Tensor]:
    """Those of some memories that no other process is to read."""
    found = ((memory, _segments.get(memory.untyped_storage().data_ptr())) for memory in memories)
    return [memory for memory, segment in found if segment is None or not segment.numbers[_IS_SENT]]


class SharedMemory:
    """Of a rank: which other ranks can read its memory, and it theirs.

    `pids` are the processes of these ranks. A process that ends waits `seconds` at most until what
    it has sent is read, as it would for its messages.
    """

    def __init__(self, pids: dict[int, int] | None = None, seconds: float = 0.0) -> None:
        self.pids = pids or {}
        # They stay until they are read, whoever has made them.
        self._sent: list[Segment] = []
        self._spare: list[Tensor] = []
        if self.pids:
            Finalize(None, _await_readers, (self._sent, seconds), exitpriority=0)

    def send(self, tensors: Sequence[Tensor], rank: int) -> Tensor:
        """Lets a rank read contiguous tensors; returns the message for it, int64 ``[count, 4]``.

        Those that are :func:`allocated` stay where they are, and nobody may write to them before
        they are read (:func:`writable`). Others are copied.
        """
        if len(self._sent) > _MANY:
            self._sent[:] = [segment for segment in self._sent if segment.numbers[_IS_SENT]]
        message = []
        for tensor in tensors:
            memory, segment = tensor, _segments.get(tensor.untyped_storage().data_ptr())
            if segment is None or segment.numbers[_IS_SENT]:
                memory = self._copied(tensor)
                segment = _segments[memory.untyped_storage().data_ptr()]
            start = memory.data_ptr() - memory.untyped_storage().data_ptr()
            message.append([segment.fd, segment.numbers[_SECRET], start, tensor.nbytes])
            segment.numbers[_IS_SENT] = 1
            segment.reader = self.pids[rank]
            self._sent.append(segment)
        return torch.from_numpy(np.array(message, np.int64))

    def forget(self) -> None:
        """Nobody will read what is not read yet: the ranks have ended."""
        self._sent.clear()

    def _copied(self, tensor: Tensor) -> Tensor:
        free = writable(self._spare)
        memory = next((memory for memory in free if memory.numel() >= tensor.nbytes), None)
        if memory is None:
            self._spare = [memory for memory in self._spare if all(memory is not t for t in free)]
            memory = allocated(tensor.nbytes)
            self._spare.append(memory)
        return memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def receive(self, message: Tensor, rank: int, targets: Sequence[Tensor]) -> None:
        """Copies the rows that a rank has sent into contiguous tensors.

        Raises RuntimeError if the rank has ended, or has sent other rows.
        """
        for (fd, secret, start, num_bytes), target in zip(message.tolist(), targets, strict=True):
            if num_bytes != target.nbytes:
                raise RuntimeError(f'{num_bytes} bytes of rows came instead of {target.nbytes}')
            file = _opened(self.pids[rank], fd, secret)
            if file is None:
                raise RuntimeError('Connection closed by peer: its memory is gone')
            left = target.view(-1).view(torch.uint8).numpy().data
            while left:  # at most 2 GiB at a time
                left = left[os.preadv(file, [left], start + num_bytes - len(left)) :]
            os.pwrite(file, bytes(8), 8 * _IS_SENT)
            os.close(file)


def find_shared(rank: int, gather: Callable[[Tensor], Tensor], seconds: float) -> SharedMemory:
    """Finds out which ranks can read each other's memory (collective: two calls of `gather`).

    Ranks of different networks (namespaces) of one machine stand for different machines.
    """
    probe, network = None, 0
    with suppress(OSError):
        if hasattr(os, 'memfd_create'):
            network = Path('/proc/self/ns/net').stat().st_ino
            probe = Segment.new(0)
    own = [0] * 4
    if probe is not None:
        own = [os.getpid(), probe.fd, int(probe.numbers[_SECRET]), network]
    ranks = gather(torch.tensor(own)).tolist()
    opens = []
    for pid, fd, secret, where in ranks:
        file = _opened(pid, fd, secret) if where == network and probe is not None else None
        opens.append(file is not None)
        if file is not None:
            os.close(file)
    table = gather(torch.tensor(opens, dtype=torch.int64))
    both = (table * table.t())[rank].tolist()
    others = (other for other in range(len(ranks)) if both[other] and other != rank)
    return SharedMemory({other: ranks[other][0] for other in others}, seconds)


def _await_readers(sent: list[Segment], seconds: float) -> None:
    """Waits until sent rows are read, by processes that still run."""
    end = time.monotonic() + seconds
    has_failed = getattr(sys, 'last_value', None) is not None
    while not has_failed and time.monotonic() < end:
        if not any(segment.numbers[_IS_SENT] and _runs(segment.reader) for segment in sent):
            break
        time.sleep(0.001)


def _runs(pid: int) -> bool:
    try:
        state = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0]
    except OSError:
        return False
    return state not in 'ZX'


def _opened(pid: int, fd: int, secret: int) -> int | None:
    """A segment of a process as a file; None if there is no such process, or it may not be read."""
    path = f'/proc/{pid}/fd/{fd}'
    try:
        # On another machine the number is that of any process, and of any of its files.
        if not os.readlink(path).startswith(f'/memfd:{_NAME} '):
            return None
        file = os.open(path, os.O_RDWR)
    except OSError:
        return None
    if int.from_bytes(os.pread(file, 8, 8 * _SECRET), sys.byteorder) == secret:
        return file
    os.close(file)
    return None


def compute_first() -> None:
    """Has gloo's threads wait for a core that computes; for ranks that share cores.

    Else a thread that wakes up takes the core. If the one that it stops holds a connection, gloo's
    asks for this in a loop for as long as it may run.
    """
    with suppress(OSError):  # they are what they were
        for thread in Path('/proc/self/task').iterdir():
            if (thread / 'comm').read_text().startswith('gloo_tcp_loop'):
                os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))
