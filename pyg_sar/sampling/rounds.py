"""Samples the batches of a round together.

Ranks exchange once for all batches of a round. So their nodes grow together, hop by hop: a node is
the number of its *group*, times the nodes of its type, plus its position. A group is what has nodes
of its own: a batch of one part, or the tree of one seed (`disjoint`). Groups are numbered batch
after batch, part after part, so the nodes that a hop adds lie in that order as well, and a batch is
a slice of every hop. Nodes of a part's batch get the same numbers whichever rank samples them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyg_sar.draws import hashed_on
from pyg_sar.monitor import hook
from pyg_sar.sampling.ask.messages import Asked, Drawn, Told, ask_for_edges, ask_for_rows, owners
from pyg_sar.sampling.attributes import Attributes, EdgeKey, NodeKey
from pyg_sar.sampling.draw import choose
from pyg_sar.sampling.draw.numbering import number
from pyg_sar.sampling.found import Grown, Kept, Linked
from pyg_sar.sampling.graph import Graph
from pyg_sar.sampling.seeds.inputs import Seeds


@dataclass(frozen=True)
class Fans:
    """How in-edges are drawn.

    Attributes:
        num_neighbors: Of every relation, by hop; -1 for all.
        replace: Whether with replacement.
        is_last: Whether the latest are taken.
        subgraph_type: As PyG's: ``'induced'`` has all edges between the nodes of a batch.
        disjoint: Whether every seed has a tree of its own.
    """

    num_neighbors: dict[EdgeKey, tuple[int, ...]]
    replace: bool
    is_last: bool
    subgraph_type: str
    disjoint: bool

    @property
    def num_hops(self) -> int:
        """How far from the seeds nodes are drawn."""
        return len(next(iter(self.num_neighbors.values())))


@dataclass(frozen=True, eq=False)
class _Frontier:
    """Nodes of one type whose in-edges are drawn: their numbers, groups, positions; batch cuts."""

    numbers: Tensor
    group: Tensor
    position: Tensor
    cuts: list[int]


class Round:
    """Samples the batches of some seeds (making it is collective: ``4 * hops`` calls).

    Attributes:
        nodes: What was found, by type.
        edges: By relation.
    """

    def __init__(
        self, graph: Graph, attributes: Attributes, fans: Fans, seeds: Seeds, kept: Kept | None
    ) -> None:
        self.graph, self.attributes, self.fans, self.seeds = graph, attributes, fans, seeds
        self.kept = kept
        none = torch.empty(0, dtype=torch.int64)
        nothing = [0] * (seeds.num_batches + 1)
        self.nodes = {key: Grown(none, [0, 0], [nothing]) for key in graph.nodes}
        self.edges = {key: Linked() for key in graph.edges}
        for key, first in seeds.first.items():
            keys = first.group * graph.nodes[key].total + first.position
            self.nodes[key] = Grown(keys, [0, keys.numel()], [first.cuts])
        for hop in range(fans.num_hops):
            fan = {key: each[hop] for key, each in fans.num_neighbors.items()}
            self._expand(hop, {key: k for key, k in fan.items() if k})
        if fans.subgraph_type == 'induced':
            self.edges = {key: Linked() for key in graph.edges}
            self._expand(fans.num_hops, dict.fromkeys(self.edges, -1))
        self._find_rows()

    def _expand(self, hop: int, fan: dict[EdgeKey, int]) -> None:
        """Draws the in-edges of the nodes that the last hop has found, or links all nodes."""
        is_link = hop == self.fans.num_hops
        make = self._all_nodes if is_link else self._last_nodes
        frontiers = {key: make(key) for key in self.nodes}
        # Where seeds are own nodes the first hop asks nobody.
        is_far = hop > 0 or is_link or not self.seeds.are_own
        may_ask = self.graph.world_size > 1 and is_far and bool(fan)
        places, told = self._ask(hop, fan, frontiers) if may_ask else ({}, {})
        found: dict[NodeKey, list[tuple[EdgeKey, Tensor]]] = {key: [] for key in self.nodes}
        for key in self.edges:
            edges = self.graph.edges[key]
            frontier = frontiers[edges.dst]
            if key in fan:
                there = places.get(edges.dst)
                count, source = self._merge(hop, fan[key], key, frontier, there, told.get(key))
                if key in self.seeds.excluded:
                    count, source = self._leave_out(key, frontier, count, source)
            else:
                count, source = torch.zeros_like(frontier.group), frontier.group[:0]
                self.edges[key].row.append(source)
            ends = torch.cat([count.new_zeros(1), count.cumsum(0)])
            self.edges[key].dst.append(torch.repeat_interleave(frontier.numbers, count))
            self.edges[key].cuts.append(ends[frontier.cuts].tolist())
            group = torch.repeat_interleave(frontier.group, count)
            keys = group.mul_(self.graph.nodes[edges.src].total).add_(source)
            found[edges.src].append((key, keys))
        for src, of_relations in found.items():
            self._number(src, of_relations, is_link)

    def _last_nodes(self, key: NodeKey) -> _Frontier:
        grown = self.nodes[key]
        numbers = torch.arange(grown.hops[-2], grown.hops[-1])
        return self._frontier(key, numbers, [at - grown.hops[-2] for at in grown.cuts[-1]])

    def _all_nodes(self, key: NodeKey) -> _Frontier:
        """Batch after batch."""
        grown, pieces, cuts = self.nodes[key], [], [0]
        for batch in range(self.seeds.num_batches):
            pieces += [torch.arange(cut[batch], cut[batch + 1]) for cut in grown.cuts]
            cuts.append(cuts[-1] + sum(cut[batch + 1] - cut[batch] for cut in grown.cuts))
        return self._frontier(key, torch.cat([grown.keys[:0], *pieces]), cuts)

    def _frontier(self, key: NodeKey, numbers: Tensor, cuts: list[int]) -> _Frontier:
        keys, total = self.nodes[key].keys[numbers], max(self.graph.nodes[key].total, 1)
        group = torch.div(keys, total, rounding_mode='floor')
        return _Frontier(numbers, group, keys - group * total, cuts)

    def _ask(
        self, hop: int, fan: dict[EdgeKey, int], frontiers: dict[NodeKey, _Frontier]
    ) -> tuple[dict[NodeKey, tuple[Tensor, Tensor]], dict[EdgeKey, Told]]:
        """Where in frontiers own nodes are, where others in the order of their owners; edges."""
        places, wanted = {}, {}
        for key, frontier in frontiers.items():
            nodes, at = self.graph.nodes[key], frontier.position
            is_own = (at >= nodes.first) & (at < nodes.rank_ptr[nodes.rank + 1])
            own, came = is_own.nonzero().view(-1), (~is_own).nonzero().view(-1)
            came = came[torch.argsort(owners(at[came], nodes.rank_ptr), stable=True)]
            places[key] = own, came
            group, until = frontier.group[came], self.seeds.until
            wanted[key] = at[came], self.seeds.state[group], None if until is None else until[group]

        def draw(key: EdgeKey, asked: Asked) -> Drawn:
            return self._draw(hop, key, fan[key], asked)

        told = ask_for_edges(self.graph, self.attributes, list(fan), wanted, draw)
        return places, told

    def _draw(self, hop: int, key: EdgeKey, k: int, asked: Asked) -> Drawn:
        """Draws in-edges of own nodes."""
        edges = self.graph.edges[key]
        start = edges.ptr.index_select(0, asked.row)
        end = edges.ptr.index_select(0, asked.row + 1)
        if edges.time is not None and asked.until is not None:
            end = choose.first_above(edges.time, start, end, asked.until)
        num = end - start
        if k >= 0 and self.fans.is_last:
            start, num = end - num.clamp(max=k), num.clamp(max=k)
        if k < 0 or self.fans.is_last:
            place, count = choose.ranges(start, num), num
        else:
            numbers = {key: i for i, key in enumerate(self.graph.edges)}
            code = hop * len(numbers) + numbers[key]
            n_id = self.graph.nodes[edges.dst].n_id.index_select(0, asked.row)
            state = hashed_on(asked.state, n_id * (self.fans.num_hops * len(numbers)) + code)
            if edges.cdf is not None:
                place, count = choose.weighted_repeated(state, start, num, k, edges.cdf)
            elif edges.weight is not None:
                place, count = choose.weighted(state, start, num, k, edges.weight)
            else:
                way = choose.repeated if self.fans.replace else choose.uniform
                place, count = way(state, start, num, k)
        return Drawn(count, edges.source.index_select(0, place), edges.row.index_select(0, place))

    def _merge(
        self,
        hop: int,
        k: int,
        key: EdgeKey,
        frontier: _Frontier,
        places: tuple[Tensor, Tensor] | None,
        told: Told | None,
    ) -> tuple[Tensor, Tensor]:
        """How many edges every node of a frontier gets, and their sources' positions."""
        nodes, linked = self.graph.nodes[self.graph.edges[key].dst], self.edges[key]
        position, group = frontier.position, frontier.group
        if places is not None:
            position, group = position[places[0]], group[places[0]]
        until = self.seeds.until
        asked = Asked(
            position - nodes.first,
            self.seeds.state.index_select(0, group),
            None if until is None else until[group],
        )
        drawn = self._draw(hop, key, k, asked)
        if places is None or told is None:
            linked.row.append(drawn.row)
            return drawn.count, drawn.source.long()
        own, came = places
        count = torch.empty_like(frontier.group)
        count[own], count[came] = drawn.count, told.count
        first = count.cumsum(0) - count
        of_own, of_came = (choose.ranges(first[at], count[at]) for at in (own, came))
        source, row = (torch.empty(int(count.sum()), dtype=torch.int64) for _ in range(2))
        source[of_own], source[of_came] = drawn.source.long(), told.source.long()
        row[of_own] = drawn.row
        row[of_came] = -1 - linked.num_came - torch.arange(told.source.numel())
        linked.row.append(row)
        linked.came.append(told.values)
        linked.num_came += told.source.numel()
        return count, source

    def _leave_out(
        self, key: EdgeKey, frontier: _Frontier, count: Tensor, source: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Without edges that a batch must not have, such as those it predicts."""
        linked, excluded = self.edges[key], self.seeds.excluded[key]
        node, edge = excluded.among(frontier.group, frontier.position, count, source)
        is_kept = torch.ones_like(source, dtype=torch.bool)
        is_kept[edge] = False
        linked.row[-1] = linked.row[-1][is_kept]
        return count - torch.bincount(node, minlength=count.numel()), source[is_kept]

    def _number(self, src: NodeKey, found: list[tuple[EdgeKey, Tensor]], is_link: bool) -> None:
        """Numbers the sources of edges, and what is new among them."""
        grown = self.nodes[src]
        before = grown.keys.numel()
        new, places = number(grown.keys, torch.cat([grown.keys[:0], *(k for _, k in found)]))
        split = torch.split(places, [keys.numel() for _, keys in found])
        for (key, _), place in zip(found, split, strict=True):
            linked = self.edges[key]
            if is_link:  # edges from what is no node of the batch go again
                kept = place < before
                place, linked.dst[-1], linked.row[-1] = (
                    t[kept] for t in (place, linked.dst[-1], linked.row[-1])
                )
                ends = torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.cumsum(0)])
                linked.cuts[-1] = ends[linked.cuts[-1]].tolist()
            linked.src.append(place)
        if is_link:
            return
        grown.keys = torch.cat([grown.keys, new])
        grown.hops.append(grown.keys.numel())
        firsts = self.seeds.group_ptr * self.graph.nodes[src].total
        grown.cuts.append([before + at for at in torch.searchsorted(new, firsts).tolist()])

    def _find_rows(self) -> None:
        """Where every node's attributes are; fetches those of other ranks (collective)."""
        wanted = {}
        for key, grown in self.nodes.items():
            nodes = self.graph.nodes[key]
            position = grown.keys % max(nodes.total, 1)
            grown.row = position - nodes.first
            if self.graph.world_size > 1:
                is_own = (grown.row >= 0) & (position < nodes.rank_ptr[nodes.rank + 1])
                remote = (~is_own).nonzero().view(-1)
                kept = self.kept.position[key] if self.kept is not None else position[:0]
                wanted[key], place = number(kept, position[remote])
                grown.row[remote] = -1 - place
                if self.kept is not None:
                    grown.came.append(self.kept.values[key])
                    num_found = int((place < kept.numel()).sum())
                    self.kept.num_read += place.numel()
                    self.kept.num_found += num_found
                    hook.looked_up(place.numel(), num_found)
        if self.graph.world_size > 1:
            came = ask_for_rows(self.graph, self.attributes, wanted)
            for key, grown in self.nodes.items():
                grown.came.append(came[key])
