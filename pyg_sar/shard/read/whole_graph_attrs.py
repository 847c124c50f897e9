"""Attributes of the whole graph, of which a rank takes its own rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.shard.format.meta import Meta
from pyg_sar.shard.format.tensor_file import load_tensors

Attrs = Mapping[Any, Any] | str | os.PathLike[str]
"""Tensors by name, of a heterogeneous graph by type and name, or a .pt file of them."""


def add_attrs(data: Data | HeteroData, attrs: Attrs, meta: Meta) -> None:
    """Adds this rank's rows of attributes of the whole graph; see :func:`pyg_sar.load_shard`.

    Args:
        data: What the rank loaded.
        attrs: Tensors [N, ...] or, if ``edge`` is in their names, [E, ...].
        meta: What the partition folder says.

    Raises:
        ValueError: If an attribute is there already, is no tensor, or has another number of rows.
    """
    values = attrs if isinstance(attrs, Mapping) else _read(Path(attrs))
    where = "'attrs'" if isinstance(attrs, Mapping) else f"'{attrs}'"
    if not meta.is_hetero:
        assert isinstance(data, Data)
        of_edges = {name: value for name, value in values.items() if 'edge' in str(name)}
        of_nodes = {name: value for name, value in values.items() if name not in of_edges}
        _add(data, of_nodes, data.n_id, meta.nodes[None].num_nodes, 'nodes', where)
        _add(data, of_edges, data.e_id, meta.edges[None].num_edges, 'edges', where)
        return
    known = [*meta.nodes, *meta.edges]
    for key, by_name in values.items():
        if not isinstance(by_name, Mapping) or key not in known:
            raise ValueError(
                f'expected dicts by type of nodes {list(meta.nodes)} or relation '
                f'{list(meta.edges)} in {where} (got {key!r})'
            )
        if isinstance(key, str):
            ids, count, what = data[key].n_id, meta.nodes[key].num_nodes, f"'{key}' nodes"
        else:
            ids, count, what = data[key].e_id, meta.edges[key].num_edges, f'{key} edges'
        _add(data[key], by_name, ids, count, what, where)


def _add(
    store: Any, values: Mapping[Any, Any], ids: Tensor, count: int, what: str, where: str
) -> None:
    for name, value in values.items():
        if not isinstance(name, str) or name in store or name.startswith('_'):
            raise ValueError(
                f'expected names in {where} that the partition has not (got {name!r}, which '
                f'{what} have)'
            )
        if not isinstance(value, Tensor) or value.dim() == 0 or value.size(0) != count:
            got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f'expected a tensor with one row for each of the {count} {what} of the whole graph '
                f"in '{name}' of {where} (got {got})"
            )
        store[name] = value[ids.to(value.device)]


def _read(path: Path) -> Mapping[Any, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"expected a .pt file of tensors at '{path}' (got no such file)")
    content: dict[Any, Any] = load_tensors(path, dict)
    return content
