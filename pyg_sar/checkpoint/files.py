"""The folders of checkpoints and the files in them.

A checkpoint gets its name, ``epoch-000012``, after its files are on the disk: whatever has such a
name is complete, wherever a run was killed.

- ``checkpoint.json``: the format, who wrote it, the epoch, and the names of the other files
- ``model.pt``: the plain model's ``state_dict()``, as ``torch.save`` writes it; beside it
  ``optimizer.pt``, ``scheduler.pt``, ``loader.pt``, ``extra.pt``, ``dropout.pt`` and ``random.pt``
- ``model.embedding.weight.npy``: a row for every node, in the order of ids; so have tensors of an
  optimizer's state, such as ``optimizer.0.exp_avg.npy``

Apart from the random states of the ranks nothing depends on how many ranks there are. No class of
torch describes the files: another version of torch reads them as well.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from pyg_sar.checkpoint.row_files import map_npy
from pyg_sar.rows.rows import Rows
from pyg_sar.shard.files import check_tensors, is_of_system, load_plain, own_file
from pyg_sar.utils import durable

_NAME = re.compile(r'epoch-\d{6,}')
_LOCK = '.writing'


def complete(root: Path) -> list[Path]:
    """The complete checkpoints in `root`, oldest first; none if there is no such folder."""
    if not root.is_dir():
        return []
    folders = [path for path in root.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=_epoch_of)


def is_one(folder: Path) -> bool:
    """Whether a folder is itself a checkpoint, by whatever name."""
    return (folder / _ABOUT).is_file()


def newest(root: Path) -> str | None:
    """The name of the newest checkpoint in `root`, '' if it is one itself, None before the first.

    Raises ValueError for a place where a run that has not begun would not write.
    """
    if root.is_file():
        raise ValueError(
            f"expected the folder of save_checkpoint in 'root' (got the file '{root}'): "
            'model.load_state_dict(torch.load(file)) loads a state_dict'
        )
    existing = complete(root)
    if is_one(root):
        if existing:
            raise ValueError(
                f"expected one checkpoint or the folder of several in 'root' (got '{root}', which "
                f"is one and holds {existing[-1].name}): give '{existing[-1]}', or move that out"
            )
        return ''
    if existing:
        return existing[-1].name
    is_part = all((root / name).is_file() for name in _PART)
    if is_part or _NAME.fullmatch(root.name):
        raise ValueError(
            f"expected a complete checkpoint in 'root' (got '{root}', without {_ABOUT}): give the "
            'folder given to save_checkpoint, or copy all files of a checkpoint'
        )
    for form in ('[!.]*', '[!.]*/epoch-*'):  # of a hidden name is what a killed run has left
        for path in root.glob(f'{form}/{_ABOUT}'):
            found = root / path.relative_to(root).parts[0]
            raise ValueError(
                f"expected the folder given to save_checkpoint in 'root' (got '{root}', which has "
                f"checkpoints in '{found}' alone): give that, or another folder for a new run"
            )
    return None


def folder_of(root: Path, epoch: int) -> Path:
    """The folder of a complete checkpoint."""
    return root / f'epoch-{epoch:06d}'


@contextmanager
def begun(root: Path, epoch: int) -> Iterator[Path]:
    """A folder to write a checkpoint into; what killed runs left is removed.

    Nobody else writes to `root` meanwhile: raises RuntimeError, who does.
    """
    if is_one(root):
        raise ValueError(
            f"expected a folder for checkpoints in 'root' (got '{root}', which is one itself): "
            f"give the folder around it, '{root.parent}', or a new one"
        )
    root.mkdir(parents=True, exist_ok=True)
    with durable.locked(root / _LOCK):
        existing = complete(root)
        if existing and epoch <= _epoch_of(existing[-1]):
            raise ValueError(
                f"expected an 'epoch' after {_epoch_of(existing[-1])}, the newest checkpoint in "
                f'{root} (got {epoch}): load that one first, or use another folder'
            )
        durable.remove_left(root, _NAME.pattern)
        with durable.workshop(folder_of(root, epoch)) as new:
            yield new


def publish(new: Path, folder: Path, *, keep: int) -> None:
    """Gives a written checkpoint its name, durably; then removes all but the `keep` newest ones."""
    durable.put(new, folder)
    for old in complete(folder.parent)[:-keep]:
        old.rename(new.parent / old.name)  # at no time half there under its own name


def _epoch_of(folder: Path) -> int:
    return int(folder.name.removeprefix('epoch-'))


_FORMAT = 2
_MOST_BYTES = 1 << 24  # of checkpoint.json
_ABOUT = 'checkpoint.json'
_PART = 'model.pt', 'dropout.pt'  # in every checkpoint; the second is nobody else's


@dataclass(frozen=True)
class About:
    """The content of ``checkpoint.json``."""

    epoch: int
    num_ranks: int  # that wrote it
    states: list[str]  # names of the .pt files
    tables: dict[str, str]  # dtypes of the tensors with a row for every node
    graphs: dict[str, str]  # names of the graphs of node embeddings
    written_by: str  # version of pyg_sar
    format: int = _FORMAT

    def write(self, folder: Path) -> None:
        """Writes it."""
        (folder / _ABOUT).write_bytes(json.dumps(asdict(self), indent=1).encode())


def read_about(folder: Path, root: Path) -> About:
    """The ``checkpoint.json`` of a checkpoint in `root`."""
    path = folder / _ABOUT
    if own_file(root, path).stat().st_size > _MOST_BYTES:
        raise ValueError(f'{path} cannot be read: expected less than {_MOST_BYTES} bytes')
    try:
        content = json.loads(path.read_bytes())
        number, version = int(content['format']), str(content['written_by'])
        if number == _FORMAT:
            epoch, num_ranks = int(content['epoch']), int(content['num_ranks'])
            tables, graphs = dict(content['tables']), dict(content['graphs'])
            return About(epoch, num_ranks, [*content['states']], tables, graphs, version)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f'{path} cannot be read: {error!r}') from error
    raise ValueError(
        f'{folder} was written by pyg_sar {version}, in format {number}: this version reads format '
        f'{_FORMAT}'
    )


def table_file(folder: Path, key: str) -> Path:
    """The file of a tensor with a row for every node."""
    return folder / f'{quote(key, safe="")}.npy'


def write_state(folder: Path, name: str, value: object) -> None:
    """Writes tensors and plain values.

    Raises ValueError for others, which could not be read again.
    """
    path = folder / f'{name}.pt'
    try:
        with path.open('wb') as file:
            torch.save(value, file)
        _load(path, is_mapped=True)
    except Exception as error:
        first: Any = error.__context__ or error  # on a full disk torch raises more as it closes
        if is_of_system(first):
            raise first from None
        key, wrong = _first_wrong(name, value) or (name, None)
        if wrong is None or isinstance(wrong, Rows):
            raise ValueError(f"'{key}' cannot be saved: {error}") from error
        how = next(text for kind, text in _INSTEAD.items() if isinstance(wrong, kind))
        raise ValueError(
            f"'{name}' cannot be saved: expected tensors and plain values (got "
            f'{type(wrong).__module__}.{type(wrong).__qualname__} in {key}): {how}'
        ) from error


_INSTEAD: dict[Any, str] = {
    np.floating: 'save float(value)',
    np.integer: 'save int(value)',
    np.bool_: 'save bool(value)',
    np.ndarray: 'save torch.from_numpy(value)',
    (str, Path): 'save str(value)',
    Enum: 'save value.name',
    dict: 'save dict(value)',
    tuple: 'save tuple(value)',
    Tensor: 'save value.clone()',  # of one that repeats a number
    object: 'save numbers, strings and tensors that it is made of',
}
"""What to save in place of what could not be read again."""


def _first_wrong(key: str, value: object) -> tuple[str, object] | None:
    """Where the first value is that cannot be saved, and it; None if each can."""
    parts: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        keys = ((f'the keys of {key}', name) for name in value)
        parts = chain(keys, ((f'{key}[{name!r}]', part) for name, part in value.items()))
    elif isinstance(value, (list, tuple, set)):
        parts = ((f'{key}[{i}]', part) for i, part in enumerate(value))
    found = next(filter(None, (_first_wrong(*part) for part in parts)), None)
    if found is not None or type(value) in (dict, list, tuple, set):
        return found
    try:
        if type(value) in (Tensor, Parameter):  # which may be large
            check_tensors(value, are_ordinary=False)
        else:
            file = io.BytesIO()
            torch.save(value, file)
            load_plain(file)
    except Exception:
        return key, value
    return None


def read_state(folder: Path, root: Path, name: str) -> Any:
    """Reads a file of :func:`write_state`.

    Raises ValueError if it lies outside of `root`, is damaged, or holds anything else.
    """
    path = own_file(root, folder / f'{name}.pt')
    try:
        return _load(path)
    except ValueError as error:
        raise ValueError(f'{path} cannot be read: {error}') from error


def read_table(folder: Path, root: Path, key: str, dtype: str) -> Tensor:
    """The rows of all nodes, mapped; of damaged files and wrong dtypes errors are of any kind."""
    rows = map_npy(own_file(root, table_file(folder, key)))
    return torch.from_numpy(rows).view(getattr(torch, dtype))


def _load(source: Path, *, is_mapped: bool = False) -> Any:
    """Reads tensors and plain values of ``torch.save``; a ValueError for anything else."""
    try:
        state = load_plain(source, is_mapped=is_mapped)
        check_tensors(state, are_ordinary=False)
    except Exception as error:
        if is_of_system(error):
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f'expected tensors and plain values (got: {reason})') from error
    return state
