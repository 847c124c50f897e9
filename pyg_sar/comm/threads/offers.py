"""Tensors that one thread hands to another, which makes them when it takes them.

So rows are not copied on the way to the rank that reads them. They have the values that they had
when they were offered: if what they are made of is about to change, they are made before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyg_sar import evictable


class Offer:
    """Tensors that are handed over.

    `form` are the tensors, which nobody else uses; with `make` some of their shapes and dtypes,
    which it fills in the other rank's turn. Where a change of what that reads, `read`, would not be
    noticed, it runs at once.
    """

    def __init__(
        self,
        form: Sequence[Tensor],
        make: Callable[[list[Tensor]], None] | None,
        read: Sequence[Tensor],
    ) -> None:
        self._tensors, self._make, self._read = list(form), make, read
        seen = evictable.watcher.value
        if make is not None and (seen is None or not seen.offers(read, self)):
            self.settle()

    @property
    def is_open(self) -> bool:
        """Whether they are still to be made."""
        return self._make is not None

    def take(self, place: Callable[[], list[Tensor]]) -> list[Tensor]:
        """The tensors, in memory from `place` or of their own; once."""
        if self._make is not None:
            tensors = place()
            self._make(tensors)
            seen = evictable.watcher.value
            if seen is not None:
                for tensor in self._read:
                    seen.leaves(tensor)
            self._tensors, self._make, self._read = tensors, None, ()
        return self._tensors

    @torch.no_grad()
    def settle(self) -> None:
        """Makes them now, if they are to be made."""
        self.take(lambda: [t.new_empty(t.shape) for t in self._tensors])
