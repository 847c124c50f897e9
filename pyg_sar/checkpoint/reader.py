"""Reads a folder of torch.distributed.checkpoint without running any code that is in it.

torch's own reader unpickles ``.metadata``, and its planner (before torch 2.6 also its reader) what
is no tensor, without restriction: a folder made for that could run any program. Here ``.metadata``
may name only the few classes that torch writes into it, and all else is read with ``weights_only``.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from pyg_sar.shard.format.files import own_file
from pyg_sar.shard.format.tensor_file import check_plain, check_tensors

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
    """Reads tensors and plain values; anything else raises a ValueError and is not run.

    Args:
        folder: The checkpoint.
        root: The folder that it must lie in.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        super().__init__(folder)
        self.folder, self.root = folder, root

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the checkpoint holds, and where."""
        path = own_file(self.root, self.folder / '.metadata')
        try:
            content = path.read_bytes()
            _check_memo(content)
            metadata = _MetadataUnpickler(io.BytesIO(content)).load()
            if not isinstance(metadata, Metadata):
                raise ValueError(f'expected Metadata (got {type(metadata).__name__})')
            self._check_sizes(metadata)
        except OSError:
            raise
        except Exception as error:  # Bytes that are no pickle may raise anything.
            raise ValueError(f'{path} cannot be read: {error!r}') from error
        return metadata

    def _check_sizes(self, metadata: Metadata) -> None:
        """Checks that tensors, for which memory is made, are no larger than the files."""
        needed = 0
        for found in metadata.state_dict_metadata.values():
            if isinstance(found, TensorStorageMetadata):
                needed += math.prod(found.size) * found.properties.dtype.itemsize
        present = sum(path.lstat().st_size for path in self.folder.iterdir())
        if needed > present:
            raise ValueError(f'expected tensors of {needed} bytes in files of that size')

    def read_into(self, state: dict[str, Any], metadata: Metadata) -> None:
        """Fills a state dict, in this process alone.

        Not by ``torch.distributed.checkpoint.load``: its ranks send each other pickles.

        Args:
            state: Tensors, and None for what is no tensor.
            metadata: What :meth:`read_metadata` has told.
        """
        planner = PlainPlanner()
        try:
            planner.set_up_planner(state, metadata, is_coordinator=True)
            self.set_up_storage_reader(metadata, is_coordinator=True)
            plan = self.prepare_local_plan(planner.create_local_plan())
            self.read_data(planner.finish_plan(plan), planner).wait()
        except OSError:
            raise
        except Exception as error:  # what was unpickled may be anything
            raise ValueError(f'{self.folder} cannot be read: {error}') from error

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
                    f'{self.folder} (got {list(tensor.shape)})'
                )
            target.copy_(tensor)
            planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _content(self, name: str, offset: int, length: int) -> bytes:
        path = own_file(self.root, self.folder / name)
        if Path(name).name != name:
            raise ValueError(f'expected a file inside {self.folder} (got {name!r})')
        if not 0 <= offset <= offset + length <= path.stat().st_size:
            raise ValueError(f'expected {length} bytes from {offset} on in {path} (got fewer)')
        with path.open('rb') as file:
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
