"""Memory and time of partitioning a graph on disk, by phase, against its number of edges."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cached_graphs import CACHE  # noqa: E402
from plots import COLORS, panels, save  # noqa: E402
from report import Benchmark, Row, table  # noqa: E402
from synthetic import SHAPES, on_disk  # noqa: E402

SIZES: dict[str, dict[str, Any]] = {
    'full': {
        'graphs': ['easy-arxiv', 'easy-medium', 'easy-products', 'easy-large'],
        'folder': str(CACHE),
    },
    'quick': {'graphs': ['easy-arxiv', 'easy-medium']},
    'tiny': {'graphs': ['tiny']},
}


CUTS = {
    'tiny': (2, 'metis'),
    'easy-arxiv': (4, 'metis'),
    'easy-medium': (8, 'metis'),
    'easy-products': (8, 'metis'),
    'easy-large': (8, 'random'),
}
"""Number of parts, and method."""
PAPERS = {'num_nodes': 111_059_956, 'num_edges': 3_228_124_712, 'num_features': 128}
"""ogbn-papers100M made undirected."""

METIS = 'METIS'
PHASES = ('check', 'undirected graph', METIS, 'edges by part', 'write')
"""The phases shown; the others take next to nothing."""
GB = 1e9


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """Each graph in turn, drawn on first use and then kept in `folder`."""
    for name in (bar := tqdm(args.graphs, unit='graph')):
        bar.set_description(f'{name}: drawing')
        source = on_disk(name, Path(args.folder))
        num_parts, method = CUTS[name]
        bar.set_description(f'{name}: partitioning')
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            command = [sys.executable, '-W', 'ignore', str(HERE / 'measure.py')]
            command += [str(source), f'{folder}/parts', f'--num-parts={num_parts}']
            done = subprocess.run([*command, f'--method={method}'], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f'partitioning {name} failed:\n{done.stderr}')
        found = json.loads(done.stdout)
        yield {'graph': name, 'num_features': SHAPES[name].num_features, **found}


def render(report: Row) -> dict[str, str]:
    rows = report['rows']
    header = ['graph', 'edges', 'features', 'parts', 'seconds', 'METIS GB', 'B per edge']
    header += ['passes GB', 'of int32 CSR']
    sizes = [
        (
            r['graph'],
            f'{r["num_edges"]:,}',
            r['num_features'],
            f'{r["num_parts"]} ({r["method"]})',
            f'{r["seconds"]:.1f}',
            f'{r["metis_bytes"] / GB:.2f}' if r['metis_bytes'] else '',
            f'{r["metis_bytes"] / r["num_neighbours"]:.0f}' if r['metis_bytes'] else '',
            f'{r["passes_bytes"] / GB:.3f}',
            f'{r["passes_bytes"] / r["csr_bytes"]:.2f}',
        )
        for r in rows
    ]
    return {
        'table': table(header, sizes),
        'papers': _papers(rows),
    }


def _papers(rows: list[Row]) -> str:
    """What ogbn-papers100M needs: bytes and seconds per edge of the largest graphs, multiplied."""
    largest = max(rows, key=lambda r: r['num_edges'])
    cut = max((r for r in rows if r['metis_bytes']), key=lambda r: r['num_edges'], default=None)
    if cut is None:
        return ''
    edges, nodes = PAPERS['num_edges'], PAPERS['num_nodes']
    csr = 4 * (edges + nodes + 1)
    ratio = largest['passes_bytes'] / largest['csr_bytes']
    ours = sum(found['seconds'] for phase, found in largest['phases'].items() if phase != METIS)
    metis_seconds = cut['phases'][METIS]['seconds']
    # 40 bytes an edge in the parts and 8 in the edge map; of a node features, label, mask, ids.
    shards = 48 * edges + nodes * (4 * PAPERS['num_features'] + 40)
    metis_bytes = cut['metis_bytes'] / cut['num_neighbours'] * edges
    lines = [
        (
            'METIS',
            f'{metis_bytes / GB:,.0f}',
            f'{metis_seconds / cut["num_edges"] * edges / 3600:.1f}',
        ),
        ('passes', f'{ratio * csr / GB:,.0f}', f'{ours / largest["num_edges"] * edges / 3600:.1f}'),
    ]
    disk = f'{16 * edges / GB:,.0f} GB of scratch space, {shards / GB:,.0f} GB of shards'
    return f'{table(["", "GB of memory", "hours"], lines)}\n\nDisk: {disk}.'


def draw(report: Row, path: Path) -> None:
    rows = sorted(report['rows'], key=lambda r: r['num_edges'])
    figure, (memory, seconds) = panels(2, 'Partitioning a graph on disk')
    edges = [r['num_edges'] for r in rows]
    cut = [r for r in rows if r['metis_bytes']]
    for label, of, key in (
        ('METIS', cut, 'metis_bytes'),
        ('our passes', rows, 'passes_bytes'),
        ('1.3 int32 CSR', rows, 'csr_bytes'),
    ):
        factor = 1.3 if key == 'csr_bytes' else 1.0
        memory.plot(
            [r['num_edges'] for r in of],
            [factor * r[key] / GB for r in of],
            marker='o',
            label=label,
            linestyle=':' if key == 'csr_bytes' else '-',
            color={'metis_bytes': COLORS[1], 'passes_bytes': COLORS[0]}.get(key, '0.5'),
        )
    memory.set_ylabel('peak memory above what the process held, GB')
    for number, phase in enumerate(PHASES):
        of = [r for r in rows if phase in r['phases']]
        found = [max(r['phases'][phase]['seconds'], 1e-3) for r in of]
        seconds.plot(
            [r['num_edges'] for r in of], found, marker='o', label=phase, color=COLORS[number]
        )
    seconds.set_ylabel('seconds')
    for axis in (memory, seconds):
        axis.set_xscale('log')
        axis.set_yscale('log')
        axis.set_xlabel('directed edges')
        axis.set_xlim(min(edges) / 1.3, max(edges) * 1.3)
        axis.legend(frameon=False, fontsize=8)
    save(figure, path)


if __name__ == '__main__':
    Benchmark(
        folder=HERE,
        sizes=SIZES,
        measure=measure,
        render=render,
        draw=draw,
        doc='Memory and time of partitioning graphs on disk, against their edges.',
    ).main()
