"""pyg_sar on the GPUs of this machine: parity, speed, memory, waits for the device, determinism."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cached_graphs import ARXIV, TINY, cut, load_graph  # noqa: E402
from device_waits import device_waits  # noqa: E402
from measured_training import NAMES, as_csr, make_model  # noqa: E402
from report import Benchmark, Row, ratios, show, summary, table  # noqa: E402
from torch_geometric import nn as pyg  # noqa: E402

import pyg_sar  # noqa: E402

os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')  # deterministic algorithms need it
PLAIN, CSR = 'plain PyG', 'plain PyG, CSR'
NCCL, GLOO, SOCKETS = 'NCCL', 'one GPU by gloo', 'one GPU by NCCL and sockets'
HIDDEN = {'sage': 256, 'gat': 128}
SIZES: dict[str, dict[str, Any]] = {
    'full': {'graph': ARXIV, 'models': list(HIDDEN), 'parts': [1, 4], 'rounds': 9, 'epochs': 5},
    'quick': {'rounds': 3, 'epochs': 3},
    'tiny': {'graph': TINY, 'rounds': 2, 'epochs': 2},
}
CONVS: dict[str, tuple[Callable[[], torch.nn.Module], str]] = {
    'SAGE': (lambda: pyg.SAGEConv(64, 64), 'linear'),
    'GCN': (lambda: pyg.GCNConv(64, 64), 'linear'),
    'GIN': (lambda: pyg.GINConv(torch.nn.Linear(64, 64)), 'linear'),
    'GAT': (lambda: pyg.GATConv(64, 16, heads=4), 'weighted'),
    'GAT, no loops': (lambda: pyg.GATConv(64, 16, heads=4, add_self_loops=False), 'weighted'),
    'FiLM': (lambda: pyg.FiLMConv(64, 64), 'replay'),
    'SAGE max': (lambda: pyg.SAGEConv(64, 64, aggr='max'), 'replay'),
    'Transformer': (lambda: pyg.TransformerConv(64, 16, heads=4), 'replay with softmax'),
    'SAGE median': (lambda: pyg.SAGEConv(64, 64, aggr='median'), 'gather'),
    'SAGE, BatchNorm': (lambda: pyg.GraphSAGE(64, 64, 2, norm='batch_norm'), 'linear, norm'),
}


class Training:
    """A model on a graph or on shards, and its epochs."""

    def __init__(self, name: str, graph: str, variant: str, device: str) -> None:
        gc.collect()
        before = torch.cuda.memory_allocated()
        data = load_graph(graph) if variant in (PLAIN, CSR) else None
        if variant == CSR:
            data.edge_index = as_csr(data)
        if data is None:
            data = pyg_sar.load_shard(cut(graph, int(variant.split()[1])))
        self.is_plain = variant in (PLAIN, CSR)
        torch.manual_seed(0)
        model = make_model(name, data.num_features, HIDDEN[name], 3, data.num_classes).to(device)
        self.model = model if self.is_plain else pyg_sar.DistributedDataParallel(model)
        self.data = data.to(device)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        self.losses = [self.epoch() for _ in range(5)]
        self.losses = [loss.item() for loss in self.losses]
        gc.collect()
        self.resident = torch.cuda.memory_allocated() - before

    def epoch(self) -> Tensor:
        out = self.model(self.data.x, self.data.edge_index)
        mask = self.data.train_mask
        loss = F.cross_entropy(out[mask], self.data.y[mask])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def seconds(self, epochs: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(epochs):
            self.epoch()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1000 / epochs

    def peak(self) -> int:
        """Bytes that an epoch takes beside what is there before it."""
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.epoch()
        return torch.cuda.max_memory_allocated() - before


def measure(args: argparse.Namespace) -> Iterator[Row]:
    if not torch.cuda.is_available():
        raise RuntimeError('expected a CUDA device (found none)')
    yield {'kind': 'machine', 'gpu': torch.cuda.get_device_name(), 'cuda': torch.version.cuda}
    for parts in args.parts:
        yield from _layers(args.graph, parts)
    for name in args.models:
        variants = [PLAIN, CSR, *(f'pyg_sar, {parts} parts' for parts in args.parts)]
        yield from _trainings(name, args, variants)
        for ranks in sorted({2, max(torch.cuda.device_count(), 2)}):
            is_shared = torch.cuda.device_count() < ranks
            for how in (GLOO, SOCKETS) if is_shared else (NCCL,):
                yield _on_ranks(name, args, ranks, how)


def _trainings(name: str, args: argparse.Namespace, variants: list[str]) -> Iterator[Row]:
    """All on one GPU in turn."""
    found: dict[str, Training] = {}
    for variant in variants:
        try:
            found[variant] = Training(name, args.graph, variant, 'cuda')
        except (NotImplementedError, RuntimeError, ValueError) as error:
            yield {'kind': 'error', 'model': name, 'variant': variant, 'error': str(error)[:200]}
    seconds: dict[str, list[float]] = {variant: [] for variant in found}
    for _ in range(args.rounds):
        for variant, training in found.items():
            seconds[variant].append(training.seconds(args.epochs))
    for variant, training in found.items():
        yield _row(name, variant, training, seconds[variant], found[PLAIN], seconds[PLAIN])


def _row(
    name: str, variant: str, own: Any, seconds: list[float], plain: Any, of_plain: list[float]
) -> Row:
    pairs = zip(own.losses, plain.losses, strict=True)
    return {
        'kind': 'training',
        'model': name,
        'variant': variant,
        'seconds': summary(seconds),
        'of_plain': ratios(seconds, of_plain),
        'peak_mib': own.peak() / 2**20,
        'resident_mib': own.resident / 2**20,
        'loss_difference': max(abs(a - b) / abs(b) for a, b in pairs),
    }


def _on_ranks(name: str, args: argparse.Namespace, ranks: int, how: str) -> Row:
    """As many processes, which have a GPU each or share one."""
    cut(args.graph, ranks)
    with tempfile.TemporaryDirectory() as folder:
        given = (name, args.graph, ranks, args.rounds, args.epochs, how, folder)
        torch.multiprocessing.spawn(_work, given, nprocs=ranks)
        found = [json.loads((Path(folder) / f'{r}.json').read_text()) for r in range(ranks)]
    slowest = [max(each) for each in zip(*(f['seconds'] for f in found), strict=True)]
    plain = Training(name, args.graph, PLAIN, 'cuda')
    of_plain = [plain.seconds(args.epochs) for _ in slowest]
    first = argparse.Namespace(**found[0])
    first.peak = lambda: max(f['peak'] for f in found)
    row = _row(name, f'{ranks} ranks, {how}', first, slowest, plain, of_plain)
    return row if how == GLOO else row | {'overlap': [f['overlap'] for f in found]}


def _work(
    rank: int, name: str, graph: str, ranks: int, rounds: int, epochs: int, how: str, root: str
) -> None:
    if how == SOCKETS:
        # NCCL refuses ranks of one host that share a GPU, so each says that it is another host.
        names = {'NCCL_HOSTID': f'rank {rank}', 'NCCL_SOCKET_IFNAME': 'lo', 'NCCL_NET': 'Socket'}
        os.environ.update(names)
    device = f'cuda:{rank if how == NCCL else 0}'
    torch.cuda.set_device(device)
    backend = 'gloo' if how == GLOO else 'cpu:gloo,cuda:nccl'
    dist.init_process_group(backend, init_method=f'file://{root}/s', rank=rank, world_size=ranks)
    own = Training(name, graph, f'pyg_sar, {ranks} parts', device)
    found = {'losses': own.losses, 'resident': own.resident, 'peak': own.peak()}
    found['seconds'] = [own.seconds(epochs) for _ in range(rounds)]
    found['overlap'] = None if how == GLOO else _overlap(own)
    (Path(root) / f'{rank}.json').write_text(json.dumps(found))
    dist.destroy_process_group()


def _overlap(training: Training) -> dict[str, float]:
    """Of an epoch: milliseconds of NCCL's kernels, and of others that ran at the same time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        training.epoch()
        torch.cuda.synchronize()
    spans = [
        (e.time_range.start, e.time_range.end, e.name.startswith('nccl'))
        for e in profile.events()
        if e.device_type.name == 'CUDA'
    ]
    # Kernels of a kind may overlap each other; at each moment what matters is whether any runs.
    changes = sorted(
        change
        for start, end, is_nccl in spans
        for change in ((start, 1, is_nccl), (end, -1, is_nccl))
    )
    running, before = {True: 0, False: 0}, 0.0
    found = {'nccl_ms': 0.0, 'other_ms': 0.0, 'both_ms': 0.0}
    for now, change, is_nccl in changes:
        for key, holds in (
            ('nccl_ms', running[True]),
            ('other_ms', running[False]),
            ('both_ms', running[True] and running[False]),
        ):
            found[key] += (now - before) / 1000 if holds else 0.0
        running[is_nccl] += change
        before = now
    return found


