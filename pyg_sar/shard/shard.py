"""What a rank knows of the partition: its own nodes, its halo, its boundary, its schedule.

A rank owns a contiguous run of ``num_parts / world_size`` parts. Its local node ids are the own
nodes of those parts one after another (``0 .. num_own - 1``), then the halo rows grouped by the
part that owns them. So the source ids of every block are one contiguous range. Edges are sorted by
(part that owns the source, destination, source), so a block is a slice of every edge tensor.

Modules keep results with a shard, or with a plan of its blocks, in fields of their own: what all
ranks made together as :class:`pyg_sar.comm.vote.Agreed`, unless it follows from the shard alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar('T')


class HasCache(Protocol):
    """A shard or a plan."""

    @property
    def kept(self) -> dict[Cached[Any], Any]:
        """By field."""


class Cached(Generic[T]):
    """A field, which one module makes once for its own results."""

    def get(self, owner: HasCache) -> T | None:
        """The value kept with `owner`, or None."""
        return owner.kept.get(self)

    def put(self, owner: HasCache, value: T) -> T:
        """HasCache a value instead of the one before."""
        owner.kept[self] = value
        return value

    def of(self, owner: HasCache, make: Callable[[], T]) -> T:
        """The value kept with `owner`; a first one comes from `make`."""
        value: T | None = owner.kept.get(self)
        return self.put(owner, make()) if value is None else value


class PartialSums(Protocol):
    """Sums of own rows that travel after the rows of a step."""

    @property
    def num_sums(self) -> int:
        """Number of sums."""

    def put(self, out: Tensor, rows: Tensor) -> None:
        """Puts the sums of own rows ``[num_own, ...]`` into `out` ``[num_sums, ...]``."""

    def add(self, out: Tensor, gradients: Tensor) -> None:
        """Adds the share of gradients of the sums ``[num_sums, ...]`` to gradients of own rows."""


@dataclass(frozen=True, eq=False)
class Step:
    """One step of the exchange: one remote part's rows come in, one own part's rows go out.

    In step ``s`` rank ``r`` receives from rank ``r - s`` and sends to ``r + s``: no deadlock.
    """

    part: int  # the remote part whose rows are received
    recv_rank: int  # the rank that owns `part`
    recv_rows: int  # number of rows received: the halo rows owned by `part`, or a cover of them
    send_rank: int  # the rank that reads rows of an own part in this step
    send_index: Tensor  # local rows it reads, int64 ``[num_rows]``
    sums: PartialSums | None = None  # sent after the rows, in an exchange by covers

    @cached_property
    def send_rows(self) -> int:
        """Number of rows sent."""
        return self.send_index.numel() + (0 if self.sums is None else self.sums.num_sums)


class Cut(NamedTuple):
    """Nodes in the order of the parts that they were cut into."""

    nodes: Tensor  # int64 ``[num_nodes]``
    ptr: tuple[int, ...]  # ``num_parts + 1`` offsets of the parts among them

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.ptr) - 1


def make_steps(
    rank: int, world_size: int, halo_ptr: Sequence[int], sent: Callable[[int, int], Tensor]
) -> tuple[Step, ...]:
    """The steps of a rank's exchange, also those in which nothing is sent.

    ``sent(reader, i)`` are the own rows that rank `reader` reads of the i-th own part.
    """
    per_rank = (len(halo_ptr) - 1) // world_size
    steps = []
    for s in range(1, world_size):
        sender, reader = (rank - s) % world_size, (rank + s) % world_size
        for i in range(per_rank):
            part = sender * per_rank + i
            recv_rows = halo_ptr[part + 1] - halo_ptr[part]
            steps.append(Step(part, sender, recv_rows, reader, sent(reader, i)))
    return tuple(steps)


@dataclass(frozen=True, eq=False)
class Shard:
    """The part of a partitioned graph that one rank holds, without features and edges."""

    root: str  # the partition folder it was read from, for messages
    fingerprint: str  # names the partition; equal on all ranks
    rank: int  # the rank that holds it
    world_size: int
    num_parts: int  # number of parts; a multiple of `world_size`
    num_nodes: int  # of the whole graph
    own_ptr: tuple[int, ...]  # ``parts_per_rank + 1`` offsets: own nodes of the i-th own part
    # ``num_parts + 1`` offsets: halo rows owned by each part (own parts: none).
    halo_ptr: tuple[int, ...]
    block_ptr: tuple[int, ...]  # ``num_parts + 1`` offsets: edges whose source each part owns
    steps: tuple[Step, ...]  # the exchange, in order; empty on one rank
    # Of a bipartite shard, how many own destinations there are; None where sources and destinations
    # are the same nodes.
    dst_rows: int | None = None
    # Of a bipartite shard as it was loaded, ``parts_per_rank + 1`` offsets: own destinations of the
    # i-th own part.
    dst_ptr: tuple[int, ...] | None = None
    # Original ids of the edges, int64 ``[num_edges]``, where they are known.
    e_id: Tensor | None = field(default=None, repr=False)
    # Ids of the own nodes in the whole graph, int64 ``[num_own]``, where they are known.
    n_id: Tensor | None = field(default=None, repr=False)
    # Of a bipartite shard as it was loaded, the ids of the own destinations, int64 ``[num_dst]``.
    dst_id: Tensor | None = field(default=None, repr=False)
    # Where one process holds the whole graph, in its order: how its sources and its destinations
    # were cut. Sums visit them in that order, as neighbours are near each other there.
    cut: tuple[Cut, Cut] | None = field(default=None, repr=False)
    kept: dict[Cached[Any], Any] = field(default_factory=dict, repr=False)

    @cached_property
    def partition(self) -> str:
        """Names the partition; relations of one partition have it in common."""
        return self.fingerprint.split(' ')[0]

    @cached_property
    def parts_per_rank(self) -> int:
        """Number of parts each rank owns."""
        return self.num_parts // self.world_size

    @cached_property
    def parts(self) -> range:
        """The parts this rank owns."""
        return range(self.rank * self.parts_per_rank, (self.rank + 1) * self.parts_per_rank)

    @cached_property
    def num_own(self) -> int:
        """Number of own nodes that edges may start from: the rows of ``x`` here."""
        return self.own_ptr[-1]

    @cached_property
    def num_dst(self) -> int:
        """Number of own nodes that edges may end in: the rows of every layer's output here."""
        return self.num_own if self.dst_rows is None else self.dst_rows

    @property
    def is_whole_graph(self) -> bool:
        """Whether one process holds all nodes and edges, in the order of the graph."""
        return self.cut is not None

    @cached_property
    def is_bipartite(self) -> bool:
        """Whether edges run from nodes of one set to nodes of another."""
        return self.dst_rows is not None

    @cached_property
    def num_halo(self) -> int:
        """Number of halo rows the edges of this rank read."""
        return self.halo_ptr[-1]

    @cached_property
    def num_edges(self) -> int:
        """Number of edges into own nodes."""
        return self.block_ptr[-1]

    @cached_property
    def source_ranges(self) -> tuple[tuple[int, int], ...]:
        """See :meth:`source_range`, of every part."""
        first, ptr = self.parts.start, [self.num_own + at for at in self.halo_ptr]
        own = {first + i: ends for i, ends in enumerate(pairwise(self.own_ptr))}
        return tuple(own.get(part, ends) for part, ends in enumerate(pairwise(ptr)))

    def source_range(self, part: int) -> tuple[int, int]:
        """The local source ids ``[start, end)`` of the block of `part`."""
        return self.source_ranges[part]

    def to(self, device: torch.device) -> Shard:
        """This shard, with its index tensors on `device`."""
        ids = self.e_id, self.n_id, self.dst_id
        tensors = [*ids, *(step.send_index for step in self.steps)]
        if all(t is None or t.device == device for t in tensors):
            return self
        steps = tuple(replace(s, send_index=s.send_index.to(device)) for s in self.steps)
        e_id, n_id, dst_id = (None if t is None else t.to(device) for t in ids)
        return replace(self, steps=steps, e_id=e_id, n_id=n_id, dst_id=dst_id, kept={})


def n_id_of(shard: Shard) -> Tensor:
    """Ids of the own nodes in the whole graph."""
    if shard.n_id is None:
        raise ValueError('expected the edge_index of load_shard (got one derived from it)')
    return shard.n_id
