"""How much memory a process needs to train a GNN, against the number of processes.

Writes results.json and memory.png beside this file (with --model gat: results_gat.json,
memory_gat.png) and prints the tables of README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import pyg_sar
from pyg_sar.partition.masks import random_split
from pyg_sar.shard.meta import read_meta

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cached_graphs import make  # noqa: E402
from measured_training import run_training  # noqa: E402
from processors import processor_of  # noqa: E402
from report import environment, table  # noqa: E402

MODES = ('sequential', 'sequential_no_remat', 'one_shot')
PLAIN, PLAIN_CSR = 'plain PyG', 'plain PyG, CSR'
MALLOC = {
    'default': {},
    # glibc keeps freed blocks below a threshold that grows up to 32 MiB; fixed at 1 MiB, what is
    # left is what the tensors need.
    '1 MiB': {'MALLOC_MMAP_THRESHOLD_': str(1 << 20)},
}

Result = dict[str, Any]


def main() -> None:
    args = _parse()
    settings = {k: vars(args)[k] for k in ('model', 'hidden', 'layers', 'epochs', 'lr', 'seed')}
    report: Result = {'environment': _environment(), 'settings': settings}
    report.update(cuts={}, results=[])
    name = '' if args.model == 'sage' else f'_{args.model}'
    out = Path(args.out) if args.out else None
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for result in measure(args, Path(folder), report['cuts']):
            report['results'].append(result)
            if out is not None:  # after every run: all of them take long
                path = out / f'results{name}.json'
                path.write_text(json.dumps(report, indent=1) + '\n')
    print_tables(report['results'], processor_of(report))
    if out is not None:
        plot(report['results'], out / f'memory{name}.png', args.model)


def measure(args: argparse.Namespace, folder: Path, cuts: Result) -> Iterator[Result]:
    """Runs every cell of the table, one after another; fills `cuts` with the graphs' blocks."""
    plains = [PLAIN, PLAIN_CSR] if args.model == 'sage' else [PLAIN]
    cells = [(mode, 1) for mode in plains]
    cells += [(mode, processes) for processes in args.processes for mode in args.modes]
    bar = tqdm(total=len(args.graphs) * len(args.malloc) * len(cells), unit='run')
    for graph in args.graphs:
        bar.set_description(f'{graph}: partitioning')
        sizes = _prepare(graph, args, folder)
        cuts[graph] = {str(p): cut_of(folder / f'parts{p}') for p in args.processes}
        plain: Result = {}
        for malloc in args.malloc:
            for mode, processes in cells:
                bar.set_description(f'{graph}: {mode}, {processes} processes, malloc {malloc}')
                source: Result = {'shards': folder / f'parts{processes}', 'mode': mode}
                if mode in plains:
                    source = {'graph': folder / 'graph.pt', 'csr': int(mode == PLAIN_CSR)}
                found = run_training(
                    processes=processes,
                    environment=MALLOC[malloc],
                    **source,
                    model=args.model,
                    hidden=args.hidden,
                    layers=args.layers,
                    epochs=args.epochs,
                    lr=args.lr,
                    seed=args.seed,
                )
                plain = found if mode == PLAIN else plain
                yield _result(graph, sizes, malloc, mode, processes, found, plain)
                bar.update()
    bar.close()


def _prepare(graph: str, args: argparse.Namespace, folder: Path) -> Result:
    """Writes graph.pt and one partition folder for every number of processes."""
    data = make(graph, args.seed)
    if 'train_mask' not in data:
        data.update(random_split(data.y, data.num_nodes, (0.6, 0.2, 0.2), seed=args.seed))
    torch.save(data, folder / 'graph.pt')
    for p in args.processes:
        pyg_sar.partition_graph(data, p, folder / f'parts{p}', seed=args.seed, force=True)
    return {
        'num_nodes': data.num_nodes,
        'num_edges': data.num_edges,
        'num_features': data.num_features,
        'num_classes': data.num_classes,
    }


