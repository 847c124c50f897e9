"""The edges of a call: the way they run, their nodes, and what names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex as PyGEdgeIndex
from torch_geometric.nn import MessagePassing
from torch_geometric.utils.hetero import construct_bipartite_edge_index

from pyg_sar.comm.derive_shard import EdgeMove, Reversed, reverse
from pyg_sar.comm.vote import Agreed, agree
from pyg_sar.nn.call import arguments_of
from pyg_sar.nn.dropout import edge_ids, has_ids
from pyg_sar.nn.intercept import replaced
from pyg_sar.rows.adjacency import Adjacency
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.rows import Rows
from pyg_sar.rows.sharding import Sharding
from pyg_sar.shard.blocks import Plan
from pyg_sar.shard.edges import LocalEdges, ShardEdges, join_relations, refuse_local
from pyg_sar.shard.shard import Cached, Shard
from pyg_sar.utils.class_swap import name_of, plain_class
from pyg_sar.utils.nested import PLAIN, leaves_of

_MAX_REVERSED = 4
_REVERSED: Cached[list[tuple[Tensor, Agreed[Reversed]]]] = Cached()
_IDS: Cached[Tensor] = Cached()
_IDS_OF_REVERSED: Cached[Agreed[Tensor]] = Cached()


def into_own(handle: ShardEdges, *, flip: bool = False) -> tuple[ShardEdges, EdgeMove | None]:
    """Edges as messages pass along them: from row 0 to row 1, or with `flip` from 1 to 0.

    Edges that would run out of own nodes are turned round: then tensors of edges have to be moved,
    too. Collective where edges are turned round: one small all-gather, see also
    :func:`pyg_sar.comm.derive_shard`.
    """
    if handle.is_flipped == flip:
        return handle.sources_first(), None
    edges = _reversed(handle.sources_first())
    return edges.edge_index, edges.edges


def _reversed(handle: ShardEdges) -> Reversed:
    """The edges turned round, remembered by their content."""
    shard, ids = handle.shard, handle.ids
    kept = _REVERSED.of(shard, list)
    own = next((agreed for index, agreed in kept if torch.equal(index, ids)), None)
    if own is None:
        own = Agreed(_MAX_REVERSED)
        kept.append((ids.clone(), own))
        del kept[:-_MAX_REVERSED]

    def make() -> Reversed:
        all_have_ids = all(agree(handle.is_whole and shard.e_id is not None))
        return reverse(ids, shard, shard.e_id if all_have_ids else None)

    return own.get(None, make)


def ids_of_edges(handle: ShardEdges, move: EdgeMove | None, plan: Plan) -> Tensor:
    """Ids of the edges of a call in the whole graph, int64 ``[num_edges]``, remembered.

    `handle` is that of the caller, and `plan` that of :func:`into_own`. Collective: see
    :func:`pyg_sar.nn.dropout`; where edges are turned round an all-gather each time and an
    all-to-all at the first.
    """
    if not has_ids(handle.shard):
        raise ValueError(
            "'dropout_seed' takes dropouts in messages along the edges of load_shard (got "
            'edges of several relations as one, or of restrict): drop rows of nodes instead'
        )

    def make() -> Tensor:
        ids = edge_ids(handle)
        return ids if move is None else move.to_reversed(ids)

    if move is not None:
        return _IDS_OF_REVERSED.of(plan, Agreed).get(None, make)
    return _IDS.of(plan, make)


def edges_in(values: Iterable[Any]) -> list[EdgeIndex]:
    """The edges of cut graphs among arguments, of one partition."""
    edges: list[EdgeIndex] = []
    for value in values:
        for leaf in (value,) if isinstance(value, (Tensor, *PLAIN)) else leaves_of(value):
            if isinstance(leaf, Adjacency):
                leaf = leaf.edges
            if isinstance(leaf, EdgeIndex):
                edges.append(leaf)
                continue
            if isinstance(leaf.as_tensor() if isinstance(leaf, PyGEdgeIndex) else leaf, LocalEdges):
                refuse_local('a conv')
    shards = shards_of(edges) if len(edges) > 1 else []
    for shard in shards[1:]:
        if shard.partition != shards[0].partition:
            raise ValueError(
                f"expected edge indices of one partition (got of '{shards[0].root}' and "
                f"'{shard.root}')"
            )
    return edges


def shards_of(edges: Iterable[EdgeIndex]) -> list[Shard]:
    """The shards of edges, each once."""
    return list(dict.fromkeys(edge_index.handle.shard for edge_index in edges))


def relations_joined(x_dict: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    """``construct_bipartite_edge_index`` for a conv on own rows by type."""

    def joint_edge_index(
        edge_index_dict: Mapping[Any, ShardEdges],
        src_offset_dict: Mapping[Any, int],
        dst_offset_dict: Mapping[Any, int],
        edge_attr_dict: Mapping[str, Tensor],
        num_nodes: int | None = None,
    ) -> tuple[ShardEdges, Tensor]:
        relations = list(src_offset_dict)
        handles = [edge_index_dict[relation] for relation in relations]
        dst_offsets = [dst_offset_dict[relation[-1]] for relation in relations]
        num_dst = sum(x.size(0) for x in x_dict.values())
        joined = join_relations(handles, list(src_offset_dict.values()), dst_offsets, num_dst)
        attributes = [
            edge_attr_dict['__'.join(relation)].expand(handle.num_edges, -1)
            for relation, handle in zip(relations, handles, strict=True)
        ]
        return joined, torch.cat(attributes)

    return replaced({construct_bipartite_edge_index: joint_edge_index})


METHODS = {'message': 'propagate', 'edge_update': 'edge_updater'}
"""The methods of MessagePassing that call functions of a conv."""


def along_edges(
    conv: MessagePassing, function: str, matrix: Adjacency, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Edges of a matrix, and arguments with its values, as ``MessagePassing._collect`` has them.

    Against the flow the matrix stays, which PyG refuses. PyG's generated methods fill one name.
    """
    if conv.flow != 'source_to_target':
        return matrix, kwargs
    value, fills_one = matrix.value, is_generated(conv, function)
    read = arguments_of(conv, function)
    names = [n for n in ('edge_weight', 'edge_attr', 'edge_type') if n in read]
    filled, is_of_torch = dict(kwargs), fills_one or isinstance(matrix, Tensor)
    is_none = is_of_torch and value is not None and value.dim() == 1
    for name in names[:1] if fills_one else names:
        if name in kwargs and kwargs[name] is None:
            filled[name] = None if name == 'edge_attr' and is_none else value
    return matrix.edges, filled


