"""Sorting the attributes of a PyG Data into node, edge and graph attributes."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from pyg_sar.partition.masks import INDICES, mask_of_index
from pyg_sar.partition.memmap import INTEGERS, UNSIGNED, smallest_and_largest, tensor_of
from pyg_sar.shard.format import NODE_NAMES

_NODE_NAMES = frozenset({'x', 'pos', 'batch', 'node_type', 'train_mask', 'val_mask', 'test_mask'})
_COUNTED = frozenset({'x', 'feat', 'pos', 'batch', 'node_type'})
_EDGE_NAMES = frozenset({'edge_attr', 'edge_weight', 'edge_type'})
_RESERVED = frozenset({'n_id', 'e_id'})
_MAY_BE_SPARSE = _NODE_NAMES | _EDGE_NAMES | {'y'}
_SPARSE_TYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
)
"""Of what torch makes a sparse tensor dense."""


class SortedAttributes(NamedTuple):
    """Attributes by name."""

    node: dict[str, Tensor]  # [N, ...]
    edge: dict[str, Tensor]  # [E, ...]
    graph: dict[str, Any]  # for JSON
    whole: dict[str, Tensor]  # other tensors
    dropped: dict[str, str]  # what each was that is none of these
    names: list[Any]  # of nodes, pyarrow's Array [N]; one at most


def sort_attributes(
    data: Data | Mapping[str, Any], num_nodes: int | None, num_edges: int | None, *, where: str = ''
) -> SortedAttributes:
    """Sorts the attributes of a graph, or of one type, where one of the numbers is None.

    A tensor belongs to the nodes if it has one row per node, to the edges if it has one per edge.
    Where both numbers are the same, a name with ``edge`` in it belongs to the edges, any other to
    the nodes. Tensors of two or more dimensions with ``index`` in their names hold ids, not rows
    (``edge_label_index``), and ``face`` does too; what goes with such ids (``edge_label``) has
    their rows. A tensor that belongs to neither is kept whole. So is a list of nodes by a
    well-known name (``train_idx``), which also gives the mask (``train_mask``). What is no tensor,
    scalar, string or list is dropped with a warning, and so is a sparse tensor, unless its name is
    `y` or a well-known one: then it is stored dense. Raises ValueError if an attribute with a
    well-known name has another number of rows, or a name is taken.
    """
    attributes = SortedAttributes({}, {}, {}, {}, {}, [])
    indices: dict[str, Tensor] = {}
    for name, value in data.items():
        if name in ('edge_index', 'num_nodes') or value is None:
            continue
        if name in _RESERVED:
            raise ValueError(
                "'n_id' and 'e_id' are the names of the global ids in a loaded shard; rename or "
                f"delete the attribute (got '{name}'{where})"
            )
        if name.startswith('_'):
            raise ValueError(f"expected names that begin with a letter{where} (got '{name}')")
        if not name.isprintable():
            raise ValueError(f'expected names of printable letters{where} (got {name!r})')
        tensor = _as_tensor(value)
        if tensor is not None and tensor.layout is not torch.strided:
            tensor = _from_sparse(name, tensor, where)
        if tensor is None and name == NODE_NAMES and num_nodes is not None:
            attributes.names.append(_names(value, num_nodes, where))
            continue
        if tensor is None:
            if name in _NODE_NAMES | _EDGE_NAMES:
                raise ValueError(f"'{name}'{where} must be a tensor (got {_describe(value)})")
            has_names_of = name.endswith('_names') and name.removesuffix('_names') in data
            counts = (None, None) if has_names_of else (num_nodes, num_edges)
            if _is_graph_value(value, *counts):
                attributes.graph[name] = value
            else:
                attributes.dropped[name] = _describe(value)
            continue
        if name in INDICES and tensor.dtype in UNSIGNED:
            tensor = tensor.long()
        if num_nodes is not None and _is_index(name, tensor, num_nodes):
            indices[name] = mask_of_index(tensor, num_nodes, name, where)
            attributes.whole[name] = tensor
            continue
        is_of_ids = name != 'edge' and data.get(f'{name}_index') is not None
        known = owners(data).get(name) if isinstance(data, Data) else None
        owner = None if is_of_ids else _owner(name, tensor, num_nodes, num_edges, where, known)
        noted = known or owner
        if owner not in (None, noted):  # of edges that a transform has added there are no rows
            owner = noted if num_nodes == num_edges else None
        if owner is not None:
            getattr(attributes, owner)[name] = tensor
        elif tensor.dim() == 0 and not tensor.is_complex():
            attributes.graph[name] = tensor.item()
        else:
            attributes.whole[name] = tensor
    for name, mask in indices.items():
        stored = attributes.node.setdefault(INDICES[name], mask)
        if stored.shape != mask.shape or not torch.equal(stored.bool(), mask):
            raise ValueError(
                f"expected one of '{name}' and '{INDICES[name]}'{where} (got both, and they differ)"
            )
    if attributes.dropped:
        names = ', '.join(f'{name} ({what})' for name, what in attributes.dropped.items())
        warnings.warn(
            f'dropped attributes{where} that are no dense tensor, scalar, string or list: '
            f'{names}; save them to a file of their own, which every rank loads',
            stacklevel=6 if where else 5,  # the caller of partition_graph
        )
    return attributes


def _is_bytes(type_: Any) -> bool:
    """Whether a type of pyarrow is of bytes, such as those of UUIDs."""
    return str(type_).endswith('binary') or str(type_).startswith('fixed_size_binary')


def _names(values: Any, num_nodes: int, where: str) -> Any:
    """Names of nodes as pyarrow's Array."""
    try:
        pyarrow = import_module('pyarrow')
        is_arrow = isinstance(values, (pyarrow.Array, pyarrow.ChunkedArray))
        names = values if is_arrow else pyarrow.array(list(values))
        kinds = pyarrow.types
        if not any(
            is_kind(names.type)
            for is_kind in (kinds.is_string, kinds.is_large_string, kinds.is_integer, _is_bytes)
        ):
            raise TypeError(f'names of the type {names.type}')
    except (ImportError, TypeError, ValueError) as error:
        raise ValueError(
            f"expected a list of names in '{NODE_NAMES}'{where}, and pyarrow (got: {error})"
        ) from error
    if len(names) != num_nodes or names.null_count:
        raise ValueError(
            f"'{NODE_NAMES}'{where} must have one name per node, {num_nodes} (got {len(names)}, of "
            f'which {names.null_count} are None)'
        )
    return names


