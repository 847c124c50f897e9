"""Turns of threads of one process, and tensors that one sends lazily to another.

One thread runs at a time, until it needs something of another rank that is not there yet; then the
next rank that can goes on. So the order is always the same. If no rank can go on, an error says at
once that they wait for each other.

Settings of the whole process must not be seen by other ranks: the states of the random generators,
and the default dtype. They are saved when a turn ends, and set again when its rank's next begins.

Tensors that are sent lazily are computed when the other thread takes them. So rows are not copied
on the way to the rank that reads them. They have the values of the time they were sent: if tensors
that they are computed from are about to change, they are computed before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from pyg_sar.utils.offload import watcher
from pyg_sar.utils.rng import states_of_process


class Ended(BaseException):
    """Another rank has failed: this one's thread ends."""


class Turns:
    """Whose turn it is.

    `doing` tells the operation of a rank; `switch` is called before every turn of a rank, when
    another one's has ended.
    """

    def __init__(
        self, size: int, doing: Callable[[int], str], switch: Callable[[int], None]
    ) -> None:
        self.size, self.doing, self.switch = size, doing, switch
        self.error: BaseException | None = None  # why the world ends
        self.states = states_of_process()  # sets them back to what they are now
        self._starts = [threading.Semaphore(0) for _ in range(size)]
        self._waits: list[Callable[[], bool]] = [lambda: True] * size
        self._done: set[int] = set()

    def begin(self) -> None:
        """Gives the first turn to rank 0."""
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
            raise Ended
        if is_ready():
            return
        self._waits[rank] = is_ready
        put_back = states_of_process()
        self.give(rank)
        self._starts[rank].acquire()
        put_back()
        if self.error is not None:
            raise Ended

    def give(self, rank: int) -> None:
        """Gives the turn to the next rank that can go on."""
        others = [(rank + i) % self.size for i in range(1, self.size + 1)]
        left = [other for other in others if other not in self._done]
        able = [other for other in left if self.error is not None or self._waits[other]()]
        if left and not able:
            self.error = RuntimeError(f'the ranks wait for each other: {self._stuck()}')
            able = left
        if able:
            if self.error is None:
                try:
                    self.switch(able[0])
                except BaseException as error:  # of no rank: it ends them all
                    self.error = error
            self._starts[able[0]].release()

    def _stuck(self) -> str:
        return '; '.join(
            f'rank {rank} has finished'
            if rank in self._done
            else f'rank {rank} is at {self.doing(rank)}'
            for rank in range(self.size)
        )


class LazySend:
    """Tensors for another thread.

    Without `make`, `form` are the finished tensors. With `make`, `form` gives shapes and dtypes,
    and `make` fills such tensors in the turn of the receiver. `read` are the inputs of `make`; if a
    write to them would not be noticed, `make` runs now. No other code uses the tensors of `form`.
    """

    def __init__(
        self,
        form: Sequence[Tensor],
        make: Callable[[list[Tensor]], None] | None,
        read: Sequence[Tensor],
    ) -> None:
        self._tensors, self._make, self._read = list(form), make, read
        watch = watcher.value
        if make is not None and (watch is None or not watch.offers(read, self)):
            self.settle()

    @property
    def is_open(self) -> bool:
        """Whether they are still to be computed."""
        return self._make is not None

    def take(self, lend: Callable[[], list[Tensor]]) -> list[Tensor]:
        """The tensors, in memory from `lend` or of their own; once."""
        if self._make is not None:
            tensors = lend()
            self._make(tensors)
            watch = watcher.value
            if watch is not None:
                for tensor in self._read:
                    watch.leaves(tensor)
            self._tensors, self._make, self._read = tensors, None, ()
        return self._tensors

    @torch.no_grad()
    def settle(self) -> None:
        """Computes them now, if they are still to be."""
        self.take(lambda: [t.new_empty(t.shape) for t in self._tensors])
