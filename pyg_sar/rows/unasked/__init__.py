"""Functions of torch and PyG that do not ask a tensor for its class, and forms that ask."""

from functools import cache

from pyg_sar.rows.unasked import constructors, functions, memory


@cache
def ask_for_rows() -> None:
    """Puts functions that ask in place of the others, once in a process."""
    constructors.ask()
    functions.ask()
    memory.ask()
