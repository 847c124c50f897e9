"""Tensors that one thread offers to another, which computes them when it takes them.

So rows are not copied on the way to the rank that reads them. They have the values of the time of
the offer: if tensors that they are computed from are about to change, they are computed before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyg_sar.utils import offload as evictable


class Offer:
    """Tensors for another thread.

    `form` are the tensors, which nobody else uses. With `make`, they have only their shapes and
    dtypes: `make` fills such tensors in the other rank's turn. It reads `read`; where a change of
    these would not be noticed, it runs at once.
    """

    def __init__(
        self,
        form: Sequence[Tensor],
        make: Callable[[list[Tensor]], None] | None,
        read: Sequence[Tensor],
    ) -> None:
        self._tensors, self._make, self._read = list(form), make, read
        watch = evictable.watcher.value
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
            watch = evictable.watcher.value
            if watch is not None:
                for tensor in self._read:
                    watch.leaves(tensor)
            self._tensors, self._make, self._read = tensors, None, ()
        return self._tensors

    @torch.no_grad()
    def settle(self) -> None:
        """Computes them now, if they are still to be."""
        self.take(lambda: [t.new_empty(t.shape) for t in self._tensors])
