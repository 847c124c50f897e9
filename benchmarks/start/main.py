"""Training epochs as `pyg-sar run` starts them, against plain PyG as it comes and started alike."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tqdm import tqdm

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cached_graphs import ARXIV, TINY, cut, graph_file, sizes  # noqa: E402
from measured_training import num_cores  # noqa: E402
from plots import bars, panels, save  # noqa: E402
from program_team import ProgramTeam  # noqa: E402
from report import Benchmark, Row, ratios, show, show_size, summary, table  # noqa: E402
from team import slowest  # noqa: E402
from training import PLAIN, PLAIN_CSR, default_hidden  # noqa: E402

from pyg_sar.launch.fast_start import fast_environment  # noqa: E402

OURS = 'pyg_sar'
STARTS = ('as it comes', 'pyg-sar run')
"""How plain PyG is started."""

DROPOUTS: dict[str, dict[str, Any]] = {
    'none': {},
    '0.5': {'dropout': 0.5},
    '0.5, dropout_seed': {'dropout': 0.5, 'dropout_seed': 0},
}

SIZES: dict[str, dict[str, Any]] = {
    'full': {
        'graph': ARXIV,
        'models': ['sage', 'gat'],
        'processes': [1, 2, 4],
        'starts': list(STARTS),
        'dropouts': list(DROPOUTS),
        'rounds': 5,
        'layers': 3,
    },
    'quick': {'models': ['sage'], 'dropouts': ['none'], 'rounds': 3},
    'tiny': {'graph': TINY, 'processes': [1, 2], 'rounds': 2},
}


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """Ours and plain PyG in turn, each once first. One plain process at a time: a GAT takes 12 GB.

    Dropout is measured on one process, beside plain PyG that is started in the same way.
    """
    size = sizes(args.graph)
    cells = [
        (model, dropout, processes, start)
        for model in args.models
        for dropout in args.dropouts
        for processes in (args.processes if dropout == 'none' else args.processes[:1])
        for start in (args.starts if dropout == 'none' else args.starts[-1:])
    ]
    for model, dropout, processes, start in tqdm(cells, unit='cell'):
        options = {
            'model': model,
            'hidden': default_hidden(model),
            'layers': args.layers,
            **DROPOUTS[dropout],
        }
        with ExitStack() as stack:
            teams = {
                OURS: stack.enter_context(_team(args.graph, OURS, processes, options, True)),
                PLAIN: stack.enter_context(
                    _team(args.graph, PLAIN, 1, options, start == 'pyg-sar run')
                ),
            }
            steps: dict[str, list[list[Row]]] = {name: [] for name in teams}
            for number in range(args.rounds + 1):
                for name in list(teams)[:: -1 if number % 2 else 1]:
                    steps[name].append(teams[name].step())
        yield {
            **size,
            'graph': args.graph,
            'model': model,
            'dropout': dropout,
            'processes': processes,
            'start': start,
            **_figures(steps),
        }


def _team(
    graph: str, variant: str, processes: int, options: dict[str, Any], is_fast: bool
) -> ProgramTeam:
    is_plain = variant == PLAIN
    if is_plain:
        variant = PLAIN_CSR if options['model'] == 'sage' else PLAIN  # GATConv takes no matrix
        options = {k: v for k, v in options.items() if k != 'dropout_seed'}
    source = graph_file(graph) if is_plain else cut(graph, processes)
    options = {**options, 'source': str(source), 'variant': variant if is_plain else 'sequential'}
    store = f'file://{tempfile.mktemp(prefix="start-")}'
    environment = fast_environment(processes, {}) if is_fast else {}
    threads = {'OMP_NUM_THREADS': str(max(1, num_cores() // processes))}
    commands = [
        [sys.executable, str(HERE / 'rank.py'), json.dumps([rank, processes, store, options])]
        for rank in range(processes)
    ]
    return ProgramTeam(commands, threads | environment)


def _figures(steps: dict[str, list[list[Row]]]) -> Row:
    counted = {name: found[1:] for name, found in steps.items()}  # the first also makes plans
    wall = {name: slowest(found) for name, found in counted.items()}
    cpu = {n: [sum(r['cpu_seconds'] for r in step) for step in s] for n, s in counted.items()}
    losses = {name: found[-1][0]['loss'] for name, found in steps.items()}
    return {
        'seconds': summary(wall[OURS]),
        'cpu_seconds': summary(cpu[OURS]),
        'plain_seconds': summary(wall[PLAIN]),
        'plain_cpu_seconds': summary(cpu[PLAIN]),
        'of_plain': ratios(wall[OURS], wall[PLAIN]),
        'cpu_of_plain': ratios(cpu[OURS], cpu[PLAIN]),
        'resident': sum(rank['resident'] for rank in counted[OURS][-1]),
        'plain_resident': counted[PLAIN][-1][0]['resident'],
        'losses': losses,
        'load': os.getloadavg()[0],
    }


def render(report: dict[str, Any]) -> dict[str, str]:
    rows = report['rows']
    keys = ('model', 'dropout', 'processes')
    lines = []
    for key in dict.fromkeys(tuple(r[name] for name in keys) for r in rows):
        of = {r['start']: r for r in rows if tuple(r[name] for name in keys) == key}
        shares = [show(of[start]['of_plain']) if start in of else '' for start in STARTS]
        r = of[STARTS[-1]] if STARTS[-1] in of else of[STARTS[0]]
        lines.append(
            [
                {'sage': 'GraphSAGE', 'gat': 'GAT'}[r['model']],
                *key[1:],
                show(r['seconds']),
                *shares,
                f'{r["resident"] / 2**20:,.0f}',
                f'{r["plain_resident"] / 2**20:,.0f}',
            ]
        )
    header = [*keys, 's', *(f'of plain, {start}' for start in STARTS), 'MiB', 'plain, MiB']
    return {'table': f'`{rows[0]["graph"]}` ({show_size(rows[0])}).\n\n{table(header, lines)}'}


def draw(report: dict[str, Any], path: Path) -> None:
    rows = [r for r in report['rows'] if r['dropout'] == 'none']
    models = list(dict.fromkeys(r['model'] for r in rows))
    figure, axes = panels(len(models), 'Seconds of an epoch, of plain PyG on one process', 2)
    for axis, model in zip(axes, models, strict=False):
        of = [r for r in rows if r['model'] == model]
        counts = list(dict.fromkeys(r['processes'] for r in of))
        found = {(r['start'], r['processes']): r['of_plain']['median'] for r in of}
        series = {
            f'plain PyG {start}' if start == STARTS[0] else f'plain PyG by {start}': [
                found.get((start, count)) for count in counts
            ]
            for start in dict.fromkeys(r['start'] for r in of)
        }
        bars(axis, [str(count) for count in counts], series)
        axis.axhline(1, color='0.3', linewidth=1, linestyle='--')
        axis.set_title(model, fontsize=10)
        axis.set_xlabel('processes')
    save(figure, path)


if __name__ == '__main__':
    Benchmark(HERE, SIZES, measure, render, draw, doc=__doc__).main()
