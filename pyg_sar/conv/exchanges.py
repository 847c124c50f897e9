"""The edges of a call: their exchange, the way they run, and what names them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex as PyGEdgeIndex

from pyg_sar.comm import Agreed, EdgeMove, Exchange, Reversed, agree, reverse
from pyg_sar.dropout import edge_ids, has_ids
from pyg_sar.ground.nested import PLAIN, leaves_of
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.plan import Plan
from pyg_sar.shard.shard import Shard

_MAX_REVERSED = 4


def exchange_of(shard: Shard, depth: int = 1, dtype: torch.dtype | None = None) -> Exchange:
    """The exchange of a shard; raises ValueError if the shard is not this rank's.

    A `dtype` rounds rows that messages read. Degrees and other numbers of the whole graph are never
    rounded.
    """
    key = f'exchange {depth} {dtype}'
    found: Exchange | None = shard.cache.get(key)
    if found is None or found.shard is not shard:  # a cache may be that of another shard, too
        found = shard.cache[key] = Exchange(shard, depth=depth, dtype=dtype)
    return found


def into_own(
    edge_index: ShardEdgeIndex, *, flip: bool = False
) -> tuple[ShardEdgeIndex, EdgeMove | None]:
    """An edge_index as messages pass along it: from row 0 to row 1, or with `flip` from 1 to 0.

    Edges that would run out of own nodes are turned round: then tensors of edges have to be moved,
    too. Collective where edges are turned round: one small all-gather, see also
    :func:`pyg_sar.comm.reshard.reverse_edges`.
    """
    unflipped: Any = edge_index.flip(0) if edge_index.is_flipped else edge_index
    if edge_index.is_flipped == flip:
        return unflipped, None
    edges = _reversed(unflipped)
    return edges.edge_index, edges.edges


def _reversed(edge_index: ShardEdgeIndex) -> Reversed:
    """The edges turned round, remembered by their content."""
    shard, plain = edge_index.shard, edge_index.as_subclass(Tensor)
    known: list[tuple[Tensor, Agreed[Reversed]]] = shard.cache.setdefault('reversed', [])
    own = next((each for index, each in known if torch.equal(index, plain)), None)
    if own is None:
        own = Agreed(_MAX_REVERSED)
        known.append((plain.clone(), own))
        del known[:-_MAX_REVERSED]

    def make() -> Reversed:
        all_have_ids = all(agree(edge_index.is_whole and shard.e_id is not None))
        return reverse(edge_index, shard, shard.e_id if all_have_ids else None)

    return own.get(None, make)


def ids_of_edges(edge_index: ShardEdgeIndex, move: EdgeMove | None, plan: Plan) -> Tensor:
    """What names the edges of a call in the whole graph, int64 ``[num_edges]``, remembered.

    `edge_index` is as the caller gave it, and `plan` that of :func:`into_own`. Collective: see
    :func:`pyg_sar.dropout.edge_ids`; where edges are turned round an all-gather each time and an
    all-to-all at the first.
    """
    shard = edge_index.shard
    if not has_ids(shard):
        raise ValueError(
            "'dropout_seed' takes dropouts in messages along the edges of load_shard (got "
            'edges of several relations as one, or of restrict): drop rows of nodes instead'
        )

    def make() -> Tensor:
        ids = edge_ids(edge_index.flip(0) if edge_index.is_flipped else edge_index, shard)
        return ids if move is None else move.to_reversed(ids)

    if move is not None:
        known: Agreed[Tensor] = plan.cache.setdefault('ids of reversed edges', Agreed())
        return known.get(None, make)
    if 'edge ids' not in plan.cache:
        plan.cache['edge ids'] = make()
    found: Tensor = plan.cache['edge ids']
    return found


def edges_in(values: Iterable[Any]) -> list[EdgeIndex | ShardEdgeIndex]:
    """The edges of cut graphs among arguments, of one partition.

    Raises:
        ValueError: If they belong to different partitions, or one was made an EdgeIndex of PyG.
    """
    found: list[EdgeIndex | ShardEdgeIndex] = []
    for value in values:
        for leaf in (value,) if isinstance(value, (Tensor, *PLAIN)) else leaves_of(value):
            if isinstance(leaf, (EdgeIndex, ShardEdgeIndex)):
                found.append(leaf)
            elif isinstance(leaf, PyGEdgeIndex) and isinstance(leaf.as_tensor(), ShardEdgeIndex):
                raise ValueError(
                    "expected a shard's edge_index as load_shard gave it (got an EdgeIndex made of "
                    'it, which forgets the shard)'
                )
    shards = shards_of(found) if len(found) > 1 else []
    for shard in shards[1:]:
        if shard.partition != shards[0].partition:
            raise ValueError(
                f"expected edge indices of one partition (got of '{shards[0].root}' and "
                f"'{shard.root}')"
            )
    return found


def shards_of(edges: Iterable[EdgeIndex | ShardEdgeIndex]) -> list[Shard]:
    """The shards of edges, each once."""
    handles = [each.handle if isinstance(each, EdgeIndex) else each for each in edges]
    return list({id(handle.shard): handle.shard for handle in handles}.values())