_OWNERS = '_owners'


def set_owners(data: Data, *, nodes: Iterable[str], edges: Iterable[str]) -> None:
    """Notes whose rows attributes have, which their number may not tell; copies know it."""
    data.__dict__[_OWNERS] = dict.fromkeys(nodes, 'node') | dict.fromkeys(edges, 'edge')


def owners(data: Data) -> dict[str, str]:
    """What :func:`set_owners` noted: 'node' or 'edge' by the name of an attribute."""
    return data.__dict__.get(_OWNERS, {})


def is_counted(data: Data | Mapping[str, Any]) -> bool:
    """Whether PyG counts the rows of an attribute where nobody has set ``num_nodes``."""
    return data.get('num_nodes') is None and not _COUNTED.isdisjoint(data.keys())


def leave_to_count(store: Any, edges: Iterable[str] = ()) -> None:
    """Takes out the ``num_nodes`` of a file that PyG counts, so another `x` tells another one.

    It stays if one of the attributes of `edges` would be counted.
    """
    counted = (len(value) for name, value in store.items() if name in _COUNTED)
    if _COUNTED.isdisjoint(edges) and next(counted, None) == store.get('num_nodes'):
        store.pop('num_nodes', None)


def count_rows(data: Data | Mapping[str, Any], ids: Iterable[Tensor], where: str = '') -> int:
    """The number of nodes of a graph, or of one type, at whose nodes `ids` edges start or end.

    ``num_nodes`` where it was set; else the rows of the first node attribute with a well-known
    name; else the size that PyG's EdgeIndex knows; else those of `y` or of an attribute with
    ``node`` in its name; else the largest id plus one.
    """
    if 'num_nodes' in data and data['num_nodes'] is not None:
        count = data['num_nodes']
        if isinstance(count, Tensor) and not odd_kind(count) and count.dim() == 0:
            count = count.item()
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
            raise ValueError(f"'num_nodes'{where} must be an int >= 0 (got {count!r})")
        return int(count)
    arrays = {
        name: int(value.shape[0])
        for name, value in data.items()
        if (isinstance(value, np.ndarray) or (isinstance(value, Tensor) and not odd_kind(value)))
        and value.ndim > 0
    }
    for name, rows in arrays.items():
        if name in _NODE_NAMES or name == 'feat':
            return rows
    edge_index = data.get('edge_index')
    if isinstance(edge_index, EdgeIndex):
        for size in edge_index.sparse_size():
            if size is not None:
                return int(size)
    largest = max(
        (smallest_and_largest(values)[1] + 1 for values in ids if values.numel()), default=0
    )
    # One value of the whole graph, or a list of some nodes, may have such a name too.
    names = ('y', *(name for name in arrays if 'node' in name and 'index' not in name))
    return next((arrays[name] for name in names if arrays.get(name, 0) > largest), largest)


