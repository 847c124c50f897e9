"""What of torch and PyG does not ask a tensor for its class, and asks from the first graph on."""

from functools import cache

from pyg_sar.rows.unasked import constructors, functions


@cache
def ask_for_rows() -> None:
    """Puts functions that ask in place of the others, once in a process."""
    constructors.ask()
    functions.ask()
