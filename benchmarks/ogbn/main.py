"""Node datasets, full batch: accuracy, time and memory of every process, beside plain PyG."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cached_graphs import CACHE, read_all  # noqa: E402
from configs import CONFIGS, SHIPPED, Config  # noqa: E402
from datasets import check_name, load  # noqa: E402
from measured_training import num_cores  # noqa: E402
from metrics import mean_roc_auc  # noqa: E402
from models import inputs, make_model  # noqa: E402
from plots import COLORS, panels, save  # noqa: E402
from process_memory import PeakMemory  # noqa: E402
from report import Benchmark, Row, show_size, table  # noqa: E402
from team import Team, slowest  # noqa: E402
from torch_geometric.data import HeteroData  # noqa: E402

import pyg_sar  # noqa: E402

PLAIN, OURS = 'plain PyG', 'pyg_sar'
SIZES: dict[str, dict[str, Any]] = {
    'full': {
        'datasets': ['arxiv', 'products', 'proteins', 'mag'],
        'scale': 1.0,
        'num_nodes': 0,
        'processes': 2,
        'epochs': 0,
        'layers': 0,
        'mode': 'sequential',
        'plain': False,
        'root': str(CACHE / 'ogb'),
    },
    'quick': {'datasets': list(SHIPPED), 'plain': True},
    'tiny': {
        'datasets': [f'synthetic:{name}' for name in CONFIGS],
        'scale': 0.0,
        'num_nodes': 100,
        'epochs': 2,
        'layers': 2,
    },
}


def train(
    *, source: str, config: Config, mode: str | None, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """One epoch after another; plain PyG on a .pt file where `mode` is None."""
    if mode is None:
        data = torch.load(source, weights_only=False)
    else:
        data = pyg_sar.load_shard(source)
        read_all(data)
    nodes = data['paper'] if isinstance(data, HeteroData) else data
    torch.manual_seed(seed)
    model = make_model(config, data)
    if mode is not None:
        model = pyg_sar.DistributedDataParallel(model, mode=mode)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)

    memory = PeakMemory()
    result: dict[str, Any] = {'before_bytes': memory.before}
    epoch = 0
    while True:
        yield result
        memory.restart()  # of training, without the evaluation
        start = time.perf_counter()
        model.train()
        out = model(*inputs(data))
        known, y = out[nodes.train_mask], nodes.y[nodes.train_mask]
        is_many = y.dim() == 2  # tasks
        loss = (F.binary_cross_entropy_with_logits if is_many else F.cross_entropy)(known, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        result = {'loss': loss.item(), 'seconds': time.perf_counter() - start}
        result['peak_bytes'] = memory.bytes()
        del out, known, loss
        epoch += 1
        if epoch % config.eval_every == 0 or epoch == config.epochs:
            model.eval()
            with torch.no_grad():
                out = model(*inputs(data))
            for name in ('val', 'test'):
                mask = nodes[f'{name}_mask']
                if nodes.y.dim() == 2:
                    result[name] = mean_roc_auc(*pyg_sar.local((out[mask], nodes.y[mask])))
                else:
                    result[name] = (out.argmax(dim=-1) == nodes.y)[mask].float().mean().item()


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """Of every dataset: pyg_sar, and with --plain plain PyG in turn with it."""
    for name in args.datasets:
        check_name(name)
        config = {**CONFIGS, **SHIPPED}[name.rpartition(':')[2]]
        scale = 1.0
        if name.startswith('synthetic:'):
            scale = args.scale or min(1.0, args.num_nodes / config.num_nodes)
        graph, folder, sizes = _prepare(name, scale, args)
        config = replace(
            config, epochs=args.epochs or config.epochs, layers=args.layers or config.layers
        )
        options: dict[str, Any] = {'config': config}
        with ExitStack() as stack:
            ours = Team(
                train,
                args.processes,
                threads=max(1, num_cores() // args.processes),
                source=str(folder),
                mode=args.mode,
                **options,
            )
            teams = {OURS: stack.enter_context(ours)}
            if args.plain:
                plain = Team(train, threads=num_cores(), source=str(graph), mode=None, **options)
                teams[PLAIN] = stack.enter_context(plain)
            steps: dict[str, list[list[Row]]] = {variant: [] for variant in teams}
            for _ in tqdm(range(config.epochs), desc=name, unit='epoch'):
                for variant, team in teams.items():
                    steps[variant].append(team.step())
        for variant, found in steps.items():
            first = [step[0] for step in found]
            yield {
                'dataset': name,
                'scale': scale,
                **sizes,
                'model': config.model,
                'layers': config.layers,
                'hidden': config.hidden,
                'epochs': config.epochs,
                'reference': config.reference,
                'metric': 'ROC-AUC' if config.model == 'gen' else 'accuracy',
                'variant': variant,
                'processes': len(found[0]),
                'peak_bytes': [rank['peak_bytes'] for rank in found[-1]],
                'seconds': slowest(found),
                'loss': [step['loss'] for step in first],
                'evaluated': [i for i, step in enumerate(first) if 'val' in step],
                'val': [step['val'] for step in first if 'val' in step],
                'test': [step['test'] for step in first if 'val' in step],
            }


def _prepare(
    name: str, scale: float, args: argparse.Namespace
) -> tuple[Path, Path, dict[str, int]]:
    """A .pt file with the graph and a partition folder, both kept."""
    size = f'-{scale:.3g}' if name.startswith('synthetic:') else ''
    root = CACHE / f'ogbn-{name.replace(":", "-")}{size}'
    graph, folder = root / 'graph.pt', root / f'parts{args.processes}'
    if graph.exists():
        data = torch.load(graph, weights_only=False)
    else:
        data = load(name, args.root, scale=scale, seed=0)
        root.mkdir(parents=True, exist_ok=True)
        torch.save(data, graph)
    if not folder.exists():
        pyg_sar.partition_graph(data, args.processes, folder, seed=0)
    return graph, folder, {'num_nodes': data.num_nodes, 'num_edges': data.num_edges}


def _best(row: Row) -> int:
    return max(range(len(row['val'])), key=lambda i: row['val'][i])


def render(report: dict[str, Any]) -> dict[str, str]:
    header = ['dataset', 'variant', 'processes', 'last loss', 'val', 'test']
    sizes = {r['dataset']: f'{r["dataset"]}: {show_size(r)}.' for r in report['rows']}
    lines = []
    for r in report['rows']:
        best = _best(r)
        lines.append(
            [
                r['dataset'] + (f', {r["metric"]}' if r['metric'] != 'accuracy' else ''),
                r['variant'],
                r['processes'],
                f'{r["loss"][-1]:.5f}',
                f'{r["val"][best]:.4f}',
                f'{r["test"][best]:.4f}',
            ]
        )
    return {'table': f'{" ".join(sizes.values())}\n\n{table(header, lines)}'}


def settings() -> str:
    """The configurations, as a table."""
    rows = [
        [
            name,
            c.model,
            f'{c.layers} x {c.hidden}',
            c.dropout,
            'yes' if c.has_norm else 'no',
            c.lr,
            c.epochs,
            c.reference,
        ]
        for name, c in {**CONFIGS, **SHIPPED}.items()
    ]
    header = ['dataset', 'model', 'layers', 'dropout', 'norms', 'lr', 'epochs', 'after']
    return table(header, rows)


def draw(report: dict[str, Any], path: Path) -> None:
    figure, (left, right) = panels(2, 'Node datasets, full batch')
    for number, r in enumerate(report['rows']):
        style = {
            'color': COLORS[number % len(COLORS)],
            'linestyle': '--' if r['variant'] == PLAIN else '-',
            'label': f'{r["dataset"]}, {r["variant"]}',
        }
        times = torch.tensor(r['seconds']).cumsum(0)[r['evaluated']]
        left.plot(times, r['val'], **style)
        right.plot([epoch + 1 for epoch in r['evaluated']], r['val'], **style)
    for axis, text in ((left, 'seconds of training'), (right, 'epoch')):
        axis.set_xlabel(text)
        axis.set_ylabel('validation metric')
    left.set_xscale('log')
    right.legend(frameon=False, fontsize=7)
    save(figure, path)


if __name__ == '__main__':
    Benchmark(
        HERE, SIZES, measure, render, draw, doc=__doc__, static={'settings': settings()}
    ).main()
