"""Epochs where one link is slower than the others: what more transfers in flight gain there."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from cached_graphs import sizes
from namespaces import Hosts
from program_team import ProgramTeam
from rank import PREFETCH
from report import Row, environment, ratios, show, summary, table

SHARE = 0.1
"""What the slow link has of the bandwidth of the others."""

GIGABITS = 1.0
"""Of the others."""

VARIANTS = (PREFETCH, 'prefetch 2', 'prefetch 3')
_FILE = 'unequal.json'


def measure(args: argparse.Namespace, team: ProgramTeam, hosts: Hosts) -> list[Row]:
    """Of every model and both ways to be slow, in every round all variants in turn."""
    found = []
    for model in args.models:
        names = [f'{model}/{variant}' for variant in VARIANTS]
        hosts.shape(GIGABITS)
        for name in names:  # plans and caches
            team.step(name)
        for slow in _SLOW:
            hosts.shape(GIGABITS, **{_SLOW[slow]: SHARE})
            steps: dict[str, list[list[Row]]] = {name: [] for name in names}
            for number in range(args.rounds):
                turn = number % len(names)
                for name in (*names[turn:], *names[:turn]):
                    steps[name].append(team.step(name))
            losses = {tuple(step[0]['loss'] for step in of) for of in steps.values()}
            if len(losses) > 1:
                raise RuntimeError(f'expected equal losses of all variants (got {losses})')
            for variant, name in zip(VARIANTS, names, strict=True):
                seconds = [max(answer['seconds'] for answer in step) for step in steps[name]]
                found.append(
                    {
                        'graph': args.graph,
                        **sizes(args.graph),
                        'processes': args.processes,
                        'model': model,
                        'slow': slow,
                        'variant': variant,
                        'each_seconds': seconds,
                    }
                )
    return found


_RANK, _PAIR = 'the link of rank 0', 'the path between ranks 0 and 1'
_SLOW = {_RANK: 'host_share', _PAIR: 'path_share'}


def write(rows: list[Row], folder: Path) -> None:
    """``unequal.json``, and the table on the terminal."""
    folder.mkdir(parents=True, exist_ok=True)
    report = {'environment': environment(), 'rows': rows}
    (folder / _FILE).write_text(json.dumps(report, indent=1) + '\n')
    print(render(folder))


def render(folder: Path) -> str:
    """The table out of the file."""
    if not (folder / _FILE).exists():
        return '`--unequal` fills this in.'
    report: dict[str, Any] = json.loads((folder / _FILE).read_text())
    lines, first = [], report['rows'][0]
    for row in report['rows']:
        if row['variant'] == VARIANTS[0]:
            first = row
        is_first = row is first
        lines.append(
            [
                row['model'] if is_first else '',
                row['slow'] if is_first else '',
                row['variant'],
                show(summary(row['each_seconds'])),
                f'**{show(ratios(first["each_seconds"], row["each_seconds"]))}**',
            ]
        )
    header = ['model', f'slow, {SHARE:g} of {GIGABITS:g} Gb/s', 'variant', 's per epoch']
    header += ['times as fast']
    rounds, load = len(first['each_seconds']), report['environment']['load_at_start']
    return f'{table(header, lines)}\n\n{rounds} rounds; load before them {load:.1f}.'
