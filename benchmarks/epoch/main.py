"""Full training epochs in all modes against plain PyG, time and peak memory of every process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tqdm import tqdm

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import peers  # noqa: E402
from cached_graphs import ARXIV, TINY, sizes  # noqa: E402
from plots import bars, panels, save  # noqa: E402
from report import (  # noqa: E402
    Benchmark,
    Row,
    ratios,
    show,
    show_mib,
    show_ranks,
    show_size,
    summary,
    table,
)
from team import Steps, slowest, take_turns  # noqa: E402
from training import (  # noqa: E402
    MODES,
    PLAIN,
    PLAIN_CSR,
    check_equal,
    default_hidden,
    relative_difference,
    training_team,
)

SIZES: dict[str, dict[str, Any]] = {
    'full': {
        'graph': ARXIV,
        'models': ['sage', 'gat'],
        'processes': [1, 2, 4, 8],
        'modes': list(MODES),
        'layers': 3,
        'lr': 0.01,
        'rounds': 5,
        'malloc': False,
    },
    'quick': {'models': ['sage'], 'processes': [2, 4]},
    'tiny': {'graph': TINY, 'processes': [1, 2], 'rounds': 2},
}


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """Of every model and number of ranks: plain PyG and all modes in turn, each with processes
    of its own."""
    rows: list[Row] = []
    size = sizes(args.graph)
    cells = [
        (model, threshold, processes)
        for model in args.models
        for threshold in ([None, 1 << 20] if args.malloc else [None])
        for processes in args.processes
    ]
    for model, threshold, processes in tqdm(cells, unit='cell'):
        options = {
            'model': model,
            'hidden': default_hidden(model),
            'layers': args.layers,
            'lr': args.lr,
        }
        with ExitStack() as stack:
            teams: dict[str, Steps] = {}
            # GATConv takes no sparse matrix.
            for variant in [PLAIN, *([PLAIN_CSR] if model == 'sage' else []), *args.modes]:
                teams[variant] = stack.enter_context(
                    training_team(
                        args.graph,
                        variant,
                        1 if variant in (PLAIN, PLAIN_CSR) else processes,
                        mmap_threshold=threshold,
                        **options,
                    )
                )
            found_peers = peers.teams(
                args.graph, processes, args.modes, mmap_threshold=threshold, **options
            )
            for name, make in found_peers.items():
                teams[name] = stack.enter_context(make())
            steps = take_turns(teams, args.rounds, progress=f'{model}, {processes} ranks')
        for variant, found in steps.items():
            rows.append(
                {
                    'graph': args.graph,
                    **size,
                    **options,
                    'mmap_threshold': threshold,
                    'ranks': processes,
                    'variant': variant,
                    'processes': len(found[0]),
                    **_figures(found, steps[PLAIN]),
                }
            )
            yield rows[-1]
    check_equal([row for row in rows if not peers.is_peer(row['variant'])])


def _figures(found: list[list[Row]], plain: list[list[Row]]) -> Row:
    seconds, of = slowest(found[1:]), slowest(plain[1:])  # the first epoch also makes plans
    losses, expected = ([step[0]['loss'] for step in steps] for steps in (found, plain))
    return {
        'seconds': summary(seconds),
        'of_plain': ratios(seconds, of),
        'peak_bytes': [rank['peak_bytes'] for rank in found[-1]],
        'peak_of_plain': max(r['peak_bytes'] for r in found[-1]) / plain[-1][0]['peak_bytes'],
        'losses': losses,
        'loss_difference': relative_difference(losses, expected),
    }


def render(report: dict[str, Any]) -> dict[str, str]:
    rows = [r for r in report['rows'] if r['mmap_threshold'] is None]
    blocks = [f'`{rows[0]["graph"]}`: {show_size(rows[0])}.']
    for model in dict.fromkeys(r['model'] for r in rows):
        of = {(r['variant'], r['ranks']): r for r in rows if r['model'] == model}
        ranks = sorted({count for _, count in of})
        lines = []
        for variant in dict.fromkeys(variant for variant, _ in of):
            found = [of.get((variant, count)) for count in ranks]
            lines.append(
                [
                    f'`{variant}`' if variant in MODES else variant,
                    *(show(r['of_plain']) if r else '' for r in found),
                    *(show_mib(r['peak_bytes']) if r else '' for r in found),
                ]
            )
        first = show_ranks(ranks[0])
        names = [[f'{what}, {first}', *ranks[1:]] for what in ('of plain', 'MiB')]
        header = [str(name) for group in names for name in group]
        r = next(iter(of.values()))
        name = {'sage': 'GraphSAGE (mean)', 'gat': 'GAT, 4 heads'}[model]
        head = f'{r["layers"]}-layer {name}, hidden {r["hidden"]}:'
        blocks.append(f'{head}\n\n{table(["variant", *header], lines)}')
    off = max(r['loss_difference'] for r in rows)
    return {'table': '\n\n'.join(blocks) + f'\n\nLosses differ by at most {off:.0e}.'}


def draw(report: dict[str, Any], path: Path) -> None:
    rows = [r for r in report['rows'] if r['mmap_threshold'] is None]
    models = list(dict.fromkeys(r['model'] for r in rows))
    figure, axes = panels(2 * len(models), 'Training epochs, of plain PyG on one process', 2)
    for number, model in enumerate(models):
        of = [r for r in rows if r['model'] == model]
        ranks = list(dict.fromkeys(r['ranks'] for r in of))
        variants = [v for v in dict.fromkeys(r['variant'] for r in of) if v != PLAIN]
        for axis, title, value in (
            (axes[2 * number], 'time', lambda r: r['of_plain']['median']),
            (axes[2 * number + 1], 'peak memory', lambda r: r['peak_of_plain']),
        ):
            at = {(r['variant'], r['ranks']): value(r) for r in of}
            series = {v: [at.get((v, count)) for count in ranks] for v in variants}
            bars(axis, [str(count) for count in ranks], series)
            axis.axhline(1, color='0.3', linewidth=1, linestyle='--')
            axis.set_title(f'{model}: {title}', fontsize=10)
            axis.set_xlabel('ranks')
    save(figure, path)


if __name__ == '__main__':
    Benchmark(HERE, SIZES, measure, render, draw, doc=__doc__).main()
