"""Reads a folder of torch.distributed.checkpoint without running any code that is in it.

torch's own reader unpickles ``.metadata``, and its planner (before torch 2.6 also its reader) what
is no tensor, without restriction: a folder made for that could run any program. Here ``.metadata``
may name only the few classes that torch writes into it, and all else is read with ``weights_only``.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

_METADATA = 'torch.distributed.checkpoint.metadata'
_ALLOWED = {
    *((_METADATA, name) for name in ('Metadata', 'MetadataIndex', 'StorageMeta')),
    *((_METADATA, name) for name in ('TensorStorageMetadata', 'BytesStorageMetadata')),
    *((_METADATA, name) for name in ('ChunkStorageMetadata', 'TensorProperties')),
    (_METADATA, '_MEM_FORMAT_ENCODING'),
    ('torch.distributed.checkpoint.filesystem', '_StorageInfo'),
    ('torch.serialization', '_get_layout'),
    ('torch', 'Size'),
    *((module, 'PosixPath') for module in ('pathlib', 'pathlib._local')),
    *(
        ('torch', str(value).removeprefix('torch.'))
        for value in vars(torch).values()
        if isinstance(value, torch.dtype)
    ),
}
"""Module and name of all that torch writes into ``.metadata``."""


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"expected only the metadata of tensors (got '{module}.{name}')"
            )
        return super().find_class(module, name)


class PlainReader(FileSystemReader):
    """Reads tensors and plain values; anything else raises a ValueError and is not run."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the checkpoint holds, and where."""
        path = Path(self.path) / '.metadata'
        try:
            with path.open('rb') as file:
                metadata = _MetadataUnpickler(file).load()
        except OSError:
            raise
        except Exception as error:  # Bytes that are no pickle may raise anything.
            raise ValueError(f'{path} cannot be read: {error}') from error
        if not isinstance(metadata, Metadata):
            raise ValueError(f'expected Metadata in {path} (got {type(metadata).__name__})')
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what the planner asks for, every tensor as a whole."""
        for item in plan.items:
            info = self.storage_data[item.storage_index]
            content = io.BytesIO(self._content(info.relative_path, info.offset, info.length))
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, content)
                continue
            tensor = load_plain(content)
            target = planner.resolve_tensor(item).detach()
            if tensor.shape != target.shape:
                raise ValueError(
                    f"expected '{item.dest_index.fqn}' of shape {list(target.shape)} in "
                    f'{self.path} (got {list(tensor.shape)})'
                )
            target.copy_(tensor)
            planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _content(self, name: str, offset: int, length: int) -> bytes:
        if Path(name).name != name:
            raise ValueError(f'expected a file inside {self.path} (got {name!r})')
        with (Path(self.path) / name).open('rb') as file:
            file.seek(offset)
            return file.read(length)


class PlainPlanner(DefaultLoadPlanner):
    """Loads what is no tensor with ``weights_only``."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Puts a plain value into the state dict."""
        self.state_dict[read_item.dest_index.fqn] = load_plain(value)


def load_plain(content: io.BytesIO) -> Any:
    """What ``torch.save`` has written: tensors and plain values.

    Raises:
        ValueError: If there is anything else.
    """
    try:
        return torch.load(content, map_location='cpu', weights_only=True)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f'expected tensors and plain values (got: {reason})') from error
