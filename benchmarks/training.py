"""Full training epochs as a program of a team: plain PyG on the whole graph, or pyg_sar on shards.

Everything but the graph is the same: model, initial weights, loss, optimizer. Peak memory is the
high-water mark of the process minus what it held with data, model and optimizer loaded.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from cached_graphs import cut, graph_file, read_all
from measured_training import as_csr, make_model, num_cores
from process_memory import PeakMemory
from team import Team
from torch_geometric.data import Data

import pyg_sar

PLAIN, PLAIN_CSR = 'plain PyG', 'plain PyG, CSR'
MODES = ('sequential', 'sequential_no_remat', 'one_shot')


def train(
    *,
    source: str,
    variant: str,
    model: str,
    hidden: int,
    layers: int,
    lr: float = 0.01,
    seed: int = 0,
    has_accuracy: bool = False,
    autocast: bool = False,
    dropout: float = 0.0,
    dropout_seed: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields seconds, CPU seconds, loss, peak memory and minor page faults of one epoch after
    another; first what was loaded.

    Args:
        source: A .pt file for the plain variants, otherwise a partition folder.
        variant: PLAIN, PLAIN_CSR or the mode of the convs.
        model: One of ``measured_training.MODELS``.
        hidden: Width of the hidden layers, all heads together.
        layers: Number of layers.
        lr: Learning rate.
        seed: Of the initial weights.
        has_accuracy: Whether to evaluate after every epoch: not part of its seconds.
        autocast: Whether forward runs under autocast to bfloat16.
        dropout: Share of the numbers that are dropped after every hidden layer.
        dropout_seed: Of masks by id; None for those of torch's generator.
    """
    is_plain = variant in (PLAIN, PLAIN_CSR)
    if is_plain:
        data: Data = torch.load(source, weights_only=False)
        if variant == PLAIN_CSR:
            data.edge_index = as_csr(data)
    else:
        data = pyg_sar.load_shard(source)
        read_all(data)
    torch.manual_seed(seed)
    network = make_model(model, data.num_features, hidden, layers, data.num_classes, dropout)
    if not is_plain:
        options = {'mode': variant, 'dropout_seed': dropout_seed}
        network = pyg_sar.DistributedDataParallel(network, **options)
    optimizer = torch.optim.Adam(network.parameters(), lr=lr)

    mask = data.train_mask
    memory = PeakMemory()
    result: dict[str, Any] = {'before_bytes': memory.before}
    while True:
        yield result
        if has_accuracy:
            memory.restart()
        faults = _page_faults()
        start, cpu_start = time.perf_counter(), time.process_time()
        network.train()
        with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
            out = network(data.x, data.edge_index)
            loss = F.cross_entropy(out[mask], data.y[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        result = {'loss': loss.item(), 'seconds': time.perf_counter() - start}
        result['cpu_seconds'] = time.process_time() - cpu_start
        result['peak_bytes'] = memory.bytes()
        result['page_faults'] = _page_faults() - faults
        del out, loss
        if has_accuracy:
            network.eval()
            with torch.no_grad(), torch.autocast('cpu', torch.bfloat16, enabled=autocast):
                correct = (network(data.x, data.edge_index).argmax(dim=-1) == data.y).float()
            for name in ('train', 'val', 'test'):
                result[name] = correct[data[f'{name}_mask']].mean().item()


def _page_faults() -> int:
    """Minor ones of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def training_team(
    graph: str,
    variant: str,
    processes: int = 1,
    *,
    threads: int | None = None,
    mmap_threshold: int | None = None,
    **options: Any,
) -> Team:
    """A team that trains; by default with an equal share of the cores for every process."""
    is_plain = variant in (PLAIN, PLAIN_CSR)
    source: Path = graph_file(graph) if is_plain else cut(graph, processes)
    return Team(
        train,
        processes,
        threads=threads or max(1, num_cores() // processes),
        mmap_threshold=mmap_threshold,
        source=str(source),
        variant=variant,
        **options,
    )


def default_hidden(model: str) -> int:
    """Of gat 4 heads of 32."""
    return 128 if model == 'gat' else 256


def relative_difference(values: list[float], peer: list[float]) -> float:
    """The largest over all epochs."""
    return max(abs(a - b) / abs(b) for a, b in zip(values, peer, strict=True))


def check_equal(rows: list[dict[str, Any]]) -> None:
    """Raises a RuntimeError if a variant's losses are further than 1e-4 from plain PyG's."""
    for row in rows:
        if not row['loss_difference'] <= 1e-4:
            raise RuntimeError(f'expected losses equal to 1e-4 of plain PyG (got {row})')