def cut_of(parts: Path) -> Result:
    """What META.json says of the blocks."""
    meta = read_meta(parts)
    (nodes,), (edges,) = meta.nodes.values(), meta.edges.values()
    return {
        'part_num_nodes': nodes.part_num_nodes,
        'halo_rows': edges.halo_rows,
        'block_edges': edges.block_edges,
    }


def _result(
    graph: str, sizes: Result, malloc: str, mode: str, processes: int, found: Result, plain: Result
) -> Result:
    later = found['seconds'][1:] or found['seconds']  # the first epoch also builds plans
    pairs = zip(found['losses'], plain['losses'], strict=True)
    return {
        'graph': graph,
        **sizes,
        'mode': mode,
        'processes': processes,
        'threads_per_process': found['threads'],
        'malloc_mmap_threshold': malloc,
        'peak_bytes_max': max(found['peak_bytes']),
        'peak_bytes_mean': round(statistics.mean(found['peak_bytes'])),
        'peak_of_plain': max(found['peak_bytes']) / max(plain['peak_bytes']),
        'held_before_bytes_max': max(found['before_bytes']),
        'seconds_per_epoch': {
            'median': statistics.median(later),
            'min': min(later),
            'max': max(later),
            'epochs': len(later),
        },
        'losses': found['losses'],
        'max_loss_difference_from_plain': max(abs(a - b) for a, b in pairs),
    }


def print_tables(results: list[Result], processor: str) -> None:
    """One table for every graph and malloc setting, in Markdown."""
    print(f'Processor: {processor}')
    counts = sorted({r['processes'] for r in results})
    for graph, malloc in dict.fromkeys((r['graph'], r['malloc_mmap_threshold']) for r in results):
        print(f'\n{graph}, malloc threshold {malloc}: MiB by number of processes\n')
        print(table(['mode', *map(str, counts)], _lines(results, counts, graph, malloc)))


def _lines(results: list[Result], counts: list[int], graph: str, malloc: str) -> list[list[str]]:
    peaks = {
        (r['mode'], r['processes']): f'{r["peak_bytes_max"] / 2**20:,.0f}'
        for r in results
        if (r['graph'], r['malloc_mmap_threshold']) == (graph, malloc)
    }
    modes = dict.fromkeys(mode for mode, _ in peaks)
    return [[mode, *(peaks.get((mode, count), '') for count in counts)] for mode in modes]


def plot(results: list[Result], path: Path, model: str) -> None:
    """Peak memory of a process against the number of processes, one picture for every graph."""
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    malloc = results[0]['malloc_mmap_threshold']
    results = [r for r in results if r['malloc_mmap_threshold'] == malloc]
    graphs = list(dict.fromkeys(r['graph'] for r in results))
    width = max(5.8 * len(graphs), 7.5)  # room for the title
    figure, axes = plt.subplots(1, len(graphs), figsize=(width, 4.8), squeeze=False)
    for axis, graph in zip(axes[0], graphs, strict=True):
        _draw_graph(axis, [r for r in results if r['graph'] == graph])
    axes[0][0].set_ylabel('peak memory of a process while training, MiB\n(largest of the ranks)')
    axes[0][0].legend(frameon=False, fontsize=8.5, loc='lower left')
    name = {'sage': '3-layer GraphSAGE', 'gat': '3-layer GAT, 4 heads'}[model]
    figure.suptitle(f'{name}, full batch: memory against the number of processes')
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    print(f'wrote {path}')


_LINES = {
    'one_shot': ('#c44e52', 's'),
    'sequential_no_remat': ('#dd8452', '^'),
    'sequential': ('#1f5fa8', 'o'),
}
_LEVELS = {
    PLAIN: ('0.25', 'plain PyG on edge_index, 1 process', 4, 'bottom'),
    PLAIN_CSR: ('0.55', 'plain PyG on a sparse matrix, 1 process', -4, 'top'),
}


