"""Random pairs of nodes without an edge, of the whole graph.

The numbers drawn belong to nodes, not to ranks: the same seed gives the same pairs on any number of
ranks, and on the plain graph. A rank draws the negative edges into its own nodes. It has all edges
into them, so it knows by itself which pairs are edges, and nothing is exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.errors import collective
from pyg_sar.comm.exchange import with_halo_ids
from pyg_sar.comm.ranks import check_lives
from pyg_sar.comm.vote import agree, check_equal, raise_on_all
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.rows import tag
from pyg_sar.rows.sharding import Sharding, rows_of_ranks
from pyg_sar.shard.edges import LocalEdges, ShardEdges, refuse_local
from pyg_sar.shard.shard import n_id_of
from pyg_sar.utils.rng import uniform

_TRIES = 100


@collective('negative_sampling', 'a few small all-gathers, at the first call one exchange of ids')
def negative_sampling(
    edge_index: Any,
    num_nodes: int | None = None,
    num_neg_samples: int | None = None,
    *,
    paired: bool = False,
    seed: int | None = None,
) -> Tensor:
    """Random pairs of different nodes of the whole graph that are no edges of `edge_index`.

    As ``torch_geometric.utils.negative_sampling``; sources are uniform over all nodes, and every
    node is the destination of ``num_neg_samples / num_nodes`` pairs, rounded up or down at random.
    A pair may come twice.

    As many pairs without an edge as there are edges::

        pairs = pyg_sar.negative_sampling(data.edge_index, seed=1)
        ends = out[pairs]

    Args:
        edge_index: That of :func:`pyg_sar.load_shard`, or edges selected from it; or a plain one.
        num_nodes: Of a plain edge_index, as in PyG; a shard knows it.
        num_neg_samples: How many on all ranks together; None for as many as there are edges. Fewer
            come where a node has edges from nearly all others.
        paired: Whether to draw another source for every edge, which has no edge into its
            destination (for a ranking loss). Repeated edges get the same.
        seed: None for one drawn by torch's generator of rank 0.

    Returns:
        Ids of the whole graph, int64: pairs into own nodes ``[2, num_pairs]``; with `paired`
        source, destination and other source of every edge ``[3, num_edges]``.

    Raises:
        ValueError: On all ranks, if they want different things, edges run between nodes of two
            types, `num_nodes` is not that of the whole graph, or with `paired` no source is found.
    """
    asked = num_nodes, num_neg_samples, paired, seed
    if isinstance(edge_index, LocalEdges):
        refuse_local('negative_sampling')
    if not isinstance(edge_index, EdgeIndex):
        return _drawn(edge_index, *asked)
    check_lives(edge_index._sharding.comm)
    pairs = _drawn(edge_index.handle, *asked)
    count = pairs.size(1)
    return tag(pairs, 1, Sharding(count, what='negative edges', total=rows_of_ranks(count)))


def _drawn(
    edge_index: Tensor | ShardEdges,
    num_nodes: int | None,
    num_neg_samples: int | None,
    paired: bool,
    seed: int | None,
) -> Tensor:
    error = None
    if paired and num_neg_samples is not None:
        error = f"'num_neg_samples' has no meaning with paired=True (got {num_neg_samples})"
    elif num_neg_samples is not None and not (
        type(num_neg_samples) is int and num_neg_samples >= 0
    ):
        error = f"'num_neg_samples' must be a number of pairs, an int >= 0 (got {num_neg_samples})"
    _raise_on_all(edge_index, error or _why_not(edge_index, num_nodes))
    graph = _graph(edge_index, num_nodes)
    seed, num_edges = _common(edge_index, seed, (num_neg_samples, paired), graph.src.numel())
    if paired:
        dst, keys = graph.dst, (graph.src, graph.n_id[graph.dst])
    else:
        count = graph.counts(num_edges if num_neg_samples is None else num_neg_samples, seed)
        dst = torch.repeat_interleave(count)
        first = torch.cumsum(count, 0) - count
        keys = graph.n_id[dst], torch.arange(dst.numel(), device=dst.device) - first[dst]
    src = graph.sources(dst, keys, seed)
    is_found = src >= 0
    if paired:
        missing = graph.n_id[dst[~is_found]].tolist()
        words = 'expected a node without an edge into every node (got none for node'
        _raise_on_all(edge_index, f'{words} {missing[0]})' if missing else None)
        return torch.stack([graph.src, graph.n_id[dst], src])
    return torch.stack([src, graph.n_id[dst]])[:, is_found]


@dataclass(frozen=True, eq=False)
class _Graph:
    src: Tensor  # their sources, ids of the whole graph
    dst: Tensor  # their destinations, places in `n_id`
    n_id: Tensor  # ids of the own nodes
    num_nodes: int  # of the whole graph

    def counts(self, num_samples: int, seed: int) -> Tensor:
        """How many of all samples each own node is the destination of."""
        bound = max(self.num_nodes, 1)
        per_node, rest = divmod(num_samples, bound)
        # One more for `rest` of all nodes: a n + b modulo N, with gcd(a, N) = 1, is a permutation.
        generator = torch.Generator().manual_seed(seed)
        a, b = torch.randint(bound, (2,), generator=generator).tolist()
        while gcd(a, self.num_nodes) > 1:
            a += 1
        position: Tensor = (self.n_id * a + b) % bound
        return per_node + (position < rest).long()

    def sources(self, dst: Tensor, keys: tuple[Tensor, Tensor], seed: int) -> Tensor:
        """A source for each destination, drawn by its keys; -1 where every draw was an edge."""
        nodes = torch.arange(self.n_id.numel(), device=dst.device)
        taken = torch.cat([self.dst, nodes]) * self.num_nodes + torch.cat([self.src, self.n_id])
        taken = taken.sort().values
        src, left = torch.full_like(dst, -1), torch.arange(dst.numel(), device=dst.device)
        for attempt in range(_TRIES):
            if not left.numel():
                break
            drawn = (uniform(seed, attempt, *(key[left] for key in keys)) * self.num_nodes).long()
            pair = dst[left] * self.num_nodes + drawn
            next_taken = torch.searchsorted(taken, pair).clamp(max=taken.numel() - 1)
            is_taken = taken[next_taken] == pair
            src[left[~is_taken]] = drawn[~is_taken]
            left = left[is_taken]
        return src


def _why_not(edge_index: Tensor | ShardEdges, num_nodes: int | None) -> str | None:
    if not isinstance(edge_index, ShardEdges):
        return None
    if edge_index.shard.is_bipartite:
        return (
            'expected edges between nodes of one type (got a relation of two types; draw its '
            'negative edges before partitioning)'
        )
    total = edge_index.shard.num_nodes
    if num_nodes not in (None, total):
        return f"'num_nodes' must be {total}, of the whole graph, or left out (got {num_nodes})"
    return None


def _graph(edge_index: Tensor | ShardEdges, num_nodes: int | None) -> _Graph:
    """Exchanges ids at the first call with a shard (collective)."""
    if not isinstance(edge_index, ShardEdges):
        if num_nodes is None:
            num_nodes = int(edge_index.max()) + 1 if edge_index.numel() else 0
        src, dst = edge_index
        return _Graph(src, dst, torch.arange(num_nodes, device=src.device), num_nodes)
    shard, n_id = edge_index.shard, n_id_of(edge_index.shard)
    src, dst = edge_index.sources_first().ids
    return _Graph(with_halo_ids(shard, n_id)[src], dst, n_id, shard.num_nodes)


def _common(
    edge_index: Tensor | ShardEdges, seed: int | None, asked: object, number: int
) -> tuple[int, int]:
    """The seed that all ranks use, and the sum of their numbers."""
    drawn = int(torch.randint(2**62, ())) if seed is None else seed
    if not isinstance(edge_index, ShardEdges):
        return drawn, number
    answers = agree(((seed, asked), drawn, number))
    check_equal('arguments', [arguments for arguments, _, _ in answers])
    return answers[0][1], sum(number for _, _, number in answers)


def _raise_on_all(edge_index: Tensor | ShardEdges, text: str | None) -> None:
    def step() -> None:
        if text is not None:
            raise ValueError(text)

    raise_on_all(step) if isinstance(edge_index, ShardEdges) else step()
