"""What all ranks have made together, known by a number.

A rank finds what it made before by its own content, such as the edges of its nodes. The content of
one rank may be equal in two calls and that of another may differ. Then "every rank has something"
does not say that they have it of the same call. So all that is made together gets a number, which
is equal on all ranks, and the ranks compare numbers.
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
        self._made: dict[tuple[weakref.ref[Comm], Hashable, int], T] = {}

    def find(self, key: Hashable, flag: bool = True) -> tuple[T | None, bool]:
        """What all ranks made in one call, or None; and whether all have set a flag now.

        Collective: an all-reduce of one number; where the ranks did not find the same at first,
        also two small all-gathers and an all-reduce.
        """
        comm = current()
        own = [n for of, known, n in [*self._made] if of() is comm and known == key]
        number = own[-1] if own else 0
        is_alike, all_set = are_alike(f'what was made as number {number}', flag)
        if not is_alike:
            answers = agree((own, flag))
            common = set(own).intersection(*(numbers for numbers, _ in answers))
            number, all_set = max(common, default=0), all(each for _, each in answers)
        if not number:
            return None, all_set
        place = weakref.ref(comm), key, number
        thing = self._made[place] = self._made.pop(place)  # used last
        return thing, all_set

    def keep(self, key: Hashable, thing: T) -> T:
        """Keeps what all ranks have just made, each under its key."""
        comm = current()
        comm.num_made += 1
        self._made[weakref.ref(comm), key, comm.num_made] = thing
        while len(self._made) > self._most:
            self._made.pop(next(iter(self._made)))
        return thing

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What all ranks have made, else what `make` gives now (collective: see :meth:`find`)."""
        thing, _ = self.find(key)
        return self.keep(key, make()) if thing is None else thing
