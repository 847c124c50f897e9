"""Graphs in files, of which no code runs: .pt of torch.save, .npz and .npy."""

from __future__ import annotations

import math
import os
import pickle
import pickletools
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric import edge_index, index
from torch_geometric.data import Batch, Data, HeteroData, storage
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.feature_store import TensorAttr
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

from pyg_sar.partition.attributes import count_rows, leave_to_count
from pyg_sar.partition.graph import checked_edge_index
from pyg_sar.partition.masks import MASKS
from pyg_sar.partition.memmap import MEMORY, Array, Scratch, tensor_of
from pyg_sar.partition.sources.pickled_numpy import STAND_INS, without_stand_ins
from pyg_sar.partition.sources.several import one_graph
from pyg_sar.shard.files import is_of_system, load_plain, only_classes, ordinary_file


def _plain_dict(*_: object) -> dict[Any, Any]:
    return {}


# A Data remembers in a defaultdict which attributes are of nodes, once it was asked. torch's
# restricted unpickler fills plain dicts only, so one takes its place.
_plain_dict.__module__ = 'collections'
_plain_dict.__name__ = _plain_dict.__qualname__ = 'defaultdict'

_ALLOWED: list[Any] = [
    *(Data, HeteroData, DataEdgeAttr, DataTensorAttr, EdgeAttr, EdgeLayout, TensorAttr),
    *(storage.BaseStorage, storage.NodeStorage, storage.EdgeStorage, storage.GlobalStorage),
    *(storage.AttrType, edge_index.EdgeIndex, edge_index.SortOrder, edge_index.CatMetadata),
    *(index.Index, index.CatMetadata, _plain_dict, dict, *STAND_INS),
]

_EXPECTED = "expected a torch_geometric.data.Data, HeteroData or dict of tensors in '{}' (got {})"


def load_saved(path: Path, *, is_mapped: bool = False) -> Any:
    """What a file of torch.save holds, of tensors, plain values and PyG's classes of data."""
    ordinary_file(path)
    try:
        with only_classes(_ALLOWED):
            content = load_plain(path, is_mapped=is_mapped)
    except pickle.UnpicklingError as error:
        match = re.search(r'GLOBAL (\S+)', str(error))
        reason = f"a pickle that needs '{match[1]}'" if match else 'a pickle that is not plain data'
        if match and match[1].endswith('.DynamicInheritanceGetter'):  # the class of a Batch
            reason += ': save batch.to_data_list(), a list of graphs'
        if match and match[1].startswith('numpy') and zipfile.is_zipfile(path):
            reason += f" in '{_before(path, match[1])}': save a tensor in its place"
        raise ValueError(_EXPECTED.format(path, reason)) from error
    except Exception as error:  # The unpickler meets damaged files with errors of any kind.
        if is_of_system(error):
            raise
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        reason = f'no file written by torch.save: {first_line}'
        raise ValueError(_EXPECTED.format(path, reason)) from error
    try:
        return without_stand_ins(content)
    except Exception as error:  # Of damaged graphs: errors of any kind.
        reason = str(error) if isinstance(error, ValueError) else f'no whole graph: {error!r}'
        raise ValueError(_EXPECTED.format(path, reason)) from error


def _before(path: Path, refused: str) -> str:
    """The last text in a zip archive of torch before what is refused: the attribute's name."""
    with path.open('rb') as file:
        pickled = torch._C.PyTorchFileReader(file).get_record('data.pkl')
    codes: Any = pickletools.genops(pickled)
    text, kept = '', {}
    for code, value, _ in codes:
        if code.name == 'GLOBAL' and value.replace(' ', '.') == refused:
            break
        if 'UNICODE' in code.name:
            text = value
        elif 'PUT' in code.name:
            kept[value] = text
        elif 'GET' in code.name:
            text = kept[value]
    return text


def read_saved(path: Path, *, is_mapped: bool = False) -> Data | HeteroData:
    """Reads a graph that torch.save wrote; its tensors are mapped where the file allows it.

    It may be a PyG Data or HeteroData, a list of them, a dict of tensors, or the
    ``processed/data.pt`` of a PyG dataset. Several graphs become one Batch.
    """
    content = load_saved(path, is_mapped=is_mapped)
    try:
        content = one_graph(content)
    except ValueError as error:
        raise ValueError(_EXPECTED.format(path, error)) from error
    if isinstance(content, Batch):
        return content
    if isinstance(content, (Data, HeteroData)):
        content = content.to_dict()
    if not isinstance(content, dict):
        raise ValueError(_EXPECTED.format(path, f'a {type(content).__name__}'))
    if not any(isinstance(key, tuple) for key in content):
        if isinstance(content.get('edge_index', content.get('adj_t')), Tensor):
            return Data.from_dict(content)
        keys = sorted(str(key) for key in content)
        raise ValueError(_EXPECTED.format(path, f"a dict without a tensor 'edge_index': {keys}"))
    try:
        return HeteroData.from_dict(content)
    except Exception as error:
        raise ValueError(_EXPECTED.format(path, f'a dict of no graph: {error}')) from error


