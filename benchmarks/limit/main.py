"""Layers and epochs of training against what the machine allows, on one process."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cached_graphs import ARXIV, TINY, cut, read_all, sizes  # noqa: E402
from layer_bound import Needs, needs  # noqa: E402
from machine_limits import PRODUCTS, limits  # noqa: E402
from measured_training import NAMES, make_model, num_cores  # noqa: E402
from plots import bars, panels, save  # noqa: E402
from report import Benchmark, Row, ratios, show, show_size, summary, table  # noqa: E402
from team import Steps, Team, slowest, take_turns  # noqa: E402
from training import default_hidden, training_team  # noqa: E402

import pyg_sar  # noqa: E402

SIZES: dict[str, dict[str, Any]] = {
    'full': {
        'graph': ARXIV,
        'models': ['sage', 'gat'],
        'layers': 3,
        'lr': 0.01,
        'rounds': 7,
        'stream_mib': 256,
    },
    'quick': {'rounds': 3},
    'tiny': {'graph': TINY, 'rounds': 2, 'stream_mib': 8},
}
MACHINE, EPOCH, BESIDE = 'machine', 'epoch', 'epoch beside others'
AUTOCAST = 'epoch under autocast'


def layer(*, source: str, number: int, make: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A program for a team: forward and backward of one layer of a model, again and again."""
    data = pyg_sar.load_shard(source)
    read_all(data)
    torch.manual_seed(0)
    conv = pyg_sar.DistributedDataParallel(make_model(**make)).convs[number]
    x = data.x
    if number > 0:
        x = torch.randn(data.num_nodes, conv.in_channels, requires_grad=True)
    gradient = torch.randn_like(conv(x, data.edge_index))
    result: dict[str, Any] = {}
    while True:
        yield result
        conv.zero_grad()
        x.grad = None
        start = time.perf_counter()
        conv(x, data.edge_index).backward(gradient)
        result = {'seconds': time.perf_counter() - start}


class BesideBusyLoops:
    """The steps of a team while on every core another program does nothing but run."""

    def __init__(self, team: Steps) -> None:
        self._team = team

    def step(self) -> list[Any]:
        code = 'import os, sys; os.sched_setaffinity(0, [int(sys.argv[1])]); print(flush=True)\n'
        code += 'while True: pass'
        with ExitStack() as stack:
            for core in os.sched_getaffinity(0):
                command = [sys.executable, '-c', code, str(core)]
                loop = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
                stack.callback(loop.kill)
                loop.stdout.readline()  # it runs
            return self._team.step()


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """Of every model: the machine, every layer, an epoch, and one beside others, in turn."""
    size = sizes(args.graph)
    num_nodes, num_edges = size['num_nodes'], size['num_edges']
    source = str(cut(args.graph, 1))
    for model in args.models:
        options = {'model': model, 'hidden': default_hidden(model), 'layers': args.layers}
        make = {
            'name': model,
            'num_features': size['num_features'],
            'hidden': options['hidden'],
            'num_layers': args.layers,
            'num_classes': size['num_classes'],
        }
        convs = make_model(**make).convs
        of_layers = [needs(conv, i == 0, num_nodes, num_edges) for i, conv in enumerate(convs)]
        machine = {
            'stream_bytes': args.stream_mib << 20,
            'num_rows': num_nodes,
            'products': sorted({widths for of in of_layers for widths, _ in of.products}),
            'num_exponentials': max(of.exponentials for of in of_layers),
        }
        names = [f'layer {i + 1}' for i in range(len(of_layers))]
        with ExitStack() as stack:
            team = Team(limits, threads=num_cores(), **machine)
            teams: dict[str, Steps] = {MACHINE: stack.enter_context(team)}
            for number, name in enumerate(names):
                team = Team(layer, threads=num_cores(), source=source, number=number, make=make)
                teams[name] = stack.enter_context(team)
            for name in (EPOCH, AUTOCAST):
                team = training_team(
                    args.graph,
                    'sequential',
                    lr=args.lr,
                    has_accuracy=True,
                    autocast=name == AUTOCAST,
                    **options,
                )
                teams[name] = stack.enter_context(team)
            teams[BESIDE] = BesideBusyLoops(teams[EPOCH])
            steps = take_turns(teams, args.rounds, progress=model)
        fastest = _fastest([step[0] for step in steps.pop(MACHINE)[1:]])
        seconds = {name: slowest(found[1:]) for name, found in steps.items()}
        row = {'graph': args.graph, **size, **options}
        for name, of in zip(names, of_layers, strict=True):
            yield {**row, 'part': name, **_figures(seconds[name], [of], fastest)}
        yield {
            **row,
            'part': EPOCH,
            **_figures(seconds[EPOCH], of_layers, fastest),
            'page_faults': statistics.median(step[0]['page_faults'] for step in steps[EPOCH][1:]),
            'autocast': summary(seconds[AUTOCAST]),
            'autocast_of_float32': ratios(seconds[AUTOCAST], seconds[EPOCH]),
            'trained': _trained(steps),
            'beside': summary(seconds[BESIDE]),
            'beside_of_quiet': ratios(seconds[BESIDE], seconds[EPOCH]),
            'rates': _rates(fastest, num_nodes),
        }


