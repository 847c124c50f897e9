"""Rows of all nodes on disk as other programs read them: ``.npy``, or a folder of Parquet files."""

from __future__ import annotations

import importlib
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
from pyg_sar.checkpoint.tables import Array, Table, create_npy, map_npy, write_npy
from pyg_sar.comm import agree, check_equal, in_call, rank, world_size
from pyg_sar.rows.align import own_rows
from pyg_sar.rows.attach import as_local, space_of_nodes
from pyg_sar.rows.rows import Rows, tag
from pyg_sar.shard.edges import refuse_local
from pyg_sar.shard.format.swap import swap_in

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

    Collective. It takes the memory of the own rows once more, whatever the graph's size. A file at
    `path` is replaced when all is written; if the run fails, the file stays as it was.

    Args:
        path: The file ``NAME.npy``, or the folder ``NAME.parquet``; in a folder that all ranks see.
        values: Rows of the nodes, ``[N, ...]``, or a plain tensor of all of them, of one dtype and
            row shape on all ranks; for Parquet of one or two dimensions.
        data: What :func:`pyg_sar.load_shard` gave, or of a HeteroData the nodes of a type,
            ``data['paper']``.

    Raises:
        ValueError: On all ranks, if `values` do not fit the nodes or the file, or something other
            than such rows is at `path`.
        OSError: On all ranks, if one of them cannot write.
    """
    path, space = Path(path), space_of_nodes(data)
    together(lambda: _check(path, values, data))
    if space is not None and type(values) is Tensor:
        values = own_rows('save_rows', values, 0, space)
    values, data = as_local((values, data))
    row = str(values.dtype), tuple(values.shape[1:])
    check_equal("rows in 'values'", agree(row))
    num_nodes = int(data.num_nodes_total)
    run, first = Table(values.detach(), data.n_id.to(values.device), num_nodes).run()
    new = path.with_name(on_rank_0(lambda: f'.{path.name}.{uuid.uuid4().hex[:12]}.tmp'))
    try:
        if path.suffix == '.npy':
            on_rank_0(lambda: create_npy(new, run, num_nodes))
            together(lambda: write_npy(new, run, first, num_nodes))
        else:
            on_rank_0(new.mkdir)
            together(lambda: _write_parquet(new, run, first))
        on_rank_0(lambda: swap_in(new, path))
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
        Rows ``[N, ...]``, in the order of ``data.x``.

    Raises:
        ValueError: On all ranks, if there is not a row for every node of the whole graph.
        OSError: On all ranks, if one of them cannot read.
    """
    path, found = Path(path), list[Tensor]()
    space, own = space_of_nodes(data), as_local(data)

    def read() -> None:
        _check_data('load_rows', path, data)
        ids, num_nodes = own.n_id.cpu().numpy(), int(own.num_nodes_total)
        if path.suffix == '.npy':
            rows = map_npy(path)
            _check_count(path, len(rows) if rows.ndim else 0, num_nodes)
            rows = np.asarray(rows[ids])
        else:
            rows = _read_parquet(path, ids, num_nodes)
        found.append(torch.from_numpy(rows))

    together(read)
    values = found[0].to(own.n_id.device)
    return values if space is None else tag(values, 0, space)


def _check_data(what: str, path: Path, data: Any) -> None:
    if path.suffix not in _SUFFIXES:
        raise ValueError(f"'path' must end in one of {', '.join(_SUFFIXES)} (got '{path}')")
    if path.suffix == '.parquet':
        _parquet()
    if not isinstance(getattr(data, 'n_id', None), Tensor) or 'num_nodes_total' not in data:
        raise ValueError(
            "'data' must be what pyg_sar.load_shard gave, or of a HeteroData the nodes of a type, "
            f"data['paper'] (got a {type(data).__name__} without 'n_id')"
        )
    if world_size() > 1 and not isinstance(data.n_id, Rows):
        refuse_local(what)


def _check(path: Path, values: Tensor, data: Any) -> None:
    _check_data('save_rows', path, data)
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
    is_table = path.suffix == '.parquet'
    if is_table and (values.dim() > 2 or values.is_complex()):
        raise ValueError(
            "expected real rows of one or two dimensions for Parquet in 'values' (got "
            f'{values.dtype} of shape {tuple(values.shape)}): .npy takes any'
        )
    is_other = path.is_dir() != is_table if path.exists() else False
    if is_other or (path.is_dir() and not all(_PIECE.fullmatch(p.name) for p in path.iterdir())):
        raise ValueError(f"expected rows to replace at '{path}' (got something else)")


def _write_parquet(new: Path, run: Array, first: int) -> None:
    arrow, parquet = _parquet()
    value = arrow.array(run.reshape(-1))
    if run.ndim == 2:
        value = arrow.FixedSizeListArray.from_arrays(value, run.shape[1])
    ids = arrow.array(np.arange(first, first + len(run), dtype=np.int64))
    name = f'rows-{rank():05d}-of-{world_size():05d}.parquet'
    parquet.write_table(arrow.table({'id': ids, 'value': value}), new / name)


def _read_parquet(path: Path, ids: Array, num_nodes: int) -> Array:
    """The pieces one after another: their rows are those of all ids, in order."""
    _, parquet = _parquet()
    files = sorted(path.iterdir())
    _check_count(path, sum(parquet.read_metadata(file).num_rows for file in files), num_nodes)
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
        is_list = hasattr(value.type, 'list_size')
        rows = (value.flatten() if is_list else value).to_numpy(zero_copy_only=False)
        rows = rows.reshape(count, -1) if is_list else rows
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
