"""``NeighborLoader``: PyG's mini-batches of nodes, sampled from the graph of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from typing_extensions import Unpack

from pyg_sar.loader.arguments import (
    LoaderOptions,
    Options,
    check_ids,
    nodes_of,
    of_all_ranks,
    of_mask,
    own_of,
    own_times,
)
from pyg_sar.loader.attributes import node_stores
from pyg_sar.loader.graph import LocalGraph
from pyg_sar.loader.loader import Loader
from pyg_sar.loader.seeds import Asked, Seeds
from pyg_sar.rows.align import own_rows
from pyg_sar.rows.from_data import gather
from pyg_sar.rows.rows import Rows
from pyg_sar.rows.sharding import Sharding
from pyg_sar.shard.format import NodeKey


class NeighborLoader(Loader):
    """Mini-batches of a cut graph, each with its sampled neighbourhood: an iterable, as PyG's.

    A batch is what ``torch_geometric.loader.NeighborLoader`` gives: a ``Data`` or ``HeteroData`` on
    a plain ``edge_index``, with all attributes of the sampled nodes and edges, the seeds first.

    ===========================  =================================================================
    ``x``, ``y``, ...            of every sampled node; other attributes are not changed
    ``edge_attr``, ...           of every sampled edge
    ``edge_index``               int64 ``[2, num_edges]``, in the batch's own numbers
    ``n_id``, ``e_id``           ids in the whole graph, int64
    ``input_id``                 places of the seeds among all, in the order of `input_nodes`; of a
                                 mask in the order of ids
    ``batch_size``               number of seeds of this rank
    ``num_sampled_nodes``        how many each hop added, for ``trim_to_layer``; and
                                 ``num_sampled_edges``
    ``batch``, ``seed_time``     if `disjoint`: the seed of every node, and the seeds' times
    ===========================  =================================================================

    ::

        loader = pyg_sar.NeighborLoader(
            data, [10, 5], data.train_mask, batch_size=64, shuffle=True
        )
        for batch in loader:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            losses = F.cross_entropy(out, batch.y[: batch.batch_size], reduction='none')
            loss = pyg_sar.loader.mean_of_batches(losses)  # over the seeds of all ranks
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    Batches are those of one machine: `batch_size` seeds of all ranks, in their order, or in one
    order that is drawn for all. Each rank gets its own nodes among these seeds, perhaps none. All
    ranks have the same ``len(loader)`` and must take the same number of batches.

    Every ``iter(loader)`` is the next epoch. It is collective (two small all-gathers), and so is
    making a loader. Sampling takes ``4 * hops`` collectives for 12 batches.

    Arguments from `replace` on are given by name.

    Args:
        data: That of :func:`pyg_sar.load_shard`.
        num_neighbors: How many in-edges of a node to draw, by hop; -1 for all. A dict by relation
            gives each its own.
        input_nodes: The seeds: a mask, as ``data.train_mask`` or plain, bool ``[num_nodes]``, or
            ids of the whole graph, equal on all ranks; None for all. A rank takes its own nodes of
            them. Of a HeteroData ``'paper'`` or ``('paper', mask)``.
        input_time: Times of the seeds, in the order of `input_nodes`; None for those of the nodes.
        replace: Whether an edge may be drawn again (default: False).
        subgraph_type: ``'directional'``, the default: the edges that were drawn.
            ``'bidirectional'``: with their reverse. ``'induced'``: all edges between the nodes of a
            batch.
        disjoint: Whether every seed has a tree of its own (default: False). Always so with times.
        temporal_strategy: ``'uniform'``, the default, draws among the edges that are there by the
            time of the seed, ``'last'`` takes the latest of them.
        time_attr: The attribute of nodes or edges that holds their times (default: None).
        weight_attr: The attribute of edges by which they are drawn, finite and at least 0 (default:
            None, all alike). An edge of weight 0 is drawn only where `num_neighbors` is -1.
        transform: A function applied to every batch (default: None).
        batch_size: Seeds of all ranks in a batch (default: 1).
        shuffle: Whether every epoch takes the seeds in another random order (default: False).
        drop_last: Whether a last batch with fewer seeds is left out (default: False).
        seed: Of all random numbers; an epoch then depends on nothing else. None, the default: every
            epoch takes numbers from torch's generator on rank 0, and has the order of PyG's loader.

    Raises:
        TypeError: For an argument of PyG's or torch's that would change batches and cannot, such as
            `sampler`. Options of workers are taken, and change nothing.
        ValueError: On all ranks, if an argument is wrong on one, or they differ.
    """

    def __init__(
        self,
        data: Data | HeteroData,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        of_seeds = {'input_nodes': input_nodes, 'input_time': input_time}
        super().__init__(data, num_neighbors, of_seeds, _read_nodes, options)


def _read_nodes(
    data: Data | HeteroData, options: Options, input_nodes: Any, input_time: Any
) -> Asked:
    """Reads the seeds and their times (collective where they are rows)."""
    has_time = input_time is not None
    if has_time and options.time_attr is None:
        raise ValueError("'input_time' needs a 'time_attr' (got None)")
    key, nodes = _type_of(data, input_nodes)
    row, sharding, same = _own_seeds(node_stores(data)[key], nodes)
    own_time = own_times('input_time', input_time, sharding) if has_time else None

    def seeds(graph: LocalGraph) -> Seeds:
        nodes, time = graph.nodes[key], None
        if not nodes.own_ptr:
            raise ValueError(f"'input_nodes' must be of a type with edges (got '{key}')")
        position = nodes.positions(row)
        if own_time is not None:
            time = graph.as_times(own_time)
        elif key in graph.times:
            time = graph.times[key][position - nodes.first]
        elif options.time_attr is not None:  # by edges, or by other nodes
            raise ValueError(
                "'input_time' must be given where seeds have no 'time_attr' of their own (got None)"
            )
        index, size = sharding.ids(torch.device('cpu')), options.batch_size
        return Seeds(graph, key, (position,), index, sharding.total, time, size, options.has_trees)

    return {'input_nodes': (key, same), 'input_time': has_time}, seeds


def _type_of(data: Data | HeteroData, value: Any) -> tuple[NodeKey, Any]:
    """The type of the seeds, and their mask or ids; None for all."""
    if not isinstance(data, HeteroData):
        return None, value
    key, nodes = value, None
    if isinstance(value, (tuple, list)) and len(value) == 2:
        key, nodes = value
    if key not in data.node_types:
        raise ValueError(
            f"'input_nodes' must be a type of nodes, or (type, nodes), of {data.node_types} "
            f'(got {key!r})'
        )
    return key, nodes


def _own_seeds(store: Any, value: Any) -> tuple[Tensor, Sharding, str]:
    """Own rows of the seeds, their sharding, and words that must be equal on all ranks."""
    n_id, sharding = nodes_of(store)
    count = sharding.total
    if value is None:
        return torch.arange(sharding.own), sharding, 'all'
    try:
        nodes = value if isinstance(value, Rows) else torch.as_tensor(value).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"'input_nodes' must be a mask or ids (got {value!r})") from error
    if nodes.dtype == torch.bool and nodes.shape == (count,):
        mask = sharding.selected(own_rows('input_nodes', nodes, 0, sharding))
        own = mask.chosen(torch.device('cpu'))
        return own, mask, of_mask(n_id[own], mask.total)
    ids = gather(nodes).detach().cpu()
    if ids.dim() != 1 or ids.dtype == torch.bool or (ids.numel() and ids.is_floating_point()):
        raise ValueError(
            f"'input_nodes' must be a mask of the {count} nodes, or ids of them (got {ids.dtype} "
            f'{tuple(ids.shape)})'
        )
    ids = ids.long()
    check_ids('input_nodes', ids, count)
    row, index = own_of(ids, n_id)
    listed = Sharding(index.numel(), what='seeds', ids=index, total=ids.numel())
    return row, listed, of_all_ranks(ids)
