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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np
import torch
from torch import Tensor

from pyg_sar.ground.checksum import as_bytes

_PAGE = mmap.PAGESIZE
_IS_SENT, _SECRET = 0, 1  # the numbers, int64, at the start of a segment

_segments: WeakValueDictionary[int, Segment] = WeakValueDictionary()  # by their address


class Segment(mmap.mmap):
    """Memory of this process that others can open: a page with two numbers, then bytes."""

    fd: int
    secret: int

    @classmethod
    def new(cls, num_bytes: int) -> Segment:
        """A segment for so many bytes."""
        fd, size = os.memfd_create('pyg_sar'), _PAGE + num_bytes
        try:
            os.ftruncate(fd, size)
            segment = cls(fd, size)
        except OSError:
            os.close(fd)
            raise
        # At the end of the process readers may still be about to open it.
        finalize(segment, os.close, fd).atexit = False
        segment.fd, segment.secret = fd, secrets.randbits(62)
        _numbers(segment)[_SECRET] = segment.secret
        return segment


@torch.inference_mode(False)  # it outlives the caller's mode
def allocated(num_bytes: int) -> Tensor:
    """A uint8 vector in a segment of its own."""
    segment = Segment.new(num_bytes)
    vector = torch.frombuffer(segment, dtype=torch.uint8)
    _segments[vector.data_ptr()] = segment
    return vector[_PAGE:]


def is_sent(memory: Tensor) -> bool:
    """Whether memory was sent, and its reader has not marked it as read."""
    segment = _segment_of(memory)
    return segment is not None and bool(_numbers(segment)[_IS_SENT])


class SharedMemory:
    """Of a rank: which other ranks can read its memory, and it theirs.

    A process that ends waits until what it has sent is read, as it would for its messages.

    Args:
        pids: The processes of these ranks, by rank.
        seconds: How long it waits at its end.
    """

    def __init__(self, pids: dict[int, int] | None = None, seconds: float = 0.0) -> None:
        self._pids, self._seconds = pids or {}, seconds
        # They stay while they are read, whoever has made them.
        self._sent: list[tuple[Tensor, int]] = []
        self._spare: list[Tensor] = []
        if self._pids:
            Finalize(None, _await_readers, (self._sent, seconds), exitpriority=0)

    def __contains__(self, rank: int) -> bool:
        return rank in self._pids

    def __bool__(self) -> bool:
        return bool(self._pids)

    def of_lane(self) -> SharedMemory:
        """That of one more thread of this rank."""
        return SharedMemory(self._pids, self._seconds)

    def send(self, tensors: Sequence[Tensor], rank: int) -> Tensor:
        """Lets a rank read contiguous tensors; returns the :func:`new_message` for it.

        Those that are :func:`allocated` stay where they are, and nobody may write to them before
        they are read (:func:`is_sent`). Others are copied.
        """
        self._sent[:] = [(memory, pid) for memory, pid in self._sent if is_sent(memory)]
        message = []
        for tensor in tensors:
            is_free = _segment_of(tensor) is not None and not is_sent(tensor)
            memory = tensor if is_free else self._copied(tensor)
            segment = _segments[memory.untyped_storage().data_ptr()]
            start = memory.data_ptr() - memory.untyped_storage().data_ptr()
            message.append([segment.fd, segment.secret, start])
            _numbers(segment)[_IS_SENT] = 1
            self._sent.append((memory, self._pids[rank]))
        return torch.tensor(message)

    def forget(self) -> None:
        """Nobody will read what is not read yet: the ranks have ended."""
        self._sent.clear()

    def _copied(self, tensor: Tensor) -> Tensor:
        free = [memory for memory in self._spare if not is_sent(memory)]
        memory = next((memory for memory in free if memory.numel() >= tensor.nbytes), None)
        if memory is None:
            self._spare = [memory for memory in self._spare if is_sent(memory)]
            memory = allocated(tensor.nbytes)
            self._spare.append(memory)
        return memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def receive(self, message: Tensor, rank: int, targets: Sequence[Tensor]) -> None:
        """Copies the rows that a rank has sent into contiguous tensors.

        Raises:
            RuntimeError: If the rank has ended.
        """
        for (fd, secret, start), target in zip(message.tolist(), targets, strict=True):
            with _opened(self._pids[rank], fd, secret) as file:
                if file is None:
                    raise RuntimeError('Connection closed by peer: its memory is gone')
                left = as_bytes(target).numpy().data
                while left:  # at most 2 GiB at a time
                    left = left[os.preadv(file, [left], start + target.nbytes - len(left)) :]
                os.pwrite(file, bytes(8), 8 * _IS_SENT)


