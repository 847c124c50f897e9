"""Cuts a real graph into 4 parts and trains on it twice: plain PyG on 1 process, pyg_sar on 4.

Both start from the same weights. Prints losses and accuracies side by side, seconds per epoch and
the memory of every process, and draws them. Ends with an error if the two trainings differ.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / 'benchmarks'))

try:
    import torch
    from measured_training import make_model, num_cores, run_training

    import pyg_sar
    from pyg_sar.nn.options import Mode
    from pyg_sar.partition.masks import random_split
    from pyg_sar.partition.sources import load_source
except ImportError as error:
    sys.exit(f"error: {error}; 'make demo' in a clone installs all that the demo needs")

TOLERANCE = 1e-3
GREY, BLUE, ORANGE = '#4d4d4d', '#1f77b4', '#d95f02'

Run = dict[str, Any]


def main() -> None:
    args = _parse()
    start = time.perf_counter()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    _say(f'1. Cut {Path(args.graph).stem} into {args.num_parts} parts')
    _prepare(args, out)

    _say(f'2. Train {args.layers}-layer GraphSAGE, hidden {args.hidden}, from the same weights')
    plain_name, name = 'plain PyG, 1 process', f'pyg_sar, {args.num_parts} processes'
    width = max(len(plain_name), len(name))
    options = {
        'hidden': args.hidden,
        'layers': args.layers,
        'epochs': args.epochs,
        'lr': args.lr,
        'weights': out / 'weights.pt',
        'accuracy': 1,
    }
    plain = run_training(graph=out / 'graph.pt', progress=plain_name.ljust(width), **options)
    (out / 'graph.pt').unlink()
    sar = run_training(
        processes=args.num_parts,
        shards=out / 'parts',
        mode=args.mode,
        progress=name.ljust(width),
        **options,
    )

    _say('3. Compare')
    for line in _table({plain_name: plain, name: sar}):
        print(line)
    pairs = list(zip(plain['losses'], sar['losses'], strict=True))
    difference = max(abs(a - b) for a, b in pairs)
    relative = max(abs(a - b) / a for a, b in pairs)
    print(f'\nlargest difference of the losses: {difference:.1e} ({relative:.1e} of the loss)')
    print(f'\n{"":{width}}  s per epoch  peak memory of each process while training, MiB')
    for label, run in {plain_name: plain, name: sar}.items():
        peaks = '  '.join(f'{peak:5,.0f}' for peak in _mib(run))
        print(f'{label:{width}}  {statistics.median(run["seconds"]):11.2f}  {peaks}')
    print(
        f'({num_cores()} cores shared by all processes; memory beyond the loaded process: data, '
        'model and libraries)'
    )

    if find_spec('matplotlib') is None:
        written = "nothing: 'pip install matplotlib' gives a picture"
    else:
        written = str(out / 'demo.png')
        _draw({plain_name: plain, name: sar}, args, written)
    print(f'\nwrote {written}, after {time.perf_counter() - start:.0f} s')
    train = f'torchrun --nproc-per-node {args.num_parts} examples/train_full_batch.py'
    print(f'to train on the same parts: {train} {out / "parts"}')
    if not difference <= TOLERANCE:
        sys.exit(f'error: the losses differ by {difference:.1e}, more than {TOLERANCE}')


def _prepare(args: argparse.Namespace, out: Path) -> None:
    """Writes graph.pt and weights.pt, and the partition folder parts/."""
    data = load_source(args.graph)
    data.num_classes = int(data.y.max()) + 1
    if 'train_mask' not in data:
        data.update(random_split(data.y, data.num_nodes, (0.6, 0.2, 0.2), seed=args.seed))
    torch.save(data, out / 'graph.pt')
    summary = pyg_sar.partition_graph(
        data, args.num_parts, out / 'parts', seed=args.seed, force=True, progress=True
    )
    print(summary)
    torch.manual_seed(args.seed)
    model = make_model('sage', data.num_features, args.hidden, args.layers, data.num_classes)
    torch.save(model.state_dict(), out / 'weights.pt')


def _table(runs: dict[str, Run]) -> Iterator[str]:
    """Loss and accuracies of both trainings, epoch by epoch, and the difference of the losses."""
    columns = ''.join(f'{name:>8}' for name in ('loss', 'train', 'val', 'test'))
    yield ' ' * 5 + ''.join(f'   {name:^32}' for name in runs) + f'{"loss":>13}'
    yield 'epoch' + f'   {columns}' * 2 + f'{"difference":>13}'
    for epoch, losses in enumerate(zip(*(run['losses'] for run in runs.values()), strict=True)):
        line = f'{epoch + 1:5}'
        for run in runs.values():
            values = [run['losses'], *run['accuracies'].values()]
            line += '   ' + ''.join(f'{value[epoch]:8.4f}' for value in values)
        yield line + f'{losses[1] - losses[0]:+13.1e}'


def _draw(runs: dict[str, Run], args: argparse.Namespace, path: str) -> None:
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10.5, 4.3), gridspec_kw={'width_ratios': [1.5, 1]}
    )
    epochs = range(1, args.epochs + 1)
    (plain_name, plain), (name, sar) = runs.items()
    accuracy = left.twinx()
    marker = 'o' if args.epochs == 1 else None
    lines = []
    for axis, label, color, value in (
        (left, 'loss', BLUE, lambda run: run['losses']),
        (accuracy, 'validation accuracy', ORANGE, lambda run: run['accuracies']['val']),
    ):
        # The wide grey line shows on both sides of the thin one where they agree.
        wide = {'color': '0.75', 'linewidth': 6, 'markersize': 12, 'marker': marker}
        grey = axis.plot(epochs, value(plain), solid_capstyle='round', label=plain_name, **wide)
        style = {'color': color, 'linewidth': 1.6, 'marker': marker}
        lines += axis.plot(epochs, value(sar), label=f'{name}: {label}', **style)
        axis.set_ylabel(label, color=color)
    left.set_xlabel('epoch')
    left.xaxis.get_major_locator().set_params(integer=True)
    left.set_title('the same training')
    left.set_ylim(bottom=0)
    accuracy.set_ylim(0, 1.05)

    labels = ['plain PyG\n1 process', *(f'rank {r}' for r in range(args.num_parts))]
    peaks = [*_mib(plain), *_mib(sar)]
    bars = right.bar(labels, peaks, color=[GREY, *[BLUE] * args.num_parts], width=0.7)
    right.bar_label(bars, [f'{peak:,.0f}' for peak in peaks], padding=2)
    right.set_ylabel('peak memory while training, MiB')
    right.set_ylim(top=1.1 * max(peaks))
    right.set_title(f'{max(_mib(sar)) / peaks[0]:.0%} of the memory in each process')
    for axis in (left, accuracy, right):
        axis.spines['top'].set_visible(False)
    right.spines['right'].set_visible(False)
    graph = Path(args.graph).stem
    figure.suptitle(f'{args.layers}-layer GraphSAGE, hidden {args.hidden}, full batch on {graph}')
    # Below both: over the curves there is no place that is free for any number of epochs.
    figure.legend(handles=[*grey, *lines], frameon=False, loc='lower center', ncols=3)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _mib(run: Run) -> list[float]:
    return [peak / 2**20 for peak in run['peak_bytes']]


def _say(text: str) -> None:
    print(f'\n{text}\n', flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    graph = str(HERE / 'data' / 'wordnet_noun.npz')
    parser.add_argument('--graph', default=graph, help='a file, or another source')
    parser.add_argument('--num-parts', type=int, default=4, help='parts, and processes')
    parser.add_argument('--hidden', type=int, default=128)
    parser.add_argument('--layers', type=int, default=3)
    parser.add_argument('--epochs', type=int, default=25)
    parser.add_argument('--lr', type=float, default=0.003)
    parser.add_argument('--mode', choices=get_args(Mode), default='sequential')
    parser.add_argument('--seed', type=int, default=0, help='of the split, METIS and the weights')
    parser.add_argument('--out', default=str(HERE / 'out'), help='default: %(default)s')
    return parser.parse_args()


if __name__ == '__main__':
    try:
        main()
    except (RuntimeError, ValueError, OSError) as error:
        sys.exit(f'error: {error}')
    except KeyboardInterrupt:
        sys.exit('\ninterrupted')
