"""Ranks as threads of one process, which take turns (:mod:`pyg_sar.comm.turns`).

Rows are sent lazily: the rank that reads them packs them then. All wait once for an exchange,
before the first block: then it is one turn of each rank. All other code is that of ranks in
processes of their own. The results have the same bits: sums over the ranks are added up in gloo's
order.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from pyg_sar.comm.comm import Comm
from pyg_sar.comm.errors import at_location
from pyg_sar.comm.ranks import chosen
from pyg_sar.comm.send_recv import Buffers, TensorList, Transfer, copy_run
from pyg_sar.comm.sums import sum_as_gloo_does
from pyg_sar.comm.turns import LazySend, Turns
from pyg_sar.utils import hook

Result = TypeVar('Result')


class TurnHooks:
    """Hooks around turns; those of this base class do nothing."""

    def rank(self) -> AbstractContextManager[Any]:
        """TurnHooks the program of a rank, in its thread."""
        return nullcontext()

    def switch(self, rank: int) -> None:
        """Before a turn of a rank."""


def run_threads(
    function: Callable[..., Result], world_size: int, *args: Any, around: TurnHooks | None = None
) -> list[Result]:
    """Calls ``function(*args)`` on every rank of a world of threads, with `around` around turns.

    Inside of it pyg_sar takes the thread for one rank of `world_size`; ``torch.distributed`` keeps
    its own view. Every rank starts with the caller's random states, and the caller has them back.
    The caller's grad mode, autocast and default device do not go into the threads. Arguments are
    the same objects for every rank. Gives what ranks 0, 1, ... returned.

    Raises RuntimeError if the ranks wait for each other, or meet at different operations; it names
    what two of them do. What the first rank raises comes as it is, and the others are ended.
    """
    if world_size < 1:
        raise ValueError(f"'world_size' must be at least 1 (got {world_size})")
    around = around or TurnHooks()
    comms: list[ThreadComm] = []
    turns = Turns(world_size, lambda rank: comms[rank].operation, around.switch)
    boxes = _Boxes()
    comms += [ThreadComm(rank, turns, boxes) for rank in range(world_size)]
    results: list[Any] = [None] * world_size

    def run(rank: int) -> None:
        own = hook.thread_rank.set(object())
        # All ranks' backwards would run in one thread of the device, whose turn is no rank's.
        backward_here = torch.autograd.set_multithreading_enabled(False)
        with turns.of_rank(rank), chosen.set(comms[rank]), own, backward_here, around.rank():
            results[rank] = function(*args)

    threads = [
        threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)
    ]
    with forgets_generated():
        try:
            for thread in threads:
                thread.start()
            turns.begin()
            for thread in threads:
                thread.join()
        except BaseException as error:  # interrupted
            turns.error = turns.error or error
            raise
        finally:
            turns.states()
    if turns.error is not None:
        raise turns.error
    return results


@contextmanager
def forgets_generated() -> Iterator[None]:
    """Forgets at its end the code that PyG has generated for a ``Sequential`` inside of it.

    PyG names it by a draw of ``random``. Where its state is set back, the next ``Sequential`` may
    draw the same name, and would run the code that stands under it. Its file is named for the
    module.
    """
    loaded = set(sys.modules)
    try:
        yield
    finally:
        for name in sys.modules.keys() - loaded:
            file = getattr(sys.modules[name], '__file__', None) or ''
            if Path(file).name.startswith(f'{name}_') and hasattr(sys.modules[name], 'forward'):
                del sys.modules[name]


class _Meeting:
    """An operation of all ranks: tag and value of every rank, and the result."""

    def __init__(self) -> None:
        self.brought: dict[int, tuple[str, Any]] = {}
        self.checksums: set[int] = set()  # of the plain values that have met rows
        self.result: Any = None


class _Boxes:
    """Lazy sends under way, by sender, receiver and tag; meetings of all ranks by number."""

    def __init__(self) -> None:
        self.sends: defaultdict[tuple[int, int, str], deque[LazySend]] = defaultdict(deque)
        self.meetings: defaultdict[int, _Meeting] = defaultdict(_Meeting)


class ThreadComm(Comm):
    """A rank that is a thread."""

    takes_turns = True

    def __init__(self, rank: int, turns: Turns, boxes: _Boxes) -> None:
        super().__init__()
        self.rank, self.size, self.turns, self.boxes = rank, turns.size, turns, boxes
        self.run = boxes
        self._tag = ''
        self._num_meetings = 0

    def guard(
        self, operation: str, peer: int | None = None, *, tag: str = '', is_wait: bool = False
    ) -> AbstractContextManager[None]:
        self._tag = at_location(tag or operation)
        return super().guard(operation, peer, tag=tag, is_wait=is_wait)

    def goes_by_host(self, device: torch.device, group: object = None) -> bool:
        """False: threads compare what they are at where they meet, and need no number before."""
        return False

    def meet(self, tag: str, own: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """The result of `combine` on the values of all ranks, once the last rank is here."""
        number = self._num_meetings
        self._num_meetings += 1
        meeting = self.boxes.meetings[number]
        meeting.brought[self.rank] = tag, own
        meeting.checksums.add(self.met.checksum)
        for other, (theirs, _) in meeting.brought.items():
            if theirs != tag:
                self.turns.error = RuntimeError(
                    f'the ranks are at different operations: rank {other} at {theirs}; '
                    f'rank {self.rank} at {tag}'
                )
                raise self.turns.error
        if len(meeting.brought) == self.size:
            meeting.result = combine([meeting.brought[rank][1] for rank in range(self.size)])
            del self.boxes.meetings[number]
        self.turns.wait(self.rank, lambda: len(meeting.brought) == self.size)
        if len(meeting.checksums) == 1:
            self.met.clear()
            return meeting.result
        text = self.met.encoded()
        self.met.clear()
        self.met.compare(self.gather_texts(text, tag), self.rank)
        return meeting.result

    def _meet_with(self, tensor: Tensor, combine: Callable[[list[Tensor]], Tensor]) -> Tensor:
        tag = f'{self.operation} ({tensor.dtype} {tuple(tensor.shape)})'
        result: Tensor = self.meet(tag, tensor, combine)
        return result

    def vote(self, tag: str, bits: Sequence[bool] = (), fingerprint: str = '') -> list[int] | None:
        def combine(all_of: list[tuple[str, Sequence[bool]]]) -> list[int] | None:
            fingerprints, votes = zip(*all_of, strict=True)
            return [*map(sum, zip(*votes, strict=True))] if len({*fingerprints}) == 1 else None

        counts: list[int] | None = self.meet(at_location(tag), (fingerprint, bits), combine)
        return counts

    def sum_large(self, tag: str, tensor: Tensor) -> None:
        """See :meth:`Comm.sum_large`: ranks compare what they are at where they meet."""
        self.all_reduce(tensor)

    def gather_texts(self, text: bytes, what: str) -> list[bytes]:
        texts: list[bytes] = self.meet(self.operation, text, list)
        return texts

    def start(self, transfer: Transfer) -> None:
        """See :meth:`Comm.start`: it is packed once the other rank reads it."""
        if transfer.sent is not None:
            sent, transfer.sent = LazySend(transfer.sent.rows, None, ()), None
        else:
            form = [t.new_empty(1).expand(transfer.to[1], *t.shape[1:]) for t in transfer.form]
            sent = LazySend(form, transfer.pack, transfer.read)
        self.boxes.sends[self.rank, transfer.to[0], transfer.words].append(sent)

    def await_sent(self, transfers: Sequence[Transfer]) -> None:
        """See :meth:`Comm.await_sent`: all ranks have begun these steps."""
        counts = Counter((transfer.of[0], transfer.words) for transfer in transfers)
        boxes = [(self.boxes.sends[of, self.rank, tag], n) for (of, tag), n in counts.items()]

        def are_there() -> bool:
            return all(len(box) >= n for box, n in boxes)

        if not are_there():
            (operation, _), _ = transfers[0].operations()
            with self.guard(operation, tag=transfers[0].words):
                self.turns.wait(self.rank, are_there)

    def finish(self, transfer: Transfer) -> Buffers:
        """See :meth:`Comm.finish`."""
        self.await_sent([transfer])
        (rank, count), lent = transfer.of, []

        def lend() -> TensorList:
            lent.append(transfer.lend(transfer.form, count))
            return lent[0].rows

        rows = self.boxes.sends[rank, self.rank, transfer.words].popleft().take(lend)
        received = lent[0] if lent else Buffers.of(rows)
        if hook.watchers:
            transfer.tell(received)
        return received

    def in_order(self, transfers: Sequence[Transfer]) -> Iterator[Buffers | None]:
        """See :meth:`Comm.in_order`: all begin, so it is one turn of each rank."""
        for transfer in transfers:
            self.start(transfer)
        self.await_sent(transfers)
        yield None
        for transfer in transfers:
            yield self.finish(transfer)

    def all_to_all(
        self, received: Tensor, sent: Tensor, recv_sizes: list[int], send_sizes: list[int]
    ) -> None:
        tag = self._tag
        sends = self.boxes.sends
        for rank, run in enumerate(torch.split(sent, send_sizes)):
            sends[self.rank, rank, tag].append(LazySend([run], partial(copy_run, run), [sent]))
        self.meet(tag, None, lambda all_of: None)
        for rank, target in enumerate(torch.split(received, recv_sizes)):
            (run,) = sends[rank, self.rank, tag].popleft().take(lambda target=target: [target])  # type: ignore[misc]
            if run is not target:
                target.copy_(run)

    def all_reduce(self, tensor: Tensor, group: object = None) -> None:
        tensor.copy_(self._meet_with(tensor, sum_as_gloo_does))

    def all_gather(self, own: Tensor) -> Tensor:
        return self._meet_with(own, torch.stack).clone()

    def broadcast(self, tensor: Tensor) -> None:
        tensor.copy_(self._meet_with(tensor, lambda tensors: tensors[0].clone()))
