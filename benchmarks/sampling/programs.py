"""What the teams run: batches of pyg_sar, and training on them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from cached_graphs import read_all
from measured_training import make_model
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.comm.ranks import rank
from pyg_sar.utils import hook
from pyg_sar.utils.hook import Transfer, Watcher


def sample(
    *,
    source: str,
    fan_outs: list[int],
    batch_size: int,
    batches: int,
    links: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yields what an epoch without training costs, one after another.

    Args:
        source: A partition folder.
        fan_outs: By hop.
        batch_size: Seeds of all ranks.
        batches: How many an epoch has at most.
        links: Whether batches are of links, each with a negative one, instead of nodes.
    """
    data = _load(source)
    options: dict[str, Any] = {'batch_size': batch_size}
    loader: Any = (
        _link_loader(data, fan_outs, batches * batch_size, **options)
        if links
        else _loader(data, fan_outs, batches=batches, **options)
    )
    is_own = torch.zeros(data.num_nodes, dtype=torch.bool)
    is_own[pyg_sar.local(data.n_id)] = True
    yield {}
    while True:
        edges = remote = 0
        operations = _Operations()
        hook.add(operations)
        start = time.perf_counter()
        for batch in loader:
            edges += batch.num_edges
            remote += int(batch.num_nodes - is_own[batch.n_id].sum())
        seconds = time.perf_counter() - start
        hook.remove(operations)
        result = {'seconds': seconds, 'batches': len(loader), 'edges': edges, 'remote': remote}
        yield {**result, **operations.counts()}


def train(
    *, source: str, fan_outs: list[int], batch_size: int, batches: int, hidden: int, lr: float
) -> Iterator[dict[str, Any]]:
    """Yields seconds of an epoch of GraphSAGE, and of them those of waiting for batches."""
    data = _load(source)
    torch.manual_seed(0)
    network = make_model('sage', data.num_features, hidden, len(fan_outs), data.num_classes)
    model = pyg_sar.DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    loader = _loader(data, fan_outs, batch_size, batches)
    yield {}
    while True:
        start, waiting = time.perf_counter(), 0.0
        iteration = iter(loader)
        while True:
            asked = time.perf_counter()
            batch = next(iteration, None)
            waiting += time.perf_counter() - asked
            if batch is None:
                break
            out = model(
                batch.x,
                batch.edge_index,
                num_sampled_nodes_per_hop=batch.num_sampled_nodes,
                num_sampled_edges_per_hop=batch.num_sampled_edges,
            )[: batch.batch_size]
            values = F.cross_entropy(out, batch.y[: batch.batch_size], reduction='none')
            loss = pyg_sar.loader.mean_of_batches(values)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds = time.perf_counter() - start
        yield {'seconds': seconds, 'waiting': waiting, 'batches': len(loader)}


def _load(source: str) -> Data:
    """The shard, in a process that has one core."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank() % len(cores)]})
    data = pyg_sar.load_shard(source)
    read_all(data)
    return data


def _loader(
    data: Data, fan_outs: list[int], batch_size: int, batches: int, **options: Any
) -> pyg_sar.NeighborLoader:
    """Of training nodes at random."""
    nodes = pyg_sar.gather(data.train_mask).nonzero().view(-1)
    order = torch.randperm(nodes.numel(), generator=torch.Generator().manual_seed(0))
    seeds = nodes[order[: batches * batch_size]]
    return pyg_sar.NeighborLoader(
        data, fan_outs, seeds, batch_size=batch_size, shuffle=True, seed=0, **options
    )


def _link_loader(
    data: Data, fan_outs: list[int], num_links: int, **options: Any
) -> pyg_sar.LinkNeighborLoader:
    """Of some edges at random."""
    order = torch.randperm(data.num_edges, generator=torch.Generator().manual_seed(0))
    links = data.edge_index[:, order[:num_links]]
    return pyg_sar.LinkNeighborLoader(
        data,
        fan_outs,
        links,
        neg_sampling='binary',
        exclude_edges=True,
        shuffle=True,
        seed=0,
        **options,
    )


class _Operations(Watcher):
    """Counts operations with other ranks, the bytes they send, and seconds in them."""

    def __init__(self) -> None:
        self.collectives, self.bytes_sent, self.waiting = 0, 0, 0.0
        self._since: list[float] = []

    def enter_operation(self, operation: str, peer: int | None) -> None:
        self.collectives += not self._since
        self._since.append(time.perf_counter())

    def leave_operation(self) -> None:
        since = self._since.pop()
        if not self._since:
            self.waiting += time.perf_counter() - since

    def moved(self, transfer: Transfer) -> None:
        self.bytes_sent += transfer.bytes_sent

    def counts(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ('collectives', 'bytes_sent', 'waiting')}
