"""A ``Partitioner`` with the signature of torch_geometric.distributed's.

PyG's stores cannot open a part without nodes of a type. So single nodes move where METIS leaves a
type out; ``partition_graph`` does not do that.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.partitioner.assignment import assign_nodes, choose
from pyg_sar.partitioner.cut_graph import partition_graph
from pyg_sar.partitioner.graph.checks import check_positive
from pyg_sar.partitioner.graph.typed import TypedGraph, typed_graph
from pyg_sar.partitioner.methods.given import fill_empty_parts
from pyg_sar.partitioner.methods.method import MethodLike
from pyg_sar.partitioner.write.summary import PartitionSummary
from pyg_sar.shard.format.file_names import META_FILE, NodeKey


class Partitioner:
    """Takes the place of ``torch_geometric.distributed.Partitioner``; needs no pyg-lib.

    It writes what PyG's stores read, and beside it what :func:`~pyg_sar.load_shard` reads: also
    labels, masks and every other attribute, which PyG's own class leaves out. As there, partitions
    that `root` holds already are replaced. For options beyond these use
    :func:`~pyg_sar.partition_graph`.

    Not collective: one process cuts the graph, once::

        pyg_sar.partitioner.Partitioner(graph, 2, 'new_parts/').generate_partition()

    Args:
        data: The graph, homogeneous or heterogeneous, with any attributes.
        num_parts: Number of parts, at least 1.
        root: Folder to write.
        recursive: Whether METIS bisects recursively (True) or cuts k-way (False). By default, other
            than PyG's, as in :func:`~pyg_sar.partition_graph`: recursively, which balances better,
            but from 9 parts on k-way where that cuts clearly less.

    Raises:
        ValueError: If `num_parts` or the graph is not as described.
    """

    def __init__(
        self,
        data: Data | HeteroData,
        num_parts: int,
        root: str | os.PathLike[str],
        recursive: bool | None = None,
    ) -> None:
        self.data = data
        self.num_parts = num_parts
        self.root = root
        self.recursive = recursive

    def generate_partition(self) -> PartitionSummary:
        """Writes the folder; returns its sizes, cut and exchange.

        Raises:
            ValueError: If something is not as described, or `root` holds something other than
                partitions; nothing is written then.
        """
        is_partition = (Path(self.root) / META_FILE).is_file()
        method: MethodLike = 'metis'
        num_parts = check_positive('num_parts', self.num_parts)
        is_hetero = isinstance(self.data, HeteroData)
        if is_hetero or self.recursive is not None:
            with warnings.catch_warnings():
                warnings.simplefilter('ignore', UserWarning)  # partition_graph gives them again
                graph = typed_graph(self.data)
            if num_parts <= graph.num_nodes:
                options = choose(method, is_hetero=is_hetero)
                options = replace(options, recursive=self.recursive)
                parts = assign_nodes(graph, num_parts, options)
                method = _spread(graph, parts, num_parts) if is_hetero else parts[None]
        return partition_graph(
            self.data, num_parts, self.root, method=method, order='cache', force=is_partition
        )


def _spread(graph: TypedGraph, parts: dict[NodeKey, Tensor], num_parts: int) -> dict[str, Tensor]:
    """Moves single nodes, so that every part has nodes of every type and edges of every relation.

    METIS may put all nodes of a type into one part; PyG's stores cannot open a part without.
    A type or relation with fewer nodes or destinations than there are parts is left as it is.
    """
    spread = {}
    for key, part in parts.items():
        part = part.clone()
        into = [torch.unique(r.edge_index[1]) for r in graph.relations.values() if r.dst == key]
        for nodes in [*into, torch.arange(part.numel())]:
            if nodes.numel() >= num_parts:
                part[nodes] = fill_empty_parts(part[nodes], num_parts)
        spread[str(key)] = part
    return spread
