"""Accuracy against seconds of training: full batches, sampled ones, and first these, then those."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cached_graphs import TINY, WORDNET, cut, graph_file, sizes  # noqa: E402
from measured_training import make_model, num_cores  # noqa: E402
from plots import COLORS, panels, save  # noqa: E402
from process_memory import PeakMemory  # noqa: E402
from report import Benchmark, Row, show_mib, show_size, table  # noqa: E402
from sampled import train_on_batches  # noqa: E402
from sampler import Batch, NeighborSampler  # noqa: E402
from team import Team  # noqa: E402
from torch import Tensor  # noqa: E402
from torch_geometric.data import Data  # noqa: E402
from torch_geometric.loader import NeighborLoader  # noqa: E402
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE  # noqa: E402
from training import PLAIN, training_team  # noqa: E402

SAMPLING, OURS = 'neighbour sampling', 'pyg_sar'
SAMPLED, BOTH = 'pyg_sar, sampled', 'pyg_sar, sampled first'
LEVELS = (0.9, 0.95, 0.99)
SIZES: dict[str, dict[str, Any]] = {
    'full': {
        'graph': WORDNET,
        'processes': 2,
        'hidden': 256,
        'layers': 3,
        'lr': 0.01,
        'sampling_lr': 0.003,
        'fan_outs': [15, 10, 5],
        'batch_size': 1024,
        'sampled_epochs': 2,
        'target': 0.9445,
        'seconds': 120.0,
    },
    'quick': {'seconds': 30.0},
    'tiny': {'graph': TINY, 'hidden': 16, 'fan_outs': [4, 3, 2], 'batch_size': 256, 'seconds': 0.5},
}


def train_by_sampling(
    *,
    source: str,
    hidden: int,
    layers: int,
    lr: float,
    fan_outs: list[int],
    batch_size: int,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """One epoch over all training nodes after another, evaluated on the whole graph."""
    data: Data = torch.load(source, weights_only=False)
    torch.manual_seed(seed)
    model = make_model('sage', data.num_features, hidden, layers, data.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    batches = _batches(data, fan_outs, batch_size, seed)
    memory = PeakMemory()
    result: dict[str, Any] = {'before_bytes': memory.before, 'sampler': _sampler_name()}
    while True:
        yield result
        memory.restart()  # of training: the inference between epochs is the same for all
        start = time.perf_counter()
        model.train()
        total, count = 0.0, 0
        for batch in batches():
            out = model(
                data.x[batch.n_id],
                batch.edge_index,
                num_sampled_nodes_per_hop=batch.nodes_per_hop,
                num_sampled_edges_per_hop=batch.edges_per_hop,
            )[: batch.num_seeds]
            loss = F.cross_entropy(out, data.y[batch.n_id[: batch.num_seeds]], ignore_index=-1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * batch.num_seeds
            count += batch.num_seeds
        result = {'loss': total / count, 'seconds': time.perf_counter() - start}
        result['peak_bytes'] = memory.bytes()
        model.eval()
        with torch.no_grad():
            correct = (model(data.x, data.edge_index).argmax(dim=-1) == data.y).float()
        for name in ('train', 'val', 'test'):
            result[name] = correct[data[f'{name}_mask']].mean().item()


def _sampler_name() -> str:
    return 'NeighborLoader' if WITH_PYG_LIB or WITH_TORCH_SPARSE else 'sampler.py'


def _batches(data: Data, fan_outs: list[int], batch_size: int, seed: int) -> Any:
    """What gives the batches of one epoch at every call."""
    nodes = data.train_mask.nonzero().view(-1)
    if _sampler_name() == 'sampler.py':
        sampler = NeighborSampler(data.edge_index, data.num_nodes, fan_outs, seed=seed)
        return lambda: sampler.epoch(nodes, batch_size)
    bare = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    loader = NeighborLoader(bare, fan_outs, nodes, batch_size=batch_size, shuffle=True)

    def batches() -> Iterator[Batch]:
        for b in loader:
            hops = b.num_sampled_nodes, b.num_sampled_edges
            yield Batch(b.n_id, b.edge_index, *hops, num_seeds=b.batch_size)

    return batches


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """All train in turn, an epoch at a time, those that have trained the least first."""
    size = sizes(args.graph)
    options = {'model': 'sage', 'hidden': args.hidden, 'layers': args.layers, 'lr': args.lr}
    with ExitStack() as stack:
        sampling = Team(
            train_by_sampling,
            threads=num_cores(),
            source=str(graph_file(args.graph)),
            hidden=args.hidden,
            layers=args.layers,
            lr=args.sampling_lr,
            fan_outs=args.fan_outs,
            batch_size=args.batch_size,
        )
        teams = {SAMPLING: stack.enter_context(sampling)}
        for name, sampled_epochs in ((SAMPLED, None), (BOTH, args.sampled_epochs)):
            team = Team(
                train_on_batches,
                args.processes,
                threads=max(1, num_cores() // args.processes),
                source=str(cut(args.graph, args.processes)),
                hidden=args.hidden,
                layers=args.layers,
                lr=args.sampling_lr,
                fan_outs=args.fan_outs,
                batch_size=args.batch_size,
                sampled_epochs=sampled_epochs,
            )
            teams[name] = stack.enter_context(team)
        for name, variant, processes in (
            (OURS, 'sequential', args.processes),
            (PLAIN, PLAIN, 1),
        ):
            team = training_team(args.graph, variant, processes, has_accuracy=True, **options)
            teams[name] = stack.enter_context(team)
        curves = _train(teams, args.seconds)
        for name, team in teams.items():
            steps = curves[name]
            yield {
                'graph': args.graph,
                **size,
                'variant': name,
                'sampler': team.setup[0].get('sampler'),
                'processes': len(team.setup),
                'peak_bytes': steps[-1]['peak_bytes'],
                'seconds': [step['seconds'] for step in steps],
                **{key: [step[key] for step in steps] for key in ('loss', 'train', 'val', 'test')},
            }


def _train(teams: dict[str, Team], seconds: float) -> dict[str, list[Row]]:
    spent = dict.fromkeys(teams, 0.0)
    steps: dict[str, list[Row]] = {name: [] for name in teams}
    with tqdm(total=round(seconds * len(teams)), unit='s') as bar:
        while min(spent.values()) < seconds:
            name = min(spent, key=lambda name: spent[name])
            ranks = teams[name].step()
            elapsed = max(rank['seconds'] for rank in ranks)
            peaks = [rank['peak_bytes'] for rank in ranks]
            steps[name].append({**ranks[0], 'seconds': elapsed, 'peak_bytes': peaks})
            spent[name] += elapsed
            bar.update(min(round(sum(spent.values())), bar.total) - bar.n)
    return steps


def _times(row: Row) -> list[float]:
    """Seconds of training at the end of every epoch."""
    return torch.tensor(row['seconds']).cumsum(0).tolist()


def _best(row: Row) -> tuple[int, float]:
    """The epoch that is best on the validation nodes, and its accuracy there."""
    best: Tensor = torch.tensor(row['val']).max(dim=0)
    return int(best.indices), float(best.values)  # type: ignore[attr-defined]


def _seconds_to(row: Row, accuracy: float) -> float | None:
    pairs = zip(_times(row), row['val'], strict=True)
    return next((seconds for seconds, value in pairs if value >= accuracy), None)


def render(report: dict[str, Any]) -> dict[str, str]:
    rows = report['rows']
    top = max(_best(row)[1] for row in rows)
    header = ['variant', 'processes', 's per epoch', 'best val', 'test there']
    target, levels = report['settings']['target'], [level * top for level in LEVELS]
    header += [f's to {level:.4f}' for level in (*levels, target)]
    lines = []
    for row in rows:
        epoch, best = _best(row)
        reached = [_seconds_to(row, level) for level in (*levels, target)]
        lines.append(
            [
                row['variant'] + (f' ({row["sampler"]})' if row['sampler'] else ''),
                row['processes'],
                f'{torch.tensor(row["seconds"]).median():.2f}',
                f'{best:.4f}',
                f'{row["test"][epoch]:.4f}',
                *('never' if seconds is None else f'{seconds:.1f}' for seconds in reached),
                show_mib(row['peak_bytes']),
            ]
        )
    shares = ', '.join(f'{level:.0%}' for level in LEVELS)
    head = (
        f'`{rows[0]["graph"]}`: {show_size(rows[0])}. Seconds are those to {shares} of the best '
        f'validation accuracy of all, and to {target}.'
    )
    return {'table': f'{head}\n\n{table([*header, "peak MiB"], lines)}'}


def draw(report: dict[str, Any], path: Path) -> None:
    figure, (left, right) = panels(2, 'Accuracy against seconds of training, evaluation left out')
    for row, color in zip(report['rows'], COLORS, strict=False):
        style = {'color': color, 'linestyle': '--' if row['variant'] == PLAIN else '-'}
        for axis, epochs in ((left, _times(row)), (right, range(1, len(row['val']) + 1))):
            axis.plot(epochs, row['val'], label=row['variant'], **style)
    right.set_xscale('log')
    for axis, text in ((left, 'seconds of training'), (right, 'epoch')):
        axis.set_xlabel(text)
        axis.set_ylabel('validation accuracy, on the whole graph')
        axis.legend(frameon=False)
    save(figure, path)


if __name__ == '__main__':
    Benchmark(HERE, SIZES, measure, render, draw, doc=__doc__).main()
