"""Reading files of PyG's own Partitioner, of which nothing is known beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_sar.shard.format.tensor_file import load_tensors


def _plain_dict(*_: object) -> dict[Any, Any]:
    return {}


# PyG saves a defaultdict, which torch's restricted unpickler does not fill; a dict takes its place.
_plain_dict.__module__ = 'collections'
_plain_dict.__name__ = _plain_dict.__qualname__ = 'defaultdict'


def load_foreign(path: Path, kind: type, root: Path) -> Any:
    """What a file of PyG's holds; see :func:`pyg_sar.shard.format.tensor_file.load_tensors`."""
    try:
        return load_tensors(path, kind, root=root, stand_ins=[_plain_dict, dict])
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"expected a complete folder of torch_geometric.distributed with '{path}' (got no such "
            'file)'
        ) from error


@contextmanager
def clear_errors(root: Path) -> Iterator[None]:
    """Files of others hold anything: whatever fails in here is not what PyG writes."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise ValueError(
            f"expected a folder of torch_geometric.distributed at '{root}' (got {error!r})"
        ) from error
    except ValueError as error:
        if str(root) in str(error):
            raise
        raise ValueError(
            f"expected a folder of torch_geometric.distributed at '{root}' (got {error})"
        ) from error


def check_ids(path: Path, name: str, ids: Tensor, first: int, count: int) -> None:
    """Checks that these are ids in ``[first, first + count)``, int64."""
    if ids.dtype != torch.int64 or ids.dim() != 1:
        raise ValueError(f"expected a vector of int64 in '{name}' of '{path}' (got {ids.dtype})")
    if ids.numel() and not first <= int(ids.min()) <= int(ids.max()) < first + count:
        raise ValueError(
            f"expected ids in [{first}, {first + count}) in '{name}' of '{path}' (got others)"
        )


def check_rows(path: Path, name: str, values: Any, count: int) -> None:
    """Checks that a tensor has so many rows."""
    if not isinstance(values, Tensor) or values.dim() == 0 or values.size(0) != count:
        raise ValueError(f"expected {count} rows in '{name}' of '{path}' (got others)")
