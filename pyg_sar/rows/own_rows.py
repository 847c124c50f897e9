"""Own rows and counts that a conv is given, as those of the whole graph.

A plain tensor does not say whose rows it has: on one rank there may be as many nodes as edges, as
many of one type as of another, or as many as a weight has rows. It is known by what fits on all
ranks, which they tell each other at the first forward of a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm import agree, rank
from pyg_sar.ground.changes import version_of
from pyg_sar.ground.nested import in_nested
from pyg_sar.rows.align import own_rows
from pyg_sar.rows.attach import WHOLE, as_local, derived
from pyg_sar.rows.edges import EdgeIndex, Ends, edge_index
from pyg_sar.rows.rows import Rows, tag
from pyg_sar.rows.space import Space
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.shard import Shard

_COUNTS = ('num_nodes', 'num_edges', 'dim_size')
"""Arguments that are numbers of own nodes: those of a hypergraph's hyperedges are nodes, too."""

Choice = tuple[int, int]
"""Which of the spaces of a call, and in which dimension."""


def rows_of_call(
    values: Mapping[str, Any], node_dim: int, chosen: dict[Any, Choice | None]
) -> dict[str, Any]:
    """Arguments of a conv by name, on the edges and own rows of a rank, as those of the whole.

    What the ranks have found out is added to `chosen`. Collective where that does not fit: an
    all-gather.
    """
    call = _SpacesOfCall(node_dim)
    found: dict[str, Any] = _changed(values, (), call.with_edges)
    if any(space.is_whole for space in call.numbers):
        return found
    offers: dict[Any, list[Choice]] = {}
    _changed(found, (), lambda value, path: offers.update({path: call.choices(value, path)}))
    if any(p not in chosen or chosen[p] not in [None, *offers[p]] for p in offers):
        chosen.update(_agreed(offers))
    out: dict[str, Any] = _changed(found, (), lambda v, path: call.whole(v, chosen.get(path)))
    return out


def own_rows_of(out: Any, edges: list[EdgeIndex]) -> Any:
    """The result of a conv as own rows, also where it has computed all rows of the whole."""
    nodes = list(dict.fromkeys(each.ends.dst for each in edges))

    def own(value: Any) -> Any:
        if isinstance(value, Tensor) and not isinstance(value, Rows) and value.dim():
            for space in nodes:
                if space.has_ids() and value.size(0) == space.total:
                    return own_rows('a result', value, 0, space)
        return value

    return as_local(in_nested(out, own))


def _agreed(offers: Mapping[Any, list[Choice]]) -> dict[Any, Choice | None]:
    """The first choice of each value that fits on all ranks; what fits on some only is left out."""
    answers = agree(list(offers.values()))
    found: dict[Any, Choice | None] = {}
    for place, (path, own) in enumerate(offers.items()):
        theirs = [answer[place] if place < len(answer) else [] for answer in answers]
        fitting = [each for each in own if all(each in t for t in theirs)]
        if fitting or not any(theirs):
            found[path] = fitting[0] if fitting else None
    return found


