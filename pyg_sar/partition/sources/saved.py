"""Reading a graph from a file written by torch.save, without running code from it."""

from __future__ import annotations

import pickle
import pickletools
import re
import zipfile
from pathlib import Path
from typing import Any

from torch import Tensor
from torch_geometric import edge_index, index
from torch_geometric.data import Data, HeteroData, storage
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.feature_store import TensorAttr
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

from pyg_sar.shard.files import is_of_system, load_plain, only_classes, ordinary_file


def _plain_dict(*_: object) -> dict[Any, Any]:
    return {}


# A Data remembers in a defaultdict which attributes belong to nodes, as soon as it was asked once;
# torch's restricted unpickler fills plain dicts only. The memory is not used here, so a plain dict
# takes its place. (Names, and not an (object, name) pair, which torch 2.5 does not know.)
_plain_dict.__module__ = 'collections'
_plain_dict.__name__ = _plain_dict.__qualname__ = 'defaultdict'

_ALLOWED: list[Any] = [
    *(Data, HeteroData, DataEdgeAttr, DataTensorAttr, EdgeAttr, EdgeLayout, TensorAttr),
    *(storage.BaseStorage, storage.NodeStorage, storage.EdgeStorage, storage.GlobalStorage),
    *(storage.AttrType, edge_index.EdgeIndex, edge_index.SortOrder, edge_index.CatMetadata),
    *(index.Index, index.CatMetadata, _plain_dict, dict),
]

_EXPECTED = "expected a torch_geometric.data.Data, HeteroData or dict of tensors in '{}' (got {})"


def load_saved(path: Path, *, is_mapped: bool = False) -> Any:
    """What a file of torch.save holds, of tensors, plain values and PyG's classes of data.

    With `is_mapped`, tensors are mapped and not read, where the file allows it. Raises
    FileNotFoundError if there is no such file, ValueError if the file holds anything else.
    """
    ordinary_file(path)
    try:
        with only_classes(_ALLOWED):
            return load_plain(path, is_mapped=is_mapped)
    except pickle.UnpicklingError as error:
        match = re.search(r'GLOBAL (\S+)', str(error))
        reason = f"a pickle that needs '{match[1]}'" if match else 'a pickle that is not plain data'
        if match and match[1].startswith('numpy') and zipfile.is_zipfile(path):
            reason += f" in '{_before_numpy(path)}': torch.from_numpy makes arrays tensors"
        raise ValueError(_EXPECTED.format(path, reason)) from error
    except Exception as error:  # The unpickler meets damaged files with errors of any kind.
        if is_of_system(error):
            raise
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        reason = f'no file written by torch.save: {first_line}'
        raise ValueError(_EXPECTED.format(path, reason)) from error


def _before_numpy(path: Path) -> str:
    """The last text in a zip archive of torch before an array of NumPy: the attribute's name."""
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read(next(n for n in archive.namelist() if n.endswith('data.pkl')))
    codes: Any = pickletools.genops(pickled)
    text, kept = '', {}
    for code, value, _ in codes:
        if code.name == 'GLOBAL' and value.startswith('numpy'):
            break
        if 'UNICODE' in code.name:
            text = value
        elif 'PUT' in code.name:
            kept[value] = text
        elif 'GET' in code.name:
            text = kept[value]
    return text


def read_saved(path: Path, *, is_mapped: bool = False) -> Data | HeteroData:
    """Reads a graph that torch.save wrote.

    It may be a PyG Data or HeteroData, a dict of tensors, or the ``processed/data.pt`` of a PyG
    dataset of one graph. `is_mapped` is that of :func:`load_saved`.
    """
    content = load_saved(path, is_mapped=is_mapped)
    if isinstance(content, tuple) and len(content) in (2, 3):
        # PyG's InMemoryDataset saves (data, slices[, class]); slices is None for one graph.
        content, slices = content[:2]
        if slices is not None:
            raise ValueError(_EXPECTED.format(path, 'a dataset of several graphs'))
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
