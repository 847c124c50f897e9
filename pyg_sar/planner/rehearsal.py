"""A training step of one rank, rehearsed by the real code on a small graph of its proportions.

So whatever a conv keeps per node, per edge or per row of a block is found by measuring it, for any
model. The process is rank 0 of P while every other rank is thought to hold an equal shard, shifted:
what rank r sends to rank 0 is what rank 0 itself sends to rank -r. That answers every exchange with
tensors of the right sizes and sensible values, without a process group.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

from pyg_sar.comm import Comm, chosen
from pyg_sar.conv.options import Mode
from pyg_sar.ddp import DistributedDataParallel
from pyg_sar.ddp.wrap import wrap
from pyg_sar.ground.random_states import random_states_kept
from pyg_sar.monitor import Counts, LiveBytes, Meter, hook
from pyg_sar.planner.sizes import RankSizes
from pyg_sar.rows.attach import as_rows_of_graph
from pyg_sar.shard.cover import covers_pay
from pyg_sar.shard.edges import LocalEdges, ShardEdges
from pyg_sar.shard.shard import Shard, make_steps

MODES: tuple[Mode, ...] = ('sequential', 'sequential_no_remat', 'one_shot')


def _run(model: torch.nn.Module, data: Data) -> Tensor:
    return model(data.x, data.edge_index)


@dataclass(frozen=True)
class Job:
    """What is rehearsed.

    Attributes:
        model: A PyG model, not wrapped; it is copied and stays as it is.
        in_channels: Width of ``data.x``.
        mode: The mode of every SARConv.
        optimizer: Makes the optimizer from the parameters.
        dtype: Of features and parameters.
        forward: Runs the model; ``data`` has ``x``, ``edge_index``, ``y``, ``train_mask`` and
            ``num_nodes``. The result is taken for logits.

    Raises:
        ValueError: If one of them is not possible.
    """

    model: torch.nn.Module
    in_channels: int
    mode: Mode = 'sequential'
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.Adam
    dtype: torch.dtype = torch.float32
    forward: Callable[[torch.nn.Module, Data], Tensor] = _run

    def __post_init__(self) -> None:
        if self.in_channels < 1:
            raise ValueError(f"'in_channels' must be positive (got {self.in_channels})")
        if self.mode not in MODES:
            raise ValueError(f"'mode' must be one of {MODES} (got {self.mode!r})")
        if isinstance(self.model, DistributedDataParallel):
            raise ValueError('expected the plain model (got one of DistributedDataParallel)')


class Rehearsal(NamedTuple):
    """What one rank did."""

    peak_bytes: int  # of tensors alive at once, beyond features, edges and parameters
    bytes_received: int  # in the last epoch
    rows_received: int
    seconds: float  # of the fastest epoch after the first one


def rehearse(
    job: Job, sizes: RankSizes, *, count: bool = True, epochs: int = 2, is_batch: bool = False
) -> Rehearsal:
    """Trains a copy of the model on a made-up shard, or on plain edges of a mini-batch.

    The first of the `epochs` also makes plans and optimizer states. Without `count` no bytes are
    counted, and seconds are true ones.
    """
    with random_states_kept(torch.device('cpu')), equal_ranks(sizes.num_ranks) as traffic:
        torch.manual_seed(0)
        model = copy.deepcopy(job.model).to('cpu', job.dtype).train()
        for module in model.modules():
            if isinstance(module, MessagePassing):  # turned edges are as many, between as many rows
                module.flow = 'source_to_target'
        options: dict[str, Any] = {}
        if job.mode != 'one_shot':
            options['partial_sums'] = covers_pay(sizes.cover_share, 1)
        model = wrap(model, mode=job.mode, **options)
        data = make_data(sizes, job)
        optimizer = job.optimizer(model.parameters())
        index = data.edge_index.handle.ids
        known = [data.x, data.y, data.train_mask, index, *model.parameters(), *model.buffers()]
        known += [step.send_index for step in data.edge_index.handle.shard.steps]
        if is_batch:
            data.edge_index = index
        else:
            as_rows_of_graph(data)
        live, seconds = LiveBytes(known), []
        with live if count else nullcontext():
            for _ in range(epochs):
                before = traffic.bytes_received, traffic.rows_received
                start = time.perf_counter()
                _step(job, model, data, optimizer)
                seconds.append(time.perf_counter() - start)
    num_bytes, num_rows = traffic.bytes_received - before[0], traffic.rows_received - before[1]
    return Rehearsal(live.peak, num_bytes, num_rows, min(seconds[1:]))


def _step(job: Job, model: torch.nn.Module, data: Data, optimizer: torch.optim.Optimizer) -> None:
    out = job.forward(model, data)
    if out.dim() != 2 or out.size(0) != data.num_nodes:
        raise ValueError(
            f'expected one row of logits per node of the model (got shape {tuple(out.shape)} '
            f'for {data.num_nodes} nodes)'
        )
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def make_data(sizes: RankSizes, job: Job) -> Data:
    """A shard of the given counts, of rank 0, with edges at random."""
    per_rank, world_size, num_own = len(sizes.own), sizes.num_ranks, sizes.num_own
    num_parts = per_rank * world_size
    # Step (s, i) reads part i of rank -s and serves rank s; in file order remote parts ascend.
    halo, halo_edges = [0] * num_parts, [0] * num_parts
    halo_edges[:per_rank] = sizes.own_edges
    own_ptr = (0, *accumulate(sizes.own))
    for place, rows in enumerate(sizes.halo):
        part = (world_size - place // per_rank - 1) * per_rank + place % per_rank
        halo[part] = rows
        halo_edges[part] = sizes.halo_edges[place] if rows else 0
    halo_ptr = (0, *accumulate(halo))

    def sent(reader: int, i: int) -> Tensor:
        rows = torch.arange(sizes.halo[(reader - 1) * per_rank + i])
        return own_ptr[i] + rows % max(sizes.own[i], 1)

    shard = Shard(
        root='(rehearsal)',
        fingerprint='rehearsal',
        rank=0,
        world_size=world_size,
        num_parts=num_parts,
        num_nodes=num_own * world_size,
        own_ptr=own_ptr,
        halo_ptr=halo_ptr,
        block_ptr=(0, *accumulate(halo_edges)),
        steps=make_steps(0, world_size, halo_ptr, sent),
    )
    blocks = [
        _block(
            *shard.source_range(q),
            num_own,
            halo_edges[q],
            sizes.cover_share if q >= per_rank else 1.0,
        )
        for q in range(num_parts)
    ]
    edges = torch.cat(blocks, dim=1)
    shard = replace(shard, e_id=torch.arange(edges.size(1)))
    handle = ShardEdges(edges, shard, is_whole=True)
    return Data(
        x=torch.randn(num_own, job.in_channels, dtype=job.dtype),
        edge_index=LocalEdges.of(handle),
        y=torch.zeros(num_own, dtype=torch.int64),
        train_mask=torch.arange(num_own) % 5 < 3,
        n_id=torch.arange(num_own),
        num_nodes=num_own,
        num_nodes_total=shard.num_nodes,
    )


def _block(start: int, end: int, num_dst: int, num_edges: int, cover_share: float) -> Tensor:
    """Edges of one block, sorted by destination and source, of which a cover has the given share.

    A row that has to travel has an edge to a destination of its own. The edges of the others end in
    one destination, whose sum travels in their place.
    """
    if end == start or num_dst == 0:
        num_edges = 0
    num_rows = max(end - start, 1)
    row = torch.arange(num_edges) % num_rows  # every row is read
    dst = torch.randint(max(num_dst, 1), (num_edges,))
    if covers_pay(cover_share, 1):
        dst[:num_rows] = row[:num_rows] % max(num_dst, 1)
        dst[row >= round(cover_share * num_rows) - 1] = 0
    order = torch.argsort(dst * num_rows + row)
    return torch.stack([start + row[order], dst[order]])


@contextmanager
def equal_ranks(num_ranks: int) -> Iterator[Counts]:
    """While it lasts, this thread is rank 0 of equal ones; gives what it has received."""
    counts = Counts()
    meter = Meter(counts)
    with ExitStack() as stack:
        if num_ranks > 1:
            stack.enter_context(chosen.set(_EqualRanks(num_ranks)))
        hook.add(meter)
        stack.callback(hook.remove, meter)
        yield counts


class _EqualRanks(Comm):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def sum_alike(self, alike: str, *, number: int = 0, state: str = '') -> int | None:
        return number * self.size

    def gather_texts(self, text: bytes, *, is_short: bool) -> list[bytes]:
        return [text] * self.size

    def start_swap(
        self,
        received: Sequence[Tensor],
        recv_rank: int,
        sent: Sequence[Tensor],
        send_rank: int,
        words: str,
    ) -> list[Any]:
        """In one step as many rows come from rank -s as go to rank +s."""
        for come, to in zip(received, sent, strict=True):
            come.copy_(to)
        return []

    def all_to_all(
        self, received: Tensor, sent: Tensor, recv_sizes: list[int], send_sizes: list[int]
    ) -> None:
        """What comes from rank r is what goes to rank -r."""
        parts = torch.split(sent, send_sizes)
        for rank, place in enumerate(torch.split(received, recv_sizes)):
            place.copy_(parts[-rank % self.size])

    def all_reduce(self, tensor: Tensor, group: object = None) -> None:
        tensor *= self.size

    def all_gather(self, own: Tensor) -> Tensor:
        return torch.stack([own] * self.size)

    def broadcast(self, tensor: Tensor) -> None:
        pass
