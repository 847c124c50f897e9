"""What a partition folder holds and costs, as text."""

from __future__ import annotations

import math
from typing import Any

import torch

from pyg_sar.partitioner.write.summary import summarize
from pyg_sar.shard.format.file_names import EdgeKey, NodeKey, type_name
from pyg_sar.shard.format.meta import Meta


def report(meta: Meta) -> str:
    """How the partition was made, its sizes, and the attributes with their bytes."""
    notes = meta.notes
    lines = [str(summarize(meta)), '', *_attributes(meta)]
    how = notes['partition'].items()
    options = [f'{k} {v}' for k, v in how if v is not None and k not in _IN_SUMMARY]
    lines += ['', f'made with   {", ".join(options) or "unknown options"}']
    if notes['command']:
        lines.append(f'command     {" ".join(notes["command"])}')
    versions = [f'{name} {v}' for name, v in notes['versions'].items() if v]
    lines += [f'versions    {", ".join(versions) or "unknown"}', f'partition   {meta.fingerprint}']
    return '\n'.join(lines)


_IN_SUMMARY = ('method', 'edge_cut', 'communication_volume')


def _attributes(meta: Meta) -> list[str]:
    rows = [('attribute', 'type', 'row', 'MB')]
    for node_key, node_info in meta.nodes.items():
        rows += _rows('node', node_key, node_info.attrs, node_info.num_nodes)
    for edge_key, edge_info in meta.edges.items():
        rows += _rows('edge', edge_key, edge_info.attrs, edge_info.num_edges)
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        '  '.join(cell.ljust(w) for cell, w in zip(row[:3], widths[:3], strict=True))
        + f'  {row[3].rjust(widths[3])}'
        for row in rows
    ]
    graph = [*meta.graph_attrs] + [
        f'{name} of {type_name(key)}'
        for infos in (meta.nodes, meta.edges)
        for key, info in infos.items()
        for name in info.extra
        if key is not None
    ]
    return [*lines, *([f'of the graph: {", ".join(graph)}'] if graph else [])]


def _rows(
    kind: str, key: NodeKey | EdgeKey, attrs: dict[str, Any], count: int
) -> list[tuple[str, str, str, str]]:
    of = kind if key is None else f'{kind} of {type_name(key)}'
    return [
        (
            f'{name} ({of})',
            str(row['dtype']),
            str(row['shape']),
            f'{count * _row_bytes(row) / 1e6:,.1f}',
        )
        for name, row in attrs.items()
    ]


def _row_bytes(row: dict[str, Any]) -> int:
    dtype: torch.dtype = getattr(torch, row['dtype'])
    size: int = dtype.itemsize * math.prod(row['shape'])
    return size