def _layers(graph: str, parts: int) -> Iterator[Row]:
    """Of every kind of layer: waits once it has run, and whether its bits repeat."""
    data = pyg_sar.load_shard(cut(graph, parts)).to('cuda')
    x = torch.randn(data.num_nodes, 64, device='cuda', requires_grad=True)
    for name, (make, path) in CONVS.items():
        torch.manual_seed(0)
        conv = pyg_sar.DistributedDataParallel(make()).to('cuda')

        def run(conv: torch.nn.Module = conv) -> list[Tensor]:
            x.grad = None
            conv.zero_grad()
            out = conv(x, data.edge_index)
            out.square().sum().backward()
            grads = [p.grad for p in conv.parameters() if p.grad is not None]
            return [t.detach().clone() for t in (out, x.grad, *grads)]

        first = run()
        repeats = [_same(first, run()) for _ in range(4)]
        with device_waits() as waits:
            run()
        yield {
            'kind': 'layer',
            'parts': parts,
            'conv': name,
            'path': path,
            'waits': dict(waits),
            'repeats': {
                'out': all(same[0] for same in repeats),
                'x': all(same[1] for same in repeats),
                'weights': all(all(same[2:]) for same in repeats),
            },
            'deterministic': _deterministic(run),
        }


def _same(ours: list[Tensor], theirs: list[Tensor]) -> list[bool]:
    return [torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)]


