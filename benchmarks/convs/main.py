"""Forward and backward of every conv on 1 process and on 4 against plain PyG on one."""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
# As `pyg-sar run` starts programs, but for the allocator: memory is measured here. Read by torch.
os.environ.setdefault('GOMP_SPINCOUNT', '10000')

import torch  # noqa: E402
from cached_graphs import TINY, read_all  # noqa: E402
from convs import CONVS, WITHOUT_KERNELS, Given, cut, graph_file  # noqa: E402
from measured_training import num_cores  # noqa: E402
from plots import bars, panels, save  # noqa: E402
from process_memory import PeakMemory  # noqa: E402
from report import Benchmark, Row, ratios, summary, table  # noqa: E402
from team import Team, slowest, take_turns  # noqa: E402
from torch import Tensor  # noqa: E402
from tqdm import tqdm  # noqa: E402

import pyg_sar  # noqa: E402

PLAIN = 'plain PyG'
PLAIN_BYTES, PLAIN_SECONDS = 8 << 30, 20.0
"""A conv that takes more in plain PyG is left out."""

SIZES: dict[str, dict[str, Any]] = {
    'full': {
        'graph': 'synthetic:60000,350000',
        'convs': list(CONVS),
        'processes': [1, 4],
        'rounds': 5,
    },
    'quick': {'convs': ['GATv2Conv', 'PNAConv', 'SAGEConv'], 'rounds': 3},
    'tiny': {'graph': TINY, 'processes': [1, 2], 'rounds': 2},
}


def layers(
    *, sources: dict[str, str], convs: list[str], rounds: int, is_plain: bool
) -> Iterator[dict[str, Any]]:
    """Of every conv forward and backward `rounds` times, with gradients of x and parameters."""
    read, result = {}, dict[str, Any]()
    for name in convs:
        conv = CONVS[name]
        if conv.graph not in read:
            read[conv.graph] = _read(sources[conv.graph], is_plain)
        data = read[conv.graph]
        torch.manual_seed(0)
        module = conv.make()
        if name == 'RGATConv':
            torch.nn.init.ones_(module.l2)  # PyG leaves it uninitialised
        if not is_plain:
            module = pyg_sar.DistributedDataParallel(module)
        inputs = Given(data)
        leaves = [inputs.x] if conv.graph == 'plain' else [inputs.of(t).x for t in data.x_dict]
        out = None
        for number in range(rounds):
            yield result
            if number == 0:
                ctypes.CDLL(None).malloc_trim(0)  # what the conv before has left
                memory = PeakMemory()
            for leaf in (*leaves, *module.parameters()):
                leaf.grad = None
            start, cpu_start = time.perf_counter(), time.process_time()
            try:
                out = conv.call(module, inputs)
                _squares(out).backward()
            except RuntimeError as error:
                if "can't allocate memory" not in str(error):
                    raise
                result = {'left_out': f'more than {PLAIN_BYTES >> 30} GiB in plain PyG'}
                continue
            out = None
            result = {
                'seconds': time.perf_counter() - start,
                'cpu_seconds': time.process_time() - cpu_start,
                'peak_bytes': memory.bytes(),
            }
    yield result


def _read(source: str, is_plain: bool) -> Any:
    if not is_plain:
        data = pyg_sar.load_shard(source)
        read_all(data)
        return data
    data = torch.load(source, weights_only=False)
    held = int(Path('/proc/self/statm').read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (held + PLAIN_BYTES, resource.RLIM_INFINITY))
    return data


