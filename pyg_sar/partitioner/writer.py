"""From the part of every node to the files of a partition folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_sar.partitioner.attributes import Attributes
from pyg_sar.partitioner.layout import (
    Exchange,
    Grouping,
    PartLayout,
    find_exchange,
    group,
    part_layouts,
)
from pyg_sar.partitioner.summary import PartitionSummary
from pyg_sar.shard import format as fmt


def write_partition(
    folder: Path,
    assignment: Tensor,
    edge_index: Tensor,
    attributes: Attributes,
    num_parts: int,
    *,
    provenance: dict[str, Any],
    command: list[str] | None = None,
    on_part: Callable[[], object] = lambda: None,
) -> PartitionSummary:
    """Writes every file of a partition into an empty folder.

    Args:
        folder: An existing, empty folder.
        assignment: Part of every node, int64 [N].
        edge_index: Global source and destination ids, int64 [2, E].
        attributes: What the graph carries beside its edges.
        num_parts: The number of parts P; parts may be empty.
        provenance: How the assignment came about, for META.json.
        command: The command line, for META.json.
        on_part: Called after every part.
    """
    grouping = group(assignment, edge_index, num_parts)
    exchange = find_exchange(grouping, edge_index)
    largest = int((grouping.partptr.diff() + exchange.halo_rows.sum(dim=1)).max())
    if largest > torch.iinfo(torch.int32).max:
        raise ValueError(
            f"'num_parts' must be larger: local ids are 32-bit (got a part of {largest} own and "
            'halo rows)'
        )
    block_edges = []
    for part, layout in enumerate(part_layouts(grouping, exchange, edge_index)):
        _write_part(fmt.part_dir(folder, part), layout, attributes)
        block_edges.append(layout.sar['block_ptr'].diff().tolist())
        on_part()
    _save(assignment.clone(), folder / fmt.NODE_MAP_FILE)
    _save(grouping.edge_part, folder / fmt.EDGE_MAP_FILE)

    summary = _summarize(grouping, exchange, block_edges, provenance['method'])
    sar = {
        'format_version': fmt.FORMAT_VERSION,
        'fingerprint': _fingerprint(assignment, edge_index),
        'num_nodes': summary.num_nodes,
        'num_edges': summary.num_edges,
        'part_num_nodes': list(summary.part_num_nodes),
        'part_num_edges': list(summary.part_num_edges),
        'halo_rows': [list(row) for row in summary.halo_rows],
        'block_edges': block_edges,
        'node_attrs': {name: _row_type(value) for name, value in attributes.node.items()},
        'edge_attrs': {name: _row_type(value) for name, value in attributes.edge.items()},
        'graph_attrs': attributes.graph,
        'partition': {
            **provenance,
            'edge_cut': summary.edge_cut,
            'communication_volume': summary.communication_volume,
        },
        'command': command,
        'versions': {name: _version(name) for name in _VERSIONED},
    }
    pyg = {
        'num_parts': num_parts,
        'node_types': None,
        'edge_types': None,
        'node_offset': None,
        'is_hetero': False,
        'is_sorted': True,
    }
    fmt.write_meta(folder, {**pyg, 'pyg_sar': sar})
    return summary


def _write_part(folder: Path, layout: PartLayout, attributes: Attributes) -> None:
    n_id, e_id = layout.sar['n_id'], layout.sar['e_id']
    node = {name: _rows(value, n_id) for name, value in attributes.node.items()}
    edge = {name: _rows(value, e_id) for name, value in attributes.edge.items()}
    x = {name: node.pop(name) for name in ('x',) if name in node}
    edge_attr = {name: edge.pop(name) for name in ('edge_attr',) if name in edge}
    content = {
        fmt.GRAPH_FILE: layout.graph,
        fmt.NODE_FEATS_FILE: {'global_id': n_id, 'feats': x},
        fmt.EDGE_FEATS_FILE: {'global_id': e_id, 'feats': edge_attr} if edge_attr else {},
        fmt.SAR_FILE: layout.sar,
        fmt.NODE_ATTRS_FILE: node,
        fmt.EDGE_ATTRS_FILE: edge,
    }
    folder.mkdir()
    for name in fmt.PART_FILES:
        _save(content[name], folder / name)


def _save(content: object, path: Path) -> None:
    try:
        torch.save(content, path)
    except RuntimeError as error:  # torch reports a full disk as one, after lines of its own.
        raise OSError(f"could not write '{path}': {str(error).splitlines()[0]}") from error


def _rows(value: Tensor, index: Tensor) -> Tensor:
    """The rows `index` of `value`, dense and in memory of their own."""
    rows = value.index_select(0, index)
    return rows if rows.layout is torch.strided else rows.to_dense()


def _summarize(
    grouping: Grouping, exchange: Exchange, block_edges: list[list[int]], method: str
) -> PartitionSummary:
    halo_rows = exchange.halo_rows
    num_edges = grouping.edge_part.numel()
    own_edges = sum(row[part] for part, row in enumerate(block_edges))
    return PartitionSummary(
        method=method,
        num_nodes=grouping.assignment.numel(),
        num_edges=num_edges,
        num_parts=grouping.num_parts,
        part_num_nodes=tuple(grouping.partptr.diff().tolist()),
        part_num_edges=tuple(grouping.edgeptr.diff().tolist()),
        halo_rows=tuple(tuple(row) for row in halo_rows.tolist()),
        boundary_rows=tuple(halo_rows.sum(dim=0).tolist()),
        edge_cut=num_edges - own_edges,
        communication_volume=int(halo_rows.sum()),
    )


def _fingerprint(assignment: Tensor, edge_index: Tensor) -> str:
    digest = hashlib.sha256()
    digest.update(f'{assignment.numel()} {edge_index.size(1)}'.encode())
    for tensor in (assignment, edge_index):
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _row_type(value: Tensor) -> dict[str, Any]:
    return {'dtype': str(value.dtype).removeprefix('torch.'), 'shape': list(value.shape[1:])}


_VERSIONED = ('pyg_sar', 'torch', 'torch_geometric', 'pymetis')


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
