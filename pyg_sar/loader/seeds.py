"""The seeds of batches: nodes or links.

A node is a seed with one end, a link one with two. All ranks have one list of seeds, and batch i
has those from ``i * batch_size`` on, as on one machine. A rank takes the ones that it owns; a link
belongs to the owner of its destination.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_sar.loader.ask import Traffic, send
from pyg_sar.loader.attributes import ends_of
from pyg_sar.loader.choose import ranges
from pyg_sar.loader.excluded import Excluded
from pyg_sar.loader.graph import LocalGraph
from pyg_sar.loader.negatives import Negatives
from pyg_sar.loader.numbering import number
from pyg_sar.shard.format import EdgeKey, NodeKey
from pyg_sar.utils.rng import hashed, hashed_on

EDGES, NEGATIVES = range(2)  # purposes of hashes

Asked = tuple[dict[str, Any], Callable[[LocalGraph], 'Seeds']]
"""The arguments that all ranks compare, and then the function that makes the seeds (collective)."""


class First(NamedTuple):
    """The nodes of one type that batches begin with, batch after batch."""

    group: Tensor  # int64 ``[N]``; see :mod:`pyg_sar.loader.rounds`
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
    input_id: Tensor  # indices of the seeds among those of all ranks, int64 ``[S]``
    cuts: list[int]  # K + 1 offsets of the batches' seeds
    first: dict[NodeKey, First]  # their nodes, by type
    group_ptr: Tensor  # first group of every batch, and how many there are, int64 ``[K + 1]``
    state: Tensor  # hashes from which the draws of a group follow, int64 ``[num_groups]``
    until: Tensor | None  # the time that a group's edges may have, ``[num_groups]``
    tree: Tensor | None  # with disjoint trees the seed of every group, counted in its batch
    links: Links | None  # None where seeds are nodes
    excluded: dict[EdgeKey, Excluded]  # by relation, edges that a batch must not have

    @property
    def num_batches(self) -> int:
        """The number K of batches."""
        return len(self.cuts) - 1


class Order(NamedTuple):
    """The seeds of a rank in the order of an epoch, int64 ``[N]`` each."""

    seed: Tensor  # which of the own ones
    in_epoch: Tensor  # their indices in the epoch, among the seeds of all ranks, ascending


@dataclass(frozen=True, eq=False)
class Seeds:
    """All seeds of a rank: own nodes, or links into own nodes."""

    graph: LocalGraph
    type: Any  # of the nodes, or the relation of the links
    ends: tuple[Tensor, ...]  # positions of nodes, or of sources and destinations, int64 ``[N]``
    index: Tensor  # among the seeds of all ranks, int64 ``[N]``
    total: int  # how many these are
    time: Tensor | None  # int64 or float64 ``[N]``
    batch_size: int  # seeds of all ranks in a batch
    disjoint: bool  # whether every seed has trees of its own
    label: Tensor | None = None  # of links, ``[N, ...]``
    negatives: Negatives | None = None
    # Relations without edges between the ends of a batch's links: there (False), and back (True).
    excluded: Mapping[EdgeKey, tuple[bool, ...]] = field(default_factory=dict)

    def order(self, number: int | None) -> Order:
        """The order of an epoch: as torch's RandomSampler draws it by a number; None for none."""
        index = self.index
        if number is not None:
            generator = torch.Generator().manual_seed(number)
            drawn = torch.randperm(self.total, generator=generator)
            index = torch.empty_like(drawn).index_copy_(0, drawn, torch.arange(self.total))[index]
        index, seed = index.sort()
        return Order(seed, index)

    def of_batches(self, order: Order, number: int, batches: range) -> SeedBatches:
        """The seeds of batches that follow one another (collective, if they are links).

        All draws follow from `number`.
        """
        cuts = torch.arange(batches.start, batches.stop + 1) * self.batch_size
        cuts = torch.searchsorted(order.in_epoch, cuts)
        own, (lengths, cuts) = slice(int(cuts[0]), int(cuts[-1])), (cuts.diff(), cuts - cuts[0])
        at, link = order.seed[own], torch.arange(own.stop - own.start)
        batch, slot = torch.repeat_interleave(lengths), order.in_epoch[own] % self.batch_size
        sizes = [min(self.batch_size, self.total - b * self.batch_size) for b in batches]
        time, ends = None if self.time is None else self.time[at], [p[at] for p in self.ends]
        state = hashed(number, EDGES, torch.tensor(batches))
        until, tree, batch_of_group = None, None, None
        drawn = self._negatives(number, batches, sizes, batch, slot, ends[0], time)
        excluded_pairs = self._of_all_ranks(batch, *ends) if self.excluded else []
        batch, link = torch.cat([batch, drawn.batch]), torch.cat([link, drawn.link])
        slot = torch.cat([slot, drawn.slot])
        ends = [torch.cat(both) for both in zip(ends, drawn.ends, strict=True)]
        # Triplets have no negative sources.
        group = torch.cat([batch[: end.numel()] for end in ends])
        group_ptr = torch.arange(len(batches) + 1)
        if self.disjoint:  # every end is a group of its own
            batch_of_group, order_of = torch.sort(group, stable=True)
            link_of_group = torch.cat([link[: end.numel()] for end in ends])[order_of]
            salts = [slot[: end.numel()] * len(ends) + i for i, end in enumerate(ends)]
            state = hashed_on(state[batch_of_group], torch.cat(salts)[order_of])
            group_ptr = offsets(torch.bincount(group, minlength=len(batches)))
            group = torch.empty_like(group).index_copy_(0, order_of, torch.arange(group.numel()))
            tree = link_of_group - cuts[batch_of_group]
            until = None if time is None else time[link_of_group]
        links = None
        if len(ends) == 1:
            first_nodes = {self.type: First(group, ends[0], cuts.tolist())}
        else:
            first_nodes, numbers = self._first(group, ends, group_ptr)
            src, dst = ((of_end[: at.numel()], of_end[at.numel() :]) for of_end in numbers)
            links = Links(
                src,
                dst,
                offsets(torch.bincount(drawn.batch, minlength=len(batches))).tolist(),
                self._labels(at, drawn.link.numel()),
                None if time is None else (time, time[drawn.link]),
                self._per_link,
            )
        return SeedBatches(
            self.type,
            self.index[at],
            cuts.tolist(),
            first_nodes,
            group_ptr,
            state,
            until,
            tree,
            links,
            self._excluded(excluded_pairs, batch_of_group),
        )

    @property
    def _per_link(self) -> int | None:
        """With triplets, how many negatives each link has."""
        is_triplet = self.negatives is not None and not self.negatives.is_binary
        return int(self.negatives.amount) if is_triplet else None  # type: ignore[union-attr]

    def _negatives(
        self,
        number: int,
        batches: range,
        sizes: list[int],
        batch: Tensor,
        slot: Tensor,
        src: Tensor,
        time: Tensor | None,
    ) -> _NegativePairs:
        """Draws the negatives of own links, by the links' batch and slot in it (collective)."""
        negatives, none, amount = self.negatives, src[:0], self._per_link
        if negatives is None:
            return _NegativePairs([none] * len(self.ends), none, none, none)
        if amount is not None:
            count, first, step = torch.full_like(slot, amount), slot * amount, torch.ones_like(slot)
        else:  # negative j of a batch belongs to link j, counted round and round
            totals = torch.tensor([math.ceil(size * negatives.amount) for size in sizes])
            first, step = slot, torch.tensor(sizes)[batch]
            count = (totals[batch] - first + step - 1).div(step, rounding_mode='floor')
        link = torch.repeat_interleave(count)
        slot = first[link] + step[link] * ranges(torch.zeros_like(count), count)
        order = torch.argsort(slot, stable=True)
        order = order[torch.argsort(batch[link[order]], stable=True)]
        link, slot = link[order], slot[order]
        batch, until = batch[link], None if time is None else time[link]
        state = hashed_on(hashed(number, NEGATIVES, torch.tensor(batches))[batch], slot)
        drawn = negatives.draw(state, None if amount is None else src[link], until)
        ends = [*drawn] if amount is None else [none, drawn[1]]
        return _NegativePairs(ends, link, batch, torch.tensor(sizes)[batch] + slot)

    def _of_all_ranks(self, *columns: Tensor) -> list[Tensor]:
        """The columns of all ranks, joined (collective)."""
        ranks = self.graph.world_size
        counts = Traffic({'links': [columns[0].numel()] * ranks})
        return [*send([counts.question('links', column.repeat(ranks)) for column in columns])]

    def _first(
        self, group: Tensor, ends: list[Tensor], group_ptr: Tensor
    ) -> tuple[dict[NodeKey, First], list[Tensor]]:
        """The nodes of every type, once in a group; and the numbers of the ends, end by end."""
        sizes = [end.numel() for end in ends]
        src_type, dst_type = ends_of(self.type)
        positions, groups, types = ends, list(torch.split(group, sizes)), [src_type, dst_type]
        if src_type == dst_type:
            positions, groups, types = [torch.cat(ends)], [group], [src_type]
        out, numbers = {}, []
        for key, of_end, position in zip(types, groups, positions, strict=True):
            total = max(self.graph.nodes[key].total, 1)
            keys, index = number(of_end[:0], of_end * total + position)
            first = torch.div(keys, total, rounding_mode='floor')
            cuts = torch.searchsorted(first, group_ptr).tolist()
            out[key] = First(first, keys - first * total, cuts)
            numbers.append(index)
        return out, list(torch.split(torch.cat(numbers), sizes))

    def _labels(self, at: Tensor, num_negatives: int) -> tuple[Tensor, Tensor] | None:
        label = None if self.label is None else self.label[at]
        if label is None and self.negatives is not None and self.negatives.is_binary:
            label = torch.ones(at.numel())
        return None if label is None else (label, label.new_zeros(num_negatives, *label.shape[1:]))

    def _excluded(
        self, links: list[Tensor], batch_of_group: Tensor | None
    ) -> dict[EdgeKey, Excluded]:
        """The edges that batches must not have, by the batches and ends of their links."""
        out = {}
        for key, ways in self.excluded.items():
            batch, *ends = links
            src, dst = (torch.cat([ends[end ^ is_back] for is_back in ways]) for end in (0, 1))
            totals = [self.graph.nodes[end].total for end in ends_of(key)]
            out[key] = Excluded([batch.repeat(len(ways)), src, dst], totals, batch_of_group)
        return out


class _NegativePairs(NamedTuple):
    """Pairs of nodes: their ends, the link of each, its batch, and its slot there."""

    ends: list[Tensor]
    link: Tensor
    batch: Tensor
    slot: Tensor  # links come first


def offsets(count: Tensor) -> Tensor:
    """Where every run begins, and where the last one ends, from their lengths."""
    return torch.cat([count.new_zeros(1), count.cumsum(0)])
