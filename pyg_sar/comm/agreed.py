"""Things that all ranks have made together, with a number in common.

A rank finds a thing by a key of its own, such as the edges of its nodes. The key of one rank may be
equal in two calls while that of another differs. Then "every rank has a thing" does not say that
their things are of the same call. So all things of a call get one number, and the ranks compare
numbers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from pyg_sar.comm.collectives import agree, are_alike
from pyg_sar.comm.comm import Comm
from pyg_sar.comm.ranks import current

T = TypeVar('T')


class Agreed(Generic[T]):
    """Things that all ranks have made together, by keys of each rank's own.

    The `most` that were used last are kept.
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
        is_alike, all_set = are_alike(f'what was made as number {number}', flag)
        if not is_alike:
            answers = agree((own, flag))
            common = set(own).intersection(*(numbers for numbers, _ in answers))
            number, all_set = max(common, default=0), all(is_set for _, is_set in answers)
        if not number:
            return None, all_set
        entry = weakref.ref(comm), key, number
        thing = self._things[entry] = self._things.pop(entry)  # used last
        return thing, all_set

    def keep(self, key: Hashable, thing: T) -> T:
        """Keeps a thing that all ranks have just made, under this rank's key."""
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
