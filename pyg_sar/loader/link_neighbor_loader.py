"""``LinkNeighborLoader``: PyG's mini-batches of links, sampled from the graph of all ranks."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling
from typing_extensions import Unpack

from pyg_sar.loader.arguments import LoaderOptions
from pyg_sar.loader.loader import Loader
from pyg_sar.loader.seeds.links import read_links


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

    Arguments from `neg_sampling` on are given by name.

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
        replace, subgraph_type, temporal_strategy, time_attr, weight_attr, transform, shuffle,
            drop_last, seed: See :class:`pyg_sar.NeighborLoader`.

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
        super().__init__(data, num_neighbors, of_seeds, read_links, options)
