"""What all ranks have, or none: their answers in a message or two.

A step that fails on one rank fails on all; values that differ are an error of all; and what a rank
keeps is used if all have kept it in one call (:class:`Agreed`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from pyg_sar.comm.comm import Comm
from pyg_sar.comm.errors import with_root_cause
from pyg_sar.comm.plain_values import decode, encode
from pyg_sar.comm.ranks import current

T = TypeVar('T')

_KINDS = {k.__name__: k for k in (FileNotFoundError, OSError, TypeError, ValueError, RuntimeError)}


def agree(value: Any) -> list[Any]:
    """The values of all ranks in rank order (collective: two small all-gathers).

    A value is plain: None, bool, int, float, str, torch.dtype, a dense tensor, or lists, tuples,
    sets and dicts of them. It comes back equal and of the same type.
    """
    comm = current()
    if comm.size == 1:
        return [value]
    text, what = encode(value), 'a comparison of all ranks'
    with comm.guard(what):
        texts = comm.gather_texts(text, what)
    return [decode(t) for t in texts]


def vote(what: str, *bits: bool, fingerprint: str = '') -> list[int] | None:
    """How many ranks have set each bit, or None if their fingerprints differ.

    Collective: one small all-gather. `what` is the operation, in words: all raise ExchangeError
    where a rank is at another one.
    """
    comm = current()
    if comm.size == 1:
        return [int(bit) for bit in bits]
    with comm.guard(what):
        return comm.vote(what, bits, fingerprint)


def raise_on_all(step: Callable[[], T]) -> T:
    """Takes a step on every rank and returns its result (collective: one small all-gather).

    If it raises on any rank, all raise: a rank its own error, or else that of the first other rank,
    with its rank. A step has no collectives.
    """
    result: Any = None
    error = None
    try:
        result = step()
    except Exception as caught:  # whatever it is, the other ranks must not wait for this one
        error = caught
    raise_error_on_all(error)
    return result


def raise_error_on_all(error: Exception | None) -> None:
    """Raises as :func:`raise_on_all`, where this rank's error was caught before."""
    if vote('a check on all ranks', error is not None) == [0]:
        return
    kind = next((name for name, k in _KINDS.items() if isinstance(error, k)), 'RuntimeError')
    answers = agree(None if error is None else (kind, str(error)))
    if error is not None:
        raise error
    for rank, other in enumerate(answers):
        if other is not None:
            kind, text = other
            raise with_root_cause(rank, current().rank, _KINDS[kind](f'rank {rank}: {text}'))


def on_rank_0(step: Callable[[], T]) -> T:
    """Takes `step` on rank 0 alone; all get its plain values; raises as :func:`raise_on_all`."""
    own = raise_on_all(lambda: step() if current().rank == 0 else None)
    return agree(own)[0]


def check_equal(what: str, values: Sequence[object]) -> None:
    """Raises a ValueError if the ranks' `values` of something differ."""
    if any(value != values[0] for value in values):
        odd, usual = odd_and_usual(values)
        raise differ(
            f'expected the same {what} on all ranks: {values[odd]} on rank {odd} (got '
            f'{values[usual]} on rank {usual}): give the same on every rank',
            odd,
        )


def differ(text: str, rank: int) -> ValueError:
    """The error that all ranks raise where `rank` differs; only that rank prints a traceback."""
    return with_root_cause(rank, current().rank, ValueError(text))


def odd_and_usual(values: Sequence[object]) -> tuple[int, int]:
    """Of values that are not all equal a rank with a rare one, and a rank with the commonest."""
    counts = [values.count(value) for value in values]
    usual = counts.index(max(counts))
    others = [rank for rank, value in enumerate(values) if value != values[usual]]
    return min(others, key=lambda rank: counts[rank]), usual


class Agreed(Generic[T]):
    """Things that all ranks have made together, by keys of each rank's own.

    The key of one rank, such as the edges of its nodes, may be equal in two calls while that of
    another differs: that every rank has a thing does not say that they are of one call. So all
    things of a call get one number, and the ranks compare numbers. The `most` that were used last
    are kept.
    """

    def __init__(self, most: int = 8) -> None:
        self._most = most
        # By key and number, as a rank may have made things in several calls under one key.
        self._things: dict[tuple[weakref.ref[Comm], Hashable, int], T] = {}

    def find(self, key: Hashable, flag: bool = True) -> tuple[T | None, bool]:
        """The thing that all ranks made in one call, or None; and whether all set a flag now.

        Collective: one small all-gather; where the newest things are not of one call,
        also two more.
        """
        comm = current()
        own = [n for of, k, n in [*self._things] if of() is comm and k == key]
        number = own[-1] if own else 0
        counts = vote(
            'a comparison of things', flag, fingerprint=f'what was made as number {number}'
        )
        all_set = counts == [comm.size]
        if counts is None:
            answers = agree((own, flag))
            common = set(own).intersection(*(numbers for numbers, _ in answers))
            number, all_set = max(common, default=0), all(is_set for _, is_set in answers)
        if not number:
            return None, all_set
        entry = weakref.ref(comm), key, number
        thing = self._things[entry] = self._things.pop(entry)  # used last
        return thing, all_set

    def keep(self, key: Hashable, thing: T) -> T:
        """HasCache a thing that all ranks have just made, under this rank's key."""
        comm = current()
        comm.num_made += 1
        self._things[weakref.ref(comm), key, comm.num_made] = thing
        while len(self._things) > self._most:
            self._things.pop(next(iter(self._things)))
        return thing

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """As :meth:`find`; where there is none, the thing that `make` returns (collective)."""
        thing, _ = self.find(key)
        return self.keep(key, make()) if thing is None else thing