def new_message(count: int) -> Tensor:
    """Memory for a message that tells where so many tensors are, int64 ``[count, 3]``."""
    return torch.empty(count, 3, dtype=torch.int64)


def find_shared(rank: int, gather: Callable[[Tensor], Tensor], seconds: float) -> SharedMemory:
    """Finds out which ranks can read each other's memory (collective: two all-gathers).

    Ranks of different networks (namespaces) of one machine stand for different machines.

    Args:
        rank: The own rank.
        gather: Gives what all ranks have, ``[size, ...]``.
        seconds: See :class:`SharedMemory`.
    """
    probe, network = None, 0
    with suppress(OSError):
        if hasattr(os, 'memfd_create'):
            network = Path('/proc/self/ns/net').stat().st_ino
            probe = Segment.new(0)
    own = [0] * 4 if probe is None else [os.getpid(), probe.fd, probe.secret, network]
    ranks = gather(torch.tensor(own)).tolist()
    opens = []
    for pid, fd, secret, where in ranks:
        with _opened(pid, fd, secret) as file:
            opens.append(probe is not None and where == network and file is not None)
    table = gather(torch.tensor(opens, dtype=torch.int64))
    both = (table * table.t())[rank].tolist()
    others = (other for other in range(len(ranks)) if both[other] and other != rank)
    return SharedMemory({other: ranks[other][0] for other in others}, seconds)


def _await_readers(sent: list[tuple[Tensor, int]], seconds: float) -> None:
    """Waits until sent rows are read, by processes that still run."""
    end = time.monotonic() + seconds
    has_failed = getattr(sys, 'last_value', None) is not None
    while not has_failed and time.monotonic() < end:
        if not any(is_sent(memory) and _runs(pid) for memory, pid in sent):
            break
        time.sleep(0.001)


def _runs(pid: int) -> bool:
    try:
        state = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0]
    except OSError:
        return False
    return state not in 'ZX'


@contextmanager
def _opened(pid: int, fd: int, secret: int) -> Iterator[int | None]:
    """A segment of a process as a file; None if there is no such process, or it may not be read."""
    try:
        file = os.open(f'/proc/{pid}/fd/{fd}', os.O_RDWR)
    except OSError:
        yield None
        return
    try:
        found = int.from_bytes(os.pread(file, 8, 8 * _SECRET), sys.byteorder)
        yield file if found == secret else None
    finally:
        os.close(file)


def compute_first() -> None:
    """Has gloo's threads wait for a core that computes; for ranks that share cores.

    Else a thread that wakes up takes the core. If the one that it stops holds a connection, gloo's
    asks for this in a loop for as long as it may run: 8 % of the CPU time of four ranks on two
    cores.
    """
    with suppress(OSError):  # they are what they were
        for thread in Path('/proc/self/task').iterdir():
            if (thread / 'comm').read_text().startswith('gloo_tcp_loop'):
                os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))


def _segment_of(tensor: Tensor) -> Segment | None:
    return _segments.get(tensor.untyped_storage().data_ptr())


def _numbers(memory: mmap.mmap) -> Any:
    # A view that stayed would keep the memory.
    return np.frombuffer(memory, np.int64, 2)
