"""What batches begin with: seeds, cut into batches.

Batches belong to parts, not to ranks: a part's seeds are cut into batches, and batch i of a rank is
batch i of each of its parts. So 8 parts have the same batches on 1, 2, 4 and 8 ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyg_sar.draws import hashed
from pyg_sar.sampling.attributes import EdgeKey, NodeKey
from pyg_sar.sampling.graph import Graph
from pyg_sar.sampling.seeds.excluded import Excluded

_ORDER = 0  # what hashes are for
EDGES, NEGATIVES = 1, 2


@dataclass(frozen=True, eq=False)
class First:
    """The nodes of one type that batches begin with, batch after batch, part after part.

    Attributes:
        group: The group of each, int64 ``[N]``; see :mod:`pyg_sar.sampling.rounds`.
        position: int64 ``[N]``.
        cuts: K + 1 offsets of the batches' nodes.
    """

    group: Tensor
    position: Tensor
    cuts: list[int]


@dataclass(frozen=True, eq=False)
class Seeds:
    """The seeds of K batches.

    Attributes:
        first: Their nodes, by type.
        group_ptr: The first group of every batch, and how many there are, int64 ``[K + 1]``.
        state: What the draws of a group follow from beside nodes, int64 ``[num_groups]``.
        until: The time that its edges may have, ``[num_groups]``; None without times.
        are_own: Whether all nodes are own ones.
        excluded: By relation, the edges that a batch must not have.
    """

    first: dict[NodeKey, First]
    group_ptr: Tensor
    state: Tensor
    until: Tensor | None
    are_own: bool
    excluded: dict[EdgeKey, Excluded] = field(default_factory=dict, kw_only=True)

    @property
    def num_batches(self) -> int:
        """How many batches these are of."""
        return self.group_ptr.numel() - 1

    def trees(self, group: Tensor, number: int) -> Tensor:
        """The seeds that groups of a batch belong to, counted in the batch."""
        return group - self.group_ptr[number]

    def tell(self, nodes: Mapping[NodeKey, Any], edges: Mapping[EdgeKey, Any], number: int) -> None:
        """Writes what a batch says of its seeds into its stores."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Inputs:
    """All seeds of a rank.

    Attributes:
        graph: The own part of it.
        key: What each is, the same wherever it was given, int64 ``[N]``.
        parts: Places in these, by own part.
        batch_size: Seeds of a part in a batch.
        disjoint: Whether every seed has trees of its own.
        seed: Of all draws.
        shuffle: Whether batches are of seeds in random order.
    """

    graph: Graph
    key: Tensor
    parts: list[Tensor]
    batch_size: int
    disjoint: bool
    seed: int
    shuffle: bool

    def num_batches(self, drop_last: bool) -> int:
        """The most that an own part has."""
        up = 0 if drop_last else self.batch_size - 1
        return max((part.numel() + up) // self.batch_size for part in self.parts)

    def order(self, epoch: int) -> list[Tensor]:
        """The seeds of every own part in the order of an epoch: places in the inputs."""
        if not self.shuffle:
            return self.parts
        keys = hashed(self.seed, _ORDER, epoch, self.key, self._occurrence())
        return [part[torch.argsort(keys[part], stable=True)] for part in self.parts]

    def _occurrence(self) -> Tensor:
        """How often a seed stands before each place: repeated ones are not neighbours."""
        order = torch.argsort(self.key, stable=True)
        _, counts = torch.unique_consecutive(self.key[order], return_counts=True)
        rank = torch.arange(order.numel())
        rank -= torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        return torch.empty_like(rank).index_copy_(0, order, rank)

    def cut(self, order: Sequence[Tensor], batches: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The seeds of batches, batch after batch, part after part; how many each part gives."""
        size = self.batch_size
        pieces = [part[b * size : (b + 1) * size] for b in batches for part in order]
        return torch.cat(pieces), torch.tensor([piece.numel() for piece in pieces])

    def states(self, purpose: int, epoch: int, batches: Sequence[int]) -> Tensor:
        """What the draws of the parts' batches follow from, ``[len(batches) * len(parts)]``."""
        first = self.graph.first_part
        own = torch.arange(first, first + len(self.parts))
        return hashed(self.seed, purpose, epoch, own, torch.tensor(batches).unsqueeze(1)).view(-1)

    def of_batches(self, order: Sequence[Tensor], epoch: int, batches: Sequence[int]) -> Seeds:
        """The seeds of some batches of an epoch (collective, if links have negatives)."""
        raise NotImplementedError

    def visits(self) -> Iterable[tuple[NodeKey, Tensor, Tensor]]:
        """Positions of nodes by type, and how often each is expected to begin a batch."""
        raise NotImplementedError

    def shares(self) -> Tensor:
        """How often each seed is expected in a batch, float64 ``[N]``."""
        out = torch.zeros(self.key.numel(), dtype=torch.float64)
        for part in self.parts:
            out[part] = min(self.batch_size / max(part.numel(), 1), 1.0)
        return out


@dataclass(frozen=True, eq=False)
class Asked:
    """What a loader was asked for, read from its arguments.

    Attributes:
        name: The argument that gives the seeds.
        same: What has to be equal on all ranks.
        inputs: The seeds in the graph, with `disjoint` trees or not; a ValueError on all ranks if
            they are wrong (collective).
    """

    name: str
    same: dict[str, Any]
    inputs: Callable[[Graph, bool], Inputs]


def by_part(graph: Graph, key: NodeKey, row: Tensor) -> list[Tensor]:
    """Places of own rows of nodes by own part."""
    ends = torch.tensor(graph.nodes[key].own_ptr)
    part = torch.bucketize(row, ends[1:], right=True)
    return [(part == i).nonzero().view(-1) for i in range(graph.parts_per_rank)]


def times_of(graph: Graph, name: str, given: Any, count: int) -> tuple[Tensor | None, str | None]:
    """Times as the graph has them, and what is wrong with them."""
    time = torch.as_tensor(given).detach().cpu()
    if time.shape != (count,) or time.is_complex() or bool(time.isnan().any()):
        error = (
            f"'{name}' must have a number for each of {count} seeds, not NaN (got {time.dtype} "
            f'{tuple(time.shape)})'
        )
        return None, error
    # Times of edges are whole numbers: at most 2.5 is at most 2.
    is_whole = graph.time_dtype == torch.int64 and time.is_floating_point()
    return (time.floor() if is_whole else time).to(graph.time_dtype), None
