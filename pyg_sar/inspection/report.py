"""What a partition folder holds and costs, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from pyg_sar.partitioner.write.summary import summarize
from pyg_sar.shard.format.file_names import type_name
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
    graph = [*meta.graph_attrs]
    kinds: dict[str, tuple[str, Mapping[Any, Any]]] = {
        'node': ('num_nodes', meta.nodes),
        'edge': ('num_edges', meta.edges),
    }
    for kind, (count, infos) in kinds.items():
        for key, info in infos.items():
            of = kind if key is None else f'{kind} of {type_name(key)}'
            for name, row in info.attrs.items():
                row_bytes = getattr(torch, row['dtype']).itemsize * math.prod(row['shape'])
                size = f'{getattr(info, count) * row_bytes / 1e6:,.1f}'
                rows.append((f'{name} ({of})', row['dtype'], str(row['shape']), size))
            if key is not None:
                graph += [f'{name} of {type_name(key)}' for name in info.extra]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = '{{:<{}}}  {{:<{}}}  {{:<{}}}  {{:>{}}}'.format(*widths)
    lines = [form.format(*row) for row in rows]
    return [*lines, *([f'of the graph: {", ".join(graph)}'] if graph else [])]
