"""Time of a training epoch against the number of ranks, one thread each, with the ideal line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cached_graphs import ARXIV, TINY, sizes  # noqa: E402
from measured_training import NAMES, num_cores  # noqa: E402
from plots import COLORS, log_axes, panels, save  # noqa: E402
from report import (  # noqa: E402
    Benchmark,
    Row,
    ratios,
    show,
    show_mib,
    show_size,
    summary,
    table,
)
from team import slowest, take_turns  # noqa: E402
from training import (  # noqa: E402
    PLAIN,
    check_equal,
    default_hidden,
    relative_difference,
    training_team,
)

SIZES: dict[str, dict[str, Any]] = {
    'full': {
        'graph': ARXIV,
        'models': ['sage', 'gat'],
        'processes': [1, 2, 3, 4, 6, 8],
        'mode': 'sequential',
        'layers': 3,
        'lr': 0.01,
        'rounds': 5,
    },
    'quick': {'models': ['sage'], 'processes': [1, 2, 4, 8]},
    'tiny': {'graph': TINY, 'models': ['sage'], 'processes': [1, 2], 'rounds': 2},
}


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """Of every model, plain PyG with one thread and all numbers of ranks in turn."""
    rows: list[Row] = []
    size = sizes(args.graph)
    first = args.processes[0]
    for model in args.models:
        options = {
            'model': model,
            'hidden': default_hidden(model),
            'layers': args.layers,
            'lr': args.lr,
        }
        with ExitStack() as stack:
            teams = {0: stack.enter_context(training_team(args.graph, PLAIN, threads=1, **options))}
            for processes in args.processes:
                team = training_team(args.graph, args.mode, processes, threads=1, **options)
                teams[processes] = stack.enter_context(team)
            named = {str(processes): team for processes, team in teams.items()}
            steps = take_turns(named, args.rounds, progress=model)
        seconds = {int(name): slowest(found[1:]) for name, found in steps.items()}
        losses = {int(n): [step[0]['loss'] for step in found] for n, found in steps.items()}
        for processes in teams:
            rows.append(
                {
                    'graph': args.graph,
                    **size,
                    **options,
                    'variant': args.mode if processes else PLAIN,
                    'processes': processes or 1,
                    'seconds': summary(seconds[processes]),
                    'of_plain': ratios(seconds[processes], seconds[0]),
                    'speedup': ratios(seconds[first], seconds[processes]),
                    'ideal_speedup': min(processes or 1, num_cores()) / min(first, num_cores()),
                    'peak_bytes': [r['peak_bytes'] for r in steps[str(processes)][-1]],
                    'losses': losses[processes],
                    'loss_difference': relative_difference(losses[processes], losses[0]),
                }
            )
            yield rows[-1]
    check_equal(rows)


def render(report: dict[str, Any]) -> dict[str, str]:
    rows = report['rows']
    models = list(dict.fromkeys(r['model'] for r in rows))
    lines: dict[tuple[str, int], list[object]] = {}
    for r in rows:
        is_plain = r['variant'] == PLAIN
        count = PLAIN if is_plain else r['processes']
        speedup = '' if is_plain else show(r['speedup'])
        line = lines.setdefault((r['variant'], r['processes']), [count])
        line += [show(r['seconds']), speedup, show_mib(r['peak_bytes'])]
    names = ([f'{NAMES[model]}, s', 'speedup', 'MiB'] for model in models)
    header = ['ranks', *(name for of in names for name in of)]
    head = f'`{rows[0]["graph"]}`: {show_size(rows[0])}; {report["environment"]["cores"]} cores.'
    return {'table': f'{head}\n\n{table(header, lines.values())}'}


def draw(report: dict[str, Any], path: Path) -> None:
    models = list(dict.fromkeys(r['model'] for r in report['rows']))
    figure, (left, right) = panels(2, 'An epoch against the number of ranks, one thread each')
    for number, model in enumerate(models):
        color = COLORS[number]
        of = [r for r in report['rows'] if r['model'] == model]
        plain, *ours = of
        ranks = [r['processes'] for r in ours]
        times = [[r['seconds'][k] for r in ours] for k in ('min', 'median', 'max')]
        left.plot(ranks, times[1], color=color, marker='o', label=model)
        left.fill_between(ranks, times[0], times[2], color=color, alpha=0.15)
        ideal = [times[1][0] / r['ideal_speedup'] for r in ours]
        left.plot(ranks, ideal, color=color, linestyle=':', label=f'{model}, ideal')
        peaks = [max(r['peak_bytes']) / 2**20 for r in ours]
        right.plot(ranks, peaks, color=color, marker='o', label=model)
        ideal = [peaks[0] * ranks[0] / count for count in ranks]
        right.plot(ranks, ideal, color=color, linestyle=':', label=f'{model}, ideal: 1/P')
        name = f'{model}, plain PyG'
        left.axhline(plain['seconds']['median'], color=color, lw=1, ls='--', label=name)
        right.axhline(max(plain['peak_bytes']) / 2**20, color=color, lw=1, ls='--', label=name)
    cores = report['environment']['cores']
    for axis, text in (
        (left, f's per epoch (ideal: cores used, of {cores})'),
        (right, 'peak memory of a process, MiB'),
    ):
        log_axes(axis, ranks)
        axis.set_xlabel('ranks')
        axis.set_ylabel(text)
        axis.legend(frameon=False, fontsize=8)
    save(figure, path)


if __name__ == '__main__':
    Benchmark(HERE, SIZES, measure, render, draw, doc=__doc__).main()
