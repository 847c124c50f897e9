"""Rows of all nodes as one table on disk, in the order of their ids in the whole graph.

What a rank computes are rows of its own nodes, which lie anywhere among the ids. Ranks that wrote
them there would write next to one another all over the file, which shared file systems do badly
or, mapped into memory, wrongly. So each rank gets the rows of a run of ids from their owners, as
for checkpoints, and writes those in one piece.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.checkpoint.all_or_none import on_rank_0, together
from pyg_sar.checkpoint.tables import Table, run_of
from pyg_sar.comm import agree, check_equal, in_call, rank, world_size
from pyg_sar.own_rows import plain
from pyg_sar.rows.attach import as_local, space_of_nodes
from pyg_sar.rows.rows import tag
from pyg_sar.shard.format.files import ordinary_file

_PIECE = re.compile(r'rows-\d{5}-of-\d{5}\.parquet')
_SUFFIXES = ('.npy', '.parquet')
_AT_ONCE = 1 << 16


@in_call('save_rows')
def save_rows(path: str | os.PathLike[str], values: Tensor, data: Any) -> None:
    """Writes a row for every node of the whole graph, such as predictions, in the order of ids.

    This leaves an array ``[N]`` that any program reads, by ``numpy.load('predictions.npy')``::

        pyg_sar.save_rows('predictions.npy', out.argmax(dim=-1), data)

    By another suffix it is a folder of Parquet files, one of each rank, which pandas, polars and
    pyarrow read as one table with the columns ``id`` and ``value``.

    Collective. A rank holds its own rows and as many again, whatever the graph's size. What is at
    `path` is replaced when all is written; a run that fails leaves it as it was.

    Args:
        path: The file ``NAME.npy``, or the folder ``NAME.parquet``; in a folder that all ranks see.
        values: Rows of the own nodes, ``[num_own, ...]``, of one dtype and row shape on all ranks;
            for Parquet of one or two dimensions.
        data: What :func:`pyg_sar.load_shard` gave, or of a HeteroData the nodes of a type,
            ``data['paper']``.

    Raises:
        ValueError: On all ranks, if `values` do not fit the nodes or the file, or something other
            than such rows is at `path`.
        OSError: On all ranks, if one of them cannot write.
    """
    path = Path(path)
    values, data = as_local((values, data))
    together(lambda: _check(path, values, data))
    row = str(values.dtype), tuple(values.shape[1:])
    check_equal("rows in 'values'", row, agree(row))
    num_nodes = int(data.num_nodes_total)
    with torch.no_grad():
        table = Table(plain(values.detach()), data.n_id.to(values.device), num_nodes).in_runs()
    rows, first = table.values.cpu().contiguous().numpy(), run_of(rank(), num_nodes).start
    new = path.with_name(on_rank_0(lambda: f'.{path.name}.{uuid.uuid4().hex[:12]}.tmp'))
    is_npy = path.suffix == '.npy'
    try:
        on_rank_0(lambda: _begin(new, rows, num_nodes) if is_npy else new.mkdir())
        together(
            lambda: _write_npy(new, rows, first) if is_npy else _write_parquet(new, rows, first)
        )
        on_rank_0(lambda: _replace(new, path))
    except BaseException:
        if rank() == 0:
            shutil.rmtree(new, ignore_errors=True)
            new.unlink(missing_ok=True)
        raise


@in_call('load_rows')
def load_rows(path: str | os.PathLike[str], data: Any) -> Tensor:
    """Reads the rows of the own nodes from what :func:`save_rows` wrote, or any ``.npy`` of N rows.

    ::

        pyg_sar.save_rows('embeddings.npy', out.detach(), data)
        z = pyg_sar.load_rows('embeddings.npy', data)

    Collective. A rank holds the rows of its own nodes; the file is mapped, or read in pieces.

    Args:
        path: The file ``NAME.npy``, or the folder ``NAME.parquet``.
        data: What :func:`pyg_sar.load_shard` gave, or of a HeteroData the nodes of a type.

    Returns:
        ``[num_own, ...]``, in the order of ``data.x``.

    Raises:
        ValueError: On all ranks, if there is not a row for every node of the whole graph.
        OSError: On all ranks, if one of them cannot read.
    """
    path, found = Path(path), list[Tensor]()
    space, data = space_of_nodes(data), as_local(data)

    def read() -> None:
        _check_data(path, data)
        ids = data.n_id.cpu().numpy()
        read_own = _read_npy if path.suffix == '.npy' else _read_parquet
        found.append(torch.from_numpy(read_own(path, ids, int(data.num_nodes_total))))

    together(read)
    values = found[0].to(data.n_id.device)
    return values if space is None else tag(values, 0, space)


def _check_data(path: Path, data: Any) -> None:
    if path.suffix not in _SUFFIXES:
        raise ValueError(f"'path' must end in one of {', '.join(_SUFFIXES)} (got '{path}')")
    if path.suffix == '.parquet':
        _parquet()
    if not isinstance(getattr(data, 'n_id', None), Tensor) or 'num_nodes_total' not in data:
        raise ValueError(
            "'data' must be what pyg_sar.load_shard gave, or of a HeteroData the nodes of a type, "
            f"data['paper'] (got a {type(data).__name__} without 'n_id')"
        )


def _check(path: Path, values: Tensor, data: Any) -> None:
    _check_data(path, data)
    if values.dim() == 0 or values.size(0) != data.n_id.numel():
        raise ValueError(
            f"expected one row per own node in 'values', {data.n_id.numel()} rows (got shape "
            f'{tuple(values.shape)})'
        )
    try:
        torch.empty(0, dtype=values.dtype).numpy()
    except TypeError as error:
        raise ValueError(
            f"expected a dtype that NumPy has in 'values' (got {values.dtype}): .float() is one"
        ) from error
    is_table = path.suffix == '.parquet'
    if is_table and (values.dim() > 2 or values.is_complex()):
        raise ValueError(
            "expected real rows of one or two dimensions for Parquet in 'values' (got "
            f'{values.dtype} of shape {tuple(values.shape)}): .npy takes any'
        )
    is_other = path.is_dir() != is_table if path.exists() else False
    if is_other or (path.is_dir() and not all(_PIECE.fullmatch(p.name) for p in path.iterdir())):
        raise ValueError(f"expected rows to replace at '{path}' (got something else)")


def _begin(new: Path, rows: np.ndarray[Any, Any], num_nodes: int) -> None:
    """The header of a file of all rows, and its size."""
    shape = (num_nodes, *rows.shape[1:])
    with new.open('wb') as file:
        header = {'descr': np.lib.format.dtype_to_descr(rows.dtype), 'fortran_order': False}
        np.lib.format.write_array_header_1_0(file, {**header, 'shape': shape})
        file.truncate(file.tell() + num_nodes * _row_bytes(rows))


def _write_npy(new: Path, rows: np.ndarray[Any, Any], first: int) -> None:
    """Rows from the id `first` on, written and not mapped: only their bytes are touched."""
    with new.open('r+b') as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        file.seek(first * _row_bytes(rows), os.SEEK_CUR)
        file.flush()
        rows.tofile(file)
        os.fsync(file.fileno())


def _row_bytes(rows: np.ndarray[Any, Any]) -> int:
    return int(math.prod(rows.shape[1:], start=rows.dtype.itemsize))


def _write_parquet(new: Path, rows: np.ndarray[Any, Any], first: int) -> None:
    arrow, parquet = _parquet()
    value = arrow.array(rows.reshape(-1))
    if rows.ndim == 2:
        value = arrow.FixedSizeListArray.from_arrays(value, rows.shape[1])
    ids = arrow.array(np.arange(first, first + len(rows), dtype=np.int64))
    name = f'rows-{rank():05d}-of-{world_size():05d}.parquet'
    parquet.write_table(arrow.table({'id': ids, 'value': value}), new / name)


def _replace(new: Path, path: Path) -> None:
    if new.is_dir() and path.exists():
        old = new.with_suffix('.old')
        path.rename(old)
        new.rename(path)
        shutil.rmtree(old)
    else:
        new.replace(path)


def _read_npy(path: Path, ids: np.ndarray[Any, Any], num_nodes: int) -> np.ndarray[Any, Any]:
    ordinary_file(path)
    try:
        rows = np.load(path, mmap_mode='r', allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"expected an array in '{path}' (got: {error})") from error
    _check_count(path, len(rows) if rows.ndim else 0, num_nodes)
    return np.asarray(rows[ids])


def _read_parquet(path: Path, ids: np.ndarray[Any, Any], num_nodes: int) -> np.ndarray[Any, Any]:
    """The pieces one after another: their rows are those of all ids, in order."""
    _, parquet = _parquet()
    files = sorted(path.iterdir())
    sizes = [parquet.read_metadata(file).num_rows for file in files]
    _check_count(path, sum(sizes), num_nodes)
    order = np.argsort(ids)
    wanted, parts = ids[order], []

    def batches() -> Iterator[Any]:
        for file in files:
            with parquet.ParquetFile(file) as opened:
                yield from opened.iter_batches(_AT_ONCE, columns=['id', 'value'])

    for batch in filter(len, batches()):
        first, count = batch.column(0)[0].as_py(), len(batch)
        low, high = np.searchsorted(wanted, [first, first + count])
        value = batch.column(1)
        if hasattr(value.type, 'list_size'):
            rows = value.flatten().to_numpy(zero_copy_only=False).reshape(count, -1)
        else:
            rows = value.to_numpy(zero_copy_only=False)
        parts.append(rows[wanted[low:high] - first])
    found = np.concatenate(parts)
    out = np.empty_like(found)
    out[order] = found
    return out


def _check_count(path: Path, count: int, num_nodes: int) -> None:
    if count != num_nodes:
        raise ValueError(
            f"expected a row for each of the {num_nodes} nodes of the whole graph in '{path}' (got "
            f'{count} rows)'
        )


def _parquet() -> tuple[Any, Any]:
    try:
        return importlib.import_module('pyarrow'), importlib.import_module('pyarrow.parquet')
    except ImportError as error:
        raise ValueError(
            f"Parquet needs the package 'pyarrow' (got: {error}); install it with "
            "pip install 'pyg_sar[parquet]', or write .npy"
        ) from error
