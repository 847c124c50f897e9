"""Functions of torch and PyG that do not ask a tensor for its class, and forms that ask."""

from functools import cache

from torch_geometric.typing import WITH_TORCH_SPARSE

from pyg_sar.rows.patches import constructors, functions, memory


@cache
def ask_for_rows() -> None:
    """Puts functions that ask in place of the others, once in a process."""
    constructors.ask()
    functions.ask()
    memory.ask()
    if WITH_TORCH_SPARSE:
        from pyg_sar.rows import sparse_tensor

        sparse_tensor.ask()