def _trained(steps: dict[str, list[list[Any]]]) -> dict[str, Row]:
    """The last epoch under autocast, and the one of the same number in float32."""
    last = len(steps[AUTOCAST]) - 1
    float32 = [step for both in zip(steps[EPOCH], steps[BESIDE], strict=True) for step in both]
    found = {EPOCH: float32[last][0], AUTOCAST: steps[AUTOCAST][last][0]}
    keys = 'loss', 'train', 'val', 'test', 'peak_bytes'
    return {
        name: {'epochs': last + 1, **{key: of[key] for key in keys}} for name, of in found.items()
    }


def _fastest(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all rounds: the machine's limit is what it did at its best."""
    return {
        'triad': min(of['triad'] for of in found),
        'exponential': min(of['exponential'] for of in found),
        'products': {
            widths: {kind: min(of['products'][widths][kind] for of in found) for kind in PRODUCTS}
            for widths in found[0]['products']
        },
    }


def _figures(seconds: list[float], layers: list[Needs], fastest: dict[str, Any]) -> Row:
    found = [layer.seconds(fastest) for layer in layers]
    bounds = {kind: sum(of[kind] for of in found) for kind in found[0]}
    bound = sum(bounds.values())
    return {
        'seconds': summary(seconds),
        'bounds': bounds,
        'bound': bound,
        'of_bound': summary(each / bound for each in seconds),
    }


def _rates(fastest: dict[str, Any], num_rows: int) -> Row:
    """Bytes, exponentials and floating point operations of products, in a second."""
    return {
        'triad': 1 / fastest['triad'],
        'exponentials': 1 / fastest['exponential'],
        'products': [
            {
                'width': width,
                'columns': columns,
                **{kind: 2 * num_rows * width * columns / seconds[kind] for kind in PRODUCTS},
            }
            for (width, columns), seconds in fastest['products'].items()
        ],
    }


def render(report: dict[str, Any]) -> dict[str, str]:
    rows = report['rows']
    header = ['model', 'part', 'products', 'gathers', 'exponentials', 'bound, s', 'measured, s']
    header += ['of the bound']
    lines = [
        [
            NAMES[r['model']],
            r['part'],
            *(f'{seconds:.3f}' for seconds in r['bounds'].values()),
            f'{r["bound"]:.3f}',
            show(r['seconds'], 3),
            show(r['of_bound']),
        ]
        for r in rows
    ]
    epochs = [r for r in rows if r['part'] == EPOCH]
    beside = [
        [
            NAMES[r['model']],
            show(r['beside']),
            show(r['beside_of_quiet']),
        ]
        for r in epochs
    ]
    trained = [
        [
            NAMES[r['model']],
            'float32' if name == EPOCH else 'bfloat16',
            show(r['seconds'] if name == EPOCH else r['autocast']),
            f'{of["peak_bytes"] / 2**20:,.0f}',
            f'{of["loss"]:.4f}',
            f'{of["test"]:.4f}',
        ]
        for r in epochs
        for name, of in r['trained'].items()
    ]
    of_epochs = ['model', 'in', 's per epoch', 'peak MiB', 'loss', 'test accuracy']
    return {
        'autocast': table(of_epochs, trained),
        'table': f'`{rows[0]["graph"]}`: {show_size(rows[0])}.\n\n{table(header, lines)}',
        'beside': table(['model', 's', 'of quiet'], beside),
        'rates': _best(epochs),
    }


def _best(epochs: list[Row]) -> str:
    """The best that was measured with any model; products stand in results.json by shape."""
    best = [max(r['rates'][k] for r in epochs) / 1e9 for k in ('triad', 'exponentials')]
    return f'Triad {best[0]:.1f} GB/s, {best[1]:.2f} billion exponentials a second.'


def draw(report: dict[str, Any], path: Path) -> None:
    rows = report['rows']
    models = list(dict.fromkeys(r['model'] for r in rows))
    figure, axes = panels(len(models), 'Seconds of forward and backward, and the bound')
    for axis, model in zip(axes, models, strict=True):
        of = [r for r in rows if r['model'] == model]
        series = {
            'measured': [r['seconds']['median'] for r in of],
            'bound': [r['bound'] for r in of],
        }
        bars(axis, [r['part'] for r in of], series)
        axis.set_title(NAMES[model], fontsize=10)
    save(figure, path)


if __name__ == '__main__':
    Benchmark(HERE, SIZES, measure, render, draw, doc=__doc__).main()
