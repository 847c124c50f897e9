"""The exchanges of one forward: one for each shard among the arguments of a conv."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from pyg_sar.comm import EdgeMove, Exchange, Reversed, agree, reverse
from pyg_sar.dropout import edge_ids, has_ids
from pyg_sar.rows.edges import EdgeIndex as WholeEdges
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.nested import leaves_of
from pyg_sar.shard.plan import Plan
from pyg_sar.shard.shard import Shard

_MAX_REVERSED = 4


class Exchanges:
    """The exchange of every shard that a forward meets.

    `depth` is that of the prefetch. Rows that messages read are rounded to `dtype` on their way, if
    there is one. Raises ValueError if a shard is not this rank's.
    """

    def __init__(self, shards: list[Shard], depth: int, dtype: torch.dtype | None = None) -> None:
        self.shards = shards
        self.depth = depth
        self.dtype = dtype
        self._exchanges: dict[tuple[int, torch.dtype | None], Exchange] = {}
        for shard in shards:
            self._of_shard(shard, None)

    def of(self, edge_index: Tensor) -> Exchange:
        """The exchange of an edge_index.

        Raises:
            ValueError: If it carries no shard, and the conv was given several.
        """
        if isinstance(edge_index, ShardEdgeIndex):
            return self._of_shard(edge_index.shard, None)
        if len(self.shards) > 1:
            raise ValueError(
                'expected an edge_index of one of the shards (got a plain tensor, in a conv that '
                f'was given edge indices of {len(self.shards)} shards)'
            )
        return self._of_shard(self.shards[0], None)

    def of_messages(self, edge_index: Tensor) -> Exchange:
        """The exchange of the rows that messages along an edge_index read; see :meth:`of`.

        Degrees and other numbers of the whole graph travel by :meth:`of`, which never rounds.
        """
        return self._of_shard(self.of(edge_index).shard, self.dtype)

    def _of_shard(self, shard: Shard, dtype: torch.dtype | None) -> Exchange:
        key = id(shard), dtype
        if key not in self._exchanges:
            self._exchanges[key] = Exchange(shard, depth=self.depth, dtype=dtype)
        return self._exchanges[key]

    def oriented(self, edge_index: Tensor, *, flip: bool = False) -> Oriented:
        """An edge_index as messages pass along it: from row 0 to row 1, or with `flip` from 1 to 0.

        One whose rows were swapped is turned round. Collective where edges are turned round: one
        small all-gather, see also :func:`pyg_sar.comm.reshard.reverse_edges`.
        """
        is_flipped = isinstance(edge_index, ShardEdgeIndex) and edge_index.is_flipped
        into_own = edge_index.flip(0) if is_flipped else edge_index
        if is_flipped == flip:
            return Oriented(into_own, None)
        edges = _reversed(into_own, self.of(into_own).shard)
        return Oriented(edges.edge_index, edges.edges)

    def edge_ids(self, given: Tensor, oriented: Oriented, plan: Plan) -> Tensor:
        """What names the edges of a call in the whole graph, int64 ``[num_edges]``, remembered.

        They are given once as the caller gave them and once as messages pass along them, of which
        `plan` is. Collective: see :func:`pyg_sar.dropout.edge_ids`; where edges are turned round an
        all-gather each time and an all-to-all at the first.
        """
        shard = self.of(given).shard
        if not has_ids(shard):
            raise ValueError(
                "'dropout_seed' takes dropouts in messages along the edges of load_shard (got "
                'edges of several relations as one, or of restrict): drop rows of nodes instead'
            )
        is_known = 'edge ids' in plan.cache
        if oriented.edges is not None:  # one rank may still know a plan that another has forgotten
            is_known = all(agree(is_known))
        if not is_known:
            is_flipped = isinstance(given, ShardEdgeIndex) and given.is_flipped
            ids = edge_ids(given.flip(0) if is_flipped else given, shard)
            plan.cache['edge ids'] = oriented.to_oriented(ids)
        return plan.cache['edge ids']


@dataclass(frozen=True)
class Oriented:
    """An edge_index along which messages pass into own nodes."""

    edge_index: Tensor
    edges: EdgeMove | None  # how the tensors of edges come over, if they were turned round

    def to_oriented(self, values: Tensor) -> Tensor:
        """One row per edge, from the caller's order."""
        return values if self.edges is None else self.edges.to_reversed(values)

    def to_given(self, values: Tensor) -> Tensor:
        """One row per edge, to the caller's order."""
        return values if self.edges is None else self.edges.to_forward(values)


def _reversed(edge_index: Tensor, shard: Shard) -> Reversed:
    """The edges turned round, remembered by their content."""
    known: list[tuple[Tensor, Reversed]] = shard.cache.setdefault('reversed', [])
    plain = edge_index.as_subclass(Tensor)
    found = next((edges for index, edges in known if torch.equal(index, plain)), None)
    # One rank may still know edges that another has forgotten, or has none of.
    is_whole = isinstance(edge_index, ShardEdgeIndex) and edge_index.is_whole
    answers = agree((found is not None, is_whole and shard.e_id is not None))
    if found is None or not all(is_known for is_known, _ in answers):
        has_ids = all(has_ids for _, has_ids in answers)
        found = reverse(edge_index, shard, shard.e_id if has_ids else None)
        known.append((plain.clone(), found))
        del known[:-_MAX_REVERSED]
    return found


def find_shards(values: Any) -> list[Shard]:
    """The shards of the handles among the arguments of a conv or a model.

    Raises:
        ValueError: If they belong to different partitions, or one was made an EdgeIndex.
    """
    found: dict[int, Shard] = {}
    for value in leaves_of(values):
        if isinstance(value, (ShardEdgeIndex, WholeEdges)):
            handle = value if isinstance(value, ShardEdgeIndex) else value.handle
            found[id(handle.shard)] = handle.shard
        elif isinstance(value, EdgeIndex) and isinstance(value.as_tensor(), ShardEdgeIndex):
            raise ValueError(
                "expected a shard's edge_index as load_shard gave it (got an EdgeIndex made of it, "
                'which forgets the shard)'
            )
    shards = list(found.values())
    for shard in shards[1:]:
        if shard.partition != shards[0].partition:
            raise ValueError(
                f"expected edge indices of one partition (got of '{shards[0].root}' and "
                f"'{shard.root}')"
            )
    return shards