def _squares(out: Any) -> Tensor:
    if isinstance(out, dict):
        return sum((_squares(value) for value in out.values()), torch.zeros(()))
    squares: Tensor = out.square().sum()
    return squares


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """Of every conv, plain PyG, one process and several in turn."""
    kinds = {CONVS[conv].graph for conv in args.convs}
    plain = {
        'sources': {kind: str(graph_file(args.graph, kind)) for kind in kinds},
        'threads': num_cores(),
        'is_plain': True,
    }
    measured = []
    with Team(layers, convs=args.convs, rounds=1, **plain) as team:
        for conv in tqdm(args.convs, desc='plain PyG alone', unit='conv'):
            (result,) = team.step()
            if result.get('seconds', 0) > PLAIN_SECONDS:
                result = {'left_out': f'more than {PLAIN_SECONDS:.0f} s in plain PyG'}
            if 'left_out' in result:
                yield {'conv': conv, **result}
            else:
                measured.append(conv)
    if args.convs == list(CONVS):
        yield from ({'conv': c, 'left_out': why} for c, why in WITHOUT_KERNELS.items())
    each = {'convs': measured, 'rounds': args.rounds + 1}
    with ExitStack() as stack:
        teams = {PLAIN: stack.enter_context(Team(layers, **each, **plain))}
        for processes in args.processes:
            sources = {kind: str(cut(args.graph, kind, processes)) for kind in kinds}
            threads = max(1, num_cores() // processes)
            ours = {'sources': sources, 'threads': threads, 'is_plain': False}
            teams[str(processes)] = stack.enter_context(Team(layers, processes, **each, **ours))
        for conv in tqdm(measured, unit='conv'):
            steps = take_turns(teams, args.rounds, progress=conv)
            yield {'conv': conv, 'variants': _variants(steps)}


def _variants(steps: dict[str, list[list[Row]]]) -> list[Row]:
    steps = {name: found[1:] for name, found in steps.items()}
    cpu = {n: [sum(r['cpu_seconds'] for r in step) for step in s] for n, s in steps.items()}
    wall = {name: slowest(found) for name, found in steps.items()}
    peaks = {name: [r['peak_bytes'] for r in found[-1]] for name, found in steps.items()}
    return [
        {
            'processes': 1 if name == PLAIN else int(name),
            'variant': PLAIN if name == PLAIN else 'pyg_sar',
            'cpu_seconds': summary(cpu[name]),
            'cpu_of_plain': ratios(cpu[name], cpu[PLAIN]),
            'seconds': summary(wall[name]),
            'of_plain': ratios(wall[name], wall[PLAIN]),
            'peak_bytes': peaks[name],
            # Where an allocator keeps memory, plain PyG may have no peak.
            'peak_of_plain': max(peaks[name]) / max(peaks[PLAIN]) if any(peaks[PLAIN]) else None,
        }
        for name in steps
    ]


def render(report: dict[str, Any]) -> dict[str, str]:
    measured = [row for row in report['rows'] if 'variants' in row]
    lines = []
    for row in measured:
        ours = row['variants'][1:]
        lines.append(
            [
                row['conv'],
                *('' if r['peak_of_plain'] is None else f'{r["peak_of_plain"]:.2f}' for r in ours),
            ]
        )
    counts = [r['processes'] for r in measured[0]['variants'][1:]] if measured else []
    header = ['conv', *(f'MiB, {n}' for n in counts)]
    out = [f'{r["conv"]} ({r["left_out"]})' for r in report['rows'] if 'left_out' in r]
    left_out = f'\n\nLeft out: {", ".join(out)}.' if out else ''
    known = {row['conv'] for row in report['rows']}
    missing = [name for name in (*CONVS, *WITHOUT_KERNELS) if name not in known]
    left_out += f'\n\nNot measured in this run: {", ".join(missing)}.' if missing else ''
    return {'table': table(header, lines) + left_out}


def draw(report: dict[str, Any], path: Path) -> None:
    measured = [row for row in report['rows'] if 'variants' in row]
    figure, axes = panels(1, 'CPU seconds of a conv, forward and backward, of plain PyG')
    counts = dict.fromkeys(r['processes'] for row in measured for r in row['variants'][1:])
    series = {
        f'{count} process{"es" if count > 1 else ""}': [
            next(
                r['cpu_of_plain']['median'] for r in row['variants'][1:] if r['processes'] == count
            )
            for row in measured
        ]
        for count in counts
    }
    figure.set_size_inches(max(7, 0.45 * len(measured)), 5)
    bars(axes[0], [row['conv'] for row in measured], series, digits=1)
    axes[0].tick_params(axis='x', rotation=90)
    axes[0].axhline(1, color='0.3', linewidth=1, linestyle='--')
    save(figure, path)


if __name__ == '__main__':
    Benchmark(HERE, SIZES, measure, render, draw, doc=__doc__).main()
