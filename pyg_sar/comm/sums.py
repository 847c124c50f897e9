"""How ranks sum: with the bits of gloo's, and large sums with no message before them.

Ranks must know that all come to the same large sum before any of them sends: messages of different
sizes must not meet. In training the same sums follow the same small messages in every step. So the
small message announces them, once they have followed it before, and all ranks know by it.

A rank that comes to another message sends NaNs in place of the sum that it left out: so no rank
waits, and the sizes are equal. A rank that finds a NaN compares where all are.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from pyg_sar.comm.comm import Comm
from pyg_sar.comm.errors import location

_Sum = tuple[str, torch.dtype, tuple[int, ...]]
"""What is summed, and where; with its form."""

_MOST = 1000
"""Messages of which it knows the sums."""


class Announced:
    """The sums that are announced on a rank; equal on all, as all have compared their messages."""

    def __init__(self) -> None:
        # A message is known by a checksum of all messages since the last large sum.
        self.message = self._seen = 0
        self.coming: list[_Sum] = []  # what it announces, as far as it has not come
        self._known: dict[int, list[_Sum]] = {}  # those that follow a message
        self._left_out: set[int] = set()  # messages that one of their sums did not follow

    def by(self, comm: Comm, message: str) -> str:
        """The sums that a message announces, in words; it is the next one on all ranks."""
        if self.coming:
            self.leave_out(comm)
        self.message = self._seen = zlib.crc32(message.encode(), self._seen)
        self.coming = [*self._known.get(self.message, ())]
        return str(self.coming or '')

    def sum_by(self, comm: Comm, tag: str, tensor: Tensor) -> None:
        """See :meth:`Comm.sum_large`; one message if the sum is announced, else two."""
        form: _Sum = f'{tag} in {location()}', tensor.dtype, tuple(tensor.shape)
        is_announced = self.coming[:1] == [form]
        if is_announced:
            del self.coming[0]
        else:
            before = self.message
            comm.vote(tag)
        comm.all_reduce(tensor)
        self._seen = 0
        if not is_announced:
            self._learn(before, form)
        elif tensor.view(-1)[-1].isnan():  # perhaps not all ranks are here
            comm.vote(tag)

    def leave_out(self, comm: Comm) -> None:
        """Sends NaNs in place of the sum that was announced and does not come."""
        _, dtype, shape = self.coming[0]
        del self._known[self.message][-len(self.coming) :]
        self.coming.clear()
        self._left_out.add(self.message)
        comm.all_reduce(torch.full(shape, torch.nan, dtype=dtype))

    def _learn(self, message: int, form: _Sum) -> None:
        """Notes a sum that came after a message, and after those that this one announced."""
        has_nan = form[1].is_floating_point or form[1].is_complex
        if has_nan and message not in self._left_out and len(self._known) < _MOST:
            self._known.setdefault(message, []).append(form)


_SEGMENT_BYTES = 2**20  # gloo's largest segment of a ring all-reduce


def sum_as_gloo_does(tensors: list[Tensor]) -> Tensor:
    """Adds up the tensors of all ranks, in the order of gloo's ring.

    gloo (allreduce.cc) cuts the vector into one chunk per rank. Chunk k starts at rank k - 1 and
    goes down from rank to rank, ``((x[k-1] + x[k-2]) + ...) + x[k]``.
    """
    size, rows = len(tensors), [tensor.reshape(-1) for tensor in tensors]
    width = rows[0].element_size()
    num_bytes = rows[0].numel() * width
    segments = max(-(-num_bytes // _SEGMENT_BYTES), 2 * size)
    segments = -(-segments // size) * size
    of_segment = -(-num_bytes // segments)
    chunk = max(-(-of_segment // width) * segments // size, 1)
    chunks = [torch.split(row, chunk) for row in rows]
    sums = []
    for k in range(len(chunks[0])):
        total = chunks[(k - 1) % size][k].clone()
        for i in range(2, size + 1):
            total += chunks[(k - i) % size][k]
        sums.append(total)
    return torch.cat(sums).view(tensors[0].shape) if sums else tensors[0].clone()
