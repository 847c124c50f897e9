"""Cases of functions that torch's op_db does not have."""

from __future__ import annotations

from collections.abc import Callable

from op_run import Case

HAND: dict[str, Callable[[], list[Case]]] = {}
"""By the name of the function."""
