"""Folders of GraphSAINT: a matrix, features, and JSON files of classes and of the split."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition import memmap
from pyg_sar.partition.masks import MASKS, mask_of_index
from pyg_sar.partition.memmap import MEMORY, Scratch
from pyg_sar.partition.sources import files
from pyg_sar.partition.sources.matrices import by_name, read_entries
from pyg_sar.partition.sources.pieces import PIECE
from pyg_sar.shard.files import ordinary_file

_MATRIX, _FEATURES, _CLASSES, _SPLIT = 'adj_full.npz', 'feats.npy', 'class_map.json', 'role.json'
FILES = _MATRIX, _FEATURES, _CLASSES, _SPLIT, 'adj_train.npz'
"""Of which the last, the edges between training nodes, is a part of the first."""

_ROLES = ('tr', 'va', 'te')


def is_graphsaint(folder: Path) -> bool:
    """Whether a folder has a file that only such folders have."""
    return any((folder / name).is_file() for name in (_MATRIX, _CLASSES, _SPLIT))


def read_graphsaint(folder: Path, scratch: Scratch | None) -> dict[str, Any]:
    """Reads a folder of GraphSAINT: arrays by name; in memory, or mapped with `scratch`.

    They are ``edge_index`` [2, E] from rows to columns, ``x`` float32 [N, F], ``y`` int64 [N], or
    float32 [N, C] with several labels for each node, and the masks bool [N].
    """
    names = FILES[:4]
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise ValueError(
            f"expected {', '.join(names)} in '{folder}' (got no {' and no '.join(missing)})"
        )
    space, path = scratch or MEMORY, folder / _MATRIX
    arrays = {'format': np.array('csr'), **files.read_npz(path, scratch=scratch)}
    index, values, shape = read_entries(arrays, path, space)
    num_nodes = shape[0]
    if shape != (num_nodes, num_nodes):
        raise ValueError(f"expected a square matrix in '{path}' (got {shape})")
    split = _split(folder / _SPLIT, num_nodes)
    x = _features(folder / _FEATURES, num_nodes, space)
    y = _labels(folder / _CLASSES, num_nodes, space)
    return {**by_name(index, values, shape, path), 'x': x, 'y': y, **split}


def _features(path: Path, num_nodes: int, scratch: Scratch) -> Tensor:
    """Features as float32, mapped where the file has them so."""
    array = files.map_array(ordinary_file(path))
    if array.dtype.kind not in 'biuf' or array.ndim != 2 or len(array) != num_nodes:
        raise ValueError(
            f"expected numbers [{num_nodes}, features] in '{path}', as {_MATRIX} has as many nodes "
            f'(got {array.dtype} {list(array.shape)})'
        )
    x = memmap.tensor_of(array) if array.dtype.isnative else None
    if x is not None and x.dtype == torch.float32:
        return x if scratch.folder is not None else x.clone()
    x = scratch.empty(array.shape, torch.float32)
    step = max(1, PIECE // max(1, array[:1].nbytes))
    for start in range(0, num_nodes, step):
        x[start : start + step] = torch.from_numpy(array[start : start + step].astype(np.float32))
    return x


def _split(path: Path, num_nodes: int) -> dict[str, Tensor]:
    """The masks of role.json."""
    try:
        roles = json.loads(ordinary_file(path).read_text(encoding='utf-8'))
        lists = [np.array(roles[name]) for name in _ROLES]
        if any(ids.ndim != 1 or (ids.size and ids.dtype.kind != 'i') for ids in lists):
            raise ValueError('an entry that is no whole number')
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"expected lists of nodes 'tr', 'va' and 'te' in '{path}' (got {error!r})"
        ) from error
    if others := sorted(set(roles) - set(_ROLES)):
        warnings.warn(f"left out of '{path}': {', '.join(others)}", stacklevel=2)
    tensors = [torch.from_numpy(ids.astype(np.int64)) for ids in lists]
    return {
        mask: mask_of_index(ids, num_nodes, role, f" of '{path}'")
        for mask, role, ids in zip(MASKS, _ROLES, tensors, strict=True)
    }


def _labels(path: Path, num_nodes: int, scratch: Scratch) -> Tensor:
    """The classes of class_map.json: one for each node, or a list of 0 and 1."""
    y: Tensor | None = None
    seen = np.zeros(num_nodes, dtype=np.bool_)
    for node, value in _entries(path):
        if not node.isdecimal() or int(node) >= num_nodes or seen[int(node)]:
            raise ValueError(
                f"expected nodes from 0 to {num_nodes - 1}, each once, in '{path}' (got '{node}')"
            )
        if y is None and isinstance(value, list):
            y = scratch.empty((num_nodes, len(value)), torch.float32)
            y.fill_(torch.nan)
        elif y is None:
            y = torch.full((num_nodes,), -1)
        is_class = type(value) is int and -1 <= value < 1 << 31
        if not (is_class if y.dim() == 1 else _is_row(value, y.size(1))):
            what = 'a class >= 0, or -1 for none' if y.dim() == 1 else f'{y.size(1)} numbers 0 or 1'
            raise ValueError(
                f"expected {what} for node '{node}' in '{path}', as for the first (got "
                f'{str(value)[:60]})'
            )
        y.numpy()[int(node)] = value
        seen[int(node)] = True
    if y is None:
        raise ValueError(f"expected a class for each node in '{path}' (got none)")
    if missing := num_nodes - int(seen.sum()):
        warnings.warn(
            f"{missing} nodes have no class in '{path}': their labels are "
            f'{-1 if y.dim() == 1 else "NaN"}',
            stacklevel=2,
        )
    return y


def _is_row(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and all(v in (0, 1) for v in value)


_ENTRY = re.compile(r'\s*[{,]\s*"([^"\\]{0,40})"\s*:\s*(\[[^][]*\]|-?\d+(?=[\s,}]))')


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Keys and values of a JSON object of numbers or flat lists, a piece of the file at a time."""
    text, is_first, longest = '', True, 1 << 24
    with ordinary_file(path).open(encoding='utf-8', errors='replace') as file:
        while piece := file.read(PIECE):
            text, at = text + piece, 0
            while match := _ENTRY.match(text, at):
                if ('{' in text[at : match.start(1)]) != is_first:
                    break
                try:
                    yield match[1], json.loads(match[2])
                except (ValueError, RecursionError):
                    break
                is_first, at = False, match.end()
            text = text[at:]
            if len(text) > longest:
                break
    if is_first and re.fullmatch(r'\s*{\s*}\s*', text):
        return
    if is_first or not re.fullmatch(r'\s*}\s*', text):
        got = text.strip()[:60]
        raise ValueError(
            f"expected JSON of one class, or one list of 0 and 1, for each node in '{path}' (got "
            f'{got!r})'
        )