class _SpacesOfCall:
    """The spaces that own rows of one call may be of, in an order that is equal on all ranks."""

    def __init__(self, node_dim: int) -> None:
        self.node_dim = node_dim
        self.numbers: dict[Space, int] = {}
        self.nodes: list[int] = []  # sources, destinations, sources ... of the edges
        self.edges: list[int] = []
        self.of_type: dict[Any, int] = {}
        self.by_row: list[tuple[int, int]] = []

    def with_edges(self, handle: Any, path: Any) -> Any:
        """Edges of the rank as those of the whole; any other value as it is."""
        if not isinstance(handle, ShardEdgeIndex):
            return handle
        space, ends = whole_of(handle.shard)
        if not handle.is_whole:
            space = _space_of_derived(space, handle)
        every = (space, ends.src, ends.dst)
        own, src, dst = (self.numbers.setdefault(each, len(self.numbers)) for each in every)
        self.edges.append(own)
        self.nodes += [src, dst]
        self.by_row.append((dst, src) if handle.is_flipped else (src, dst))
        if isinstance(path[-1], tuple):
            relation = path[-1]
            self.of_type.update({relation: own, relation[0]: src, relation[-1]: dst})
        return edge_index(handle, space, ends)

    def choices(self, value: Any, path: Any) -> list[Choice]:
        """What the rows of a value may be on this rank, the likeliest first."""
        name, last, spaces = path[0], path[-1], list(self.numbers)
        if type(value) is int:
            among = self.nodes[::-1] if name in _COUNTS else []
            if name == 'size' and last in (0, 1):
                among = [each[last] for each in self.by_row]
            return [(i, -1) for i in dict.fromkeys(among) if spaces[i].own == value]
        if isinstance(value, Rows) or not isinstance(value, Tensor) or not value.dim():
            return []
        nodes = self.nodes[::-1] if last in range(1, len(self.nodes)) else self.nodes
        among = [*self.edges, *nodes] if name.startswith('edge') else [*nodes, *self.edges]
        if len(path) > 1 and last in self.of_type:
            among = [self.of_type[last]]
        dims = value.dim()
        places = [self.node_dim % dims, 0] if -dims <= self.node_dim < dims else [0]
        return [
            (i, dim)
            for i in dict.fromkeys(among)
            for dim in dict.fromkeys(places)
            if value.size(dim) == spaces[i].own
        ]

    def whole(self, value: Any, choice: Choice | None) -> Any:
        """A value as what was chosen for it."""
        if choice is None:
            return value
        space, dim = list(self.numbers)[choice[0]], choice[1]
        if type(value) is int:
            return space.total
        rows: Rows = tag(value.view_as(value), dim, space)
        if type(value) is Tensor and not value.requires_grad:
            rows._own = value  # what `same_plain` gives of them
        return rows


def _changed(value: Any, path: tuple[Any, ...], change: Callable[[Any, Any], Any]) -> Any:
    """Nested arguments with other leaves, which are known by their path."""
    if isinstance(value, Mapping):
        return {k: _changed(each, (*path, k), change) for k, each in value.items()}
    if isinstance(value, (tuple, list)) and not hasattr(value, '_fields'):
        items: Iterable[Any] = enumerate(value)
        return type(value)(_changed(each, (*path, i), change) for i, each in items)
    return change(value, path)


def whole_of(shard: Shard) -> tuple[Space, Ends]:
    """The edges of a shard and the nodes that they run between.

    Those of :func:`pyg_sar.load_shard`; of any other shard, as that of a restricted layer, a graph
    of its own (collective at the first time: a small all-gather).
    """
    known = WHOLE.get(shard)
    if known is not None:
        return known
    counts = agree((shard.num_own, shard.num_dst, shard.num_edges))

    def space(place: int, what: str, ids: Tensor | None) -> Space:
        of_ranks = [each[place] for each in counts]
        first, own = sum(of_ranks[: rank()]), of_ranks[rank()]
        # A derived shard has some of the edges, and their ids are those of all.
        ids = torch.arange(first, first + own) if shard.n_id is None or ids is None else ids
        return Space(own, what=what, ids=ids, total=sum(of_ranks))

    src = dst = space(0, 'nodes', shard.n_id)
    if shard.is_bipartite:
        dst = space(1, 'nodes', shard.dst_id)
        if shard.n_id is None and all(num_dst <= num_own for num_own, num_dst, _ in counts):
            # Of a restricted layer: destinations are the first sources of a rank, so of all ranks.
            others = dst.total + sum(own - num_dst for own, num_dst, _ in counts[: rank()])
            more = torch.arange(others, others + src.own - dst.own)
            ids = torch.cat([dst.ids(more.device), more])
            src = Space(src.own, what='nodes', ids=ids, total=src.total)
    edges, ends = space(2, 'edges', shard.e_id), Ends(shard, src, dst)
    edges.neighbours = dst, src
    return WHOLE.put(shard, (edges, ends))


def _space_of_derived(space: Space, handle: ShardEdgeIndex) -> Space:
    """The space of derived edges: the same object as long as nobody writes to the edges."""
    state = version_of(handle), space
    known = vars(handle).get('space')
    if known is None or known[0] != state:
        known = vars(handle)['space'] = state, derived(space, handle)
    found: Space = known[1]
    return found
