"""Samples the batches of a round together.

Ranks exchange once for all batches of a round. So their nodes grow together, hop by hop: a node is
the number of its *group*, times the nodes of its type, plus its position. A group is what has nodes
of its own: a batch, or the tree of one seed (`disjoint`). Groups are numbered batch after batch, so
the nodes that a hop adds lie in that order as well, and a batch is a slice of every hop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_sar.loader import choose
from pyg_sar.loader.arguments import Options
from pyg_sar.loader.ask import Drawn, Question, ask_for_edges, ask_for_rows
from pyg_sar.loader.attributes import AttributeRows, Values
from pyg_sar.loader.graph import LocalGraph
from pyg_sar.loader.numbering import number
from pyg_sar.loader.seeds import SeedBatches, offsets
from pyg_sar.shard.format import EdgeKey, NodeKey
from pyg_sar.utils.rng import hashed_on


@dataclass(eq=False)
class Grown:
    """The nodes of one type in a round, in the order in which they were reached."""

    keys: Tensor  # int64 ``[N]``; see the module
    cuts: list[list[int]]  # of every hop, where each batch's nodes begin, and where the last ends
    # Where their attributes are; see :func:`pyg_sar.loader.attributes.take`.
    row: Tensor = field(init=False)
    number_in_batch: Tensor = field(init=False)  # of each node, once its batch is built
    came: list[Values] = field(default_factory=list)  # attributes of other ranks' rows


@dataclass(eq=False)
class Linked:
    """The edges of one relation in a round, by hop."""

    src: list[Tensor] = field(default_factory=list)  # numbers among the nodes of the round
    dst: list[Tensor] = field(default_factory=list)
    row: list[Tensor] = field(default_factory=list)  # where their attributes are
    cuts: list[list[int]] = field(default_factory=list)  # as of nodes
    came: list[Values] = field(default_factory=list)  # attributes of edges that others have drawn
    num_came: int = 0


class Frontier(NamedTuple):
    """Nodes of one type whose in-edges are drawn: their numbers, groups, positions; batch cuts."""

    numbers: Tensor
    group: Tensor
    position: Tensor
    cuts: list[int]


class Round:
    """Samples the batches of some seeds (collective to construct: ``4 * hops`` calls).

    Attributes:
        nodes: The nodes of the batches, by type.
        edges: The edges of the batches, by relation.
    """

    def __init__(
        self,
        graph: LocalGraph,
        attributes: AttributeRows,
        fans: dict[EdgeKey, tuple[int, ...]],
        options: Options,
        seeds: SeedBatches,
    ) -> None:
        self.graph, self.attributes, self.options, self.seeds = graph, attributes, options, seeds
        self.num_hops = len(next(iter(fans.values())))
        nothing = [0] * (seeds.num_batches + 1)
        self.nodes = {key: Grown(seeds.state[:0], [nothing]) for key in graph.nodes}
        self.edges = {key: Linked() for key in graph.edges}
        for key, first in seeds.first.items():
            keys = first.group * graph.nodes[key].total + first.position
            self.nodes[key] = Grown(keys, [first.cuts])
        for hop in range(self.num_hops):
            fan = {key: hops[hop] for key, hops in fans.items() if hops[hop]}
            # Where seeds are own nodes the first hop asks nobody.
            self._expand(hop, fan, may_ask=hop > 0 or seeds.links is not None)
        if options.subgraph_type == 'induced':
            self.edges = {key: Linked() for key in graph.edges}
            self._expand(self.num_hops, dict.fromkeys(self.edges, -1), may_ask=True)
        self._find_rows()

    def _expand(self, hop: int, fan: dict[EdgeKey, int], may_ask: bool) -> None:
        is_link = hop == self.num_hops
        frontiers = {key: self._frontier(key, is_link) for key in self.nodes}
        draw = {key: partial(self._draw, hop, key, k) for key, k in fan.items()}
        other: dict[NodeKey, Tensor] = {}
        answers: dict[EdgeKey, tuple[Drawn, list[Values]]] = {}
        if may_ask and fan and self.graph.world_size > 1:
            for end, frontier in frontiers.items():
                nodes = self.graph.nodes[end]
                at = (~nodes.is_own(frontier.position)).nonzero().view(-1)
                other[end] = at[torch.argsort(nodes.owner(frontier.position[at]), stable=True)]
            wanted = {end: self._question(frontiers[end], at) for end, at in other.items()}
            answers = ask_for_edges(self.graph, self.attributes, wanted, draw)
        sources: dict[NodeKey, list[tuple[EdgeKey, Tensor]]] = {key: [] for key in self.nodes}
        for key, linked in self.edges.items():
            edges = self.graph.edges[key]
            frontier = frontiers[edges.dst]
            count, source, row = torch.zeros_like(frontier.group), *[frontier.group[:0]] * 2
            if key in answers:
                drawn, values = answers[key]
                linked.came += values
                drawn = drawn._replace(row=drawn.row - linked.num_came)
                linked.num_came += drawn.row.numel()
                count, source, row = self._merge(key, frontier, draw[key], other[edges.dst], drawn)
            elif key in fan:
                count, source, row = self._own(key, frontier, draw[key], None)
            if key in fan and key in self.seeds.excluded:
                node, edge = self.seeds.excluded[key].among(frontier, count, source)
                is_kept = torch.ones_like(source, dtype=torch.bool)
                is_kept[edge] = False
                count = count - torch.bincount(node, minlength=count.numel())
                source, row = source[is_kept], row[is_kept]
            linked.row.append(row)
            linked.dst.append(torch.repeat_interleave(frontier.numbers, count))
            linked.cuts.append(offsets(count)[frontier.cuts].tolist())
            group = torch.repeat_interleave(frontier.group, count)
            keys = group.mul_(self.graph.nodes[edges.src].total).add_(source)
            sources[edges.src].append((key, keys))
        for src, of_relations in sources.items():
            self._number(src, of_relations, is_link)

    def _frontier(self, key: NodeKey, is_link: bool) -> Frontier:
        """The nodes of the last hop; or all, batch after batch."""
        grown, total = self.nodes[key], max(self.graph.nodes[key].total, 1)
        last = grown.cuts[-1]
        numbers, cuts = torch.arange(last[0], last[-1]), [at - last[0] for at in last]
        if is_link:
            pieces, cuts = [numbers[:0]], [0]
            for batch in range(self.seeds.num_batches):
                ends = [cut[batch : batch + 2] for cut in grown.cuts]
                pieces += [torch.arange(start, end) for start, end in ends]
                cuts.append(cuts[-1] + sum(end - start for start, end in ends))
            numbers = torch.cat(pieces)
        keys = grown.keys[numbers]
        group = torch.div(keys, total, rounding_mode='floor')
        return Frontier(numbers, group, keys - group * total, cuts)

    def _question(self, frontier: Frontier, at: Tensor | None) -> Question:
        position, group, until = frontier.position, frontier.group, self.seeds.until
        if at is not None:
            position, group = position[at], group[at]
        state = self.seeds.state.index_select(0, group)
        return Question(position, state, None if until is None else until[group])

    def _draw(self, hop: int, key: EdgeKey, k: int, asked: Question) -> Drawn:
        edges = self.graph.edges[key]
        start = edges.ptr.index_select(0, asked.node)
        end = edges.ptr.index_select(0, asked.node + 1)
        if edges.time is not None and asked.until is not None:
            end = choose.first_above(edges.time, start, end, asked.until)
        num = end - start
        if k >= 0 and self.options.is_last:
            start, num = end - num.clamp(max=k), num.clamp(max=k)
        if k < 0 or self.options.is_last:
            edge, count = choose.ranges(start, num), num
        else:
            relations = list(self.graph.edges)
            code = hop * len(relations) + relations.index(key)
            n_id = self.graph.nodes[edges.dst].n_id.index_select(0, asked.node)
            state = hashed_on(asked.state, n_id * (self.num_hops * len(relations)) + code)
            if edges.cdf is not None:
                edge, count = choose.weighted_repeated(state, start, num, k, edges.cdf)
            elif edges.weight is not None:
                edge, count = choose.weighted(state, start, num, k, edges.weight)
            else:
                way = choose.repeated if self.options.replace else choose.uniform
                edge, count = way(state, start, num, k)
        return Drawn(count, edges.source.index_select(0, edge), edges.row.index_select(0, edge))

    def _own(
        self, key: EdgeKey, frontier: Frontier, draw: partial[Drawn], at: Tensor | None
    ) -> Drawn:
        asked, end = self._question(frontier, at), self.graph.edges[key].dst
        drawn = draw(asked._replace(node=asked.node - self.graph.nodes[end].first))
        return drawn._replace(source=drawn.source.long())

    def _merge(
        self,
        key: EdgeKey,
        frontier: Frontier,
        draw: partial[Drawn],
        other: Tensor,
        of_others: Drawn,
    ) -> Drawn:
        """The edges of all nodes of a frontier, some of which other ranks have drawn."""
        is_own = torch.ones_like(frontier.group, dtype=torch.bool)
        is_own[other] = False
        own = is_own.nonzero().view(-1)
        drawn = self._own(key, frontier, draw, own)
        count = torch.empty_like(frontier.group)
        count[own], count[other] = drawn.num, of_others.num
        first = count.cumsum(0) - count
        source, row = (first.new_empty(int(count.sum())) for _ in range(2))
        for at, part in ((own, drawn), (other, of_others)):
            edge = choose.ranges(first[at], part.num)
            source[edge], row[edge] = part.source, part.row
        return Drawn(count, source, row)

    def _number(self, src: NodeKey, keys_of: list[tuple[EdgeKey, Tensor]], is_link: bool) -> None:
        """Numbers the sources of edges, with new nodes among them."""
        grown = self.nodes[src]
        before = grown.keys.numel()
        new, numbers = number(grown.keys, torch.cat([grown.keys[:0], *(k for _, k in keys_of)]))
        split = torch.split(numbers, [keys.numel() for _, keys in keys_of])
        for (key, _), index in zip(keys_of, split, strict=True):
            linked = self.edges[key]
            if is_link:  # edges from nodes outside of the batch go again
                kept = index < before
                index, linked.dst[-1], linked.row[-1] = (
                    t[kept] for t in (index, linked.dst[-1], linked.row[-1])
                )
                linked.cuts[-1] = offsets(kept.long())[linked.cuts[-1]].tolist()
            linked.src.append(index)
        if is_link:
            return
        grown.keys = torch.cat([grown.keys, new])
        firsts = self.seeds.group_ptr * self.graph.nodes[src].total
        grown.cuts.append([before + at for at in torch.searchsorted(new, firsts).tolist()])

    def _find_rows(self) -> None:
        """Where every node's attributes are; fetches those of other ranks (collective)."""
        wanted = {}
        for key, grown in self.nodes.items():
            nodes = self.graph.nodes[key]
            position = grown.keys % max(nodes.total, 1)
            grown.number_in_batch = torch.empty_like(position)
            grown.row = nodes.rows(position)
            if self.graph.world_size > 1:
                remote = (~nodes.is_own(position)).nonzero().view(-1)
                wanted[key], index = number(position[:0], position[remote])
                grown.row[remote] = -1 - index
        if self.graph.world_size > 1:
            came = ask_for_rows(self.graph, self.attributes, wanted)
            for key, grown in self.nodes.items():
                grown.came = came[key]
