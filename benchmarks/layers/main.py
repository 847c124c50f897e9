"""Forward and backward of one layer on 1, 2 and 4 ranks against plain PyG on one process."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cached_graphs import ARXIV, TINY, cut, graph_file, read_all, sizes  # noqa: E402
from measured_training import num_cores  # noqa: E402
from plots import bars, panels, save  # noqa: E402
from process_memory import PeakMemory  # noqa: E402
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
from team import Team, slowest, take_turns  # noqa: E402
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, SAGEConv  # noqa: E402

import pyg_sar  # noqa: E402
from pyg_sar.memory import return_freed_memory  # noqa: E402

PLAIN = 'plain PyG'
CONVS = {
    'SAGE': lambda width: SAGEConv(width, 128),
    'GCN': lambda width: GCNConv(width, 128, cached=True),
    'GAT': lambda width: GATConv(width, 32, heads=4),
    'GATv2': lambda width: GATv2Conv(width, 32, heads=4),
}
SIZES: dict[str, dict[str, Any]] = {
    'full': {
        'graph': ARXIV,
        'convs': list(CONVS),
        'processes': [1, 2, 4],
        'mode': 'sequential',
        'rounds': 7,
    },
    'quick': {'convs': ['SAGE', 'GAT'], 'rounds': 5},
    'tiny': {'graph': TINY, 'processes': [1, 2], 'rounds': 2},
}


def layer(*, source: str, conv: str, mode: str | None) -> Iterator[dict[str, Any]]:
    """Forward and backward, again and again, with gradients of x and of the parameters."""
    if mode is None:
        data = torch.load(source, weights_only=False)
    else:
        data = pyg_sar.load_shard(source)
        read_all(data)
    torch.manual_seed(0)
    module = CONVS[conv](data.num_features)
    if mode is not None:
        return_freed_memory()  # as DistributedDataParallel does
        module = pyg_sar.SARConv(module, mode=mode)
    x = data.x.detach().clone().requires_grad_()
    memory = PeakMemory()
    result: dict[str, Any] = {}
    while True:
        yield result
        module.zero_grad()
        x.grad = None
        start = time.perf_counter()
        out = module(x, data.edge_index)
        out.square().sum().backward()
        result = {'seconds': time.perf_counter() - start, 'peak_bytes': memory.bytes()}
        del out
        result['gradients'] = [p.grad.flatten().tolist() for p in module.parameters()]


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """Of every conv, all numbers of ranks and plain PyG in turn."""
    size = sizes(args.graph)
    plain_source = str(graph_file(args.graph))
    for conv in tqdm(args.convs, unit='conv'):
        with ExitStack() as stack:
            teams = {
                PLAIN: stack.enter_context(
                    Team(layer, threads=num_cores(), source=plain_source, conv=conv, mode=None)
                )
            }
            for processes in args.processes:
                teams[str(processes)] = stack.enter_context(
                    Team(
                        layer,
                        processes,
                        threads=max(1, num_cores() // processes),
                        source=str(cut(args.graph, processes)),
                        conv=conv,
                        mode=args.mode,
                    )
                )
            steps = take_turns(teams, args.rounds, progress=conv)
        seconds = {name: slowest(found[1:]) for name, found in steps.items()}
        peaks = {n: [r['peak_bytes'] for r in found[-1]] for n, found in steps.items()}
        for name in teams:
            yield {
                'graph': args.graph,
                **size,
                'conv': conv,
                'processes': 1 if name == PLAIN else int(name),
                'variant': PLAIN if name == PLAIN else args.mode,
                'seconds': summary(seconds[name]),
                'of_plain': ratios(seconds[name], seconds[PLAIN]),
                'peak_bytes': peaks[name],
                'peak_of_plain': max(peaks[name]) / max(peaks[PLAIN]),
                'gradient_difference': _difference(steps[name][-1], steps[PLAIN][-1]),
            }


def _difference(ranks: list[dict[str, Any]], plain: list[dict[str, Any]]) -> float:
    """Of the parameters' gradients, summed over the ranks: the largest, of the largest entry.

    Raises:
        RuntimeError: If it is beyond what float32 explains.
    """
    worst = 0.0
    for number, expected in enumerate(plain[0]['gradients']):
        shares = torch.tensor([r['gradients'][number] for r in ranks], dtype=torch.float64)
        right = torch.tensor(expected, dtype=torch.float64)
        worst = max(worst, float((shares.sum(0) - right).abs().max() / right.abs().max()))
    if not worst <= 1e-3:
        raise RuntimeError(f'expected gradients equal to plain PyG (got a difference of {worst})')
    return worst


def render(report: dict[str, Any]) -> dict[str, str]:
    rows = report['rows']
    lines = []
    for r in rows:
        is_plain = r['variant'] == PLAIN
        mark = '' if is_plain else '**'
        lines.append(
            [
                r['conv'] if is_plain else '',
                PLAIN if is_plain else f'`{r["variant"]}`',
                r['processes'],
                show(r['seconds'], 3),
                f'{mark}{show(r["of_plain"])}{mark}',
                show_mib(r['peak_bytes']),
                f'{r["peak_of_plain"]:.2f}',
                f'{r["gradient_difference"]:.0e}',
            ]
        )
    header = ['conv', 'variant', 'ranks', 'seconds', 'of plain', 'peak MiB', 'of plain', 'grad off']
    head = f'`{rows[0]["graph"]}`: {show_size(rows[0])}, {rows[0]["num_features"]} features.'
    return {'table': f'{head}\n\n{table(header, lines)}'}


def draw(report: dict[str, Any], path: Path) -> None:
    rows = report['rows']
    convs = list(dict.fromkeys(r['conv'] for r in rows))
    figure, axes = panels(2, 'One layer, forward and backward, of plain PyG on one process')
    for axis, title, value in (
        (axes[0], 'time', lambda r: r['of_plain']['median']),
        (axes[1], 'peak memory of a process', lambda r: r['peak_of_plain']),
    ):
        counts = dict.fromkeys(r['processes'] for r in rows if r['variant'] != PLAIN)
        series: dict[str, list[float | None]] = {}
        for count in counts:
            of = {
                r['conv']: value(r)
                for r in rows
                if r['variant'] != PLAIN and r['processes'] == count
            }
            series[f'{count} rank{"s"[: count > 1]}'] = [of.get(conv) for conv in convs]
        bars(axis, convs, series)
        axis.axhline(1, color='0.3', linewidth=1, linestyle='--')
        axis.set_title(title, fontsize=10)
    save(figure, path)


if __name__ == '__main__':
    Benchmark(HERE, SIZES, measure, render, draw, doc=__doc__).main()
