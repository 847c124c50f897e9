"""Memory that tensors have freed: kept for the next tensors while there is room for it.

The C library gives large blocks back to the system, and every page that it takes again is cleared:
1.3 million pages in an epoch of GraphSAGE on 169,343 nodes in 8 parts, a quarter of its CPU time.
Memory that it keeps instead has holes, and takes as much again as the tensors.
"""

from __future__ import annotations

from pyg_sar.launch.process_memory import available, resident_of_no_file
from pyg_sar.utils import memory


class FreedMemory:
    """Keeps memory that tensors have freed, or gives it back to the system.

    Memory is kept until the process has taken half of `budget` bytes from now on, so the holes are
    within the budget, too. From then on blocks of `least` bytes are given back at once.
    """

    def __init__(self, budget: int, least: int) -> None:
        self._least = least
        self._is_ours = self._is_kept = memory.return_freed_memory(least)
        if self._is_kept:
            self._limit = resident_of_no_file() + min(budget, available()) // 2
            memory._keep_freed_memory()

    def check(self) -> None:
        """Gives it back once the process has taken too much."""
        if self._is_ours and (not self._is_kept or resident_of_no_file() > self._limit):
            self.give_back()

    def give_back(self) -> None:
        """Gives free memory back, now and from now on."""
        if self._is_ours:
            self._is_kept = False
            memory._give_back_kept_memory(self._least)
