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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from pyg_sar.comm.comm import Comm
from pyg_sar.comm.errors import at_location
from pyg_sar.comm.exchange import Exchange, GradientReturn
from pyg_sar.comm.ranks import chosen, current
from pyg_sar.comm.send_recv import BufferPool, Buffers, Lend, TensorList, forms_of, tell_moved
from pyg_sar.comm.sums import sum_as_gloo_does
from pyg_sar.comm.turns import LazySend, Turns
from pyg_sar.shard.shard import Step
from pyg_sar.utils import hook
from pyg_sar.utils.offload import watcher

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
        self.pool = BufferPool()  # one rank runs at a time
        self.meetings: defaultdict[int, _Meeting] = defaultdict(_Meeting)


class ThreadComm(Comm):
    """A rank that is a thread."""

    takes_turns = True

    def __init__(self, rank: int, turns: Turns, boxes: _Boxes) -> None:
        super().__init__()
        self.rank, self.size, self.turns, self.boxes = rank, turns.size, turns, boxes
        self.run, self.exchange_kind = boxes, LazyExchange
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
                raise RuntimeError(
                    f'the ranks are at different operations: rank {other} at {theirs}; '
                    f'rank {self.rank} at {tag}'
                )
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

    def gather_texts(self, text: bytes, what: str) -> list[bytes]:
        texts: list[bytes] = self.meet(self.operation, text, list)
        return texts

    def send_lazily(
        self,
        rank: int,
        tag: str,
        form: Sequence[Tensor],
        make: Callable[[list[Tensor]], None] | None = None,
        read: Sequence[Tensor] = (),
    ) -> None:
        """Hands tensors to another rank; see :class:`LazySend`.

        They are taken under the same tag, in their order.
        """
        self.boxes.sends[self.rank, rank, tag].append(LazySend(form, make, read))

    def await_sends(self, counts: Mapping[int, int], tag: str) -> None:
        """Returns once every rank of `counts` has sent so much lazily to this one."""
        boxes = [(self.boxes.sends[rank, self.rank, tag], n) for rank, n in counts.items()]
        self.turns.wait(self.rank, lambda: all(len(box) >= n for box, n in boxes))

    def take(self, rank: int, tag: str, lend: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Tensors that another rank has sent, in memory from `lend` or of their own."""
        return self.boxes.sends[rank, self.rank, tag].popleft().take(lend)

    def all_to_all(
        self, received: Tensor, sent: Tensor, recv_sizes: list[int], send_sizes: list[int]
    ) -> None:
        tag = self._tag
        for rank, run in enumerate(torch.split(sent, send_sizes)):
            self.send_lazily(rank, tag, [run], partial(copy_run, run), [sent])
        self.meet(tag, None, lambda all_of: None)
        for rank, target in enumerate(torch.split(received, recv_sizes)):
            (run,) = self.take(rank, tag, lambda target=target: [target])  # type: ignore[misc]
            if run is not target:
                target.copy_(run)

    def all_reduce(self, tensor: Tensor, group: object = None) -> None:
        tensor.copy_(self._meet_with(tensor, sum_as_gloo_does))

    def all_gather(self, own: Tensor) -> Tensor:
        return self._meet_with(own, torch.stack).clone()

    def broadcast(self, tensor: Tensor) -> None:
        tensor.copy_(self._meet_with(tensor, lambda tensors: tensors[0].clone()))


def copy_run(run: Tensor, out: list[Tensor]) -> None:
    """Copies contiguous rows, which may be away, to the only tensor of `out`."""
    watch = watcher.value
    if watch is None or not watch.reads_run(out[0], run):
        out[0].copy_(run)


class LazyGradients(GradientReturn):
    """Gradients in memory of their own, which the other rank takes in its turn."""

    def __init__(self, exchange: Exchange, out: Sequence[Tensor], **kwargs: Any) -> None:
        super().__init__(exchange, out, **kwargs)
        self._lend = partial(Buffers, None, 0)
        self._tag = at_location(f'a return of {forms_of(self._form)}')

    def takes_over(self, make: Callable[[TensorList], None], read: TensorList) -> bool:
        step = next(self._steps)

        def narrowed(targets: TensorList) -> None:
            wide = Buffers(None, 0, self.out, step.recv_rows).rows
            make(wide)
            for target, rows in zip(targets, wide, strict=True):
                target.copy_(rows)

        is_narrow = [t.dtype for t in self._form] != [t.dtype for t in self.out]
        like = _like(self._form, step.recv_rows)
        _comm().send_lazily(step.recv_rank, self._tag, like, narrowed if is_narrow else make, read)
        return True

    def finish(self) -> TensorList:
        if not self.out:
            return super().finish()
        steps = self.exchange.shard.steps
        with _comm().guard('receiving gradients of own rows', tag=self._tag):
            _comm().await_sends(Counter(step.send_rank for step in steps), self._tag)
        self._add_own()
        for step in steps:
            lend = self.exchange.buffers
            came = _taken(step.send_rank, self._tag, self._form, step.send_rows, lend)
            if hook.watchers:
                tell_moved(step.part, 'gradients', came.rows, step.recv_rows)
            self._add(step, came)
        return self.out

    def _start(self, step: Step, sent: Buffers) -> None:
        _comm().send_lazily(step.recv_rank, self._tag, sent.rows)


class LazyExchange(Exchange):
    """Rows that are packed when they are read."""

    def _pool(self) -> BufferPool:
        return _comm().boxes.pool

    def all_gather_halo(
        self, tensors: Sequence[Tensor], *, keep: bool = False
    ) -> Iterator[TensorList]:
        tensors, steps = [t.contiguous() for t in tensors], self.shard.steps
        form = self.wire.like(tensors)
        lend: Lend = partial(Buffers, None, 0) if keep else self.buffers
        tag = at_location(f'an exchange of {forms_of(form)}')
        with _comm().guard('receiving rows', tag=tag):
            for step in steps:
                make, like = partial(self.pack, step, tensors), _like(form, step.send_rows)
                _comm().send_lazily(step.send_rank, tag, like, make, tensors)
            _comm().await_sends(Counter(step.recv_rank for step in steps), tag)
        for part in self.shard.parts:
            first, end = self.shard.source_range(part)
            yield [t[first:end] for t in tensors]
        for step in steps:
            came = _taken(step.recv_rank, tag, form, step.recv_rows, lend)
            if hook.watchers:
                tell_moved(step.part, 'rows', came.rows, step.send_rows)
            rows = self.wire.recast(came, tensors, lend)
            yield rows.rows
            rows.free()

    def way_back(
        self, out: Sequence[Tensor], own: Callable[[], TensorList] | None
    ) -> GradientReturn:
        return LazyGradients(self, out, own=own)


def _comm() -> ThreadComm:
    return cast(ThreadComm, current())


def _like(form: TensorList, num_rows: int) -> TensorList:
    """Shapes and dtypes of rows, without memory."""
    return [t.new_empty(1).expand(num_rows, *t.shape[1:]) for t in form]


def _taken(rank: int, tag: str, form: TensorList, num_rows: int, lend: Lend) -> Buffers:
    """Rows that a rank has sent: computed into a buffer, or in memory of their own already."""
    lent: list[Buffers] = []

    def lend_rows() -> TensorList:
        lent.append(lend(form, num_rows))
        return lent[0].rows

    rows = _comm().take(rank, tag, lend_rows)
    if not lent:
        lent.append(Buffers(None, 0, (), 0))
        lent[0].rows = rows
    return lent[0]
