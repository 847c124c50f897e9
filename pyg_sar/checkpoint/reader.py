"""Reads a folder of torch.distributed.checkpoint without running any code that is in it.

torch's own reader unpickles ``.metadata`` without restriction, and its planner all that is no
tensor: a folder could run any program. Here ``.metadata`` may name only the few classes that torch
writes into it, and all else is read with ``weights_only``.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from pyg_sar.checkpoint.states import OPTIMIZER
from pyg_sar.shard.format.files import own_file
from pyg_sar.shard.format.tensor_file import check_plain, check_tensors

_ALLOWED = {
    'torch.distributed.checkpoint.metadata': {
        *('Metadata', 'MetadataIndex', 'StorageMeta', 'TensorProperties', '_MEM_FORMAT_ENCODING'),
        *(f'{kind}StorageMetadata' for kind in ('Tensor', 'Bytes', 'Chunk')),
    },
    'torch.distributed.checkpoint.filesystem': {'_StorageInfo'},
    'torch.serialization': {'_get_layout'},
    'torch': {'Size'},  # and dtypes
    'pathlib': {'PosixPath'},
    'pathlib._local': {'PosixPath'},
}
"""All that torch writes into ``.metadata``, by module."""


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == 'torch' and isinstance(getattr(torch, name, None), torch.dtype)
        if name not in _ALLOWED.get(module, ()) and not is_dtype:
            raise pickle.UnpicklingError(
                f"expected only the metadata of tensors (got '{module}.{name}')"
            )
        return super().find_class(module, name)


def read_metadata(folder: Path, root: Path) -> Metadata:
    """What a checkpoint in `root` holds, and where.

    Raises:
        ValueError: If it cannot be read; nothing in it has been run.
        OSError: If the file is missing.
    """
    path = own_file(root, folder / '.metadata')
    try:
        content = path.read_bytes()
        _check_memo(content)
        metadata = _MetadataUnpickler(io.BytesIO(content)).load()
        if not isinstance(metadata, Metadata):
            raise ValueError(f'expected Metadata (got {type(metadata).__name__})')
    except OSError:
        raise
    except Exception as error:  # Bytes that are no pickle may raise anything.
        raise ValueError(f'{path} cannot be read: {error!r}') from error
    return metadata


def read_values(
    folder: Path,
    root: Path,
    metadata: Metadata,
    *,
    with_optimizer: bool,
    runs: dict[str, range] | None = None,
) -> dict[str, Any]:
    """The tensors and plain values of a checkpoint, each read by this process alone.

    Not by ``torch.distributed.checkpoint.load``: its ranks send each other pickles. Its files must
    be in `root`. Of tensors in `runs` only these rows are read.

    Raises:
        ValueError: If a file is damaged or holds anything else, which is not run.
        OSError: If a file is missing.
    """
    values = {}
    try:
        places = {
            (index.fqn, tuple(index.offset or ())): info
            for index, info in metadata.storage_data.items()
        }

        def read(key: str, start: tuple[int, ...]) -> Any:
            return load_plain(_content(folder, root, places[key, start]))

        for key, described in metadata.state_dict_metadata.items():
            if key.startswith(OPTIMIZER) and not with_optimizer:
                continue
            if isinstance(described, TensorStorageMetadata):
                values[key] = _rows(key, described, (runs or {}).get(key), read)
            else:
                values[key] = read(key, ())
    except OSError:
        raise
    except Exception as error:  # what was unpickled may be anything
        raise ValueError(f'{folder} cannot be read: {error}') from error
    return values


def _rows(
    key: str,
    described: TensorStorageMetadata,
    run: range | None,
    read: Callable[[str, tuple[int, ...]], Any],
) -> Tensor:
    """Rows of a tensor, or the whole, from the pieces that it lies in one after another."""
    size, dtype = described.size, described.properties.dtype
    run = range(size[0] if size else 1) if run is None else run
    pieces, position = [], run.start
    for chunk in sorted(described.chunks, key=lambda chunk: tuple(chunk.offsets)):
        begin, count = (chunk.offsets[0], chunk.sizes[0]) if size else (0, 1)
        low, high = max(begin, run.start), min(begin + count, run.stop)
        if low >= high:
            continue
        piece = read(key, tuple(chunk.offsets)).detach()
        rows = torch.Size([count, *size[1:]]) if size else size
        got, want = (piece.shape, piece.dtype), (rows, dtype)
        if got != want or low != position:
            raise ValueError(f"expected '{key}' as {want} from row {position} on (got {got})")
        pieces.append(piece[low - begin : high - begin] if size else piece)
        position = high
    if position != run.stop:
        raise ValueError(f"expected {run.stop} rows of '{key}' (got {position})")
    none = torch.empty(0, *size[1:], dtype=dtype)
    return pieces[0] if len(pieces) == 1 else torch.cat([none, *pieces])


def _content(folder: Path, root: Path, place: Any) -> io.BytesIO:
    path = own_file(root, folder / place.relative_path)
    if Path(place.relative_path).name != place.relative_path:
        raise ValueError(f'expected a file inside {folder} (got {place.relative_path!r})')
    if not 0 <= place.offset <= place.offset + place.length <= path.stat().st_size:
        raise ValueError(f'expected {place.length} bytes from {place.offset} on in {path}')
    with path.open('rb') as file:
        file.seek(place.offset)
        return io.BytesIO(file.read(place.length))


def load_plain(content: io.BytesIO) -> Any:
    """What ``torch.save`` has written: tensors and plain values.

    Raises:
        ValueError: If there is anything else.
    """
    try:
        check_plain(content)
        found = torch.load(content, map_location='cpu', weights_only=True)
        check_tensors(found, are_ordinary=False)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f'expected tensors and plain values (got: {reason})') from error
    return found


def _check_memo(pickled: bytes) -> None:
    """Python's unpickler makes room for as many notes as the largest number among them says."""
    for operation, number, _ in pickletools.genops(pickled):
        if operation.name in ('PUT', 'LONG_BINPUT') and int(number or 0) > len(pickled):
            raise ValueError(f'expected no more notes than bytes (got number {number})')
