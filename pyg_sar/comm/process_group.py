"""The comm of a default process group of ``torch.distributed``.

Exchanges use a group of their own, so they never meet the collectives of the user.

Messages of different sizes must not meet: gloo ends the process then. So every collective begins
with a gather of a KiB of every rank: a code of what the operation is, where it is done and what
it moves, a few bits of the operation's own, up to 1016 bytes to be summed, and a checksum of the
plain values that have met rows (:mod:`pyg_sar.comm.plain_values`). A decision of a layer, and the
sum of a loss, are this message and nothing else. A larger sum that follows in every step, as that
of gradients does, is announced by the message before it (:mod:`pyg_sar.comm.sums`).
Messages between two ranks carry the code as their tag, so those of different layers never meet.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pyg_sar.comm.connection import Connection
from pyg_sar.comm.errors import at_location, location
from pyg_sar.comm.faults import RootCause
from pyg_sar.comm.send_recv import Buffers, Transfer, Work, copy_all
from pyg_sar.comm.shared_memory import allocated
from pyg_sar.comm.sums import Announced, sum_as_gloo_does
from pyg_sar.utils import hook
from pyg_sar.utils.tensor_state import as_bytes

_SHORT = 512
"""Bytes of a text that needs no further messages."""

_CLASS = re.compile(r' ?\(\w+\)')
_MOST_BITS = 24
_WORDS = 129  # of 8 bytes: code and bits, what is summed, and a checksum


class GroupComm(Connection):
    """A rank of the default process group; connected at the first use (collective)."""

    small_bytes = 8 * (_WORDS - 2)

    def __init__(self) -> None:
        super().__init__()
        self._announced = Announced()

    def connect_devices(self, device: torch.device) -> None:
        """See :meth:`Comm.connect_devices`.

        NCCL connects all ranks in their first operation, and two ranks in their first transfer. The
        host waits for that in C: within an exchange it would wait for ranks without rows, or lost.
        """
        if device in self._devices:
            return
        self.check('an exchange')
        if not self.goes_by_host(device):
            with self.guard('connecting the devices of the ranks'):
                numbers, ones = torch.zeros(self.size, device=device), [1] * self.size
                self.all_reduce(numbers)
                self.all_to_all(numbers.clone(), numbers, ones, ones)
        self._devices.add(device)

    def goes_by_host(self, device: torch.device, group: dist.ProcessGroup | None = None) -> bool:
        if device.type == 'cpu':
            return True
        return bool((group or self.group or self._opened())._get_backend(device).name() == 'gloo')

    def vote(self, tag: str, bits: Sequence[bool] = (), fingerprint: str = '') -> list[int] | None:
        """See :meth:`Comm.vote`; one message of a KiB."""
        records = self._gathered(tag, sum(bit << i for i, bit in enumerate(bits)), fingerprint)
        if records is None:
            return None
        heads = records[:, 0].tolist()
        return [sum(head >> i & 1 for head in heads) for i in range(len(bits))]

    def sum_small(self, tag: str, tensor: Tensor, bit: bool = False) -> int:
        """See :meth:`Comm.sum_small`; one message of a KiB."""
        records = self._gathered(tag, int(bit), summed=tensor)
        assert records is not None
        rows = records[:, 1:].contiguous().view(torch.uint8)[:, : tensor.nbytes]
        numbers = [row.clone().view(tensor.dtype) for row in rows]
        tensor.copy_(sum_as_gloo_does(numbers).view(tensor.shape))
        return int((records[:, 0] & 1).sum())

    def _gathered(
        self, tag: str, bits: int = 0, fingerprint: str = '', summed: Tensor | None = None
    ) -> Tensor | None:
        """What all ranks say at an operation, or None if their fingerprints differ."""
        # Without the class of the layer: the comparison of forwards has it.
        same = f'{tag} in {_CLASS.sub("", location())}'
        same += self._announced.by(self, same)
        code = zlib.crc32((same + fingerprint).encode())
        words = np.zeros(_WORDS, np.int64)
        words[0], words[-1] = code << _MOST_BITS | bits, self.met.checksum
        record = torch.from_numpy(words)
        if summed is not None:
            record[1:].view(torch.uint8)[: summed.nbytes] = as_bytes(summed)
        records = self.all_gather(record.to(self._small)).cpu()
        heads, met = records[:, 0].tolist(), records[:, -1].tolist()
        is_alike = all(head >> _MOST_BITS == code for head in heads)
        if not is_alike:
            own = f'{zlib.crc32(same.encode())} {at_location(tag)}'
            texts = [t.decode(errors='replace') for t in self._texts(own.encode(), _SHORT)]
            codes, said = zip(*(text.split(' ', 1) for text in texts), strict=True)
            rank = next((r for r, code in enumerate(codes) if code != codes[self.rank]), None)
            if rank is not None:
                reason = f'rank {rank} is at {said[rank].strip()}: run the same lines on every rank'
                error = self._error(rank, self.operation, reason)
                self.reports.write(RootCause(rank, doing=at_location(tag)))
                self.end(error)
                raise error
        self.met.clear() if len({*met}) == 1 else self._compare_met()
        return records if is_alike else None

    def _compare_met(self) -> None:
        """Raises if plain values that have met rows differ, as their checksums do; two messages."""
        self.met.compare(self._long_texts(self.met.encoded()), self.rank)

    def sum_large(self, tag: str, tensor: Tensor) -> None:
        """See :meth:`Comm.sum_large`; one message if it is announced, else two."""
        self._announced.sum_by(self, tag, tensor)

    def gather_texts(self, text: bytes, what: str) -> list[bytes]:
        """See :meth:`Comm.gather_texts`: a number and one all-gather, two if one is not short."""
        if self.vote(what, [len(text) > _SHORT]) != [0]:
            return self._long_texts(text)
        return self._texts(text, _SHORT)

    def _long_texts(self, text: bytes) -> list[bytes]:
        lengths = self.all_gather(torch.tensor(len(text), device=self._small))
        return self._texts(text, int(lengths.max()))

    def _texts(self, text: bytes, size: int) -> list[bytes]:
        own = torch.frombuffer(bytearray(text.ljust(size)[:size]), dtype=torch.uint8)
        return [t.numpy().tobytes() for t in self.all_gather(own.to(self._small)).cpu()]

    def allocate(self, num_bytes: int, device: torch.device) -> Tensor:
        is_read = device.type == 'cpu' and self._shared.pids
        return allocated(num_bytes) if is_read else super().allocate(num_bytes, device)

    def start(self, transfer: Transfer) -> None:
        """See :meth:`Comm.start`."""
        (send_rank, _), (recv_rank, count) = transfer.to, transfer.of
        sent, received = transfer.sent or transfer.packed(), transfer.lend(transfer.form, count)
        transfer.received, transfer.sent = received, sent
        sends, receives = ([t for t in of.rows if t.numel()] for of in (sent, received))
        transfer.doing = transfer.operations()
        operation, peer = transfer.doing[not receives]
        with self.guard(operation, peer):
            messages = self.start_send_recv(receives, recv_rank, sends, send_rank, transfer.words)
        transfer.works, transfer.num_coming, transfer.unpack = messages
        self.travelling.add(transfer)

    def finish(self, transfer: Transfer) -> Buffers:
        """See :meth:`Comm.finish`."""
        if transfer.works:
            comes, goes = transfer.doing
            with self.guard(*(comes if transfer.num_coming else goes), is_wait=True):
                # A work that this frame held would keep connections open.
                for i in range(transfer.num_coming):
                    transfer.works[i].wait()
                if transfer.num_coming and transfer.unpack is not None:
                    transfer.unpack()
                self.operation, self.peer = goes
                for i in range(transfer.num_coming, len(transfer.works)):
                    transfer.works[i].wait()
        self.travelling.discard(transfer)
        self.check('the end of a transfer')  # nothing has arrived if the group has ended
        assert transfer.sent is not None
        transfer.sent.free()
        if hook.watchers:
            transfer.tell(transfer.received)
        return transfer.received

    def start_send_recv(
        self,
        received: Sequence[Tensor],
        recv_rank: int,
        sent: Sequence[Tensor],
        send_rank: int,
        tag: str,
    ) -> tuple[list[Work], int, Callable[[], None] | None]:
        """Begins to receive contiguous tensors from one rank and to send others to another rank.

        Gives the messages that come in, then those that go out; how many come in; and what is done
        once these are here. Messages meet if their tags are equal, where the backend knows tags
        (gloo). Receives come first: a send completes early only if its receive is posted already.
        """
        shared, unpack = self._shared, None
        is_read = recv_rank in shared.pids and bool(received) and received[0].device.type == 'cpu'
        is_lent = send_rank in shared.pids and bool(sent) and sent[0].device.type == 'cpu'
        if is_read:
            come = [torch.empty(len(received), 4, dtype=torch.int64)]
            unpack = partial(shared.receive, come[0], recv_rank, received)
        else:
            come = [self._carried(t) for t in received]
            if any(here.device != t.device for here, t in zip(come, received, strict=True)):
                unpack = partial(copy_all, received, come)
        go = [shared.send(sent, send_rank)] if is_lent else [self._filled(t) for t in sent]
        if not come and not go:
            return [], 0, None
        group, code = self.group or self._opened(), zlib.crc32(tag.encode()) >> 1
        ops = [dist.P2POp(dist.irecv, t, recv_rank, group, code) for t in come]
        ops += [dist.P2POp(dist.isend, t, send_rank, group, code) for t in go]
        # NCCL gives one for all.
        works: list[Work] = [*dist.batch_isend_irecv(ops)]
        device = ops[0].tensor.device
        for work in works if device.type != 'cpu' else ():
            self._see(work, device)
        return works, min(len(come), len(works)), unpack

    def all_to_all(
        self, received: Tensor, sent: Tensor, recv_sizes: list[int], send_sizes: list[int]
    ) -> None:
        group, sizes = self.group or self._opened(), (recv_sizes, send_sizes)
        self._await(
            dist.all_to_all_single(received, sent, *sizes, group=group, async_op=True), sent.device
        )

    def all_reduce(self, tensor: Tensor, group: dist.ProcessGroup | None = None) -> None:
        chosen = group or self.group or self._opened()
        work: Any = dist.all_reduce(tensor, group=chosen, async_op=True)
        work.wait() if group or tensor.device.type == 'cpu' else self._await(work, tensor.device)

    def all_gather(self, own: Tensor) -> Tensor:
        group, out = self.group or self._opened(), own.new_empty(self.size, *own.shape)
        work: Any = dist.all_gather(list(out.unbind()), own, group=group, async_op=True)
        work.wait() if own.device.type == 'cpu' else self._await(work, own.device)
        return out

    def broadcast(self, tensor: Tensor) -> None:
        if self._announced.coming:
            self._announced.leave_out(self)
        group = self.group or self._opened()
        sent = tensor if self.goes_by_host(tensor.device) else self._carried(tensor)
        self._await(dist.broadcast(sent, src=0, group=group, async_op=True), tensor.device)

    def _opened(self) -> dist.ProcessGroup:
        """The group, connected at the first use; raises ExchangeError if it has ended meanwhile."""
        self.check(self.operation)
        assert self.group is not None
        return self.group

    def _await(self, work: Any, device: torch.device) -> None:
        """Waits for a collective; under NCCL the stream of the device waits, and not the host."""
        if device.type != 'cpu':
            self._see(work, device)
        work.wait()

    def _see(self, work: Any, device: torch.device) -> None:
        """Watches a transfer between devices, whose own wait reports no lost rank."""
        if self._watch is not None and not self.goes_by_host(device):
            self._watch.add(work, self.operation)

    def _carried(self, tensor: Tensor) -> Tensor:
        """The tensor that the backend carries for a contiguous one."""
        if tensor.device.type == 'cpu':
            return tensor
        if self.goes_by_host(tensor.device):  # gloo takes every address for one of the host
            return torch.empty(tensor.shape, dtype=tensor.dtype, device='cpu', pin_memory=True)
        return as_bytes(tensor)  # NCCL does not know all dtypes

    def _filled(self, tensor: Tensor) -> Tensor:
        """What the backend sends for a contiguous tensor."""
        carried = self._carried(tensor)
        return carried if carried.device == tensor.device else carried.copy_(tensor)
