"""Batches per second against PyG's NeighborLoader, what ranks ask each other, sampled epochs."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cached_graphs import ARXIV, TINY, cut, graph_file, sizes  # noqa: E402
from plots import bars, panels, save  # noqa: E402
from program_team import ProgramTeam  # noqa: E402
from programs import sample, train  # noqa: E402
from report import Benchmark, Row, ratios, show, show_ranks, show_size, summary, table  # noqa: E402
from team import Steps, Team, slowest, take_turns  # noqa: E402
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE  # noqa: E402

PYG, OURS = "PyG's NeighborLoader", 'pyg_sar'
LINKS = 'pyg_sar, links with negatives'
SIZES: dict[str, dict[str, Any]] = {
    'full': {
        'graph': ARXIV,
        'processes': [1, 2, 4],
        'fan_outs': [15, 10, 5],
        'batch_size': 1024,
        'num_links': 256,
        'batches': 48,
        'hidden': 256,
        'lr': 0.003,
        'rounds': 5,
        'wheels': '',
    },
    'quick': {'batches': 8, 'rounds': 3},
    'tiny': {
        'graph': TINY,
        'batch_size': 64,
        'num_links': 16,
        'batches': 2,
        'hidden': 16,
        'rounds': 2,
    },
}


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """First sampling alone, then sampled training; in each all teams take turns."""
    size = {'graph': args.graph, **sizes(args.graph)}
    yield from ({**size, **row} for row in _sampling(args))
    if max(args.processes) > 1:
        yield from ({**size, **row} for row in _training(args))


def _sampling(args: argparse.Namespace) -> Iterator[Row]:
    shared = {name: getattr(args, name) for name in ('fan_outs', 'batch_size', 'batches')}
    teams: dict[str, Steps] = {}
    kinds: dict[str, tuple[str, int]] = {}
    with ExitStack() as stack:
        if args.wheels or WITH_PYG_LIB or WITH_TORCH_SPARSE:
            path = stack.enter_context(_installed(args.wheels)) if args.wheels else ''
            values = [args.batch_size, args.batches, *args.fan_outs]
            command = [sys.executable, str(HERE / 'pyg_program.py'), str(graph_file(args.graph))]
            program = ProgramTeam([[*command, *map(str, values)]], {'PYTHONPATH': path})
            teams[PYG], kinds[PYG] = stack.enter_context(program), (PYG, 1)
        for processes in args.processes:
            for variant in (OURS, LINKS):
                options = dict(shared, source=str(cut(args.graph, processes)))
                of_rank = args.num_links if variant == LINKS else args.batch_size
                options |= {'links': variant == LINKS, 'batch_size': of_rank * processes}
                team = Team(sample, processes, **options)
                name = f'{variant} {processes}'
                teams[name], kinds[name] = stack.enter_context(team), (variant, processes)
        steps = take_turns(teams, args.rounds, progress='sampling')
    rates = {
        name: [
            len(ranks) * ranks[0]['batches'] / seconds
            for ranks, seconds in zip(found[1:], slowest(found[1:]), strict=True)
        ]
        for name, found in steps.items()
    }
    for name, (variant, processes) in kinds.items():
        taken = steps[name][1:]
        ranks, num_batches = [rank for step in taken for rank in step], taken[0][0]['batches']
        edges = [sum(rank['edges'] for rank in step) for step in taken]
        row: Row = {
            'what': 'sampling',
            'variant': variant,
            'processes': processes,
            'batches_per_second': summary(rates[name]),
            'edges_per_second': summary(
                count / seconds for count, seconds in zip(edges, slowest(taken), strict=True)
            ),
            'of_pyg': ratios(rates[name], rates[PYG])
            if PYG in rates and variant != LINKS
            else None,
        }
        if processes > 1:
            per_batch = {
                key: sum(rank[key] for rank in ranks) / len(ranks) / num_batches
                for key in ('collectives', 'bytes_sent', 'remote')
            }
            shares = [rank['waiting'] / rank['seconds'] for rank in ranks]
            row |= {**per_batch, 'waiting': summary(shares)}
        yield row


def _training(args: argparse.Namespace) -> Iterator[Row]:
    """One process and two, which have the same two parts and batches of the same seeds."""
    names = ('fan_outs', 'batches', 'hidden', 'lr')
    options = {name: getattr(args, name) for name in names} | {'batch_size': 2 * args.batch_size}
    with ExitStack() as stack:
        teams: dict[str, Steps] = {}
        for processes in (1, 2):
            team = Team(train, processes, source=str(cut(args.graph, 2)), **options)
            teams[str(processes)] = stack.enter_context(team)
        steps = take_turns(teams, args.rounds, progress='training')
    one = slowest(steps['1'][1:])
    for name, taken in steps.items():
        seconds = slowest(taken[1:])
        shares = [rank['waiting'] / rank['seconds'] for step in taken[1:] for rank in step]
        yield {
            'what': 'training',
            'variant': OURS,
            'processes': int(name),
            'steps': taken[0][0]['batches'],
            'seconds': summary(seconds),
            'of_one': ratios(seconds, one),
            'waiting': summary(shares),
        }


@contextmanager
def _installed(wheels: str) -> Iterator[str]:
    """A folder with what is in ready-built wheels, for PYTHONPATH."""
    files = sorted(map(str, Path(wheels).glob('*.whl')))
    if not files:
        raise ValueError(
            f"'--wheels' must be a folder with wheels of torch_sparse (got '{wheels}')"
        )
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check']
        subprocess.run([*pip, '--no-deps', '--no-index', f'--target={folder}', *files], check=True)
        yield folder


def render(report: dict[str, Any]) -> dict[str, str]:
    rows = report['rows']
    sampled = [row for row in rows if row['what'] == 'sampling']
    trained = [row for row in rows if row['what'] == 'training']
    header = ['variant', 'ranks', 'batches per s', 'of PyG']
    header += ['collectives', 'MiB sent', 'remote rows', 'waiting']
    lines = []
    for row in sampled:
        line = [row['variant'], row['processes'], show(row['batches_per_second'])]
        line += ['' if row['of_pyg'] is None else show(row['of_pyg'])]
        if 'collectives' in row:
            line += [f'{row["collectives"]:.2f}', f'{row["bytes_sent"] / 2**20:.2f}']
            line += [f'{row["remote"]:,.0f}', f'{row["waiting"]["median"]:.0%}']
        lines.append([*line, *[''] * (len(header) - len(line))])
    head = f'`{rows[0]["graph"]}`: {show_size(rows[0])}.'
    head += ' Collectives, MiB sent and remote rows are those of a rank for a batch.'
    blocks = [f'{head}\n\n{table(header, lines)}']
    if trained:
        header = ['sampled GraphSAGE on', 'steps', 's per epoch', 'of one', 'waiting for batches']
        lines = [
            [
                f'{row["processes"]} with one core' + (' each' if row['processes'] > 1 else ''),
                row['steps'],
                show(row['seconds']),
                show(row['of_one']),
                f'{row["waiting"]["median"]:.0%}',
            ]
            for row in trained
        ]
        blocks.append(table(header, lines))
    return {'table': '\n\n'.join(blocks)}


def draw(report: dict[str, Any], path: Path) -> None:
    figure, (left, right) = panels(
        2, 'Sampling, and training on samples; one core for each process'
    )
    sampled = [row for row in report['rows'] if row['what'] == 'sampling']
    trained = [row for row in report['rows'] if row['what'] == 'training']
    counts = sorted({row['processes'] for row in sampled})
    series = {
        variant: [
            next(
                (
                    row['batches_per_second']['median']
                    for row in sampled
                    if (row['variant'], row['processes']) == (variant, count)
                ),
                None,
            )
            for count in counts
        ]
        for variant in dict.fromkeys(row['variant'] for row in sampled)
    }
    bars(left, [show_ranks(count) for count in counts], series)
    left.set_ylabel('batches per second, of all ranks together')
    seconds = [row['seconds']['median'] for row in trained]
    if trained:
        bars(right, [show_ranks(row['processes']) for row in trained], {'GraphSAGE': seconds})
    right.set_ylabel('s per epoch')
    save(figure, path)


if __name__ == '__main__':
    Benchmark(HERE, SIZES, measure, render, draw, doc=__doc__).main()