def label_facts(attrs: Mapping[str, Tensor], taken: Container[str]) -> dict[str, Any]:
    """``num_classes`` and ``label_range`` of integer labels ``y``, but for names that are `taken`.

    As PyG's datasets count: of one label per node the largest plus one, of several their number.
    """
    y = attrs.get('y')
    if y is None or y.numel() == 0 or y.dtype not in (torch.bool, *INTEGERS):
        return {}
    flat = y.reshape(-1)  # a view, also of a mapped tensor
    low, high = smallest_and_largest(flat.view(torch.uint8) if y.dtype == torch.bool else flat)
    facts = {'num_classes': high + 1 if y.numel() == y.size(0) else y.size(-1)}
    facts = facts if facts['num_classes'] > 0 else {}
    return {k: v for k, v in {**facts, 'label_range': [low, high]}.items() if k not in taken}


def _owner(
    name: str,
    value: Tensor,
    num_nodes: int | None,
    num_edges: int | None,
    where: str,
    known: str | None,
) -> str | None:
    if name == 'face' or (value.dim() > 1 and 'index' in name):
        return None
    rows = value.size(0) if value.dim() else None
    for names, what, count in ((_NODE_NAMES, 'node', num_nodes), (_EDGE_NAMES, 'edge', num_edges)):
        if name in names and count is not None and known in (None, what):
            if rows != count:
                is_ids = name.endswith('_mask') and value.dtype in (torch.int64, torch.int32)
                hint = f": ids are named '{name[:-4]}idx'" if is_ids else ''
                raise ValueError(
                    f"'{name}'{where} must have one row per {what}, {count} (got shape "
                    f'{list(value.shape)}){hint}'
                )
            return what
    if rows is None:
        return None
    if num_nodes == num_edges == rows:
        return 'edge' if 'edge' in name else 'node'
    if rows == num_nodes:
        return 'node'
    return 'edge' if rows == num_edges else None


def _is_index(name: str, value: Tensor, num_nodes: int) -> bool:
    """Whether a tensor lists nodes, and has no row for every one of them."""
    is_list = name in INDICES and value.dim() == 1 and value.dtype in INTEGERS
    return is_list and (value.numel() != num_nodes or torch.unique(value).numel() == num_nodes)


def _as_tensor(value: Any) -> Tensor | None:
    """`value` as a plain tensor in main memory, dense or sparse, or None if it is none."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = tensor_of(np.asarray(value))
    if not isinstance(value, Tensor) or odd_kind(value) is not None:
        return None
    tensor = value.detach().cpu()
    if tensor.layout is not torch.strided:
        return tensor
    return tensor.as_subclass(Tensor)  # Of an EdgeIndex, an Index or a Parameter.


def _from_sparse(name: str, value: Tensor, where: str) -> Tensor | None:
    """A sparse `x` as it is, as it may be large; dense tensors for other well-known names."""
    if name not in _MAY_BE_SPARSE:
        return None  # An adjacency matrix has one row per node, but is no attribute of it.
    if value.dtype not in _SPARSE_TYPES:
        raise ValueError(
            f"'{name}'{where} must be dense, as torch cannot make it so (got a sparse tensor of "
            f'{value.dtype})'
        )
    value = value.to_sparse().coalesce()
    return value if name == 'x' else value.to_dense()


def _is_graph_value(value: Any, num_nodes: int | None, num_edges: int | None) -> bool:
    if isinstance(value, (bool, int, float, str)):
        return True
    # A list as long as the graph may mean one entry per node; META.json is not the place for it.
    return (
        isinstance(value, (list, tuple))
        and len(value) not in (num_nodes, num_edges)
        and all(isinstance(entry, (bool, int, float, str)) for entry in value)
    )


def _describe(value: Any) -> str:
    if isinstance(value, Tensor) and (kind := odd_kind(value)) is not None:
        return f'a {kind} tensor'
    if isinstance(value, (Tensor, np.ndarray)):
        is_sparse = isinstance(value, Tensor) and value.layout is not torch.strided
        return f'{"sparse " if is_sparse else ""}{value.dtype} {list(value.shape)}'
    return type(value).__name__


def odd_kind(value: Tensor) -> str | None:
    """The kind of a tensor that has no plain numbers, dense or sparse; None of any other."""
    kinds = {
        'nested': value.is_nested,
        'quantized': value.is_quantized,
        'MKL-DNN': value.is_mkldnn,
        'meta': value.is_meta,
    }
    return next((kind for kind, is_so in kinds.items() if is_so), None)
