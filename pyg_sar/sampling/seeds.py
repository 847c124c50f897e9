"""Which seeds each batch has.

Batches belong to parts, not to ranks: a part's seeds are cut into batches, and batch i of a rank is
batch i of each of its parts. So 8 parts have the same batches on 1, 2, 4 and 8 ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm import raise_together
from pyg_sar.draws import hashed, hashed_on
from pyg_sar.sampling.attributes import NodeKey
from pyg_sar.sampling.graph import Graph

_ORDER, _EDGES = 0, 1  # what hashes are for


@dataclass(frozen=True, eq=False)
class Seeds:
    """The seeds of K batches, batch after batch, part after part.

    Attributes:
        type: Of the nodes.
        row: Own rows, int64 ``[S]``.
        input_id: Their places in what the loader was given, int64 ``[S]``.
        group: The group of each, ascending, int64 ``[S]``.
        batch_ptr: K + 1 offsets of the batches' seeds.
        group_ptr: Those of their groups, int64 ``[K + 1]``.
        state: What the draws of a group follow from beside nodes, int64 ``[num_groups]``.
        until: The time that its edges may have, ``[num_groups]``; None without times.
    """

    type: NodeKey
    row: Tensor
    input_id: Tensor
    group: Tensor
    batch_ptr: list[int]
    group_ptr: Tensor
    state: Tensor
    until: Tensor | None


@dataclass(frozen=True, eq=False)
class Inputs:
    """All seeds of a rank.

    Attributes:
        type: Of the nodes.
        row: Own rows, int64 ``[N]``.
        input_id: int64 ``[N]``.
        n_id: Ids in the whole graph, int64 ``[N]``.
        time: int64 or float64 ``[N]``, or None.
        parts: Places in these, by own part.
        first_part: The first own part.
        batch_size: Seeds of a part in a batch.
        disjoint: Whether every seed is a group of its own.
        seed: Of all draws.
        shuffle: Whether batches are of seeds in random order.
    """

    type: NodeKey
    row: Tensor
    input_id: Tensor
    n_id: Tensor
    time: Tensor | None
    parts: list[Tensor]
    first_part: int
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
        keys = hashed(self.seed, _ORDER, epoch, self.n_id, self._occurrence())
        return [part[torch.argsort(keys[part], stable=True)] for part in self.parts]

    def _occurrence(self) -> Tensor:
        """How often a node's id stands before each place: repeated seeds are not neighbours."""
        order = torch.argsort(self.n_id, stable=True)
        _, counts = torch.unique_consecutive(self.n_id[order], return_counts=True)
        rank = torch.arange(order.numel())
        rank -= torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        return torch.empty_like(rank).index_copy_(0, order, rank)

    def of_batches(self, order: Sequence[Tensor], epoch: int, batches: Sequence[int]) -> Seeds:
        """The seeds of some batches of an epoch."""
        size = self.batch_size
        pieces = [part[b * size : (b + 1) * size] for b in batches for part in order]
        lengths = torch.tensor([piece.numel() for piece in pieces])
        at = torch.cat(pieces)
        group = torch.repeat_interleave(lengths)
        own = torch.arange(self.first_part, self.first_part + len(order))
        state = hashed(self.seed, _EDGES, epoch, own, torch.tensor(batches).unsqueeze(1)).view(-1)
        ptr = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])[:: len(order)]
        group_ptr, until = torch.arange(len(batches) + 1) * len(order), None
        if self.disjoint:
            state = hashed_on(state[group], self.n_id[at])
            group, group_ptr = torch.arange(at.numel()), ptr
            if self.time is not None:
                until = self.time[at]
                state = hashed_on(state, until.view(torch.int64))
        return Seeds(
            self.type,
            self.row[at],
            self.input_id[at],
            group,
            ptr.tolist(),
            group_ptr,
            state,
            until,
        )


def read_inputs(
    graph: Graph, seeds: tuple[NodeKey, Tensor, Tensor], input_time: Any, *, is_timed: bool
) -> tuple[NodeKey, Tensor, Tensor, Tensor, Tensor | None, list[Tensor], int]:
    """The first fields of :class:`Inputs` (collective: see raise_together).

    Args:
        graph: The own part of it.
        seeds: Their type, own rows and `input_id`.
        input_time: Their times, or None for those of the nodes.
        is_timed: Whether edges are drawn by time.

    Raises:
        ValueError: On all ranks, if times are missing or wrong.
    """
    key, row, input_id = seeds
    nodes, time, error = graph.nodes[key], None, None
    if input_time is not None:
        time = torch.as_tensor(input_time).detach().cpu()
        if time.shape != row.shape or time.is_complex() or bool(time.isnan().any()):
            error = (
                f"'input_time' must have a number for each of {row.numel()} seeds, not NaN (got "
                f'{time.dtype} {tuple(time.shape)})'
            )
    elif is_timed and key in graph.times:
        time = graph.times[key][row]
    elif is_timed:  # by edges, or by other nodes
        error = "'input_time' must be given where seeds have no 'time_attr' of their own (got None)"
    if not nodes.own_ptr:
        error = f"'input_nodes' must be of a type with edges (got '{key}')"
    raise_together(None if error is None else ValueError(error))
    if time is not None and time.dtype != graph.time_dtype:
        # Times of edges are whole numbers: at most 2.5 is at most 2.
        is_whole = graph.time_dtype == torch.int64 and time.is_floating_point()
        time = (time.floor() if is_whole else time).to(graph.time_dtype)
    ends = torch.tensor(nodes.own_ptr)
    part = torch.bucketize(row, ends[1:], right=True)
    parts = [(part == i).nonzero().view(-1) for i in range(graph.parts_per_rank)]
    return key, row, input_id, nodes.n_id[row], time, parts, graph.first_part