_FIRST = ('edge_index', 'x', 'y', 'num_nodes', *MASKS)


def read_npz(
    path: Path, *, scratch: Scratch | None = None, with_objects: bool = True
) -> dict[str, Array]:
    """The arrays of an .npz file; mapped where `scratch` is given, compressed ones from there.

    Objects of Python are an error; without `with_objects` such arrays are left out.
    """
    ordinary_file(path)
    try:
        members = _members(path, with_objects=with_objects)
        names = [member.removesuffix('.npy') for member in members]
        if scratch is not None:
            arrays = [map_array(path, member, scratch) for member in members]
        else:  # numpy does not close a damaged file that it has opened.
            with path.open('rb') as file, np.load(file, allow_pickle=False) as archive:
                arrays = [archive[name] for name in names]
        return dict(zip(names, arrays, strict=True))
    except Exception as error:  # Damaged archives: errors of numpy, zipfile, zlib, ...
        if is_of_system(error):
            raise
        raise ValueError(
            f"expected an .npz file of plain arrays in '{path}' (got {error!r})"
        ) from error


def _members(path: Path, *, with_objects: bool) -> list[str]:
    """The members of an archive of arrays, each of which announces the size that its array has."""
    members = []
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            most = 1100 * info.compress_size + 1000  # deflate makes at most 1032 bytes of one
            if info.compress_type == zipfile.ZIP_DEFLATED and info.file_size > most:
                raise ValueError(
                    f"expected at most {most} bytes in '{info.filename}' (got {info.file_size}, as "
                    'it announces)'
                )
            try:
                with archive.open(info) as stream:
                    _header_of(stream, info.file_size, path)
            except HoldsObjects:
                if with_objects:
                    raise
                continue
            members.append(info.filename)
    return members


def npz_names(path: Path) -> set[str]:
    """The names of the arrays of an .npz file; none of a damaged file, which reading it tells."""
    try:
        with zipfile.ZipFile(ordinary_file(path)) as archive:
            return {name.removesuffix('.npy') for name in archive.namelist()}
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError):
        return set()


def array_files(path: Path) -> dict[str, Path]:
    """The .npy files of a graph in a folder, by name."""
    return {file.stem: file for file in sorted(path.glob('*.npy'))}


def graph_of_arrays(arrays: Mapping[str, Array | Tensor], name: str) -> Data | HeteroData:
    """A graph from arrays by name, in memory or mapped; `name` of all is for error messages.

    The arrays are ``edge_index`` [2, E]; optionally ``x`` [N, ...]; ``y``; masks, or ``train_idx``,
    ``val_idx`` and ``test_idx``; ``num_nodes``; and any array with one row per node or per edge.
    A number becomes an attribute of the graph. Of a heterogeneous graph the name of every array
    ends in the type it belongs to: ``edge|SRC|NAME|DST`` are the edges of a relation, ``y|TYPE``
    or ``num_nodes|TYPE`` belong to a type of nodes, ``edge_attr|SRC|NAME|DST`` to a relation.
    """
    is_hetero = any(key.startswith('edge|') for key in arrays)
    by_type: dict[tuple[str, ...], dict[str, Any]] = {}
    for key, array in arrays.items():
        what, *of = key.split('|') if is_hetero else [key]
        if what == 'edge' and len(of) == 3:
            what = 'edge_index'
        if len(of) not in (0, 1, 3):
            what, of = key, []
        by_type.setdefault(tuple(of), {})[what] = array
    data: Any = HeteroData() if is_hetero else Data()
    for type_, values in by_type.items():
        store = data[type_[0] if len(type_) == 1 else type_] if type_ else data
        for what in sorted(values, key=lambda what: (*_FIRST, what).index(what)):
            store[what] = _value(values[what], what, name)
        if 'edge_index' in values:
            where = f"{type_} of '{name}'" if type_ else f"'{name}'"
            store['edge_index'] = checked_edge_index(store, where)
    if not is_hetero:
        if 'edge_index' not in data:
            raise ValueError(f"expected the array 'edge_index' in '{name}' (got {sorted(arrays)})")
        data.num_nodes = count_rows(data, data.edge_index)
        if 'num_nodes' not in arrays:
            leave_to_count(data.stores[0])
    return data