def _deterministic(run: Callable[[], list[Tensor]]) -> str:
    """What becomes of it with ``torch.use_deterministic_algorithms(True)``."""
    torch.use_deterministic_algorithms(True)
    try:
        first = run()
        return 'repeats' if all(all(_same(first, run())) for _ in range(4)) else 'differs'
    except RuntimeError as error:
        return str(error).split('.')[0][:120]
    finally:
        torch.use_deterministic_algorithms(False)


def render(report: dict[str, Any]) -> dict[str, str]:
    rows = report['rows']
    trainings: dict[str, dict[str, tuple[str, ...]]] = {}
    layers: dict[tuple[str, ...], None] = {}  # those of several parts are mostly equal
    changed: dict[str, None] = {}
    for r in rows:
        if r['kind'] == 'training':
            figures = show(r['seconds'], 2, 1000), show(r['of_plain']), f'{r["peak_mib"]:,.0f}'
            trainings.setdefault(r['variant'], {})[r['model']] = figures
        elif r['kind'] == 'layer':
            changes = [key for key, same in r['repeats'].items() if not same]
            repeats = ', '.join(changes) or 'nothing'
            waits = str(sum(r['waits'].values()))
            layers[r['conv'], waits, repeats] = None
            if r['deterministic'] != 'repeats':
                changed[f'{r["conv"]} ({r["deterministic"]})'] = None
    models = dict.fromkeys(r['model'] for r in rows if r['kind'] == 'training')
    of_models = ([f'{NAMES[model]}, ms', 'of plain', 'MiB'] for model in models)
    header = ['variant', *(name for of in of_models for name in of)]
    lines = [
        [
            variant.replace(' 1 parts', ' 1 part'),
            *(cell for model in models for cell in of.get(model, ('', '', ''))),
        ]
        for variant, of in trainings.items()
    ]
    names = ['layer', 'waits', 'differs from run to run']
    other = f'all but {", ".join(changed)}' if changed else 'all'
    deterministic = f'With `torch.use_deterministic_algorithms(True)` {other} repeat.'
    errors = [f'{r["model"]}, {r["variant"]}: {r["error"]}' for r in rows if r['kind'] == 'error']
    gpu = next(f'{r["gpu"]}, CUDA {r["cuda"]}.' for r in rows if r['kind'] == 'machine')
    travel = [
        f'{r["model"]}, {r["variant"]}, rank {i}: NCCL {o["nccl_ms"]:.1f} ms of an epoch, '
        f'other kernels {o["other_ms"]:.1f} ms, both at once {o["both_ms"]:.1f} ms.'
        for r in rows
        for i, o in enumerate(r.get('overlap', []))
    ]
    head = '\n\n'.join([gpu, *errors, *travel])
    return {
        'table': f'{head}\n\n{table(header, lines)}',
        'layers': f'{table(names, layers)}\n\n{deterministic}',
    }


if __name__ == '__main__':
    Benchmark(HERE, SIZES, measure, render, draw=None, doc=__doc__).main()