def _draw_graph(axis: Any, rows: list[Result]) -> None:
    counts = sorted({r['processes'] for r in rows})
    peaks = {(r['mode'], r['processes']): r['peak_bytes_max'] / 2**20 for r in rows}
    for mode, (color, text, offset, side) in _LEVELS.items():
        level = peaks.get((mode, 1))
        if level is None:
            continue
        axis.axhline(level, color=color, linewidth=1.3, linestyle='--')
        axis.annotate(
            f'{text}: {level:,.0f} MiB',
            (counts[-1], level),
            (0, offset),
            textcoords='offset points',
            ha='right',
            va=side,
            fontsize=8.5,
            color=color,
        )
    for mode, (color, marker) in _LINES.items():
        points = [(p, peaks[mode, p]) for p in counts if (mode, p) in peaks]
        if points:
            axis.plot(*zip(*points, strict=True), color=color, marker=marker, label=mode)
        if points and mode == 'sequential':
            ideal = [points[0][1] * points[0][0] / p for p in counts]
            axis.plot(counts, ideal, color=color, linewidth=1, linestyle=':', label='ideal, 1/P')
            for p, peak in points:
                axis.annotate(
                    f'{peak:,.0f}\n({peak / peaks[PLAIN, 1]:.0%})',
                    (p, peak),
                    (0, -9),
                    textcoords='offset points',
                    ha='center',
                    va='top',
                    fontsize=8,
                    color=color,
                    bbox={'facecolor': 'white', 'edgecolor': 'none', 'alpha': 0.8, 'pad': 0.5},
                )
    axis.set_xscale('log', base=2)
    axis.set_yscale('log')
    axis.set_xticks(counts)
    axis.xaxis.set_major_formatter('{x:.0f}')
    low, high = axis.get_ylim()
    axis.set_ylim(low / 1.7, high * 1.3)
    axis.set_xlim(counts[0] / 1.2, counts[-1] * 1.2)
    axis.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
    axis.yaxis.set_major_formatter('{x:,.0f}')
    axis.yaxis.set_minor_formatter('')
    axis.grid(True, which='major', alpha=0.3)
    axis.set_xlabel('processes (one part each)')
    graph = rows[0]
    axis.set_title(
        f'{graph["graph"]}\n{graph["num_nodes"]:,} nodes, {graph["num_edges"]:,} edges',
        fontsize=10.5,
    )


def _environment() -> Result:
    found = environment()
    found['load_average_at_start'] = found.pop('load_at_start')
    return found


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--model', choices=['sage', 'gat'], default='sage')
    parser.add_argument('--hidden', type=int, help='default: 256, of gat 128 (4 heads x 32)')
    parser.add_argument('--layers', type=int, default=3)
    parser.add_argument('--epochs', type=int, default=6)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--graphs', nargs='+', default=['wordnet-noun', 'synthetic:arxiv'])
    parser.add_argument('--processes', nargs='+', type=int, default=[1, 2, 4, 8])
    parser.add_argument('--modes', nargs='+', choices=MODES, default=list(MODES))
    parser.add_argument('--malloc', nargs='+', choices=MALLOC, default=list(MALLOC))
    parser.add_argument('--folder', help='where graphs are written meanwhile (up to 1 GiB)')
    parser.add_argument('--out', default=str(HERE), help="folder of the results; '' for none")
    parser.add_argument(
        '--quick', action='store_true', help='a small run of a minute, for trying; writes nothing'
    )
    args = parser.parse_args()
    if args.quick:
        args.graphs, args.processes, args.malloc = ['wordnet-noun'], [1, 2, 4], ['default']
        args.modes, args.epochs, args.out = ['sequential'], 3, ''
        args.hidden = args.hidden or 64
    args.hidden = args.hidden or {'sage': 256, 'gat': 128}[args.model]
    return args


if __name__ == '__main__':
    try:
        main()
    except (RuntimeError, ValueError) as error:
        sys.exit(f'error: {error}')
    except KeyboardInterrupt:
        sys.exit('interrupted')
