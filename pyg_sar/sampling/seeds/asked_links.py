"""What a loader is asked for as links, and the way of each to the rank that owns its destination.

Pairs in a plain tensor are ids of the whole graph, as everywhere (docs/porting.md), given by any
rank; only what is selected from a shard's own edge_index is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from pyg_sar.comm import agree, all_to_all_counts, raise_together, rank, world_size
from pyg_sar.draws import hashed, hashed_on
from pyg_sar.over_all_nodes.rows import owners_of
from pyg_sar.sampling.ask.packed import all_to_all_packed
from pyg_sar.sampling.attributes import EdgeKey, edge_stores, ends_of, node_stores
from pyg_sar.sampling.graph import Graph
from pyg_sar.sampling.seeds.inputs import Asked, by_part, times_of
from pyg_sar.sampling.seeds.negatives import Negatives, read_neg_sampling
from pyg_sar.sampling.seeds.of_links import LinkInputs
from pyg_sar.shard.edge_index import ShardEdgeIndex

Links = tuple[Tensor, Tensor, Tensor, list[Tensor | None]]


@dataclass(frozen=True, eq=False)
class _LinksAsked:
    """What `edge_label_index` and the like say.

    Attributes:
        given: All arguments.
        data: The shard.
        type: The relation.
        pairs: int64 ``[2, N]``: rows of the shard, or ids of the whole graph.
        are_own: Whether they are rows of the shard.
        label: ``[N, ...]`` on the CPU, or None.
        negatives: What is drawn.
        reverse: The relation of which links are no edges the other way round, or ``()``.
    """

    given: Mapping[str, Any]
    data: Data | HeteroData
    type: EdgeKey
    pairs: Tensor
    are_own: bool
    label: Tensor | None
    negatives: NegativeSampling | None
    reverse: tuple[EdgeKey, ...]

    def inputs(self, graph: Graph, disjoint: bool) -> LinkInputs:
        """The links of this rank; see :class:`Asked`."""
        given, num, time, error = self.given, self.pairs.size(1), None, None
        if given['edge_label_time'] is not None:
            time, error = times_of(graph, 'edge_label_time', given['edge_label_time'], num)
        raise_together(None if error is None else ValueError(error))
        label = self._counted_up()
        src, dst, input_id, (label, time) = (self._own if self.are_own else self._routed)(
            graph, [label, time]
        )
        key = hashed(0, dst, src)
        for values in (time, label):
            if values is not None:
                flat = values.double().reshape(key.numel(), math.prod(values.shape[1:]))
                key = hashed_on(key, *flat.view(torch.int64).unbind(1))
        end = ends_of(self.type)[1]
        negatives = None
        if self.negatives is not None:
            negatives = Negatives(graph, self.type, self.negatives)
        return LinkInputs(
            graph,
            key,
            by_part(graph, end, dst - graph.nodes[end].first),
            given['batch_size'],
            disjoint,
            given['seed'],
            given['shuffle'],
            self.type,
            src,
            dst,
            input_id,
            label,
            time,
            negatives,
            given['exclude_edges'] is not False,
            self.reverse,
        )

    def _counted_up(self) -> Tensor | None:
        """Labels; with binary negatives from 1 on, as 0 is theirs (collective)."""
        label = self.label
        if label is None or self.negatives is None or not self.negatives.is_binary():
            return label
        least = agree(label.min().item() if label.numel() else math.inf)
        return label + 1 if min(least) == 0 else label

    def _own(self, graph: Graph, more: list[Tensor | None]) -> Links:
        """Positions of own edges' ends."""
        edges = graph.edges[self.type]
        store = edge_stores(self.data)[self.type]
        of_shard = store.edge_index.as_subclass(Tensor)[0].cpu()
        # Every source of an edge of the shard, by its row there.
        position = torch.empty(
            int(of_shard.max()) + 1 if of_shard.numel() else 0, dtype=torch.int64
        )
        position[of_shard[edges.row]] = edges.source.long()
        src, dst = self.pairs
        return position[src], dst + graph.nodes[edges.dst].first, torch.arange(dst.numel()), more

    def _routed(self, graph: Graph, more: list[Tensor | None]) -> Links:
        """Pairs from all ranks into own nodes (collective)."""
        stores, found = node_stores(self.data), []
        for key, ids in zip(ends_of(self.type), self.pairs, strict=True):
            owner, row = owners_of(ids, stores[key].n_id.cpu(), 'edge_label_index')
            found.append((owner, row + torch.tensor(graph.nodes[key].rank_ptr)[owner]))
        (_, src), (owner, dst) = found
        num = self.pairs.size(1)
        told = agree((num, int(hashed(0, *self.pairs).sum())))
        if len(told) > 1 and num and all(each == told[0] for each in told):
            raise ValueError(
                "'edge_label_index' must be this rank's share of the pairs, such as "
                f'pairs[:, rank::world_size] (got the same {num} pairs on all ranks)'
            )
        place = torch.arange(num) + sum(count for count, _ in told[: rank()])
        order = torch.argsort(owner, stable=True)
        counts = torch.bincount(owner, minlength=world_size())
        asked = all_to_all_counts(counts).tolist()
        tensors = [t[order] for t in (src, dst, place, *more) if t is not None]
        sizes = [counts.tolist()] * len(tensors), [asked] * len(tensors)
        came = iter(all_to_all_packed(tensors, *sizes))
        src, dst, place = (next(came) for _ in range(3))
        return src, dst, place, [None if each is None else next(came) for each in more]


