"""One process whose parts take turns: time against memory, beside plain PyG."""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tqdm import tqdm

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cached_graphs import ARXIV, CACHE, TINY, cut, graph_file, sizes  # noqa: E402
from plots import COLORS, panels, save  # noqa: E402
from program import AT_ONCE, IN_TURN, PLAIN, PLAIN_CSR  # noqa: E402
from report import Benchmark, Row, show_size, table  # noqa: E402


@dataclass(frozen=True)
class Workload:
    """A training; every variant of it is measured `rounds` times at most, in turn."""

    graph: str
    parts: int
    memory: tuple[str, ...]
    model: str = 'sage'
    hidden: int = 256
    layers: int = 3
    norm: str = 'batch_norm'
    cold: str = ''
    rounds: int = 1


PRODUCTS = 'synthetic:easy-products'

WORKLOADS = {
    'tiny': Workload(TINY, 3, ('1MB', '1GB'), hidden=32, cold='1MB'),
    'arxiv': Workload(ARXIV, 8, ('1MB', '150MB', '400MB', '800MB', '100GB'), cold='1MB', rounds=3),
    'arxiv-gat': Workload(ARXIV, 8, ('1MB', '400MB', '100GB'), 'gat', 128, rounds=3),
    'products': Workload(PRODUCTS, 16, ('4GB',), cold='4GB'),
    'two-layer GCN': Workload(PRODUCTS, 4, ('4GB', '6GB'), 'gcn', 256, 2, 'layer_norm'),
}
SIZES: dict[str, dict[str, Any]] = {
    'full': {'workloads': list(WORKLOADS)[1:], 'epochs': 3, 'rounds': 3, 'spill': str(CACHE)},
    'quick': {'workloads': ['arxiv'], 'epochs': 2, 'rounds': 1},
    'tiny': {'workloads': ['tiny'], 'epochs': 2, 'rounds': 1},
}
COLD = 'in turn, cold disk'
PROBE_BYTES = 64 << 20


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """The variants of each workload, one after another in processes of their own."""
    for name in args.workloads:
        work = WORKLOADS[name]
        variants = [(PLAIN, ''), (PLAIN_CSR, ''), (AT_ONCE, '')]
        variants += [(IN_TURN, memory) for memory in work.memory]
        variants += [(COLD, work.cold)] if work.cold else []
        found: dict[tuple[str, str], list[Row]] = {variant: [] for variant in variants}
        for _ in tqdm(range(min(work.rounds, args.rounds)), desc=name, unit='round'):
            for variant, memory in variants:
                found[variant, memory].append(_run(work, variant, memory, args))
        rates = _disk_rates(Path(args.spill))
        for (variant, memory), runs in found.items():
            row = {'workload': name, **asdict(work), **sizes(work.graph), 'variant': variant}
            yield {**row, 'memory': memory, 'rates': rates, **_of_all(runs)}