def is_generated(conv: MessagePassing, function: str) -> bool:
    """Whether PyG generated the method for the class.

    PyG's own methods read a pair by the flow of the conv; those that it generates always read the
    first at '_j' and the second at '_i'.
    """
    method = METHODS[function]
    return bool(getattr(plain_class(conv), method).__module__.endswith(f'_{method}'))


def dst_sharding(conv: MessagePassing, edges: EdgeIndex) -> Sharding:
    """The nodes that messages along the edges go to."""
    is_against = edges._handle.is_flipped != (conv.flow != 'source_to_target')
    return edges.ends.src if is_against else edges.ends.dst


def check_ends(
    conv: MessagePassing, names: tuple[str, ...], kwargs: dict[str, Any], edges: EdgeIndex, at: bool
) -> None:
    """Raises a ValueError where rows of one set of nodes are read at the nodes of the other.

    Entry `at` of a pair has the rows of targets.
    """
    target = dst_sharding(conv, edges)
    source = edges.ends.dst if target is edges.ends.src else edges.ends.src
    ends = {'_i': (target, source, at), '_j': (source, target, not at)}
    for name in names:
        if name[-2:] not in ends:
            continue
        own, other, entry = ends[name[-2:]]
        value = kwargs.get(name[:-2])
        if isinstance(value, (tuple, list)) and len(value) == 2:
            value = value[entry]
        if isinstance(value, Rows) and value._sharding is other:
            raise ValueError(
                f"expected rows of {own.what} at '{name}' of {name_of(conv)} (got those of "
                f'{other.what}): turn the pair of arguments round'
            )
