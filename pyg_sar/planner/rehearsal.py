"""A training step of one rank, rehearsed on a small graph of the same proportions.

The real code runs, on a made-up shard: so whatever a conv keeps per node, per edge or per row of a
block is found by measuring it, for any model.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

from pyg_sar.conv.options import Mode
from pyg_sar.loss import global_mean
from pyg_sar.monitor.live_bytes import LiveBytes
from pyg_sar.planner.sizes import RankSizes
from pyg_sar.planner.world import World
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.shard import Shard, Step
from pyg_sar.wrap import wrap

Forward = Callable[[torch.nn.Module, Data], Tensor]
MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


@dataclass(frozen=True)
class Job:
    """What is rehearsed.

    Attributes:
        model: A PyG model, not wrapped; it is copied and stays as it is.
        in_channels: Width of ``data.x``.
        mode: The mode of every SARConv.
        forward: Runs the model on the shard.
        make_optimizer: Makes the optimizer from the parameters.
        dtype: Of features and parameters.
    """

    model: torch.nn.Module
    in_channels: int
    mode: Mode
    forward: Forward
    make_optimizer: MakeOptimizer
    dtype: torch.dtype


@dataclass(frozen=True)
class Rehearsal:
    """What one rank did in the rehearsal.

    Attributes:
        peak_bytes: The most bytes of tensors alive at once, beyond features, edges and parameters.
        parameter_bytes: Bytes of parameters that take gradients.
        received_bytes: Bytes received in the last epoch.
        received_rows: Rows received in the last epoch.
        seconds: Of the fastest epoch after the first.
    """

    peak_bytes: int
    parameter_bytes: int
    received_bytes: int
    received_rows: int
    seconds: float


def rehearse(job: Job, sizes: RankSizes, *, count: bool = True, epochs: int = 2) -> Rehearsal:
    """Trains a copy of the model on a made-up shard.

    Args:
        job: What is rehearsed.
        sizes: The counts of the shard.
        count: Whether to count bytes; without, seconds are true ones.
        epochs: Training steps; the first one also makes plans and optimizer states.
    """
    world = World(1 + len(sizes.halo) // len(sizes.own))
    with torch.random.fork_rng(devices=[]), world.in_force():
        torch.manual_seed(0)
        model = copy.deepcopy(job.model).to('cpu', job.dtype).train()
        for module in model.modules():
            if isinstance(module, MessagePassing):  # turned edges are as many, between as many rows
                module.flow = 'source_to_target'
        model = wrap(model, mode=job.mode)
        data = make_data(sizes, job)
        optimizer = job.make_optimizer(model.parameters())
        index = data.edge_index.as_subclass(Tensor)
        known = [data.x, data.y, data.train_mask, index, *model.parameters(), *model.buffers()]
        known += [step.send_index for step in data.edge_index.shard.steps]
        live = LiveBytes(known)
        with live if count else nullcontext():
            last = _train(job, model, data, optimizer, epochs, world)
    return Rehearsal(
        peak_bytes=live.peak,
        parameter_bytes=sum(p.nbytes for p in model.parameters() if p.requires_grad),
        received_bytes=last[0],
        received_rows=last[1],
        seconds=last[2],
    )


def _train(
    job: Job,
    model: torch.nn.Module,
    data: Data,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    world: World,
) -> tuple[int, int, float]:
    """The usual loop; returns bytes and rows received, and seconds."""
    before, seconds = (0, 0), []
    for _ in range(epochs):
        before, start = (world.received_bytes, world.received_rows), time.perf_counter()
        out = job.forward(model, data)
        if out.dim() != 2 or out.size(0) != data.num_nodes:
            raise ValueError(
                f'expected one row of logits per node of the model (got shape {tuple(out.shape)} '
                f'for {data.num_nodes} nodes)'
            )
        values = F.cross_entropy(out, data.y, reduction='none')
        loss = global_mean(values, data.train_mask)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    fastest = min(seconds[1:] or seconds)
    return world.received_bytes - before[0], world.received_rows - before[1], fastest


def make_data(sizes: RankSizes, job: Job) -> Data:
    """A shard of the given counts, of rank 0, with edges at random."""
    per_rank = len(sizes.own)
    world_size = 1 + len(sizes.halo) // per_rank
    num_parts, num_own = per_rank * world_size, sizes.num_own
    # Step (s, i) reads part i of rank -s and serves rank s; in file order remote parts ascend.
    halo, halo_edges = [0] * num_parts, [0] * num_parts
    halo_edges[:per_rank] = sizes.own_edges
    steps = []
    for place, rows in enumerate(sizes.halo):
        s, i = place // per_rank + 1, place % per_rank
        sender = world_size - s
        halo[sender * per_rank + i] = rows
        halo_edges[sender * per_rank + i] = sizes.halo_edges[place] if rows else 0
        start, end = [0, *accumulate(sizes.own)][i : i + 2]
        send_index = start + torch.arange(rows) % max(end - start, 1)
        steps.append(Step(sender * per_rank + i, sender, rows, s % world_size, send_index))
    shard = Shard(
        root='(rehearsal)',
        fingerprint='rehearsal',
        rank=0,
        world_size=world_size,
        num_parts=num_parts,
        num_nodes=num_own * world_size,
        own_ptr=(0, *accumulate(sizes.own)),
        halo_ptr=(0, *accumulate(halo)),
        block_ptr=(0, *accumulate(halo_edges)),
        steps=tuple(steps),
    )
    blocks = [_block(*shard.source_range(q), num_own, halo_edges[q]) for q in range(num_parts)]
    handle = ShardEdgeIndex.wrap(torch.cat(blocks, dim=1), shard, is_whole=True)
    return Data(
        x=torch.randn(num_own, job.in_channels, dtype=job.dtype),
        edge_index=handle,
        y=torch.zeros(num_own, dtype=torch.int64),
        train_mask=torch.arange(num_own) % 5 < 3,
        num_nodes=num_own,
    )


def _block(start: int, end: int, num_dst: int, num_edges: int) -> Tensor:
    """Edges of one block at random, sorted by destination and source."""
    if end == start or num_dst == 0:
        num_edges = 0
    src = start + torch.arange(num_edges) % max(end - start, 1)  # every row is read
    dst = torch.randint(max(num_dst, 1), (num_edges,))
    order = torch.argsort(dst * max(end, 1) + src)
    return torch.stack([src[order], dst[order]])