def _value(array: Any, key: str, name: str) -> Any:
    """A tensor or a number; an array of something else as it is, which checks name and drop."""
    if not isinstance(array, (np.ndarray, np.generic)):
        return array  # a tensor, or names of nodes
    if array.ndim == 0 and array.dtype.kind in 'biufc':
        return array.item()
    tensor = tensor_of(np.asarray(array))
    if tensor is None and (key in _FIRST or array.dtype.kind == 'V'):
        hint = ', as of bfloat16: save it as float32' if array.dtype.kind == 'V' else ''
        raise ValueError(f"expected numbers in '{key}' of '{name}' (got {array.dtype}{hint})")
    return array if tensor is None else tensor


def map_array(path: Path, member: str | None = None, scratch: Scratch = MEMORY) -> Array:
    """Maps the array of a .npy file, or of a member of an .npz file, into memory.

    It may be at an odd address, as archives do not align their members. A compressed member is
    unpacked into the folder of `scratch`, or into memory.
    """
    with path.open('rb') as file:
        if member is None:
            return _mapped(file, path)
        with zipfile.ZipFile(file) as archive:
            info = archive.getinfo(member)
            if info.compress_type != zipfile.ZIP_STORED:
                with archive.open(info) as stream:
                    return _unpacked(stream, info.file_size, path, scratch)
        file.seek(info.header_offset + 26)
        lengths = file.read(4)  # of the name and of the extra field, which end the header
        length = sum(int.from_bytes(part, 'little') for part in (lengths[:2], lengths[2:]))
        file.seek(length, os.SEEK_CUR)
        return _mapped(file, path)


class HoldsObjects(ValueError):
    """An array of Python's objects, which only a pickle can hold."""


def _mapped(file: IO[bytes], path: Path) -> Array:
    """The array that begins here in a file, mapped copy on write."""
    shape, order, dtype, num_bytes = _header_of(file, os.fstat(file.fileno()).st_size, path)
    if num_bytes == 0:
        return np.empty(shape, dtype)
    return np.asarray(np.memmap(file, dtype, 'c', file.tell(), shape, order))


def _unpacked(stream: IO[bytes], size: int, path: Path, scratch: Scratch) -> Array:
    """The array of a compressed member, of which `size` bytes are announced and no more are read.

    It then lies in the folder of `scratch`, or in memory.
    """
    shape, order, dtype, num_bytes = _header_of(stream, size, path)
    pieces = _pieces(stream, num_bytes, path)
    if scratch.folder is None or num_bytes == 0:
        content = bytearray()
        for piece in pieces:
            content += piece
        return np.ndarray(shape, dtype, content, order=order)
    with tempfile.TemporaryFile(dir=scratch.folder) as unpacked:
        unpacked.writelines(pieces)
        unpacked.flush()
        return np.asarray(np.memmap(unpacked, dtype, 'c', 0, shape, order))


def _pieces(stream: IO[bytes], num_bytes: int, path: Path) -> Iterator[bytes]:
    """So many bytes of a stream, a piece at a time."""
    left = num_bytes
    while left:
        piece = stream.read(min(left, 1 << 20))
        if not piece:
            raise ValueError(f"expected {num_bytes} bytes in '{path}' (got {num_bytes - left})")
        yield piece
        left -= len(piece)


def _header_of(
    file: IO[bytes], size: int, path: Path
) -> tuple[tuple[int, ...], Any, np.dtype[Any], int]:
    """Shape, order, type and bytes of an array, which fit into a file of `size` bytes.

    The file then stands behind the header.
    """
    lib = np.lib.format
    try:
        version = lib.read_magic(file)
    except ValueError as error:
        raise ValueError(
            f"expected the header of a .npy file in '{path}' (got {error}): numbers alone, as "
            "np.memmap writes them, get one by np.save(path, np.memmap(path, dtype, 'r', 0, shape))"
        ) from error
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"expected numpy's format 1.0 or 2.0 in '{path}' (got {version})")
    read = lib.read_array_header_1_0 if version == (1, 0) else lib.read_array_header_2_0
    try:
        shape, is_fortran, dtype = read(file)
    except Exception as error:  # of Python's own tokenizer and parser
        if is_of_system(error):
            raise
        got = ' '.join(str(error).split())
        raise ValueError(f"expected a whole .npy file in '{path}' (got {got})") from error
    if dtype.hasobject:
        raise HoldsObjects(f"expected plain numbers in '{path}' (got objects)")
    num_bytes, left = math.prod(shape) * dtype.itemsize, size - file.tell()
    if num_bytes > left:
        raise ValueError(f"expected {num_bytes} bytes in '{path}' (got {left})")
    return shape, 'F' if is_fortran else 'C', dtype, num_bytes
