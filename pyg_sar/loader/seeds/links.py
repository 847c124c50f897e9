"""Arguments of a loader of links: the links whose destination this rank owns.

Pairs in a plain tensor are ids of the whole graph, equal on all ranks, as everywhere
(docs/porting.md). Edges that are selected from a shard's own edge_index are there already.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.comm.row_map import owners_of
from pyg_sar.comm.vote import agree
from pyg_sar.loader.arguments import Options
from pyg_sar.loader.attributes import edge_stores, ends_of, node_stores
from pyg_sar.loader.graph import LocalGraph
from pyg_sar.loader.seeds.negatives import Negatives, read_neg_sampling
from pyg_sar.loader.seeds.own import (
    check_ids,
    nodes_of,
    of_all_ranks,
    own_of,
    own_times,
    own_values,
)
from pyg_sar.loader.seeds.seeds import Asked, Seeds
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.from_data import gather
from pyg_sar.rows.sharding import Space
from pyg_sar.shard.edges import LocalEdges, refuse_local
from pyg_sar.shard.format import EdgeKey

_CPU = torch.device('cpu')


class _Links(NamedTuple):
    """Links into own nodes."""

    row: Tensor  # own rows of the destinations
    sources: Callable[[LocalGraph], Tensor]  # their positions (collective)
    space: Space  # as rows of which they count
    same: str  # words that must be equal on all ranks


def read_links(
    data: Data | HeteroData,
    options: Options,
    edge_label_index: Any,
    edge_label: Any,
    edge_label_time: Any,
    neg_sampling: Any,
    neg_sampling_ratio: float | None,
    exclude_edges: Any,
) -> Asked:
    """Reads the links and the arguments that belong to them (collective)."""
    has_time = edge_label_time is not None
    if has_time != (options.time_attr is not None):
        raise ValueError(
            "'edge_label_time' and 'time_attr' must be given together (got "
            f'{"a tensor" if has_time else None} and {options.time_attr!r})'
        )
    if neg_sampling_ratio:
        if neg_sampling is not None:
            raise ValueError(
                "'neg_sampling_ratio' and 'neg_sampling' cannot both be given (got "
                f'{neg_sampling_ratio})'
            )
        neg_sampling = {'mode': 'binary', 'amount': neg_sampling_ratio}
    key, chosen = _relation_of(data, edge_label_index)
    links = _own_links(data, key, chosen)
    ends = [node_stores(data)[end] for end in ends_of(key)]
    negatives = read_neg_sampling(neg_sampling, ends)
    label = None if edge_label is None else own_values('edge_label', edge_label, links.space)
    times = own_times('edge_label_time', edge_label_time, links.space) if has_time else None
    if label is not None and negatives is not None and negatives.is_triplet():
        raise ValueError("'edge_label' has no meaning with triplets (got one): leave it out")
    same = {
        'edge_label_index': (key, links.same),
        'edge_label': None if label is None else (str(label.dtype), tuple(label.shape[1:])),
        'edge_label_time': has_time,
        'neg_sampling': None
        if negatives is None
        else (
            negatives.mode.value,
            negatives.amount,
            negatives.src_weight is not None,
            negatives.dst_weight is not None,
        ),
        'exclude_edges': exclude_edges,
    }
    excluded = _excluded(data, key, exclude_edges, options)

    def seeds(graph: LocalGraph) -> Seeds:
        counted = label
        if label is not None and negatives is not None:
            # Classes from 0 on count from 1 on, as 0 is that of negatives.
            least = agree(label.min().item() if label.numel() else math.inf)
            counted = label + 1 if min(least) == 0 else label
        return Seeds(
            graph,
            key,
            (links.sources(graph), graph.nodes[ends_of(key)[1]].positions(links.row)),
            links.space.ids(_CPU),
            links.space.total,
            None if times is None else graph.as_times(times),
            options.batch_size,
            options.has_trees,
            counted,
            None if negatives is None else Negatives(graph, key, negatives),
            excluded,
        )

    return same, seeds


def _own_links(data: Data | HeteroData, key: EdgeKey, value: Any) -> _Links:
    edges = edge_stores(data)[key].edge_index
    value = edges if value is None else value
    if isinstance(value, LocalEdges):
        refuse_local('edge_label_index')
    if isinstance(value, EdgeIndex):
        handle = value.handle
        if handle.is_flipped or handle.shard is not edges.handle.shard:
            raise ValueError(
                "'edge_label_index' must be ids of the whole graph, or edges selected from "
                f"'edge_index' of this shard and relation (got a {type(value).__name__} of others)"
            )
        src, dst = handle.ids.cpu()
        sources = partial(_of_edges, key=key, edges=edges, src=src)
        return _Links(dst, sources, value._space, f'{value._space.total} edges')
    try:
        pairs = torch.as_tensor(gather(value)).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"'edge_label_index' must be a tensor (got {value!r})") from error
    if pairs.dim() != 2 or pairs.size(0) != 2 or pairs.dtype != torch.int64:
        raise ValueError(
            f"'edge_label_index' must be int64 [2, num_links], ids of the whole graph (got "
            f'{pairs.dtype} {tuple(pairs.shape)})'
        )
    src, dst = (nodes_of(node_stores(data)[end]) for end in ends_of(key))
    for ids, (_, nodes) in zip(pairs, (src, dst), strict=True):
        check_ids('edge_label_index', ids, nodes.total)
    row, index = own_of(pairs[1], dst[0])
    space = Space(index.numel(), what='links', ids=index, total=pairs.size(1))
    sources = partial(_of_pairs, key=key, n_id=src[0], src=pairs[0, index])
    return _Links(row, sources, space, of_all_ranks(pairs))


def _of_edges(graph: LocalGraph, key: EdgeKey, edges: EdgeIndex, src: Tensor) -> Tensor:
    """Positions of sources of a shard's edges, by the shard's ids of them."""
    of_shard = edges.handle.ids[0].cpu()
    num_local = int(of_shard.max()) + 1 if of_shard.numel() else 0
    position = torch.empty(num_local, dtype=torch.int64)
    position[of_shard[graph.edges[key].row]] = graph.edges[key].source.long()
    return position[src]


def _of_pairs(graph: LocalGraph, key: EdgeKey, n_id: Tensor, src: Tensor) -> Tensor:
    """Positions of sources anywhere, by their ids in the whole graph (collective)."""
    nodes = graph.nodes[ends_of(key)[0]]
    owner, row = owners_of(src, n_id, 'edge_label_index')
    return (
        nodes.positions(row) if graph.world_size == 1 else torch.tensor(nodes.rank_ptr)[owner] + row
    )


def _relation_of(data: Data | HeteroData, value: Any) -> tuple[EdgeKey, Any]:
    """The relation of links, and their pairs; None for all."""
    key: EdgeKey = None
    if isinstance(data, HeteroData):
        is_relation = isinstance(value, (tuple, list)) and all(isinstance(v, str) for v in value)
        relation, value = (value, None) if is_relation or value is None else _two(value)
        words = tuple(relation or ())
        fits = [k for k in data.edge_types if words in (k, (k[0], k[2]), (k[1],))]
        if len(fits) > 1:  # as PyG chooses
            fits = [k for k in fits if k[1] == 'to']
        key = fits[0] if len(fits) == 1 else None
        if key is None:
            raise ValueError(
                f"'edge_label_index' must be a relation, or (relation, pairs), of "
                f'{data.edge_types} (got {relation!r})'
            )
    return key, value


def _two(value: Any) -> tuple[Any, Any]:
    if isinstance(value, (tuple, list)) and len(value) == 2:
        relation, pairs = value
        return ((relation,) if isinstance(relation, str) else relation), pairs
    return type(value).__name__, None


def _excluded(
    data: Data | HeteroData, key: EdgeKey, asked: Any, options: Options
) -> dict[EdgeKey, tuple[bool, ...]]:
    """Relations without edges between the ends of links: there (False), and back (True)."""
    src, dst = ends_of(key)
    if isinstance(asked, (tuple, list)) and isinstance(data, HeteroData):
        named = tuple(asked)
        if named not in data.edge_types or ends_of(named) != (dst, src):
            raise ValueError(
                f"'exclude_edges' must be a relation from '{dst}' to '{src}' of {data.edge_types} "
                f'(got {asked!r})'
            )
        return {key: (False, True)} if named == key else {key: (False,), named: (True,)}
    if asked == 'reverse':
        if src != dst:
            raise ValueError(
                f"'exclude_edges' must name the reverse of {key}, as its ends are of two types "
                "(got 'reverse')"
            )
        return {key: (False, True)}
    if type(asked) is not bool:
        raise ValueError(
            "'exclude_edges' must be False, True, 'reverse' or a relation that is the reverse "
            f'(got {asked!r})'
        )
    if asked is True and options.subgraph_type == 'bidirectional':
        raise ValueError(
            "exclude_edges=True leaves the reverse of links, which subgraph_type='bidirectional' "
            "turns round: say exclude_edges='reverse', or name the reverse relation (got True)"
        )
    return {key: (False,)} if asked else {}
