"""Ranks as threads of one process, which take turns (:mod:`pyg_sar.comm.turns`).

Messages are put into a box and taken out of it. All the rest is the code that ranks run in
processes of their own, and the results have the same bits: sums over the ranks are added up in
gloo's order.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from pyg_sar.comm import transport
from pyg_sar.comm.faults.errors import placed
from pyg_sar.comm.turns import Turns
from pyg_sar.monitor import hook

Result = TypeVar('Result')


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
    worlds: list[_ThreadWorld] = []
    turns, boxes = Turns(world_size, lambda rank: worlds[rank].operation), _Boxes()
    worlds += [_ThreadWorld(rank, turns, boxes) for rank in range(world_size)]
    results: list[Any] = [None] * world_size

    def run(rank: int) -> None:
        # All ranks' backwards would run in one thread of the device, whose turn is no rank's.
        backward_here = torch.autograd.set_multithreading_enabled(False)
        with turns.of_rank(rank), transport.inside(worlds[rank]), backward_here:
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


class _Meeting:
    """An operation of all ranks: what they bring, and what comes out of it."""

    def __init__(self) -> None:
        self.brought: dict[int, Any] = {}
        self.words: dict[int, str] = {}
        self.result: Any = None


class _Boxes:
    """What is on its way: messages by sender, receiver and tag; meetings of all by number."""

    def __init__(self) -> None:
        self.messages: defaultdict[tuple[int, int, int], deque[Tensor]] = defaultdict(deque)
        self.meetings: defaultdict[int, _Meeting] = defaultdict(_Meeting)


class _Taken:
    """A message that is to come."""

    def __init__(self, world: _ThreadWorld, key: tuple[int, int, int], place: Tensor) -> None:
        self._world, self._key, self._place = world, key, place

    def wait(self) -> None:
        box = self._world.boxes.messages[self._key]
        self._world.turns.wait(self._world.rank, lambda: len(box) > 0)
        self._place.copy_(box.popleft())


class _Sent:
    """A message that is in its box."""

    def wait(self) -> None:
        pass


class _ThreadWorld(transport.World):
    def __init__(self, rank: int, turns: Turns, boxes: _Boxes) -> None:
        super().__init__()
        self.rank, self.size, self.turns, self.boxes = rank, turns.size, turns, boxes
        self._num_meetings = 0

    def _meet(self, words: str, own: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """What comes of what all ranks bring, once the last of them is here."""
        number = self._num_meetings
        self._num_meetings += 1
        meeting = self.boxes.meetings[number]
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
            del self.boxes.meetings[number]
        self.turns.wait(self.rank, lambda: len(meeting.brought) == self.size)
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
            self.boxes.messages[self.rank, send_rank, tag].append(tensor.clone())
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
