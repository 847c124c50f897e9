"""``LinkNeighborLoader``: PyG's mini-batches of links, sampled from the graph of all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling
from typing_extensions import Unpack

from pyg_sar.comm.rows_by_id import owners_of
from pyg_sar.comm.vote import agree
from pyg_sar.loader.arguments import (
    LoaderOptions,
    Options,
    check_ids,
    nodes_of,
    of_all_ranks,
    own_of,
    own_times,
    own_values,
)
from pyg_sar.loader.attributes import edge_stores, ends_of, node_stores
from pyg_sar.loader.excluded import read_excluded
from pyg_sar.loader.graph import LocalGraph
from pyg_sar.loader.loader import Loader
from pyg_sar.loader.negatives import Negatives, read_neg_sampling
from pyg_sar.loader.seeds import Asked, Seeds
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.from_data import gather
from pyg_sar.rows.sharding import Sharding
from pyg_sar.shard.edges import LocalEdges, refuse_local
from pyg_sar.shard.format import EdgeKey


class LinkNeighborLoader(Loader):
    """Mini-batches of links, each with the neighbourhoods of both ends: an iterable, as PyG's.

    A batch is that of ``torch_geometric.loader.LinkNeighborLoader``. It has the attributes of a
    batch of :class:`pyg_sar.NeighborLoader`, without `batch_size`, and these:

    ===========================  =================================================================
    ``edge_label_index``         int64 ``[2, num_links]``, in the batch's own numbers: links, then
                                 their negatives
    ``edge_label``               those of the links, and 0 for negatives; if none are given, 1 and 0
    ``src_index``,               with triplets, in place of these: int64 ``[num_links]``,
    ``dst_pos_index``,           ``[num_links]``, and ``[num_links, amount]``, or
    ``dst_neg_index``            ``[num_links]`` for an amount of 1
    ``input_id``                 places of the links in `edge_label_index`
    ``edge_label_time``          if there are times; with triplets ``seed_time``
    ``batch``                    if `disjoint`: the link of every node
    ===========================  =================================================================

    ::

        loader = pyg_sar.LinkNeighborLoader(
            data, [10, 5], batch_size=64, shuffle=True, neg_sampling='binary', exclude_edges=True
        )
        for batch in loader:
            z = model(batch.x, batch.edge_index)[batch.edge_label_index]
            losses = F.binary_cross_entropy_with_logits(
                (z[0] * z[1]).sum(dim=-1), batch.edge_label.to(z.dtype), reduction='none'
            )
            loss = pyg_sar.loader.mean_of_batches(losses)  # over the links of all ranks
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    Batches are those of one machine: `batch_size` links of all ranks. A rank gets the ones whose
    destinations it owns, perhaps none.

    Negatives are pairs of different nodes without an edge of the links' relation. They are uniform
    among these pairs, or in proportion to the weights. If nodes have times, both nodes are there by
    the time of the link; if no pair is found, the earliest node is taken.

    Every ``iter(loader)`` is the next epoch. It is collective (two small all-gathers), and so is
    making a loader. Sampling takes ``4 * (hops + 1)`` collectives for 12 batches, and mostly 4 more
    with negatives.

    Arguments from `neg_sampling` on are given by name. Not listed below are `replace`,
    `subgraph_type`, `temporal_strategy`, `time_attr`, `weight_attr`, `transform`, `shuffle`,
    `drop_last` and `seed`: see :class:`pyg_sar.NeighborLoader`.

    Args:
        data: That of :func:`pyg_sar.load_shard`.
        num_neighbors: See :class:`pyg_sar.NeighborLoader`.
        edge_label_index: The links: None for all edges, edges selected from ``data.edge_index``, or
            pairs of ids of the whole graph, equal on all ranks, int64 ``[2, num_links]``. Of a
            HeteroData a relation, or ``(relation, links)``.
        edge_label: Labels of the links, ``[num_links, ...]``. With binary negatives they are
            classes from 0 on; in batches they count from 1 on, and 0 is that of negatives.
        edge_label_time: Times of the links, ``[num_links]``, together with `time_attr`: edges of a
            batch are not younger.
        neg_sampling: ``'binary'``, ``'triplet'``, or a ``torch_geometric.sampler.NegativeSampling``
            or dict, whose weights are rows of the nodes, or plain tensors of all, ``[N]``. None,
            the default: no negatives. `neg_sampling_ratio` is read as PyG reads it.
        exclude_edges: True leaves the links of a batch, of all ranks, out of its edges, so that no
            model sees its answer; a node may have fewer neighbours than were drawn. ``'reverse'``
            also leaves out the edges back; between nodes of two types name the relation of these.
        disjoint: Whether both ends of every link have trees of their own (default: False). Always
            so with times.
        batch_size: Links of all ranks in a batch (default: 1).

    Raises:
        TypeError: For an argument of PyG's or torch's that would change batches and cannot, such as
            `sampler`. Options of workers are taken, and change nothing.
        ValueError: On all ranks, if an argument is wrong on one, or they differ; while it runs, if
            no pair without an edge is found and nodes have no times.
    """

    def __init__(
        self,
        data: Data | HeteroData,
        num_neighbors: Any,
        edge_label_index: Any = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        *,
        neg_sampling: NegativeSampling | dict[str, Any] | str | None = None,
        neg_sampling_ratio: float | None = None,
        exclude_edges: bool | Literal['reverse'] | tuple[str, str, str] = False,
        **options: Unpack[LoaderOptions],
    ) -> None:
        of_seeds = {
            'edge_label_index': edge_label_index,
            'edge_label': edge_label,
            'edge_label_time': edge_label_time,
            'neg_sampling': neg_sampling,
            'neg_sampling_ratio': neg_sampling_ratio,
            'exclude_edges': exclude_edges,
        }
        super().__init__(data, num_neighbors, of_seeds, _read_links, options)


class _Links(NamedTuple):
    """Links into own nodes."""

    row: Tensor  # own rows of the destinations
    sources: Callable[[LocalGraph], Tensor]  # their positions (collective)
    sharding: Sharding  # as rows of which they count
    same: str  # words that must be equal on all ranks


def _read_links(
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
    label = None if edge_label is None else own_values('edge_label', edge_label, links.sharding)
    times = own_times('edge_label_time', edge_label_time, links.sharding) if has_time else None
    if label is not None and negatives is not None and negatives.is_triplet():
        raise ValueError("'edge_label' has no meaning with triplets (got one): leave it out")
    drawn: Any = None
    if negatives is not None:
        weights = negatives.src_weight, negatives.dst_weight
        has_weights = [weight is not None for weight in weights]
        drawn = negatives.mode.value, negatives.amount, *has_weights
    same = {
        'edge_label_index': (key, links.same),
        'edge_label': None if label is None else (str(label.dtype), tuple(label.shape[1:])),
        'edge_label_time': has_time,
        'neg_sampling': drawn,
        'exclude_edges': exclude_edges,
    }
    excluded = read_excluded(data, key, exclude_edges, options)

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
            links.sharding.ids(torch.device('cpu')),
            links.sharding.total,
            None if times is None else graph.as_times(times),
            options.batch_size,
            options.has_trees,
            counted,
            None if negatives is None else Negatives(graph, key, negatives),
            excluded,
        )

    return same, seeds


def _own_links(data: Data | HeteroData, key: EdgeKey, value: Any) -> _Links:
    """The links into own nodes.

    Pairs in a plain tensor are ids of the whole graph, equal on all ranks. Edges that are selected
    from the shard's own edge_index are those into own nodes already.
    """
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

        def among_edges(graph: LocalGraph) -> Tensor:
            of_shard = edges.handle.ids[0].cpu()
            num_local = int(of_shard.max()) + 1 if of_shard.numel() else 0
            position = torch.empty(num_local, dtype=torch.int64)
            position[of_shard[graph.edges[key].row]] = graph.edges[key].source.long()
            return position[src]

        return _Links(dst, among_edges, value._sharding, f'{value._sharding.total} edges')
    try:
        pairs = torch.as_tensor(gather(value)).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"'edge_label_index' must be a tensor (got {value!r})") from error
    if pairs.dim() != 2 or pairs.size(0) != 2 or pairs.dtype != torch.int64:
        raise ValueError(
            f"'edge_label_index' must be int64 [2, num_links], ids of the whole graph (got "
            f'{pairs.dtype} {tuple(pairs.shape)})'
        )
    src_type, dst_type = ends_of(key)
    (src_id, src_nodes), (dst_id, dst_nodes) = (
        nodes_of(node_stores(data)[end]) for end in (src_type, dst_type)
    )
    for ids, nodes in zip(pairs, (src_nodes, dst_nodes), strict=True):
        check_ids('edge_label_index', ids, nodes.total)
    row, index = own_of(pairs[1], dst_id)

    def anywhere(graph: LocalGraph) -> Tensor:
        owner, place = owners_of(pairs[0, index], src_id, 'edge_label_index')
        if graph.world_size == 1:
            return graph.nodes[src_type].positions(place)
        return torch.tensor(graph.nodes[src_type].rank_ptr)[owner] + place

    sharding = Sharding(index.numel(), what='links', ids=index, total=pairs.size(1))
    return _Links(row, anywhere, sharding, of_all_ranks(pairs))


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
