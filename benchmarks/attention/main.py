"""Epochs of graph transformers on 1, 2 and 4 ranks against plain PyG on one process."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Linear, Module, ModuleList
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GPSConv, Polynormer, SGFormer
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cached_graphs import ARXIV, TINY, cut, graph_file, read_all, sizes  # noqa: E402
from measured_training import num_cores  # noqa: E402
from plots import bars, panels, save  # noqa: E402
from process_memory import PeakMemory  # noqa: E402
from report import Benchmark, Row, ratios, show, show_mib, show_ranks, summary, table  # noqa: E402
from team import Team, slowest, take_turns  # noqa: E402

import pyg_sar  # noqa: E402

PLAIN = 'plain PyG'
SMALL = 'synthetic:8000,40000'
WIDTH = 64


class AsOneGraph(Module):
    """A model of PyG that takes a `batch`."""

    def __init__(self, model: Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, data: Data) -> Tensor:
        out: Tensor = self.model(data.x, data.edge_index, data.y.new_zeros(data.num_nodes))
        return out


class GPS(Module):
    """Two layers of GPSConv with a GCNConv each."""

    def __init__(self, num_in: int, num_out: int, attn_type: str) -> None:
        super().__init__()
        self.lin, self.out = Linear(num_in, WIDTH), Linear(WIDTH, num_out)
        self.convs = ModuleList(
            GPSConv(WIDTH, GCNConv(WIDTH, WIDTH), heads=4, attn_type=attn_type) for _ in range(2)
        )

    def forward(self, data: Data) -> Tensor:
        x = self.lin(data.x)
        for conv in self.convs:
            x = conv(x, data.edge_index)
        return F.log_softmax(self.out(x), dim=-1)


def sgformer(num_in: int, num_out: int) -> Module:
    return AsOneGraph(
        SGFormer(num_in, WIDTH, num_out, trans_dropout=0.0, gnn_num_layers=3, gnn_dropout=0.0)
    )


def polynormer(num_in: int, num_out: int) -> Module:
    model = Polynormer(
        num_in,
        WIDTH,
        num_out,
        local_layers=3,
        global_layers=2,
        in_dropout=0.0,
        dropout=0.0,
        global_dropout=0.0,
    )
    model._global = True
    return AsOneGraph(model)


MODELS: dict[str, Callable[[int, int], Module]] = {
    'SGFormer': sgformer,
    'Polynormer': polynormer,
    'GPS performer': lambda num_in, num_out: GPS(num_in, num_out, 'performer'),
    'GPS multihead': lambda num_in, num_out: GPS(num_in, num_out, 'multihead'),
}
SIZES: dict[str, dict[str, Any]] = {
    'full': {
        'graph': ARXIV,
        'small': SMALL,
        'models': list(MODELS),
        'processes': [1, 2, 4],
        'rounds': 5,
    },
    'quick': {'models': ['SGFormer', 'GPS performer'], 'rounds': 3},
    'tiny': {'graph': TINY, 'small': TINY, 'processes': [1, 2], 'rounds': 2},
}


def epochs(*, source: str, model: str, is_plain: bool) -> Iterator[dict[str, Any]]:
    """Forward, loss, backward and optimizer step, again and again."""
    data = torch.load(source, weights_only=False) if is_plain else pyg_sar.load_shard(source)
    if not is_plain:
        read_all(data)
    torch.manual_seed(0)
    network: Any = MODELS[model](data.num_features, int(data.y.max()) + 1)
    if not is_plain:
        network = pyg_sar.DistributedDataParallel(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    counted = Counted()
    memory = PeakMemory()
    result: dict[str, Any] = {}
    while True:
        yield result
        counted.bytes = 0
        start, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        loss = F.nll_loss(network(data)[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        result = {
            'seconds': time.perf_counter() - start,
            'cpu_seconds': time.process_time() - cpu,
            'peak_bytes': memory.bytes(),
            'summed_bytes': counted.bytes,
            'loss': loss.item(),
        }


class Counted:
    """Bytes of the tensors that all-reduces sum."""

    def __init__(self) -> None:
        self.bytes = 0
        plain = dist.all_reduce

        def counting(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.bytes += tensor.nbytes
            return plain(tensor, *args, **kwargs)

        dist.all_reduce = counting


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """Of every model, all numbers of ranks and plain PyG in turn."""
    for model in tqdm(args.models, unit='model'):
        graph = args.small if model == 'GPS multihead' else args.graph
        with ExitStack() as stack:
            teams = {
                PLAIN: stack.enter_context(
                    Team(
                        epochs,
                        threads=num_cores(),
                        source=str(graph_file(graph)),
                        model=model,
                        is_plain=True,
                    )
                )
            }
            for processes in args.processes:
                teams[str(processes)] = stack.enter_context(
                    Team(
                        epochs,
                        processes,
                        threads=max(1, num_cores() // processes),
                        source=str(cut(graph, processes)),
                        model=model,
                        is_plain=False,
                    )
                )
            steps = take_turns(teams, args.rounds, progress=model)
        seconds = {name: slowest(found[1:]) for name, found in steps.items()}
        peaks = {n: [r['peak_bytes'] for r in found[-1]] for n, found in steps.items()}
        for name in teams:
            losses = [found[0]['loss'] for found in steps[name]]
            right = [found[0]['loss'] for found in steps[PLAIN]]
            off = max(abs(a - b) / abs(b) for a, b in zip(losses, right, strict=True))
            if not off <= 1e-3:
                raise RuntimeError(f'expected the losses of plain PyG (got a difference of {off})')
            yield {
                'graph': graph,
                **sizes(graph),
                'model': model,
                'processes': 1 if name == PLAIN else int(name),
                'variant': PLAIN if name == PLAIN else 'pyg_sar',
                'seconds': summary(seconds[name]),
                'of_plain': ratios(seconds[name], seconds[PLAIN]),
                'cpu_seconds': sum(r['cpu_seconds'] for r in steps[name][-1]),
                'peak_bytes': peaks[name],
                'peak_of_plain': max(peaks[name]) / max(peaks[PLAIN]),
                'summed_bytes': steps[name][-1][0]['summed_bytes'],
                'loss_off': off,
            }


def render(report: dict[str, Any]) -> dict[str, str]:
    rows = report['rows']
    counts = list(dict.fromkeys(r['processes'] for r in rows if r['variant'] != PLAIN))
    lines = []
    for model in dict.fromkeys(r['model'] for r in rows):
        plain, *ours = (r for r in rows if r['model'] == model)
        lines.append(
            [
                model,
                show(plain['seconds']),
                *(show(r['of_plain']) for r in ours),
                *(show_mib(r['peak_bytes']) for r in (plain, *ours)),
                f'{ours[-1]["summed_bytes"] / 1024:,.0f}',
            ]
        )
    header = ['model', f'{PLAIN}, s', f'of plain, {show_ranks(counts[0])}', *counts[1:]]
    header += [f'{PLAIN}, MiB', show_ranks(counts[0]), *counts[1:], 'KiB summed']
    return {'table': table(header, lines)}


def draw(report: dict[str, Any], path: Path) -> None:
    rows = report['rows']
    models = list(dict.fromkeys(r['model'] for r in rows))
    figure, axes = panels(2, 'A training epoch of graph transformers, of plain PyG on one process')
    for axis, title, value in (
        (axes[0], 'time', lambda r: r['of_plain']['median']),
        (axes[1], 'peak memory of a process', lambda r: r['peak_of_plain']),
    ):
        counts = dict.fromkeys(r['processes'] for r in rows if r['variant'] != PLAIN)
        series: dict[str, list[float | None]] = {}
        for count in counts:
            of = {
                r['model']: value(r)
                for r in rows
                if r['variant'] != PLAIN and r['processes'] == count
            }
            series[f'{count} rank{"s"[: count > 1]}'] = [of.get(model) for model in models]
        bars(axis, models, series)
        axis.axhline(1, color='0.3', linewidth=1, linestyle='--')
        axis.set_title(title, fontsize=10)
    save(figure, path)


if __name__ == '__main__':
    Benchmark(HERE, SIZES, measure, render, draw, doc=__doc__).main()
