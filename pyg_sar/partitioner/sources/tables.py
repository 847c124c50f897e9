"""Edge lists in Parquet and CSV files, read by pyarrow a batch of rows at a time."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partitioner.on_disk.mapped import Scratch, release

TABLES = ('.parquet', '.csv')


_ENDS = ('src', 'source', 'from'), ('dst', 'target', 'to', 'destination')
"""Names of the columns of sources and of destinations."""


def read_table(path: Path, scratch: Scratch, *, batch_rows: int = 1 << 17) -> dict[str, Tensor]:
    """Reads a table with a row per edge, .parquet or .csv with a header, into scratch space.

    Gives ``edge_index`` integer [2, E], and every other column [E]. Sources and destinations are
    the columns that are called so (``src`` and ``dst``, ``source`` and ``target``, ``from`` and
    ``to``), or those of a table of two.
    """
    try:
        pyarrow, dataset = import_module('pyarrow'), import_module('pyarrow.dataset')
    except ImportError as error:
        raise ValueError(
            f"expected pyarrow to be installed to read '{path}' (got: {error}); install it with "
            "pip install 'pyg_sar[parquet]'"
        ) from error
    if path.suffix == '.csv' and path.is_file():
        with path.open(errors='replace') as file:
            names = file.readline().strip().split(',')
        if any(_is_number(name.strip('"')) for name in names):
            raise ValueError(
                f"expected a header in the first line of '{path}', such as src,dst (got {names}, "
                'which may be an edge)'
            )
    try:
        return _read(dataset.dataset(path, format=path.suffix[1:]), path, scratch, batch_rows)
    except pyarrow.ArrowInvalid as error:
        first_line = str(error).splitlines()[0]
        raise ValueError(f"expected a table of numbers in '{path}' (got: {first_line})") from error


def _read(table: Any, path: Path, scratch: Scratch, batch_rows: int) -> dict[str, Tensor]:
    names: list[str] = table.schema.names
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(
            f"expected two columns or more, of different names, in '{path}' (got {names})"
        )
    if any(not name.strip() for name in names):
        raise ValueError(
            f"expected a name for every column of '{path}' (got {names}): pandas leaves its index "
            'out by to_csv(index=False)'
        )
    ends = _ends(names, path)
    dtypes = {name: _dtype(table.schema.field(name).type, name, path) for name in names}
    of_ends = np.result_type(*(dtypes[name] for name in ends))
    if of_ends.kind not in 'iu':
        raise ValueError(f"expected integers in {ends} of '{path}' (got {of_ends})")
    num_edges = table.count_rows()
    edge_index = scratch.empty((2, num_edges), _of_torch(of_ends))
    columns = {
        name: scratch.empty((num_edges,), _of_torch(dtypes[name]))
        for name in names
        if name not in ends
    }
    targets, end = {**dict(zip(ends, edge_index, strict=True)), **columns}, 0
    # One batch ahead and no threads: the memory is that of a few batches.
    few = {'batch_readahead': 1, 'fragment_readahead': 1, 'use_threads': False}
    for batch in table.to_batches(batch_size=batch_rows, **few):
        for name, target in targets.items():
            column = batch.column(batch.schema.get_field_index(name))
            if column.null_count:
                raise ValueError(
                    f"expected no empty cell in '{name}' of '{path}' (got {column.null_count})"
                )
            rows = target[end : end + batch.num_rows]
            rows.numpy()[:] = column.to_numpy(zero_copy_only=False)
            release(rows)
        end += batch.num_rows
    return {'edge_index': edge_index, **columns}


def _ends(names: list[str], path: Path) -> list[str]:
    """The columns of sources and destinations."""
    src, dst = ([n for n in names if n.strip().lower() in synonyms] for synonyms in _ENDS)
    if not src and not dst and len(names) == 2:
        return names
    if len(src) != 1 or len(dst) != 1:
        raise ValueError(
            f"expected columns 'src' and 'dst' in '{path}', or 'source' and 'target', or 'from' "
            f"and 'to', one of each (got {names})"
        )
    return [*src, *dst]


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _dtype(type_: Any, name: str, path: Path) -> np.dtype[Any]:
    dtype = np.dtype(type_.to_pandas_dtype())
    if dtype.kind not in 'biuf':
        raise ValueError(
            f"expected numbers in '{name}' of '{path}' (got {type_}): names become numbers by "
            "ids, names = pandas.factorize(table[['src', 'dst']].to_numpy().ravel()), "
            'src, dst = ids[::2], ids[1::2]'
        )
    return dtype


def _of_torch(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
