"""What tests of files of graphs share: tables that they write, and what was read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

import pyg_sar
from pyg_sar.partition.__main__ import main

IDS = np.arange(6)


def content(data: Any) -> dict[Any, Any]:
    """All of a graph, tensors and names of nodes as lists; of a typed one by type."""
    if isinstance(data, HeteroData):
        return {store._key: content(store) for store in data.stores if store}
    return {key: _plain(value) for key, value in data.items()}


def _plain(value: Any) -> Any:
    return getattr(value, 'tolist', getattr(value, 'to_pylist', lambda: value))()


def assert_same(found: Any, want: Any) -> None:
    """The same types, names and values, tensors of the same dtypes."""
    assert [store._key for store in found.stores] == [store._key for store in want.stores]
    for ours, theirs in zip(found.stores, want.stores, strict=True):
        assert sorted(ours) == sorted(theirs)
        for key, value in theirs.items():
            if isinstance(value, Tensor):
                assert ours[key].dtype == value.dtype
                assert torch.equal(ours[key], value), key
            else:
                assert ours[key] == value


def write_table(path: Path, columns: dict[str, Any]) -> Path:
    """A table as Parquet, in a folder that is made."""
    import pyarrow as pa
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)
    return path


def save_frame(frame: Any, path: Path) -> Path:
    """A table of pandas as Parquet, or as text without the numbers of its rows."""
    frame.to_parquet(path) if path.suffix == '.parquet' else frame.to_csv(path, index=False)
    return path


def write_edges(path: Path, **columns: Any) -> Path:
    """A table of six edges, of which columns can be others."""
    return write_table(path, {'src': IDS, 'dst': IDS[::-1].copy(), **columns})


def refuses(load: Callable[..., Any], *words: str) -> None:
    """One line has these words, in this order."""
    with pytest.raises(ValueError, match='.*'.join(map(re.escape, words))) as told:
        load()
    assert '\n' not in str(told.value)


def command(source: object, out: Path, *words: object, num_parts: int = 2) -> int:
    """What the command line returns."""
    return main([*map(str, (source, out, '--num-parts', num_parts, '--quiet', *words))])


def whole(root: Path, name: str, key: Any = None) -> list[Any]:
    """Rows of all nodes in the order of their ids."""
    data = pyg_sar.load_shard(root)
    return pyg_sar.gather((data if key is None else data[key])[name]).tolist()
