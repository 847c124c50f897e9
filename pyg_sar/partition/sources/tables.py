"""Edge lists in Parquet and CSV files, read by pyarrow a batch of rows at a time."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.memmap import Scratch

TABLES = ('.parquet', '.csv')

_ENDS = ('src', 'source', 'from'), ('dst', 'target', 'to', 'destination')
"""Names of the columns of sources and of destinations."""

_NO_HEADER = re.compile(r'$|# |[^,]*[#\t; |][^,]*$|(.*,)?\s*"?[-+]?\d[\d.]*(e[-+]?\d+)?"?\s*(,|$)')
"""An empty line, a comment, other signs than commas, or numbers, which may be an edge."""


def table_files(path: Path) -> list[Path]:
    """The files of a table: itself, or its parts in a folder, by name; none of anything else."""
    files = [path] if path.is_file() else sorted(path.glob('[!._]*'))
    return [file for file in files if file.suffix in TABLES and file.is_file()]


def read_table(path: Path, scratch: Scratch, *, batch_rows: int = 1 << 17) -> dict[str, Tensor]:
    """Reads a table with a row per edge, .parquet or .csv with a header, into scratch space.

    Gives ``edge_index`` integer [2, E], and every other column [E]. Sources and destinations are
    the columns that are called so (``src`` and ``dst``, ``source`` and ``target``, ``from`` and
    ``to``), or those of a table of two. `path` may be a folder with the parts of a table.
    """
    try:
        pyarrow, dataset = import_module('pyarrow'), import_module('pyarrow.dataset')
    except ImportError as error:
        raise ValueError(
            f"expected pyarrow to be installed to read '{path}' (got: {error}); install it with "
            "pip install 'pyg_sar[parquet]'"
        ) from error
    files = table_files(path)
    for file in files:
        with file.open(errors='replace') as text:
            line = text.readline().strip() if file.suffix == '.csv' else 'src,dst'
        if _NO_HEADER.match(line):
            raise ValueError(
                f"expected a header in the first line of '{file}', such as src,dst (got {line!r})"
                + as_csv(file)
            )
    try:
        table = dataset.dataset([*map(str, files)], format=files[0].suffix[1:])
        return _read(table, path, scratch, batch_rows)
    except pyarrow.ArrowInvalid as error:
        first_line = str(error).splitlines()[0]
        raise ValueError(f"expected a table of numbers in '{path}' (got: {first_line})") from error


def as_csv(path: Path) -> str:
    """How a list of edges, as text, becomes a table; nothing of what may be no such list."""
    if not re.search(r'\.(csv|txt|tsv|edges|el)(\.\w+)?$', path.name.lower()):
        return ''
    return (
        f", as pandas.read_csv('{path}', sep=r'[\\s,;|]+', comment='#', usecols=[0, 1], "
        "names=['src', 'dst']).to_csv('edges.csv', index=False) writes it; names=None if it has a "
        'header'
    )


def _read(table: Any, path: Path, scratch: Scratch, batch_rows: int) -> dict[str, Tensor]:
    for part in table.get_fragments():  # of which missing columns would be empty, others left out
        if not part.physical_schema.equals(table.schema):
            raise ValueError(f"expected the same columns in all of '{path}' (got '{part.path}')")
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
    # float64 of uint64, which int64 then has to do for.
    of_ends = np.result_type(np.int8, *(dtypes[name] for name in ends))
    if any(dtypes[name].kind not in 'iu' for name in ends):
        raise ValueError(f"expected integers in {ends} of '{path}' (got {of_ends})")
    num_edges = table.count_rows()
    edge_index = scratch.empty((2, num_edges), _of_torch(min(of_ends, np.dtype(np.int64))))
    others = [name for name in names if name not in ends]
    columns = {name: scratch.empty((num_edges,), _of_torch(dtypes[name])) for name in others}
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
            target[end : end + batch.num_rows].numpy()[:] = column.to_numpy(zero_copy_only=False)
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


_REMEDIES = {
    '(large_)?(string|binary)|dictionary': 'names become numbers by ids, names = pandas.factorize('
    "table[['src', 'dst']].to_numpy().ravel()), src, dst = ids[::2], ids[1::2]",
    'timestamp|date|time|duration': "table['{0}'].astype('int64') of pandas makes numbers of times",
    'decimal': "table['{0}'].astype('float64') of pandas makes other numbers",
    'null': 'no row has a value; leave the column out, or fill it',
    '': 'leave the column out, or write what it holds as columns of numbers',
}
"""By how the name of a type begins, what to do."""


def _dtype(type_: Any, name: str, path: Path) -> np.dtype[Any]:
    types = import_module('pyarrow').types
    if types.is_integer(type_) or types.is_floating(type_) or types.is_boolean(type_):
        return np.dtype(type_.to_pandas_dtype())
    kind = str(type_)
    remedy = next(text for words, text in _REMEDIES.items() if re.match(words, kind))
    raise ValueError(
        f"expected numbers in '{name}' of '{path}' (got {kind}): {remedy.format(name)}"
    )


def _of_torch(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