def _run(work: Workload, variant: str, memory: str, args: argparse.Namespace) -> Row:
    is_plain = variant in (PLAIN, PLAIN_CSR)
    options = {
        **asdict(work),
        'variant': IN_TURN if variant == COLD else variant,
        'source': str(graph_file(work.graph) if is_plain else cut(work.graph, work.parts)),
        'memory': memory,
        'spill': args.spill,
        'is_cold': variant == COLD,
        'epochs': args.epochs,
    }
    command = [sys.executable, '-W', 'ignore', str(HERE / 'program.py'), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        raise RuntimeError(f'{variant} of {work.graph} failed:\n{done.stderr}')
    result: Row = json.loads(done.stdout.splitlines()[-1])
    return result


def _disk_rates(folder: Path) -> tuple[float, float]:
    """Bytes per second that a folder's disk writes and reads, by a file without a name."""
    run = mmap.mmap(-1, PROBE_BYTES)
    with tempfile.TemporaryFile(dir=folder) as file:
        start = time.perf_counter()
        os.pwrite(file.fileno(), run, 0)
        os.fdatasync(file.fileno())
        written = time.perf_counter()
        if hasattr(os, 'posix_fadvise'):  # so that it does not come from memory
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begin = time.perf_counter()
        os.preadv(file.fileno(), [run], 0)
        end = time.perf_counter()
    return PROBE_BYTES / (written - start), PROBE_BYTES / (end - begin)


def _of_all(runs: list[Row]) -> Row:
    """Medians over all epochs but the first of each run, which also makes plans."""
    if 'epochs' not in runs[0]:
        return runs[0]
    epochs = [epoch for run in runs for epoch in run['epochs'][1:]]
    found: Row = {key: statistics.median(epoch[key] for epoch in epochs) for key in epochs[0]}
    found['slowest'] = max(epoch['seconds'] for epoch in epochs)
    found['losses'] = [epoch['loss'] for epoch in runs[0]['epochs']]
    for key in ('peak', 'tensors_peak', 'disk'):
        if key in runs[0]:
            found[key] = max(run[key] for run in runs)
    return found


def render(report: Row) -> dict[str, str]:
    header = ['program', '`memory`', 'peak MiB', 's per epoch', 'GB written', 'GB read']
    blocks: list[str] = []
    graphs: dict[str, str] = {}
    for name, group in groupby(report['rows'], lambda row: row['workload']):
        rows = list(group)
        lines = [_line(row) for row in rows]
        graph = f'{show_size(rows[0])}, {rows[0]["num_features"]} features'
        first = graphs.setdefault(graph, name)
        title = _title(name, graph if first == name else f'the graph of {first}', rows[0])
        blocks.append(f'{title}\n\n{table(header, lines)}')
    written, read = zip(*(row['rates'] for row in report['rows']), strict=True)
    blocks.append(f'Disk, GB/s: {_range(written)} written, {_range(read)} read.')
    return {'table': '\n\n'.join(blocks)}


def _range(rates: Sequence[float]) -> str:
    low, high = (f'{rate(rates) / 1e9:.2g}' for rate in (min, max))
    return low if low == high else f'{low} to {high}'


def _title(name: str, graph: str, row: Row) -> str:
    kind = {'sage': 'GraphSAGE', 'gcn': 'GCN', 'gat': 'GAT, 4 heads'}[row['model']]
    norm = row['norm'].replace('_', ' ')
    return (
        f'**{name}**: {graph}; {kind}, {row["layers"]} layers, hidden {row["hidden"]}, {norm}; '
        f'{row["parts"]} parts.'
    )


def _line(row: Row) -> list[str]:
    if 'limit' in row:
        return [row['variant'], '', f'more than {row["limit"] / 2**20:,.0f}', *[''] * 3]
    is_in_turn = 'tensors_peak' in row
    return [
        row['variant'],
        row['memory'],
        f'{row["peak"] / 2**20:,.0f}',
        f'{row["seconds"]:.2f}',
        *(f'{row[key] / 1e9:.2f}' if is_in_turn else '' for key in ('written', 'read')),
    ]


def draw(report: Row, path: Path) -> None:
    """Seconds of an epoch against the peak of the process; one panel for each workload."""
    groups = [(name, list(g)) for name, g in groupby(report['rows'], lambda r: r['workload'])]
    figure, axes = panels(len(groups), 'One process: time against memory', columns=2)
    for axis, (name, rows) in zip(axes, groups, strict=False):
        kinds = dict.fromkeys(row['variant'] for row in rows)
        for color, kind in zip(COLORS, kinds, strict=False):
            points = [
                (row['peak'] / 2**20, row['seconds'], row['memory'])
                for row in rows
                if row['variant'] == kind and 'seconds' in row
            ]
            if not points:
                limit = next(row['limit'] for row in rows if row['variant'] == kind) / 2**20
                label = f'{kind}: needs more'
                axis.plot([limit], [0], 'x', color=color, label=label, clip_on=False)
                continue
            xs, ys, texts = zip(*sorted(points), strict=True)
            axis.plot(xs, ys, 'o-' if len(points) > 1 else 'o', color=color, label=kind)
            for x, y, text in zip(xs, ys, texts, strict=True):
                axis.annotate(text, (x, y), (3, 4), textcoords='offset points', fontsize=8)
        axis.set_title(name)
        axis.set_xlabel('peak above imports, data included, MiB')
        axis.set_ylabel('seconds per epoch')
        axis.margins(0.3)
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False, fontsize=8)
    for axis in axes[len(groups) :]:
        axis.remove()
    save(figure, path)


if __name__ == '__main__':
    Benchmark(HERE, SIZES, measure, render, draw, __doc__.splitlines()[0]).main()
