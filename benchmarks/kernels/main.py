"""The kernels of a block against index_add, a CSR product and the memory bandwidth."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cached_graphs import ARXIV, TINY, cut  # noqa: E402
from machine_limits import Run, Stream, seconds_of  # noqa: E402
from plots import bars, panels, save  # noqa: E402
from registry import JOBS, Job, Work, kernels  # noqa: E402
from report import Benchmark, Row, ratios, show, summary, table  # noqa: E402

import pyg_sar  # noqa: E402

CSR = 'sparse.mm CSR'
SIZES: dict[str, dict[str, Any]] = {
    'full': {
        'graph': ARXIV,
        'parts': [1, 4],
        'features': [32, 128, 256],
        'threads': [1, 2],
        'rounds': 9,
        'stream_mib': 256,
    },
    'quick': {'features': [128], 'rounds': 5},
    'tiny': {'graph': TINY, 'parts': [4], 'features': [32], 'rounds': 2, 'stream_mib': 8},
}


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """Every cell: our kernel, its peers, a copy and a triad, one after another, `rounds` times."""
    found = kernels()
    measured = {job.kernel for job in JOBS.values()}
    for name in sorted(found.keys() - measured):
        print(f'note: {name} has no entry in registry.py', file=sys.stderr)
    cells = [
        (parts, name, direction, features, threads)
        for parts in args.parts
        for name, job in JOBS.items()
        if job.kernel in found
        for direction in job.directions
        for features in args.features
        for threads in args.threads
    ]
    stream = Stream(args.stream_mib << 20)
    for parts, name, direction, features, threads in tqdm(cells, unit='cell'):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        job = JOBS[name]
        work = _work(args.graph, parts, features, direction)
        runs = {job.kernel: job.ours(work, found[job.kernel])}
        runs |= {peer: make(work) for peer, make in job.peers.items()}
        _check(runs, job)
        seconds = _take_turns({**runs, **stream.runs()}, args.rounds)
        peer = next(iter(job.peers))
        triad = stream.triad_bytes / min(seconds['triad'])
        yield {
            'graph': args.graph,
            'parts': parts,
            'num_rows': work.num_rows,
            'num_edges': work.rows.numel(),
            'job': name,
            'direction': direction,
            'features': features,
            'threads': threads,
            'bytes': job.num_bytes(work),
            'copy_bytes_per_second': stream.copy_bytes / min(seconds['copy']),
            'triad_bytes_per_second': triad,
            'kernel': job.kernel,
            'peer': peer,
            'seconds': {run: summary(seconds[run]) for run in runs},
            'of_peer': {run: ratios(seconds[run], seconds[peer]) for run in runs},
            'of_triad': {run: job.num_bytes(work) / min(seconds[run]) / triad for run in runs},
        }


def _work(graph: str, parts: int, features: int, direction: str) -> Work:
    """The block of part 0 with itself; with one part, the whole graph."""
    data = pyg_sar.load_shard(cut(graph, parts), rank=0)
    num_own = data.edge_index.handle.shard.num_own
    start, end = data.edge_index.handle.shard.block_ptr[:2]
    src, dst = data.edge_index.as_subclass(Tensor)[:, start:end]
    if direction == 'forward':
        return Work(dst, src, num_own, num_own, features, is_sorted=True)
    return Work(src, dst, num_own, num_own, features, is_sorted=False)


def _check(runs: dict[str, Run], job: Job) -> None:
    expected = runs[job.kernel]()
    for name, run in runs.items():
        # float32 sums in another order
        torch.testing.assert_close(
            run(), expected, rtol=1e-4, atol=1e-3, msg=lambda text, name=name: f'{name}: {text}'
        )


def _take_turns(runs: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    found = [seconds_of(runs) for _ in range(rounds)]
    return {name: [seconds[name] for seconds in found] for name in runs}


def render(report: dict[str, Any]) -> dict[str, str]:
    """One width and number of threads: the picture and results.json have all."""
    rows = report['rows']
    parts, threads = min(r['parts'] for r in rows), max(r['threads'] for r in rows)
    widths = {r['features'] for r in rows}
    features = 128 if 128 in widths else max(widths)
    lines = [
        [
            r['job'],
            r['direction'],
            f'`{r["kernel"]}`',
            show(r['seconds'][r['kernel']], 1, 1e3),
            show(r['of_peer'][r['kernel']]),
            show(r['of_peer'][CSR]) if CSR in r['of_peer'] else '',
            f'{r["of_triad"][r["kernel"]]:.0%}',
        ]
        for r in rows
        if (r['parts'], r['threads'], r['features']) == (parts, threads, features)
    ]
    header = ['job', 'direction', 'kernel', 'ms', 'of the first peer', 'CSR, of it', 'of triad']
    limits = []
    for count in sorted({r['threads'] for r in rows}):
        of = [r for r in rows if r['threads'] == count]
        best = [max(r[f'{k}_bytes_per_second'] for r in of) / 1e9 for k in ('copy', 'triad')]
        limits.append([count, *(f'{value:.1f}' for value in best)])
    head = f'{features} columns, {parts} part, {threads} threads:'
    return {
        'table': f'{head}\n\n{table(header, lines)}',
        'limits': table(['threads', 'copy, GB/s', 'triad, GB/s'], limits),
    }


def draw(report: dict[str, Any], path: Path) -> None:
    """Of every job the kernel and its peers, forward, on all threads."""
    rows = report['rows']
    threads = max(r['threads'] for r in rows)
    rows = [r for r in rows if r['threads'] == threads and r['direction'] == 'forward']
    jobs = list(dict.fromkeys(r['job'] for r in rows))
    title = f'Seconds of a block, of the first peer (forward, threads: {threads})'
    figure, axes = panels(len(jobs), title)
    for axis, job in zip(axes, jobs, strict=True):
        of = [r for r in rows if r['job'] == job]
        groups = [f'1 of {r["parts"]}\nF {r["features"]}' for r in of]
        names = list(of[0]['seconds'])
        bars(axis, groups, {n: [r['of_peer'][n]['median'] for r in of] for n in names})
        axis.set_title(job, fontsize=10)
    save(figure, path)


if __name__ == '__main__':
    Benchmark(HERE, SIZES, measure, render, draw, doc=__doc__).main()
