"""Epochs on links as slow as one says."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tqdm import tqdm

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import overlap  # noqa: E402
from cached_graphs import ARXIV, TINY, cut, sizes  # noqa: E402
from namespaces import INTERFACE, Hosts, missing  # noqa: E402
from plots import COLORS, log_axes, panels, save  # noqa: E402
from program_team import ProgramTeam  # noqa: E402
from rank import LINK, NO_NETWORK, PREFETCH, ROWS, VARIANTS  # noqa: E402
from report import Benchmark, Row, ratios, show, show_size, summary, table  # noqa: E402

LOOPBACK = 0.0  # stands for a link that is not shaped
PROBE_SECONDS, PROBE_BYTES = 3.0, 256e6  # of the measurement of a link, at most
SIZES: dict[str, dict[str, Any]] = {
    'full': {
        'graph': ARXIV,
        'models': ['sage', 'gat'],
        'variants': [*VARIANTS],
        'links': [0.1, 0.5, 1.0, 5.0],
        'processes': 4,
        'layers': 3,
        'rounds': 5,
        'picture': False,
    },
    'quick': {'rounds': 2},
    'tiny': {
        'graph': TINY,
        'models': ['sage'],
        'links': [0.1],
        'processes': 2,
        'rounds': 1,
    },
}


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """Of every model on every link, in every round all variants in turn, and one without rows.

    With `picture` only what :mod:`overlap` draws.
    """
    reason = missing()
    if reason:
        print(f'skipped: {reason}')
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit('ended'))  # and the hosts are taken down
    with ExitStack() as stack:
        hosts = stack.enter_context(Hosts(args.processes))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        apart = stack.enter_context(_team(args, f'{folder}/apart', hosts))
        if args.picture:
            found = overlap.measure(apart, hosts, args.models, args.rounds)
            overlap.write(found, Path(args.out) if args.out else HERE)
            return
        beside = stack.enter_context(_team(args, f'{folder}/beside', None))
        for model in tqdm(args.models, unit='model'):
            for team in (apart, beside):  # plans and caches
                for variant in args.variants:
                    team.step(f'{model}/{variant}')
            beside.step(f'{model}/{NO_NETWORK}')
            for link in tqdm([*args.links, LOOPBACK], desc=model, unit='link', leave=False):
                if link != LOOPBACK:
                    hosts.shape(link)
                team = beside if link == LOOPBACK else apart
                names = [f'{model}/{variant}' for variant in args.variants]
                alone = f'{model}/{NO_NETWORK}'
                probe = f'{LINK}/{round(min((link or 5.0) * 1e9 / 8 * PROBE_SECONDS, PROBE_BYTES))}'
                found: Steps = {}
                for number in range(args.rounds):
                    turn = number % len(names)  # what comes before one is not always the same
                    for name in (probe, *names[turn:], *names[:turn]):
                        found.setdefault(name, []).append(team.step(name))
                    found.setdefault(alone, []).append(beside.step(alone))
                _check_losses(args, model, found)
                yield from _rows(args, model, link, found)


Steps = dict[str, list[list[Row]]]
"""Of every name what all rounds gave: by round, then by rank."""


def _rows(args: argparse.Namespace, model: str, link: float, found: Steps) -> Iterator[Row]:
    """Of every variant on one link."""
    alone = found[f'{model}/{NO_NETWORK}']
    (rates,) = (
        [int(name.split('/')[1]) / seconds for seconds in _largest(steps, 'seconds')]
        for name, steps in found.items()
        if name.startswith(f'{LINK}/')
    )
    for variant in args.variants:
        steps = found[f'{model}/{variant}']
        yield {
            'graph': args.graph,
            **sizes(args.graph),
            'processes': args.processes,
            'model': model,
            'link': link,
            'link_bytes_per_second': summary(rates),
            'variant': variant,
            'seconds': summary(_largest(steps, 'seconds')),
            'each_seconds': _largest(steps, 'seconds'),
            'compute_seconds': summary(_largest(alone, 'seconds')),
            'each_compute': _largest(alone, 'seconds'),
            'cpu_seconds': summary(_largest(steps, 'cpu_seconds')),
            'cpu_alone': summary(_largest(alone, 'cpu_seconds')),
            'bytes_sent': summary(_largest(steps, 'bytes_sent')),
            'load': os.getloadavg()[0],
            'losses': [step[0]['loss'] for step in steps],
        }


def _team(args: argparse.Namespace, store: str, hosts: Hosts | None) -> ProgramTeam:
    """The ranks, each on a host of its own, or all on this one; they meet in the file `store`."""
    interface = INTERFACE if hosts else 'lo'
    commands = [
        [
            *(hosts.command(rank) if hosts else ()),
            sys.executable,
            str(HERE / 'rank.py'),
            f'--rank={rank}',
            f'--ranks={args.processes}',
            f'--store={store}',
            f'--interface={interface}',
            f'--parts={cut(args.graph, args.processes)}',
            f'--layers={args.layers}',
        ]
        for rank in range(args.processes)
    ]
    return ProgramTeam(commands, {'GLOO_SOCKET_IFNAME': interface, 'OMP_NUM_THREADS': '1'})


def _largest(steps: list[list[Row]], what: str) -> list[float]:
    """Of all ranks, by step."""
    return [max(answer[what] for answer in step) for step in steps]


def _check_losses(args: argparse.Namespace, model: str, found: Steps) -> None:
    """Raises a RuntimeError if float32 variants that sum in one order differ."""
    losses = {
        variant: [step[0]['loss'] for step in found[f'{model}/{variant}']]
        for variant in args.variants
        if 'exchange_dtype' not in VARIANTS[variant] and variant != ROWS
    }
    if len({tuple(each) for each in losses.values()}) > 1:
        raise RuntimeError(f'expected equal losses of all variants (got {losses})')


def _link(link: float) -> str:
    return 'loopback' if link == LOOPBACK else f'{link:g}'


def render(report: dict[str, Any]) -> dict[str, str]:
    rows = report['rows']
    variants = list(dict.fromkeys(r['variant'] for r in rows))
    lines = []
    for model, link in dict.fromkeys((r['model'], r['link']) for r in rows):
        of = {r['variant']: r for r in rows if (r['model'], r['link']) == (model, link)}
        first = of[PREFETCH]
        shares = [
            show(ratios(of[name]['each_seconds'], first['each_seconds'])) if name in of else ''
            for name in variants
            if name != PREFETCH
        ]
        line = [model, _link(link), show(first['seconds']), *shares]
        lines.append([*line, show(first['compute_seconds'])])
    others = [f'{name}, of it' for name in variants if name != PREFETCH]
    header = ['model', 'link, Gb/s', f'{PREFETCH}, s', *others, 'no network, s']
    size = f'`{rows[0]["graph"]}`: {show_size(rows[0])}; {rows[0]["processes"]} ranks.'
    sent = {  # by loopback the interface counts the bytes of all ranks
        r['model']: f'{r["model"]} {r["bytes_sent"]["median"] / 1e6:,.0f}'
        for r in rows
        if r['variant'] == PREFETCH and r['link'] != LOOPBACK
    }
    size += f' MB sent: {", ".join(sent.values())}.' if sent else ''
    given = {_link(r['link']): f'{r["link_bytes_per_second"]["median"] * 8e-9:.2f}' for r in rows}
    return {
        'table': f'{size}\n\n{table(header, lines)}',
        'links': table(['link, Gb/s', *given], [['measured', *given.values()]]),
    }


def draw(report: dict[str, Any], path: Path) -> None:
    models = list(dict.fromkeys(r['model'] for r in report['rows']))
    variants = list(dict.fromkeys(r['variant'] for r in report['rows']))
    figure, axes = panels(len(models), 'An epoch against the bandwidth of every rank')
    for axis, model in zip(axes, models, strict=True):
        for number, variant in enumerate(variants):
            of = [r for r in report['rows'] if (r['model'], r['variant']) == (model, variant)]
            of = [r for r in of if r['link'] != LOOPBACK]
            links, color = [r['link'] for r in of], COLORS[number]
            times = [[r['seconds'][k] for r in of] for k in ('min', 'median', 'max')]
            axis.plot(links, times[1], color=color, marker='o', label=variant)
            axis.fill_between(links, times[0], times[2], color=color, alpha=0.15)
        log_axes(axis, links)
        axis.set_xlabel('Gb/s')
        axis.set_ylabel('s per epoch')
        axis.set_title(model, fontsize=10)
        axis.legend(frameon=False, fontsize=8)
    save(figure, path)


if __name__ == '__main__':
    Benchmark(HERE, SIZES, measure, render, draw, doc=__doc__).main()
