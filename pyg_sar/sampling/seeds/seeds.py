"""What batches begin with: nodes or links, cut into batches.

A node is a seed with one end, a link one with two. Batches belong to parts, not to ranks: a part's
seeds are cut into batches, and batch i of a rank is batch i of each of its parts. So 8 parts have
the same batches on 1, 2, 4 and 8 ranks. A link belongs to the part that owns its destination. One
process that does not shuffle takes as many seeds in a batch, in the order in which they were given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_sar.draws import hashed, hashed_on
from pyg_sar.sampling.attributes import ends_of
from pyg_sar.sampling.draw.numbering import number
from pyg_sar.sampling.graph import LocalGraph
from pyg_sar.sampling.seeds.excluded import Excluded
from pyg_sar.sampling.seeds.negatives import Negatives
from pyg_sar.shard.format.file_names import EdgeKey, NodeKey

ORDER, EDGES, NEGATIVES = range(3)  # what hashes are for

Asked = tuple[dict[str, Any], Callable[[LocalGraph, bool], 'Seeds']]
"""What has to be equal on all ranks; and what makes the seeds, with `disjoint` trees or not.

It raises a ValueError on all ranks if they are wrong on one (collective).
"""


class First(NamedTuple):
    """The nodes of one type that batches begin with, batch after batch, part after part."""

    group: Tensor  # int64 ``[N]``; see :mod:`pyg_sar.sampling.rounds`
    position: Tensor  # int64 ``[N]``
    cuts: list[int]  # K + 1 offsets of the batches' nodes


@dataclass(frozen=True, eq=False)
class Links:
    """Links of K batches, batch after batch, and their negatives."""

    # Numbers of sources and destinations among the first nodes of their types: links, negatives.
    src: tuple[Tensor, Tensor]
    dst: tuple[Tensor, Tensor]
    cuts: list[int]  # K + 1 offsets of the negatives
    label: tuple[Tensor, Tensor] | None  # of links, and of negatives
    time: tuple[Tensor, Tensor] | None
    per_link: int | None  # with triplets, how many negatives each link has


@dataclass(frozen=True, eq=False)
class SeedBatches:
    """The seeds of K batches."""

    type: Any  # of the nodes, or the relation of the links
    input_id: Tensor  # places of the seeds in what the loader was given, int64 ``[S]``
    cuts: list[int]  # K + 1 offsets of the batches' seeds
    first: dict[NodeKey, First]  # their nodes, by type
    group_ptr: Tensor  # first group of every batch, and how many there are, int64 ``[K + 1]``
    state: Tensor  # what the draws of a group follow from beside nodes, int64 ``[num_groups]``
    until: Tensor | None  # the time that a group's edges may have, ``[num_groups]``
    tree: Tensor | None  # with disjoint trees the seed of every group, counted in its batch
    links: Links | None  # None where seeds are nodes
    excluded: dict[EdgeKey, Excluded]  # by relation, edges that a batch must not have

    @property
    def num_batches(self) -> int:
        """How many batches these are of."""
        return len(self.cuts) - 1

    @property
    def are_own(self) -> bool:
        """Whether all nodes are own ones."""
        return self.links is None


@dataclass(frozen=True, eq=False)
class Seeds:
    """All seeds of a rank: own nodes, or links into own nodes."""

    graph: LocalGraph
    type: Any  # of the nodes, or the relation of the links
    ends: tuple[Tensor, ...]  # positions of nodes, or of sources and destinations, int64 ``[N]``
    key: Tensor  # what each is, the same wherever it was given, int64 ``[N]``
    input_id: Tensor  # int64 ``[N]``
    time: Tensor | None  # int64 or float64 ``[N]``
    batch_size: int  # seeds of a part in a batch
    disjoint: bool  # whether every seed has trees of its own
    seed: int  # of all draws
    shuffle: bool  # whether batches are of seeds in random order
    label: Tensor | None = None  # of links, ``[N, ...]``
    negatives: Negatives | None = None
    # Relations without edges between the ends of a batch's links, and whether the other way round.
    excluded: tuple[tuple[EdgeKey, bool], ...] = ()

    @property
    def types(self) -> tuple[NodeKey, ...]:
        """The types of the ends."""
        return ends_of(self.type) if len(self.ends) == 2 else (self.type,)

    @property
    def _keeps_order(self) -> bool:
        return self.graph.is_whole and not self.shuffle

    @property
    def _size(self) -> int:
        """Seeds of each of :attr:`parts` in a batch."""
        return self.batch_size * (self.graph.parts_per_rank if self._keeps_order else 1)

    @cached_property
    def parts(self) -> list[Tensor]:
        """Places of the seeds of every own part; all in one, if they keep their order."""
        if self._keeps_order:
            return [torch.arange(self.key.numel())]
        nodes = self.graph.nodes[self.types[-1]]
        ends = torch.tensor(nodes.own_ptr[1:])
        part = torch.bucketize(self.ends[-1] - nodes.first, ends, right=True)
        return [(part == i).nonzero().view(-1) for i in range(self.graph.parts_per_rank)]

    def num_batches(self, drop_last: bool) -> int:
        """The most that an own part has."""
        up = 0 if drop_last else self._size - 1
        return max((part.numel() + up) // self._size for part in self.parts)

    def visits(self) -> Iterator[tuple[NodeKey, Tensor, Tensor]]:
        """Positions by type, and how often each is expected to begin a batch, float64 ``[N]``."""
        share = torch.zeros(self.key.numel(), dtype=torch.float64)
        for part in self.parts:
            share[part] = min(self._size / max(part.numel(), 1), 1.0)
        for key, position in zip(self.types, self.ends, strict=True):
            yield key, position, share

    def order(self, epoch: int) -> list[Tensor]:
        """The seeds of every own part in the order of an epoch: places in these."""
        if not self.shuffle:
            return self.parts
        # How often a seed stood before: repeated ones are not to be neighbours.
        order = torch.argsort(self.key, stable=True)
        _, counts = torch.unique_consecutive(self.key[order], return_counts=True)
        rank = torch.arange(order.numel())
        rank -= torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        occurrence = torch.empty_like(rank).index_copy_(0, order, rank)
        keys = hashed(self.seed, ORDER, epoch, self.key, occurrence)
        return [part[torch.argsort(keys[part], stable=True)] for part in self.parts]

    def of_batches(
        self, order: Sequence[Tensor], epoch: int, batches: Sequence[int]
    ) -> SeedBatches:
        """The seeds of some batches of an epoch (collective, if links have negatives)."""
        size, num_parts = self._size, len(order)
        pieces = [part[b * size : (b + 1) * size] for b in batches for part in order]
        at, lengths = torch.cat(pieces), torch.tensor([piece.numel() for piece in pieces])
        batch, link = torch.repeat_interleave(lengths), torch.arange(at.numel())
        time = None if self.time is None else self.time[at]
        ends, cuts = [position[at] for position in self.ends], offsets(lengths)[::num_parts]
        drawn = self._negatives(epoch, batches, lengths, ends[0], time)
        batch, link = torch.cat([batch, drawn.batch]), torch.cat([link, drawn.link])
        ends = [torch.cat(both) for both in zip(ends, drawn.ends, strict=True)]
        # Triplets have no negative sources.
        group = torch.cat([batch[: end.numel()] for end in ends])
        group_ptr = torch.arange(len(batches) + 1) * num_parts
        state, tree, until, batch_of_group = self._states(EDGES, epoch, batches), None, None, None
        if self.disjoint:  # every end is a group of its own
            batch_of_group, order_of = torch.sort(group, stable=True)
            link_of_group = torch.cat([link[: end.numel()] for end in ends])[order_of]
            first = offsets(torch.bincount(group, minlength=lengths.numel()))
            group_ptr, place = first[::num_parts].contiguous(), torch.arange(group.numel())
            group = torch.empty_like(group).index_copy_(0, order_of, place)
            tree = link_of_group - cuts[batch_of_group // num_parts]
            until = None if time is None else time[link_of_group]
            is_link = len(ends) == 2
            salt = place - first[batch_of_group] if is_link else self.key[at]
            state = hashed_on(state[batch_of_group], salt)
            if until is not None and not is_link:
                state = hashed_on(state, until.view(torch.int64))
        links = None
        if len(ends) == 1:
            first_nodes = {self.type: First(group, ends[0], cuts.tolist())}
        else:
            first_nodes, numbers = self._first(group, ends, group_ptr)
            src, dst = ((each[: at.numel()], each[at.numel() :]) for each in numbers)
            neg_cuts = offsets(torch.bincount(drawn.batch, minlength=lengths.numel()))[::num_parts]
            links = Links(
                src,
                dst,
                neg_cuts.tolist(),
                self._labels(at, drawn.link.numel()),
                None if time is None else (time, time[drawn.link]),
                self._per_link,
            )
        return SeedBatches(
            self.type,
            self.input_id[at],
            cuts.tolist(),
            first_nodes,
            group_ptr,
            state,
            until,
            tree,
            links,
            self._excluded(batch, ends, at.numel(), batch_of_group),
        )

    def _states(self, purpose: int, epoch: int, batches: Sequence[int]) -> Tensor:
        """What the draws of the parts' batches follow from, ``[len(batches) * len(parts)]``."""
        first = self.graph.first_part
        own = torch.arange(first, first + len(self.parts))
        return hashed(self.seed, purpose, epoch, own, torch.tensor(batches).unsqueeze(1)).view(-1)

    @property
    def _per_link(self) -> int | None:
        """With triplets, how many negatives each link has."""
        is_triplet = self.negatives is not None and not self.negatives.is_binary
        return int(self.negatives.amount) if is_triplet else None  # type: ignore[union-attr]

    def _negatives(
        self, epoch: int, batches: Sequence[int], lengths: Tensor, src: Tensor, time: Tensor | None
    ) -> _NegativePairs:
        """Draws the negatives of some links (collective)."""
        negatives, none = self.negatives, src[:0]
        if negatives is None:
            return _NegativePairs([none] * len(self.ends), none, none)
        count = torch.tensor([math.ceil(num * negatives.amount) for num in lengths.tolist()])
        batch = torch.repeat_interleave(count)
        place = torch.arange(batch.numel()) - offsets(count)[batch]
        state = hashed_on(self._states(NEGATIVES, epoch, batches)[batch], place)
        each = self._per_link
        link = place % lengths[batch] if each is None else place // each
        link += offsets(lengths)[batch]
        until = None if time is None else time[link]
        if each is None:
            return _NegativePairs([*negatives.draw(state, None, until)], link, batch)
        return _NegativePairs([none, negatives.draw(state, src[link], until)[1]], link, batch)

    def _first(
        self, group: Tensor, ends: list[Tensor], group_ptr: Tensor
    ) -> tuple[dict[NodeKey, First], list[Tensor]]:
        """The nodes of each type, each once in a group; and their numbers, end by end."""
        sizes = [end.numel() for end in ends]
        src_type, dst_type = self.types
        positions, groups, types = ends, list(torch.split(group, sizes)), [src_type, dst_type]
        if src_type == dst_type:
            positions, groups, types = [torch.cat(ends)], [group], [src_type]
        out, numbers = {}, []
        for key, of_end, position in zip(types, groups, positions, strict=True):
            total = max(self.graph.nodes[key].total, 1)
            keys, found = number(of_end[:0], of_end * total + position)
            first = torch.div(keys, total, rounding_mode='floor')
            cuts = torch.searchsorted(first, group_ptr).tolist()
            out[key] = First(first, keys - first * total, cuts)
            numbers.append(found)
        return out, list(torch.split(torch.cat(numbers), sizes))

    def _labels(self, at: Tensor, num_negatives: int) -> tuple[Tensor, Tensor] | None:
        label = None if self.label is None else self.label[at]
        if label is None and self.negatives is not None and self.negatives.is_binary:
            label = torch.ones(at.numel())
        return None if label is None else (label, label.new_zeros(num_negatives, *label.shape[1:]))

    def _excluded(
        self, batch: Tensor, ends: list[Tensor], num: int, batch_of_group: Tensor | None
    ) -> dict[EdgeKey, Excluded]:
        """The edges that batches must not have, of their first `num` links."""
        pairs: dict[EdgeKey, list[tuple[Tensor, ...]]] = {}
        for key, is_flipped in self.excluded:
            links = batch[:num], *(end[:num] for end in (ends[::-1] if is_flipped else ends))
            pairs.setdefault(key, []).append(links)
        out = {}
        for key, each in pairs.items():
            totals = [self.graph.nodes[end].total for end in ends_of(key)]
            columns = [torch.cat(column) for column in zip(*each, strict=True)]
            out[key] = Excluded(columns, totals, batch_of_group)
        return out


class _NegativePairs(NamedTuple):
    """Pairs of nodes: their ends, the link that each belongs to, and its part's batch."""

    ends: list[Tensor]
    link: Tensor
    batch: Tensor


def offsets(count: Tensor) -> Tensor:
    """Where each of some runs begins, and where the last one ends, from their lengths."""
    return torch.cat([count.new_zeros(1), count.cumsum(0)])
