"""A row for every node of the whole graph in one ``.npy`` file, in the order of ids.

A rank has rows of its own nodes, whose ids lie anywhere. Ranks that wrote them there would write
next to one another all over the file, which shared file systems do badly or, mapped into memory,
wrongly. So each rank fetches the rows of a run of ids from their owners, and writes the run in one
piece. No rank ever holds more than its own rows and its run.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.comm.ranks import rank, world_size
from pyg_sar.comm.row_map import rows
from pyg_sar.nn.node_embedding import NodeEmbedding
from pyg_sar.rows.rows import Rows, plain
from pyg_sar.shard.files import is_of_system, ordinary_file

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a table, on the rank that has them."""

    values: Tensor  # ``[num_rows, ...]``
    n_id: Tensor  # whose rows they are, int64 ``[num_rows]``
    num_nodes: int  # of all ranks

    @classmethod
    def of(cls, weight: Rows, values: Tensor) -> Table:
        """The table of a node embedding, `values` its own rows or an optimizer's state of them."""
        space = weight._space
        return cls(plain(values).detach(), space.ids(weight.device), space.total)

    @property
    def shape(self) -> list[int]:
        """The shape of the rows of all nodes."""
        return [self.num_nodes, *self.values.shape[1:]]

    def run(self) -> tuple[Array, int]:
        """The rows of this rank's run of ids, and the first id (collective: see ``rows``)."""
        first, end = (r * self.num_nodes // world_size() for r in (rank(), rank() + 1))
        with torch.no_grad():
            ids = torch.arange(first, end, device=self.values.device)
            values = rows(self.values, ids, self.n_id).cpu().contiguous()
        if values.dtype == torch.bfloat16:  # NumPy has none: the file has the bits
            values = values.view(torch.int16)
        return values.numpy(), first


def graphs(model: torch.nn.Module) -> dict[str, str]:
    """The graph whose nodes each node embedding of a model has, if it was loaded, by its name."""
    named = model.named_modules(remove_duplicate=False)
    return {k: m.graph for k, m in named if isinstance(m, NodeEmbedding) and m.graph is not None}


def create_npy(path: Path, run: Array, num_nodes: int) -> None:
    """Makes a file for the rows of all nodes, of the kind of those of a run."""
    shape = num_nodes, *run.shape[1:]
    np.lib.format.open_memmap(path, mode='w+', dtype=run.dtype, shape=shape)


def write_npy(path: Path, run: Array, first: int, num_nodes: int) -> None:
    """Writes the rows from the id `first` on; not mapped, as only their bytes may be touched."""
    row_bytes = math.prod(run.shape[1:], start=run.dtype.itemsize)
    with path.open('r+b') as file:
        file.seek((first - num_nodes) * row_bytes, os.SEEK_END)
        file.flush()
        run.tofile(file)
        os.fsync(file.fileno())


def map_npy(path: Path) -> Array:
    """The rows of all nodes, mapped; writes to them stay in memory.

    Raises ValueError for other files than arrays of numbers.
    """
    ordinary_file(path)
    try:
        return np.lib.format.open_memmap(path, mode='c')
    except Exception as error:  # of damaged bytes it may be anything
        if is_of_system(error):
            raise
        raise ValueError(f"expected an array in '{path}' (got: {error})") from error
