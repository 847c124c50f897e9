"""Ranks as threads of one process, which take turns.

One thread runs at a time. It runs until it needs something of another rank that is not there yet;
then the next rank goes on that can. So the order is always the same, and when no rank can go on the
world has ended in a deadlock, which is found at once. Messages are put into a box and taken out of
it. All the rest is the code that ranks run in processes of their own, and the results have the same
bits: sums over the ranks are added up in gloo's order.

What a rank sets for the whole process must not be seen by the others, so it is put away when its
turn ends and comes back when its next turn begins: the states of the random generators, the default
dtype, and what rooms name by :func:`put_away_between_turns`.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from pyg_sar.comm import transport
from pyg_sar.comm.faults.errors import placed
from pyg_sar.monitor import hook

Result = TypeVar('Result')
PutBack = Callable[[], None]

_put_away: list[Callable[[], PutBack]] = []


def put_away_between_turns(put_away: Callable[[], PutBack]) -> Callable[[], PutBack]:
    """Has `put_away` called when the turn of a rank ends, and what it returns at its next turn."""
    _put_away.append(put_away)
    return put_away


def run_threads(
    function: Callable[..., Result], world_size: int, *args: Any, **kwargs: Any
) -> list[Result]:
    """Calls ``function(*args, **kwargs)`` on every rank of a world of threads.

    Inside of it pyg_sar takes the thread for one rank of `world_size`; ``torch.distributed`` keeps
    its own view. Every rank starts with the caller's random states, and the caller has them back.
    The caller's grad mode, autocast and default device do not go into the threads.

    Args:
        function: What to run; it may be any callable, and ranks may share what it reads.
        world_size: Number of ranks.
        *args: Passed on, the same objects for every rank.
        **kwargs: Passed on.

    Returns:
        What it returned on rank 0, 1, ...

    Raises:
        RuntimeError: If the ranks wait for each other, or meet at different operations; it names
            what two of them do.
        Exception: Of the first rank that raises, as it is; the others are ended.
    """
    if world_size < 1:
        raise ValueError(f"'world_size' must be at least 1 (got {world_size})")
    turns = _Turns(world_size)
    results: list[Any] = [None] * world_size

    def run(rank: int) -> None:
        # All ranks' backwards would run in one thread of the device, whose turn is no rank's.
        backward_here = torch.autograd.set_multithreading_enabled(False)
        with turns.of_rank(rank), transport.inside(_ThreadWorld(rank, turns)), backward_here:
            results[rank] = function(*args, **kwargs)

    threads = [
        threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)
    ]
    listening, hook.watchers = hook.watchers, ()
    loaded = set(sys.modules)
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
        _forget_generated(loaded)
        hook.watchers = listening
    if turns.error is not None:
        raise turns.error
    return results


def _forget_generated(loaded: set[str]) -> None:
    """Forgets the code that PyG has generated for a ``Sequential`` since `loaded` were the modules.

    PyG names it by a draw of ``random``, whose state is set back: the next ``Sequential`` may draw
    the same name, and would run the code that stands under it.
    """
    for name in sys.modules.keys() - loaded:
        if name.startswith('torch_geometric.nn.sequential_'):
            del sys.modules[name]


def _states_of_process() -> PutBack:
    """What sets random generators and the default dtype back to what they are now."""
    of_torch, of_numpy = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002 (PyG's)
    of_python, dtype = random.getstate(), torch.get_default_dtype()
    of_devices = []
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        of_devices = torch.cuda.get_rng_state_all()

    def put_back() -> None:
        torch.set_rng_state(of_torch)
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)
        torch.cuda.set_rng_state_all(of_devices)
        torch.set_default_dtype(dtype)

    return put_back


put_away_between_turns(_states_of_process)


class _Ended(BaseException):
    """Another rank has failed: this one's thread ends."""


class _Turns:
    """Whose turn it is.

    Attributes:
        error: Why the world ends, or None.
        states: Sets the states of the process back to what they were before the first turn.
        meetings: By number, what each rank brought to a meeting of all, and its words.
        boxes: Messages by sender, receiver and tag.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.error: BaseException | None = None
        self.states = _states_of_process()
        self.meetings: dict[int, _Meeting] = {}
        self.boxes: dict[tuple[int, int, int], deque[Tensor]] = {}
        self.worlds: list[_ThreadWorld] = []
        self._starts = [threading.Semaphore(0) for _ in range(size)]
        self._waits: list[Callable[[], bool]] = [lambda: True] * size
        self._done: set[int] = set()

    def begin(self) -> None:
        self._starts[0].release()

    @contextmanager
    def of_rank(self, rank: int) -> Iterator[None]:
        """The time of a rank's program, from its first turn to its last; keeps its exception."""
        self._starts[rank].acquire()
        self.states()
        try:
            yield
        except BaseException as error:
            if self.error is None:
                self.error = error
                if self.size > 1 and hasattr(error, 'add_note'):
                    error.add_note(f'(on rank {rank} of {self.size})')
        self._done.add(rank)
        self.give(rank)

    def wait(self, rank: int, is_ready: Callable[[], bool]) -> None:
        """Returns when `is_ready`, after turns of others if need be."""
        if self.error is not None:
            raise _Ended
        if is_ready():
            return
        self._waits[rank] = is_ready
        put_back = [put_away() for put_away in reversed(_put_away)]
        self.give(rank)
        self._starts[rank].acquire()
        for put in reversed(put_back):
            put()
        if self.error is not None:
            raise _Ended

    def give(self, rank: int) -> None:
        """Gives the turn to the next rank that can go on."""
        others = [(rank + i) % self.size for i in range(1, self.size + 1)]
        left = [other for other in others if other not in self._done]
        able = [other for other in left if self.error is not None or self._waits[other]()]
        if left and not able:
            self.error = RuntimeError(f'the ranks wait for each other: {self._stuck()}')
            able = left
        if able:
            self._starts[able[0]].release()

    def _stuck(self) -> str:
        said = [
            f'rank {world.rank} has finished'
            if world.rank in self._done
            else f'rank {world.rank} is at {world.operation}'
            for world in sorted(self.worlds, key=lambda world: world.rank)
        ]
        return '; '.join(said)


