"""What modules keep with a shard, or with a plan of one: each in a field of its own, of one type.

A rank's own is kept as it is. What all ranks made together is kept as :class:`pyg_sar.comm.Agreed`,
unless it follows from the shard alone, so that all ranks ask for it or none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar('T')


class Keeps(Protocol):
    """A shard or a plan."""

    @property
    def kept(self) -> dict[Kept[Any], Any]:
        """By field."""


class Kept(Generic[T]):
    """A field; made once, by the module that it belongs to."""

    def get(self, owner: Keeps) -> T | None:
        """What is kept with `owner`, or None."""
        return owner.kept.get(self)

    def put(self, owner: Keeps, value: T) -> T:
        """Keeps a value in the place of another."""
        owner.kept[self] = value
        return value

    def of(self, owner: Keeps, make: Callable[[], T]) -> T:
        """What is kept with `owner`; what `make` gives, if that is nothing yet."""
        found: T | None = owner.kept.get(self)
        return self.put(owner, make()) if found is None else found
