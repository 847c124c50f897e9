"""Fields in which modules keep results with a shard or a plan.

A rank's own result is kept as it is. A result that all ranks made together is kept as
:class:`pyg_sar.comm.Agreed`, unless it follows from the shard alone: then all ranks or none
have it.
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
    """A field, which one module makes once for its own results."""

    def get(self, owner: Keeps) -> T | None:
        """The value kept with `owner`, or None."""
        return owner.kept.get(self)

    def put(self, owner: Keeps, value: T) -> T:
        """Keeps a value instead of the one before."""
        owner.kept[self] = value
        return value

    def of(self, owner: Keeps, make: Callable[[], T]) -> T:
        """The value kept with `owner`; a first one comes from `make`."""
        value: T | None = owner.kept.get(self)
        return self.put(owner, make()) if value is None else value
