"""The command line: ``python -m pyg_sar.describe PARTS [--verify] [--plot FILE.png]``.

Nothing imports this module: runpy warns when the package has already imported what it runs.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pyg_sar.commands.command_line import Parser, checked, printable, run_command, text_table
from pyg_sar.describe.verify import wrong_files
from pyg_sar.partition.summary import PartitionSummary, summarize
from pyg_sar.shard.file_names import type_name
from pyg_sar.shard.meta import Meta, read_meta

_UNEVEN = 1.25
"""From this ratio of the largest part's edges to the mean on, the report gives advice."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code: 1 if a file is not as written."""
    return run_command(_parser(), _run, argv)


def _run(args: argparse.Namespace) -> int:
    meta = read_meta(args.parts)
    problems = wrong_files(Path(args.parts), meta) if args.verify else []
    print(_report(meta))
    for problem in problems:
        print(f'wrong: {printable(problem)}', file=sys.stderr)
    if args.verify and not problems:
        print('verified: every file is as it was written')
    if args.plot is not None:  # last: it may lack a package
        _draw(summarize(meta), args.plot)
        print(f'drew {args.plot}')
    return 1 if problems else 0


def _report(meta: Meta) -> str:
    notes, summary = meta.notes, summarize(meta)
    in_summary = 'method', 'edge_cut', 'communication_volume'
    how = notes['partition'].items()
    options = [printable(f'{k} {v}') for k, v in how if v is not None and k not in in_summary]
    versions = [printable(f'{name} {v}') for name, v in notes['versions'].items() if v]
    lines = [str(summary), *_advice(meta, summary), '', *_attributes(meta)]
    lines += ['', f'made with   {", ".join(options) or "unknown options"}']
    if notes['command']:
        lines.append(f'command     {notes["command"]!r}')
    lines += [f'versions    {", ".join(versions) or "unknown"}', f'partition   {meta.fingerprint}']
    return '\n'.join(lines)


def _advice(meta: Meta, summary: PartitionSummary) -> list[str]:
    """How to balance the edges, if one part has many more than the others."""
    balance = meta.notes['partition'].get('balance')
    if summary.edge_imbalance < _UNEVEN or balance == 'edges':
        return []
    cut = summary.edge_cut / max(summary.num_edges, 1)
    return [
        f'advice                all wait for the part with {summary.edge_imbalance:.2f} times the '
        f'mean edges: --balance edges evens them, but for single nodes with very many, and '
        f'mostly cuts more than these {cut:.1%}'
    ]


def _attributes(meta: Meta) -> list[str]:
    rows = [('attribute', 'type', 'row', 'MB')]
    graph = [*meta.graph_attrs]
    kinds: dict[str, tuple[str, Mapping[Any, Any]]] = {
        'node': ('num_nodes', meta.nodes),
        'edge': ('num_edges', meta.edges),
    }
    for kind, (count, infos) in kinds.items():
        for key, info in infos.items():
            owner = kind if key is None else f'{kind} of {type_name(key)}'
            for name, row in info.attrs.items():
                row_bytes = getattr(torch, row['dtype']).itemsize * math.prod(row['shape'])
                size = f'{getattr(info, count) * row_bytes / 1e6:,.1f}'
                rows.append((f'{name} ({owner})', row['dtype'], str(row['shape']), size))
            if key is not None:
                graph += [f'{name} of {type_name(key)}' for name in info.extra]
    return [text_table(rows, 3), *([f'of the graph: {", ".join(graph)}'] if graph else [])]


def _draw(summary: PartitionSummary, path: Path) -> None:
    """Draws the rows exchanged as a PNG; a ValueError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise ValueError(
            f"a picture needs the package 'matplotlib' (got: {error}); "
            "install it with pip install 'pyg_sar[plot]'"
        ) from error
    figure = Figure(layout='constrained')
    axes = figure.subplots()
    image = axes.imshow(summary.halo_rows, cmap='Blues', vmin=0)
    figure.colorbar(image, label='rows exchanged per layer')
    axes.set(xlabel='sent by part', ylabel='read by part')
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, format='png')


def _png(text: str) -> Path:
    if Path(text).suffix != '.png':
        raise ValueError(f'expected a file that ends in .png (got {text!r})')
    return Path(text)


def _parser() -> Parser:
    description = 'Tells what a partition folder holds, what it costs, and whether it has changed.'
    parser = Parser('pyg_sar.describe', description)
    add = parser.add_argument
    add('parts', metavar='PARTS', help='a folder of pyg_sar.partition')
    plot = 'draw how many rows each part reads from each other one'
    add('--plot', type=checked(_png), metavar='FILE.png', help=plot)
    add('--verify', action='store_true', help='compare the checksums of all files')
    return parser


if __name__ == '__main__':
    sys.exit(main())
