"""Training on batches of pyg_sar's NeighborLoader, as a program of a team."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from cached_graphs import read_all
from measured_training import make_model
from process_memory import PeakMemory

import pyg_sar


def train_on_batches(
    *,
    source: str,
    hidden: int,
    layers: int,
    lr: float,
    fan_outs: list[int],
    batch_size: int,
    sampled_epochs: int | None,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """One epoch over all training nodes after another, evaluated on the whole graph.

    Args:
        source: A partition folder.
        hidden: Width of the hidden layers.
        layers: Number of layers.
        lr: Learning rate.
        fan_outs: By hop.
        batch_size: Seeds of all ranks.
        sampled_epochs: After so many, an epoch is one full batch; None for never.
        seed: Of the initial weights and of the batches.
    """
    data = pyg_sar.load_shard(source)
    read_all(data)
    torch.manual_seed(seed)
    network = make_model('sage', data.num_features, hidden, layers, data.num_classes)
    # A part's nodes are not like those of others: its batches have other means than the graph has.
    network = torch.nn.SyncBatchNorm.convert_sync_batchnorm(network)
    model = pyg_sar.DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    loader = pyg_sar.NeighborLoader(
        data, fan_outs, data.train_mask, batch_size=batch_size, shuffle=True, seed=seed
    )

    def losses() -> Iterator[torch.Tensor]:
        for batch in loader:
            out = model(
                batch.x,
                batch.edge_index,
                num_sampled_nodes_per_hop=batch.num_sampled_nodes,
                num_sampled_edges_per_hop=batch.num_sampled_edges,
            )[: batch.batch_size]
            y = batch.y[: batch.batch_size]
            yield pyg_sar.loader.mean_of_batches(
                F.cross_entropy(out, y, reduction='none', ignore_index=-1)
            )

    def full_batch() -> Iterator[torch.Tensor]:
        out = model(data.x, data.edge_index)
        yield F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    memory, epoch = PeakMemory(), 0
    result: dict[str, Any] = {'before_bytes': memory.before}
    while True:
        yield result
        memory.restart()
        start = time.perf_counter()
        model.train()
        values = []
        for loss in losses() if sampled_epochs is None or epoch < sampled_epochs else full_batch():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        epoch += 1
        result = {'loss': sum(values) / len(values), 'seconds': time.perf_counter() - start}
        result['peak_bytes'] = memory.bytes()
        model.eval()
        with torch.no_grad():
            correct = (model(data.x, data.edge_index).argmax(dim=-1) == data.y).float()
        for name in ('train', 'val', 'test'):
            result[name] = correct[data[f'{name}_mask']].mean().item()
