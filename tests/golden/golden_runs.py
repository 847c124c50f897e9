"""Small trainings whose losses are kept: ``make golden`` writes them anew.

Where they change, a line of CHANGELOG says why.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy
import torch
import torch.nn.functional as F
import torch_geometric
from ranks import run_ranks
from small_graphs import cut, small_graph
from torch import Tensor
from torch.nn import BatchNorm1d, Dropout, Linear, ReLU
from torch_geometric import nn as pyg

import pyg_sar

FILE = Path(__file__).parent / 'golden_losses.json'
EPOCHS = 3
WIDTH = 8


class Run(NamedTuple):
    """What is trained, and how."""

    layers: Callable[[int, int], torch.nn.Module]  # a conv of two widths
    edges: tuple[str, ...] = ()  # names of what it takes besides x and edge_index
    options: Mapping[str, Any] = MappingProxyType({})
    steps: int = 1  # backwards for one step of the optimizer
    samples: bool = False  # whether it is trained on mini-batches
    is_model: bool = False


def _pna(num_in: int, num_out: int) -> torch.nn.Module:
    return pyg.PNAConv(num_in, num_out, ['mean', 'max', 'std'], ['identity'], torch.ones(30).long())


def _transformer(num_in: int, num_out: int) -> torch.nn.Module:
    return pyg.TransformerConv(num_in, num_out, heads=2, concat=False, edge_dim=4)


def _gat(num_in: int, num_out: int) -> torch.nn.Module:
    return pyg.GATConv(num_in, num_out, heads=2, concat=False)


def _gps(num_in: int, num_out: int) -> torch.nn.Module:
    inner = pyg.GPSConv(num_out, pyg.SAGEConv(num_out, num_out))
    return pyg.Sequential('x, e', [(Linear(num_in, num_out), 'x -> x'), (inner, 'x, e -> x')])


def _sgformer(num_in: int, num_out: int) -> torch.nn.Module:
    options = {'trans_dropout': 0.0, 'gnn_num_layers': 2, 'gnn_dropout': 0.0}
    return pyg.SGFormer(num_in, WIDTH, num_out, **options)


RUNS = {
    'SAGE': Run(pyg.SAGEConv),
    'SAGE, rows only': Run(pyg.SAGEConv, options={'partial_sums': False}),
    'SAGE, rows kept': Run(pyg.SAGEConv, options={'mode': 'sequential_no_remat'}),
    'SAGE, one_shot': Run(pyg.SAGEConv, options={'mode': 'one_shot'}),
    'SAGE, bfloat16 rows': Run(pyg.SAGEConv, options={'exchange_dtype': torch.bfloat16}),
    'SAGE, accumulated': Run(pyg.SAGEConv, steps=2),
    'SAGE, sampled': Run(pyg.SAGEConv, samples=True),
    'SAGE, median': Run(lambda a, b: pyg.SAGEConv(a, b, pyg.MedianAggregation())),
    'GCN, weights': Run(pyg.GCNConv, ('edge_weight',)),
    'GIN': Run(lambda a, b: pyg.GINConv(Linear(a, b))),
    'PNA': Run(_pna),
    'GEN': Run(pyg.GENConv),
    'RGCN': Run(lambda a, b: pyg.RGCNConv(a, b, 3), ('edge_type',)),
    'GAT': Run(_gat),
    'GAT, one_shot': Run(_gat, options={'mode': 'one_shot'}),
    'GAT, dropout_seed': Run(_gat, options={'dropout_seed': 5}),
    'Transformer': Run(_transformer, ('edge_attr',)),
    'GPS': Run(_gps),
    'SGFormer': Run(_sgformer, is_model=True),
}


def losses(root: str, name: str) -> list[float]:
    """Of every epoch of a run that is kept."""
    return trained(root, RUNS[name])


def trained(root: str, run: Run) -> list[float]:
    """Losses of every epoch."""
    data = pyg_sar.load_shard(root)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        return _train(data, run)
    finally:
        torch.set_default_dtype(torch.float32)


def _train(data: Any, run: Run) -> list[float]:
    network = _network(run)
    model = pyg_sar.DistributedDataParallel(network, **run.options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    found = []
    for _ in range(EPOCHS):
        for batch in _batches(data, run):
            optimizer.zero_grad()
            for _ in range(run.steps):
                loss = _loss(model, batch, run)
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found.append(loss.item())
    return found


def _network(run: Run) -> torch.nn.Module:
    if run.is_model:
        return run.layers(6, 3)
    edges = ', '.join(('x, e', *run.edges))
    between = [(BatchNorm1d(WIDTH), 'x -> x'), ReLU()]
    if 'dropout_seed' in run.options:
        between.append(Dropout(0.3))
    layers = (
        (run.layers(6, WIDTH), f'{edges} -> x'),
        *between,
        (run.layers(WIDTH, 3), f'{edges} -> x'),
    )
    return pyg.Sequential(edges, list(layers))


def _batches(data: Any, run: Run) -> Any:
    if not run.samples:
        return [data]
    return pyg_sar.NeighborLoader(data, [3, 3], data.train_mask, batch_size=9, shuffle=True)


def _loss(model: Any, data: Any, run: Run) -> Tensor:
    if run.is_model:
        out = model(data.x, data.edge_index, torch.zeros_like(data.y))
    else:
        out = model(data.x, data.edge_index, *(data[name] for name in run.edges))
    if run.samples:
        out, y = out[: data.batch_size], data.y[: data.batch_size]
        return pyg_sar.loader.mean_of_batches(F.cross_entropy(out, y, reduction='none'))
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def versions() -> dict[str, str]:
    """On which the bits depend."""
    return {
        'torch': torch.__version__,
        'torch_geometric': torch_geometric.__version__,
        'numpy': numpy.__version__,
        'machine': f'{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}',
        'cpu': _cpu(),
    }


def _cpu() -> str:
    """What libraries for products of matrices choose their loops by: the kind, and what it can."""
    if sys.platform != 'linux':
        return platform.processor()
    lines = Path('/proc/cpuinfo').read_text().split('\n\n')[0].splitlines()
    about = dict(map(str.strip, line.split(':', 1)) for line in lines if ':' in line)
    flags = hashlib.sha256(' '.join(sorted(about.get('flags', '').split())).encode())
    kind = ' '.join(about.get(key, '') for key in ('vendor_id', 'cpu family', 'model'))
    return f'{kind}, {flags.hexdigest()[:8]}'


def main() -> None:
    """Writes the losses of all runs."""
    found: dict[str, Any] = {'versions': versions()}
    with tempfile.TemporaryDirectory() as folder:
        root = str(cut(small_graph(), 3, Path(folder) / 'parts'))
        for name in RUNS:
            found[name] = {str(size): run_ranks(losses, size, root, name)[0] for size in (1, 3)}
    FILE.write_text(json.dumps(found, indent=1) + '\n')


if __name__ == '__main__':
    import golden_runs

    golden_runs.main()