class _Meeting:
    """An operation of all ranks: what they bring, and what comes out of it."""

    def __init__(self) -> None:
        self.brought: dict[int, Any] = {}
        self.words: dict[int, str] = {}
        self.result: Any = None


class _Taken:
    """A message that is to come."""

    def __init__(self, world: _ThreadWorld, key: tuple[int, int, int], place: Tensor) -> None:
        self._world, self._key, self._place = world, key, place

    def wait(self) -> None:
        turns = self._world.turns
        box = turns.boxes.setdefault(self._key, deque())
        turns.wait(self._world.rank, lambda: len(box) > 0)
        self._place.copy_(box.popleft())


class _Sent:
    """A message that is in its box."""

    def wait(self) -> None:
        pass


class _ThreadWorld(transport.World):
    def __init__(self, rank: int, turns: _Turns) -> None:
        super().__init__()
        self.rank, self.size, self.turns = rank, turns.size, turns
        turns.worlds.append(self)
        self._num_meetings = 0

    def _meet(self, words: str, own: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """What comes of what all ranks bring, once the last of them is here."""
        turns, number = self.turns, self._num_meetings
        self._num_meetings += 1
        meeting = turns.meetings.setdefault(number, _Meeting())
        meeting.brought[self.rank] = own
        meeting.words[self.rank] = words
        for other, theirs in meeting.words.items():
            if theirs != words:
                raise RuntimeError(
                    f'the ranks are at different operations: rank {other} at {theirs}; '
                    f'rank {self.rank} at {words}'
                )
        if len(meeting.brought) == self.size:
            meeting.result = combine([meeting.brought[rank] for rank in range(self.size)])
            del turns.meetings[number]
        turns.wait(self.rank, lambda: len(meeting.brought) == self.size)
        return meeting.result

    def sum_alike(
        self, operation: str, alike: str = '', *, number: int = 0, state: str = ''
    ) -> int | None:
        def combine(all_of: list[tuple[str, int]]) -> int | None:
            return sum(n for _, n in all_of) if len({s for s, _ in all_of}) == 1 else None

        words = placed(alike or operation)
        total: int | None = self._meet(words, (state, number), combine)
        return total

    def start_swap(
        self,
        received: Sequence[Tensor],
        recv_rank: int,
        sent: Sequence[Tensor],
        send_rank: int,
        tag: int,
    ) -> list[transport.Work]:
        for tensor in sent:
            box = self.turns.boxes.setdefault((self.rank, send_rank, tag), deque())
            box.append(tensor.clone())
        taken = [_Taken(self, (recv_rank, self.rank, tag), tensor) for tensor in received]
        return [*taken, *(_Sent() for _ in sent)]

    def all_to_all(
        self, received: Tensor, sent: Tensor, recv_sizes: list[int], send_sizes: list[int]
    ) -> None:
        def combine(runs: list[Sequence[Tensor]]) -> list[Tensor]:
            return [torch.cat([run[rank] for run in runs]) for rank in range(self.size)]

        runs = torch.split(sent, send_sizes)
        received.copy_(self._meet(f'{self.operation} ({sent.dtype})', runs, combine)[self.rank])

    def all_reduce(self, tensor: Tensor) -> None:
        words = f'{self.operation} ({tensor.dtype} {tuple(tensor.shape)})'
        tensor.copy_(self._meet(words, tensor.clone(), _sum_as_gloo_does))

    def all_gather(self, own: Tensor) -> Tensor:
        words = f'{self.operation} ({own.dtype} {tuple(own.shape)})'
        gathered: Tensor = self._meet(words, own, torch.stack)
        return gathered.clone()

    def broadcast(self, tensor: Tensor) -> None:
        words = f'{self.operation} ({tensor.dtype} {tuple(tensor.shape)})'
        tensor.copy_(self._meet(words, tensor, lambda tensors: tensors[0].clone()))


_SEGMENT_BYTES = 2**20  # gloo's largest segment of a ring all-reduce


def _sum_as_gloo_does(tensors: list[Tensor]) -> Tensor:
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
