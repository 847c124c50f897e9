"""A row for every node of the whole graph in one ``.npy`` file, in the order of ids.

A rank has rows of its own nodes, whose ids lie anywhere. Ranks that wrote them there would write
next to one another all over the file, which shared file systems do badly or, mapped into memory,
wrongly. So each rank fetches the rows of a run of ids from their owners, and writes the run in one
piece. No rank ever holds more than its own rows and its run.
"""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.storage import NodeStorage

from pyg_sar.comm.errors import collective
from pyg_sar.comm.ranks import rank, world_size
from pyg_sar.comm.rows_by_id import rows
from pyg_sar.comm.vote import agree, check_equal, on_rank_0, raise_on_all
from pyg_sar.rows.align import own_rows
from pyg_sar.rows.from_data import as_local, sharding_of_nodes
from pyg_sar.rows.rows import Rows, tag
from pyg_sar.shard.edges import refuse_local
from pyg_sar.shard.files import is_of_system, ordinary_file
from pyg_sar.shard.format import NODE_NAMES
from pyg_sar.shard.node_names import NodeNames
from pyg_sar.utils.durable import discard, name_beside, put

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a table, on the rank that has them."""

    values: Tensor  # ``[num_rows, ...]``
    n_id: Tensor  # whose rows they are, int64 ``[num_rows]``
    num_nodes: int  # of all ranks

    def run(self) -> tuple[Array, int]:
        """The rows of this rank's run of ids, and the first id (collective: see ``rows``)."""
        first, end = (r * self.num_nodes // world_size() for r in (rank(), rank() + 1))
        with torch.no_grad():
            ids = torch.arange(first, end, device=self.values.device)
            values = rows(self.values, ids, self.n_id).cpu().contiguous()
        if values.dtype == torch.bfloat16:  # NumPy has none: the file has the bits
            values = values.view(torch.int16)
        return values.numpy(), first


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


@collective('save_rows', 'ranks write their rows, and meet when all is on the disk')
def save_rows(path: str | os.PathLike[str], values: Tensor, data: Any) -> None:
    """Writes a row for every node of the whole graph, such as predictions, in the order of ids.

    This leaves an array ``[N]`` that any program reads, by ``numpy.load('predictions.npy')``::

        pyg_sar.save_rows('predictions.npy', out.argmax(dim=-1), data)

    It takes the memory of the own rows once more, whatever the graph's size. A file at
    `path` is replaced when all is written; if the run fails, the file stays as it was. Where nodes
    have names, ``NAME.names.arrow`` beside it has them, as
    ``pyarrow.ipc.open_file('predictions.names.arrow').read_all()`` reads them.

    Args:
        path: The file ``NAME.npy``, in a folder that all ranks see.
        values: Rows of the nodes, ``[N, ...]``, or a plain tensor of all of them, of one dtype and
            row shape on all ranks.
        data: What :func:`pyg_sar.load_shard` gave, or of a HeteroData the nodes of a type,
            ``data['paper']``.

    Raises:
        ValueError: On all ranks, if `values` do not fit the nodes or the file, or something other
            than such rows is at `path`.
        OSError: On all ranks, if one of them cannot write.
    """
    path, sharding = Path(path), sharding_of_nodes(data)
    raise_on_all(lambda: _check(path, values, data))
    row = str(values.dtype), tuple(values.shape[1:])
    check_equal("rows in 'values'", agree(row))
    if sharding is not None:
        values = own_rows('save_rows', values.detach(), 0, sharding)
    data = as_local(data)
    num_nodes = int(data.num_nodes_total)
    run, first = Table(values.detach(), data.n_id.to(values.device), num_nodes).run()
    new = path.with_name(on_rank_0(lambda: name_beside(path).name))
    try:
        on_rank_0(lambda: create_npy(new, run, num_nodes))
        raise_on_all(lambda: write_npy(new, run, first, num_nodes))
        on_rank_0(lambda: put(new, path))
        on_rank_0(lambda: _put_names(path.with_suffix('.names.arrow'), data))
    except BaseException:
        if rank() == 0:
            discard(new)
        raise


def _put_names(path: Path, data: Any) -> None:
    """Writes the names of the nodes, if they have some, beside their rows."""
    names = data.get(NODE_NAMES) if isinstance(data, (Data, NodeStorage)) else None
    if not isinstance(names, NodeNames):
        return
    new = name_beside(path)
    try:
        shutil.copyfile(names.path, new)
        put(new, path)
    except BaseException:
        discard(new)
        raise


@collective('load_rows', 'all ranks raise if one of them does')
def load_rows(path: str | os.PathLike[str], data: Any) -> Tensor:
    """Reads the rows of the own nodes from what :func:`save_rows` wrote, or any ``.npy`` of N rows.

    ::

        pyg_sar.save_rows('embeddings.npy', out.detach(), data)
        z = pyg_sar.load_rows('embeddings.npy', data)

    A rank holds the rows of its own nodes; the file is mapped.

    Args:
        path: The file ``NAME.npy``.
        data: What :func:`pyg_sar.load_shard` gave, or of a HeteroData the nodes of a type.

    Returns:
        Rows ``[N, ...]``, in the order of ``data.x``.

    Raises:
        ValueError: On all ranks, if there is not a row for every node of the whole graph.
        OSError: On all ranks, if one of them cannot read.
    """
    path = Path(path)
    sharding, own = sharding_of_nodes(data), as_local(data)

    def read() -> Tensor:
        _check_data('load_rows', path, data)
        rows, num_nodes = map_npy(path), int(own.num_nodes_total)
        count = len(rows) if rows.ndim else 0
        if count != num_nodes:
            raise ValueError(
                f'expected a row for each of the {num_nodes} nodes of the whole graph in '
                f"'{path}' (got {count} rows)"
            )
        return torch.from_numpy(np.asarray(rows[own.n_id.cpu().numpy()]))

    values = raise_on_all(read).to(own.n_id.device)
    return values if sharding is None else tag(values, 0, sharding)


def _check_data(what: str, path: Path, data: Any) -> None:
    if path.suffix == '.parquet':
        raise ValueError(
            f"'path' must end in .npy (got '{path}'): then table = pyarrow.table({{'value': "
            "list(numpy.load('rows.npy'))}) and pyarrow.parquet.write_table(table, "
            "'rows.parquet') make Parquet of that file"
        )
    if path.suffix != '.npy':
        raise ValueError(f"'path' must end in .npy (got '{path}')")
    if not isinstance(getattr(data, 'n_id', None), Tensor) or 'num_nodes_total' not in data:
        raise ValueError(
            "'data' must be what pyg_sar.load_shard gave, or of a HeteroData the nodes of a type, "
            f"data['paper'] (got a {type(data).__name__} without 'n_id')"
        )
    if world_size() > 1 and not isinstance(data.n_id, Rows):
        refuse_local(what)


def _check(path: Path, values: object, data: Any) -> None:
    _check_data('save_rows', path, data)
    if not isinstance(values, Tensor):
        raise ValueError(
            f"expected a tensor in 'values' (got a {type(values).__name__}): "
            'torch.as_tensor(values) is one of an array, or of a list, with a row for every node '
            'of the whole graph'
        )
    num_nodes = int(data.num_nodes_total)
    if values.shape[:1] != (num_nodes,):
        raise ValueError(
            f"expected a row for each of {num_nodes} nodes in 'values' (got shape "
            f'{tuple(values.shape)})'
        )
    try:
        torch.empty(0, dtype=values.dtype).numpy()
    except TypeError as error:
        raise ValueError(
            f"expected a dtype that NumPy has in 'values' (got {values.dtype}): .float() is one"
        ) from error
    if path.is_dir():
        raise ValueError(f"expected rows to replace at '{path}' (got a folder)")
