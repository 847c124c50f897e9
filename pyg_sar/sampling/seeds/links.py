"""What a loader is asked for as links, and the way of each to the rank that owns its destination.

Pairs in a plain tensor are ids of the whole graph, as everywhere (docs/porting.md), given by any
rank; only what is selected from a shard's own edge_index is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from pyg_sar.comm import agree, rank, together
from pyg_sar.draws import hashed, hashed_on
from pyg_sar.over_all_nodes.rows import owners_of
from pyg_sar.rows.align import own_rows
from pyg_sar.rows.attach import space_of_nodes
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.sampling.ask import Traffic, send
from pyg_sar.sampling.attributes import edge_stores, ends_of, node_stores
from pyg_sar.sampling.graph import LocalGraph
from pyg_sar.sampling.seeds.negatives import Negatives, read_neg_sampling
from pyg_sar.sampling.seeds.seeds import Asked, Seeds
from pyg_sar.shard.edges import LocalEdges, refuse_local
from pyg_sar.shard.format.file_names import EdgeKey

Placed = tuple[Tensor, Tensor, Tensor, list[Tensor | None]]
"""Positions of sources and destinations, `input_id`, and what belongs to the links."""


def with_own_links(given: dict[str, Any]) -> dict[str, Any]:
    """Own rows of what belongs to links of the whole graph, and of weights of its nodes.

    Pairs in a plain tensor are the share of a rank, and so is what belongs to them.
    """
    if 'edge_label_index' not in given:
        return given
    key, links = _relation_of(given['data'], given['edge_label_index'])
    if isinstance(links, LocalEdges):
        refuse_local('edge_label_index')
    stores = edge_stores(given['data'])
    edges = stores[key].edge_index if key in stores and links is None else links
    given = dict(given)
    for name in ('edge_label', 'edge_label_time'):
        if isinstance(edges, EdgeIndex) and type(given[name]) is Tensor:
            given[name] = own_rows(name, given[name], 0, edges._space)
    asked = given['neg_sampling']
    if not isinstance(asked, (NegativeSampling, dict)) or key not in stores:
        return given
    values = dict(asked if isinstance(asked, dict) else vars(asked))
    for name, end in zip(('src_weight', 'dst_weight'), ends_of(key), strict=True):
        space = space_of_nodes(node_stores(given['data'])[end])
        if space is not None and type(values.get(name)) is Tensor:
            values[name] = own_rows(name, values[name], 0, space)
    return {**given, 'neg_sampling': values}


def read_links(data: Data | HeteroData, given: Mapping[str, Any]) -> Asked:
    """What `edge_label_index` and the arguments that belong to it say."""
    has_time = given['edge_label_time'] is not None
    if has_time != (given['time_attr'] is not None):
        raise ValueError(
            "'edge_label_time' and 'time_attr' must be given together (got "
            f'{"a tensor" if has_time else None} and {given["time_attr"]!r})'
        )
    key, pairs, are_own = _pairs_of(data, given['edge_label_index'])
    stores = node_stores(data)
    counts = [int(stores[end].num_nodes) for end in ends_of(key)]
    negatives = read_neg_sampling(given['neg_sampling'], (counts[0], counts[1]))
    label = given['edge_label']
    if label is not None:
        label = torch.as_tensor(label).detach().cpu()
        if label.dim() == 0 or label.size(0) != pairs.size(1):
            raise ValueError(
                f"'edge_label' must have a row for each of {pairs.size(1)} links (got shape "
                f'{tuple(label.shape)})'
            )
        if negatives is not None and negatives.is_triplet():
            raise ValueError("'edge_label' has no meaning with triplets (got one): leave it out")
    same = {
        'edge_label_index': (key, 'own edges' if are_own else 'ids of the whole graph'),
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
        'exclude_edges': given['exclude_edges'],
    }
    excluded = _excluded(data, key, given)

    def seeds(graph: LocalGraph, disjoint: bool) -> Seeds:
        name, count = 'edge_label_time', pairs.size(1)
        time = together(lambda: graph.times_of(name, given[name], count) if has_time else None)
        counted = label
        if label is not None and negatives is not None:
            # Classes from 0 on count from 1 on, as 0 is that of negatives.
            least = agree(label.min().item() if label.numel() else math.inf)
            counted = label + 1 if min(least) == 0 else label
        way = _own if are_own else _routed
        src, dst, input_id, (of_links, when) = way(graph, data, key, pairs, [counted, time])
        hashes = hashed(0, dst, src)
        for values in (when, of_links):
            if values is not None:
                flat = values.double().reshape(dst.numel(), math.prod(values.shape[1:]))
                hashes = hashed_on(hashes, *flat.view(torch.int64).unbind(1))
        return Seeds(
            graph,
            key,
            (src, dst),
            hashes,
            input_id,
            when,
            given['batch_size'],
            disjoint,
            given['seed'],
            given['shuffle'],
            of_links,
            None if negatives is None else Negatives(graph, key, negatives),
            excluded,
        )

    return same, seeds


def _own(
    graph: LocalGraph,
    data: Data | HeteroData,
    key: EdgeKey,
    pairs: Tensor,
    more: list[Tensor | None],
) -> Placed:
    edges = graph.edges[key]
    of_shard = edge_stores(data)[key].edge_index.handle.ids[0].cpu()
    # Every source of an edge of the shard, by its row there.
    num_local = int(of_shard.max()) + 1 if of_shard.numel() else 0
    position = torch.empty(num_local, dtype=torch.int64)
    position[of_shard[edges.row]] = edges.source.long()
    src, dst = pairs
    return position[src], graph.nodes[edges.dst].positions(dst), torch.arange(dst.numel()), more


def _routed(
    graph: LocalGraph,
    data: Data | HeteroData,
    key: EdgeKey,
    pairs: Tensor,
    more: list[Tensor | None],
) -> Placed:
    """Pairs from all ranks, each where its destination is (collective)."""
    stores, found = node_stores(data), []
    for end, ids in zip(ends_of(key), pairs, strict=True):
        owner, row = owners_of(ids, stores[end].n_id.cpu(), 'edge_label_index')
        nodes = graph.nodes[end]
        first = torch.tensor(nodes.rank_ptr)[owner]
        found.append((owner, nodes.positions(row) if graph.world_size == 1 else first + row))
    (_, src), (owner, dst) = found
    num = pairs.size(1)
    told = agree((num, int(hashed(0, *pairs).sum())))
    if len(told) > 1 and num and all(each == told[0] for each in told):
        raise ValueError(
            "'edge_label_index' must be this rank's share of the pairs, such as "
            f'pairs[:, rank::world_size] (got the same {num} pairs on all ranks)'
        )
    place = torch.arange(num) + sum(count for count, _ in told[: rank()])
    order = torch.argsort(owner, stable=True)
    counts = Traffic({'links': torch.bincount(owner, minlength=graph.world_size).tolist()})
    came = send(
        [counts.question('links', t[order]) for t in (src, dst, place, *more) if t is not None]
    )
    src, dst, place = (next(came) for _ in range(3))
    return src, dst, place, [None if each is None else next(came) for each in more]


def _relation_of(data: Data | HeteroData, given: Any) -> tuple[EdgeKey, Any]:
    """The relation of links, and what says which they are."""
    key: EdgeKey = None
    if isinstance(data, HeteroData):
        is_relation = isinstance(given, (tuple, list)) and all(isinstance(g, str) for g in given)
        relation, given = (given, None) if is_relation or given is None else _two(given)
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
    return key, given


def _pairs_of(data: Data | HeteroData, given: Any) -> tuple[EdgeKey, Tensor, bool]:
    key, given = _relation_of(data, given)
    edges = edge_stores(data)[key].edge_index
    given = edges if given is None else given
    if isinstance(given, LocalEdges):
        handle = given.handle
        if handle.is_flipped or handle.shard is not edges.handle.shard:
            raise ValueError(
                "'edge_label_index' must be ids of the whole graph, or edges selected from "
                f"'edge_index' of this shard and relation (got a {type(given).__name__} of others)"
            )
        return key, handle.ids.cpu(), True
    try:
        pairs = torch.as_tensor(given).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"'edge_label_index' must be a tensor (got {given!r})") from error
    if pairs.dim() != 2 or pairs.size(0) != 2 or pairs.dtype != torch.int64:
        raise ValueError(
            f"'edge_label_index' must be int64 [2, num_links], ids of the whole graph (got "
            f'{pairs.dtype} {tuple(pairs.shape)})'
        )
    return key, pairs, False


def _two(given: Any) -> tuple[Any, Any]:
    if isinstance(given, (tuple, list)) and len(given) == 2:
        relation, pairs = given
        return ((relation,) if isinstance(relation, str) else relation), pairs
    return type(given).__name__, None


def _excluded(
    data: Data | HeteroData, key: EdgeKey, given: Mapping[str, Any]
) -> tuple[tuple[EdgeKey, bool], ...]:
    """Relations without edges between the ends of links, and whether the other way round."""
    asked = given['exclude_edges']
    src, dst = ends_of(key)
    if isinstance(asked, (tuple, list)) and isinstance(data, HeteroData):
        named = tuple(asked)
        if named not in data.edge_types or ends_of(named) != (dst, src):
            raise ValueError(
                f"'exclude_edges' must be a relation from '{dst}' to '{src}' of {data.edge_types} "
                f'(got {asked!r})'
            )
        return ((key, False), (named, True))
    if asked == 'reverse':
        if src != dst:
            raise ValueError(
                f"'exclude_edges' must name the reverse of {key}, as its ends are of two types "
                "(got 'reverse')"
            )
        return ((key, False), (key, True))
    if type(asked) is not bool:
        raise ValueError(
            "'exclude_edges' must be False, True, 'reverse' or a relation that is the reverse "
            f'(got {asked!r})'
        )
    if asked is True and given['subgraph_type'] == 'bidirectional':
        raise ValueError(
            "exclude_edges=True leaves the reverse of links, which subgraph_type='bidirectional' "
            "turns round: say exclude_edges='reverse', or name the reverse relation (got True)"
        )
    return ((key, False),) if asked else ()
