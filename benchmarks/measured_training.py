"""One training, measured: losses, accuracies, seconds per epoch and peak memory of every process.

The demo and the benchmarks start it as a program, so that the memory they report is that of a
process that does nothing else: plain PyG on a saved graph in one process, or pyg_sar on a partition
folder in as many processes as there are parts. Everything else about the two is the same.

Peak memory is the high-water mark of the process during training minus what it held before: data,
model and optimizer loaded. Linux only: the mark is reset through /proc/self/clear_refs.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from cached_graphs import read_all
from process_memory import PeakMemory
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.models import GAT, GCN, GraphSAGE
from torch_geometric.utils import to_torch_csr_tensor
from tqdm import tqdm

import pyg_sar

MODELS = {'sage': GraphSAGE, 'gcn': GCN, 'gat': GAT}
NAMES = {'sage': 'GraphSAGE', 'gat': 'GAT'}


def make_model(
    name: str,
    num_features: int,
    hidden: int,
    num_layers: int,
    num_classes: int,
    dropout: float = 0.0,
) -> Any:
    options = {'heads': 4} if name == 'gat' else {}
    return MODELS[name](
        num_features, hidden, num_layers, num_classes, norm='batch_norm', dropout=dropout, **options
    )


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def run_training(
    *, processes: int = 1, environment: Mapping[str, str] | None = None, **options: Any
) -> dict[str, Any]:
    """Starts this file as a program of its own and returns what it measured.

    Args:
        processes: How many ranks; each has an equal share of the cores, and at least one thread.
        environment: Variables added to the environment of the processes.
        **options: The options of the program, such as ``shards='parts/'`` or ``epochs=3``; None
            leaves one out.

    Raises:
        RuntimeError: If the program fails, with the end of what it wrote.
    """
    if not Path('/proc/self/clear_refs').exists():
        raise RuntimeError('expected Linux, where /proc tells the peak memory of a process')
    command = [sys.executable]
    env = dict(os.environ)
    if processes > 1:
        # Without a rendezvous: its store would hold pickles.
        command += ['-m', 'torch.distributed.run', f'--nproc-per-node={processes}']
        command += ['--master-addr=127.0.0.1', f'--master-port={_free_port()}']
        env['GLOO_SOCKET_IFNAME'] = 'lo'
    command.append(__file__)
    for name, value in options.items():
        if value is not None:
            command.append(f'--{name.replace("_", "-")}={value}')
    threads = str(max(1, num_cores() // processes))
    env |= {'OMP_NUM_THREADS': threads, **(environment or {})}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / 'result.json'
        with (Path(folder) / 'log.txt').open('w+') as log:
            code = subprocess.run([*command, f'--out={out}'], env=env, stdout=log).returncode
            if code:
                log.seek(0)
                raise RuntimeError(f'{" ".join(command)} ended with code {code}\n{log.read()}')
        result: dict[str, Any] = json.loads(out.read_text())
    return {**result, 'threads': int(threads)}


def _free_port() -> int:
    with socket.create_server(('127.0.0.1', 0)) as server:
        port: int = server.getsockname()[1]
    return port


def main() -> None:
    args = _parse()
    is_distributed = 'RANK' in os.environ
    if is_distributed:
        dist.init_process_group('gloo')
    torch.manual_seed(args.seed)
    if args.graph:
        data = torch.load(args.graph, weights_only=False)
        if args.csr:
            data.edge_index = as_csr(data)
    else:
        data = pyg_sar.load_shard(args.shards)
    model = make_model(args.model, data.num_features, args.hidden, args.layers, data.num_classes)
    if args.weights:
        model.load_state_dict(torch.load(args.weights, weights_only=True))
    if not args.graph:
        model = pyg_sar.DistributedDataParallel(model, mode=args.mode)
    result = _train(model, data, args)
    ranks = [result]
    if is_distributed:
        ranks = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(ranks, result)
    if not is_distributed or dist.get_rank() == 0:
        result['peak_bytes'] = [r['peak_bytes'] for r in ranks]
        result['before_bytes'] = [r['before_bytes'] for r in ranks]
        Path(args.out).write_text(json.dumps(result))
    if is_distributed:
        dist.destroy_process_group()


def as_csr(data: Data) -> Tensor:
    """The transposed adjacency matrix, which PyG's convs take in place of an edge_index."""
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Sparse ')  # in beta; its checks are off
        size = (data.num_nodes, data.num_nodes)
        return to_torch_csr_tensor(data.edge_index.flip(0), size=size)


def _train(model: torch.nn.Module, data: Data, args: argparse.Namespace) -> dict[str, Any]:
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    read_all(data)
    losses, seconds = [], []
    accuracies: dict[str, list[float]] = {'train': [], 'val': [], 'test': []}
    quiet = not args.progress or int(os.environ.get('RANK', '0')) > 0
    bar = tqdm(range(args.epochs), desc=args.progress, unit='epoch', mininterval=0.5, disable=quiet)
    memory = PeakMemory()
    for _ in bar:
        start = time.perf_counter()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
        if args.accuracy:
            correct = (out.detach().argmax(dim=-1) == data.y).float()
            for name, values in accuracies.items():
                values.append(correct[data[f'{name}_mask']].mean().item())
            bar.set_postfix(loss=f'{losses[-1]:.4f}', val=f'{accuracies["val"][-1]:.4f}')
    return {
        'losses': losses,
        'accuracies': accuracies,
        'seconds': seconds,
        'peak_bytes': memory.bytes(),
        'before_bytes': memory.before,
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument('--graph', help='a .pt file with a PyG Data: plain PyG, one process')
    source.add_argument('--shards', help='a partition folder: pyg_sar')
    parser.add_argument('--csr', type=int, default=0, help='1: with --graph, a sparse matrix')
    parser.add_argument('--model', choices=MODELS, default='sage')
    parser.add_argument('--hidden', type=int, default=256)
    parser.add_argument('--layers', type=int, default=3)
    parser.add_argument('--epochs', type=int, default=3)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--mode', default='sequential')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--weights', help='a state_dict to start from')
    parser.add_argument('--accuracy', type=int, default=0, help='1: measure accuracies too')
    parser.add_argument('--progress', default='', help='what the progress bar is called')
    parser.add_argument('--out', required=True, help='JSON file to write')
    return parser.parse_args()


if __name__ == '__main__':
    main()
