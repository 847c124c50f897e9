"""Reads files of a folder that a stranger may have made: nothing in them is run.

Only a folder's own ordinary files are opened, and tensors are read with ``weights_only``. A small
file can still become large in memory: by compressed records, by tensors that repeat one number with
a stride of zero, by functions that allocate. Such files are refused.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pickletools
import stat
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
from torch import Tensor

from pyg_sar.shard.format import META_FILE
from pyg_sar.utils.nested import in_nested
from pyg_sar.utils.offload import watcher

_MOST_BYTES = 1 << 28
"""Of META.json: as much as some 4,000 parts need."""


def own_file(root: str | Path, path: str | Path) -> Path:
    """`path`, if it is an ordinary file below `root`, out of which no symbolic link may lead.

    Raises FileNotFoundError if there is nothing, else ValueError.
    """
    folder, real = os.path.realpath(root), os.path.realpath(path)
    if os.path.commonpath([folder, real]) != folder:
        raise ValueError(f"expected a file inside the folder '{root}' (got '{path}' -> '{real}')")
    return ordinary_file(path)


def ordinary_file(path: str | Path) -> Path:
    """`path`, if it is an ordinary file: reading a pipe or device may never end."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"expected a file '{path}' (got no such file)") from None
    except (OSError, ValueError) as error:  # a loop of links, a name with a zero byte
        raise ValueError(f"expected an ordinary file '{path}' (got {error})") from error
    if not stat.S_ISREG(mode):
        raise ValueError(f"expected an ordinary file '{path}' (got a folder, pipe or device)")
    return Path(path)


def is_of_system(error: Exception) -> bool:
    """Whether an error of reading a file tells of the system, and nothing of the file's bytes."""
    if isinstance(error, OSError):  # of damaged bytes libraries seek to no place at all
        return error.errno not in (None, errno.EINVAL)
    return isinstance(error, (Warning, MemoryError)) or "can't allocate memory" in str(error)


def read_json(root: str | Path) -> Any:
    """All that META.json holds, of whatever program it is."""
    path = Path(root) / META_FILE
    if not Path(root).is_dir():
        raise FileNotFoundError(
            f"expected a partition folder at '{root}' (got no folder): python -m pyg_sar.partition "
            'makes one'
        )
    try:
        own_file(root, path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"expected a complete partition folder at '{root}' (got one without {META_FILE}: "
            'it was not written by pyg_sar.partition, or only in part): '
            'python -m pyg_sar.partition makes one'
        ) from None
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"expected less than {_MOST_BYTES} bytes in '{path}' (got more)")
    try:
        return json.loads(path.read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON in '{path}' (got {error})") from error


_CHUNK = 1 << 20


def file_checksum(path: str | Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with ordinary_file(path).open('rb') as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def folder_files(root: str | Path) -> list[str]:
    """The paths of all files below `root` but META.json, relative to it, in order."""
    root = Path(root)
    names = (p.relative_to(root).as_posix() for p in root.rglob('*') if not p.is_dir())
    return sorted(name for name in names if name != META_FILE)


def folder_checksums(root: str | Path) -> dict[str, str]:
    """The checksum of every file of :func:`folder_files`, by its relative path."""
    return {name: file_checksum(Path(root) / name) for name in folder_files(root)}


T = TypeVar('T')

_OLD_PICKLES = 5  # magic number, protocol, system, content, keys of the numbers


def load_tensors(path: Path, kind: type[T], *, root: Path) -> T:
    """Reads a file of tensors and plain values, memory-mapped; no code of a file is ever run.

    While ranks take turns tensors are copied into memory, which can be evicted.
    """
    try:
        own_file(root, path)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"expected a complete partition folder with '{path}' (got no such file)"
        ) from error
    try:
        with only_classes([]):
            content = load_plain(path, is_mapped=True)
        check_tensors(content)
        if watcher.value is not None:
            content = in_nested(content, lambda x: x.clone() if isinstance(x, Tensor) else x)
    except Exception as error:  # The unpickler meets damaged bytes with errors of any kind.
        if is_of_system(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"expected a file of tensors at '{path}' (got {reason})") from error
    if not isinstance(content, kind):
        raise ValueError(f"expected a {kind.__name__} in '{path}' (got {type(content).__name__})")
    return content


@contextmanager
def only_classes(allowed: list[Any]) -> Iterator[None]:
    """Allows torch's restricted unpickler these classes, and none that PyG or others allow it."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        torch.serialization.add_safe_globals(allowed)
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def load_plain(source: Path | io.BytesIO, *, is_mapped: bool = False) -> Any:
    """What torch.save has written, of tensors and plain values; sparse tensors are checked.

    Raises ValueError if the file is larger in memory than on the disk, torch errors of any kind if
    it is damaged.
    """
    check_plain(source)
    checked = torch.sparse.check_sparse_tensor_invariants()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings(), checked:
        warnings.filterwarnings('ignore', 'Sparse (CSR|CSC) tensor support is in beta')
        warnings.filterwarnings('ignore', 'Validating sparse tensor invariants')
        # Files of torch before 1.6 are no zip archives, and cannot be mapped.
        is_mapped = is_mapped and zipfile.is_zipfile(source)
        return torch.load(source, map_location='cpu', weights_only=True, mmap=is_mapped)


def check_plain(source: Path | io.BytesIO) -> None:
    """Checks what torch.save has written before torch.load reads it with ``weights_only``."""
    with source.open('rb') if isinstance(source, Path) else nullcontext(source) as file:
        if zipfile.is_zipfile(file):
            _check_stored(file)
            file.seek(0)
            pickles: list[IO[bytes]] = [
                io.BytesIO(torch._C.PyTorchFileReader(file).get_record('data.pkl'))
            ]
        else:  # of torch before 1.6: a few pickles, then the numbers
            pickles = [file] * _OLD_PICKLES
        file.seek(0)
        for pickled in pickles:
            for operation, name, _ in pickletools.genops(pickled):
                # Of all functions that torch admits only this one fills the memory it allocates.
                if operation.name == 'GLOBAL' and str(name).endswith(' bytearray'):
                    raise ValueError(f"a pickle that needs '{str(name).replace(' ', '.')}'")
        file.seek(0)


def _check_stored(file: IO[bytes]) -> None:
    """Checks that the records of an archive lie in it as they are."""
    with zipfile.ZipFile(file) as archive:
        size = file.seek(0, io.SEEK_END)
        for record in archive.infolist():
            if record.compress_type != zipfile.ZIP_STORED or record.file_size > size:
                raise ValueError(f'the compressed record {record.filename!r}')


def check_tensors(content: Any, *, are_ordinary: bool = True) -> None:
    """Raises ValueError unless every tensor in a file's content is as large as its bytes there.

    With `are_ordinary` they must be dense and on the CPU, without a class or gradient.
    """
    seen: set[int] = set()
    left = [content]
    while left:
        value = left.pop()
        if isinstance(value, Tensor):
            if are_ordinary and (
                type(value) is not Tensor or value.layout != torch.strided or value.requires_grad
            ):
                raise ValueError(f'a {type(value).__name__}, {value.layout}, or with gradient')
            if are_ordinary and value.device.type != 'cpu':
                raise ValueError(f'a tensor on {value.device}')
            if value.layout == torch.strided and value.nbytes > value.untyped_storage().nbytes():
                raise ValueError(f'a tensor of shape {tuple(value.shape)}, more than its bytes')
        elif isinstance(value, (dict, list, tuple, set)) and id(value) not in seen:
            seen.add(id(value))
            left.extend(value)
            if isinstance(value, dict):
                left.extend(value.values())