def read_links(data: Data | HeteroData, given: Mapping[str, Any]) -> Asked:
    """What `edge_label_index` and the arguments that belong to it say.

    Raises:
        ValueError: If they are no links, or do not belong together.
    """
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
    reverse = _reverse_of(data, key, given)
    asked = _LinksAsked(given, data, key, pairs, are_own, label, negatives, reverse)
    return Asked('edge_label_index', same, asked.inputs)


def _pairs_of(data: Data | HeteroData, given: Any) -> tuple[EdgeKey, Tensor, bool]:
    """The relation, the pairs, and whether they are own edges."""
    key: EdgeKey = None
    if isinstance(data, HeteroData):
        is_relation = isinstance(given, (tuple, list)) and all(isinstance(g, str) for g in given)
        relation, given = (given, None) if is_relation or given is None else _two(given)
        try:
            key = data._to_canonical(*(relation or ()))
        except (KeyError, ValueError, TypeError):
            key = None
        if key not in data.edge_types:
            raise ValueError(
                f"'edge_label_index' must be a relation, or (relation, pairs), of "
                f'{data.edge_types} (got {relation!r})'
            )
    edges = edge_stores(data)[key].edge_index
    given = edges if given is None else given
    if isinstance(given, ShardEdgeIndex):
        if given.is_flipped or given.shard is not edges.shard:
            raise ValueError(
                "'edge_label_index' must be ids of the whole graph, or edges selected from "
                f"'edge_index' of this shard and relation (got a {type(given).__name__} of others)"
            )
        return key, given.as_subclass(Tensor).cpu(), True
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
    """A relation and pairs."""
    if isinstance(given, (tuple, list)) and len(given) == 2:
        relation, pairs = given
        return ((relation,) if isinstance(relation, str) else relation), pairs
    return type(given).__name__, None


def _reverse_of(
    data: Data | HeteroData, key: EdgeKey, given: Mapping[str, Any]
) -> tuple[EdgeKey, ...]:
    """The relation that `exclude_edges` names beside the links' own."""
    asked = given['exclude_edges']
    src, dst = ends_of(key)
    if isinstance(asked, (tuple, list)) and isinstance(data, HeteroData):
        named = tuple(asked)
        if named not in data.edge_types or ends_of(named) != (dst, src):
            raise ValueError(
                f"'exclude_edges' must be a relation from '{dst}' to '{src}' of {data.edge_types} "
                f'(got {asked!r})'
            )
        return (named,)
    if asked == 'reverse':
        if src != dst:
            raise ValueError(
                f"'exclude_edges' must name the reverse of {key}, as its ends are of two types "
                "(got 'reverse')"
            )
        return (key,)
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
    return ()
