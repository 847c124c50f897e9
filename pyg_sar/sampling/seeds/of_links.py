"""Links as seeds: pairs of nodes, each in the batches of the part that owns its destination."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_sar.draws import hashed_on
from pyg_sar.sampling.attributes import EdgeKey, NodeKey, ends_of
from pyg_sar.sampling.draw.numbering import number
from pyg_sar.sampling.seeds.excluded import Excluded
from pyg_sar.sampling.seeds.inputs import EDGES, NEGATIVES, First, Inputs, Seeds
from pyg_sar.sampling.seeds.negatives import Negatives


@dataclass(frozen=True, eq=False)
class LinkSeeds(Seeds):
    """Links of K batches, batch after batch, and their negatives.

    Attributes:
        type: The relation.
        ends: Numbers of the sources and destinations of links, and of negatives, among the first
            nodes of their types, int64 ``[4, ...]``.
        ptr: K + 1 offsets of the batches' links, and of their negatives.
        input_id: Places of the links in what the loader was given, int64 ``[P]``.
        label: Those of links and of negatives, or None.
        time: Those of links and of negatives, or None.
        tree: With disjoint trees the link of every group, counted in its batch.
        per_link: With triplets, how many negatives each has.
    """

    type: EdgeKey
    ends: tuple[Tensor, Tensor, Tensor, Tensor]
    ptr: tuple[list[int], list[int]]
    input_id: Tensor
    label: tuple[Tensor, Tensor] | None
    time: tuple[Tensor, Tensor] | None
    tree: Tensor | None
    per_link: int | None

    def trees(self, group: Tensor, number: int) -> Tensor:
        """See :meth:`Seeds.trees`."""
        assert self.tree is not None
        return self.tree[group]

    def tell(self, nodes: Mapping[NodeKey, Any], edges: Mapping[EdgeKey, Any], number: int) -> None:
        """See :meth:`Seeds.tell`."""
        links, negatives = (slice(*ptr[number : number + 2]) for ptr in self.ptr)
        src_type, dst_type = ends_of(self.type)
        src_first, dst_first = (self.first[end].cuts[number] for end in (src_type, dst_type))
        src, dst = self.ends[0][links] - src_first, self.ends[1][links] - dst_first
        dst_neg = self.ends[3][negatives] - dst_first
        store = edges[self.type]
        for name in ('edge_label_index', 'edge_label', 'edge_label_time'):
            store.pop(name, None)  # of the whole graph's links
        store.input_id = self.input_id[links]

        def both(values: tuple[Tensor, Tensor]) -> Tensor:
            return torch.cat([values[0][links], values[1][negatives]])

        if self.per_link is None:
            src_neg = self.ends[2][negatives] - src_first
            pairs = [torch.cat([src, src_neg]), torch.cat([dst, dst_neg])]
            store.edge_label_index = torch.stack(pairs)
            if self.label is not None:
                store.edge_label = both(self.label)
            if self.time is not None:
                store.edge_label_time = both(self.time)
            return
        nodes[src_type].src_index = src
        nodes[dst_type].dst_pos_index = dst
        nodes[dst_type].dst_neg_index = dst_neg.view(-1, self.per_link).squeeze(1)
        if self.time is not None:
            nodes[src_type].seed_time = nodes[dst_type].seed_time = self.time[0][links]


@dataclass(frozen=True, eq=False)
class LinkInputs(Inputs):
    """All links of a rank: those into own nodes.

    Attributes:
        type: The relation.
        src: Positions of sources, int64 ``[N]``.
        dst: Positions of destinations, int64 ``[N]``.
        input_id: int64 ``[N]``.
        label: ``[N, ...]``, or None.
        time: int64 or float64 ``[N]``, or None.
        negatives: What draws them, or None.
        excluded: Whether a batch's links are no edges of it.
        reverse: The relation of which their reverse is none, or ``()``.
    """

    type: EdgeKey
    src: Tensor
    dst: Tensor
    input_id: Tensor
    label: Tensor | None
    time: Tensor | None
    negatives: Negatives | None
    excluded: bool
    reverse: tuple[EdgeKey, ...]

    def of_batches(self, order: Sequence[Tensor], epoch: int, batches: Sequence[int]) -> Seeds:
        """See :meth:`Inputs.of_batches`."""
        at, lengths = self.cut(order, batches)
        part_batch, num_parts = torch.repeat_interleave(lengths), len(order)
        src, dst = self.src[at], self.dst[at]
        time = None if self.time is None else self.time[at]
        src_neg, dst_neg, link_of, batch_neg = self._negatives(epoch, batches, lengths, src, time)
        ptr = _offsets(lengths)[::num_parts]
        neg_ptr = _offsets(torch.bincount(batch_neg, minlength=lengths.numel()))[::num_parts]
        ends = torch.cat([src, src_neg]), torch.cat([dst, dst_neg])
        batch, link = (
            torch.cat([part_batch, batch_neg]),
            torch.cat([torch.arange(at.numel()), link_of]),
        )
        num = ends[0].numel()
        group, until = torch.cat([batch[:num], batch]), None
        group_ptr = torch.arange(len(batches) + 1) * num_parts
        state, tree, batch_of_group = self.states(EDGES, epoch, batches), None, None
        if self.disjoint:  # every end of a pair is a group of its own
            batch_of_group, order_of = torch.sort(group, stable=True)
            first = _offsets(torch.bincount(group, minlength=lengths.numel()))
            group_ptr, place = first[::num_parts].contiguous(), torch.arange(group.numel())
            group = torch.empty_like(group).index_copy_(0, order_of, place)
            state = hashed_on(state[batch_of_group], place - first[batch_of_group])
            link_of_group = torch.cat([link[:num], link])[order_of]
            tree = link_of_group - ptr[batch_of_group // num_parts]
            until = None if time is None else time[link_of_group]
        first_nodes, numbers = self._first(group, ends, group_ptr)
        links, negatives = slice(0, at.numel()), slice(at.numel(), None)
        return LinkSeeds(
            first_nodes,
            group_ptr,
            state,
            until,
            False,
            self.type,
            (numbers[0][links], numbers[1][links], numbers[0][negatives], numbers[1][negatives]),
            (ptr.tolist(), neg_ptr.tolist()),
            self.input_id[at],
            self._labels(at, link_of),
            None if time is None else (time, time[link_of]),
            tree,
            self.per_link,
            excluded=self._excluded(part_batch, src, dst, batch_of_group),
        )

    @property
    def per_link(self) -> int | None:
        """With triplets, how many negatives each link has."""
        if self.negatives is None or self.negatives.is_binary:
            return None
        return int(self.negatives.amount)

    def _negatives(
        self,
        epoch: int,
        batches: Sequence[int],
        lengths: Tensor,
        src: Tensor,
        time: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Their ends, the link that each belongs to, and its part's batch (collective)."""
        negatives = self.negatives
        if negatives is None:
            return src[:0], src[:0], src[:0], src[:0]
        count = negatives.count(lengths)
        batch = torch.repeat_interleave(count)
        place = torch.arange(batch.numel()) - _offsets(count)[batch]
        state = hashed_on(self.states(NEGATIVES, epoch, batches)[batch], place)
        link = place % lengths[batch] if self.per_link is None else place // self.per_link
        link += _offsets(lengths)[batch]
        until = None if time is None else time[link]
        if self.per_link is None:
            return *negatives.draw(state, None, until), link, batch
        _, dst = negatives.draw(state, src[link], until)
        return src[:0], dst, link, batch

    def _first(
        self, group: Tensor, ends: tuple[Tensor, Tensor], group_ptr: Tensor
    ) -> tuple[dict[NodeKey, First], list[Tensor]]:
        """The nodes of each type, each once in a group; and their numbers, end by end."""
        sizes = [end.numel() for end in ends]
        types = ends_of(self.type)
        if types[0] == types[1]:
            first, numbers = self._of_type(types[0], group, torch.cat(ends), group_ptr)
            return {types[0]: first}, list(torch.split(numbers, sizes))
        out, places = {}, []
        for key, of_end, end in zip(types, torch.split(group, sizes), ends, strict=True):
            out[key], numbers = self._of_type(key, of_end, end, group_ptr)
            places.append(numbers)
        return out, places

    def _of_type(
        self, key: NodeKey, group: Tensor, position: Tensor, group_ptr: Tensor
    ) -> tuple[First, Tensor]:
        total = max(self.graph.nodes[key].total, 1)
        keys, numbers = number(group[:0], group * total + position)
        found = torch.div(keys, total, rounding_mode='floor')
        cuts = torch.searchsorted(found, group_ptr).tolist()
        return First(found, keys - found * total, cuts), numbers

    def _labels(self, at: Tensor, link_of: Tensor) -> tuple[Tensor, Tensor] | None:
        is_binary = self.negatives is not None and self.negatives.is_binary
        if self.label is not None:
            label = self.label[at]
        elif is_binary:
            label = torch.ones(at.numel())
        else:
            return None
        return label, label.new_zeros(link_of.numel(), *label.shape[1:])

    def _excluded(
        self, batch: Tensor, src: Tensor, dst: Tensor, batch_of_group: Tensor | None
    ) -> dict[EdgeKey, Excluded]:
        if not self.excluded:
            return {}
        src_type, dst_type = ends_of(self.type)
        totals = self.graph.nodes[src_type].total, self.graph.nodes[dst_type].total
        pairs = {self.type: [(src, dst)]}
        for key in self.reverse:
            pairs.setdefault(key, []).append((dst, src))
        out = {}
        for key, each in pairs.items():
            sources, ends = (torch.cat(end) for end in zip(*each, strict=True))
            sizes = totals if key == self.type else totals[::-1]
            out[key] = Excluded.of(batch.repeat(len(each)), sources, ends, sizes, batch_of_group)
        return out

    def visits(self) -> Iterable[tuple[NodeKey, Tensor, Tensor]]:
        """See :meth:`Inputs.visits`."""
        src_type, dst_type = ends_of(self.type)
        share = self.shares()
        yield src_type, self.src, share
        yield dst_type, self.dst, share


def _offsets(count: Tensor) -> Tensor:
    """Where each begins, and the last ends."""
    return torch.cat([count.new_zeros(1), count.cumsum(0)])
