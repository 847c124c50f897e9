"""PyG's NeighborLoader for plain runs, which needs neither pyg-lib nor torch_sparse.

It takes all neighbours, so nothing is drawn but the order of the seeds, which is that of PyG.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data


class NeighborLoader(torch.utils.data.DataLoader[Any]):
    """Batches of seeds with all neighbours; hops follow each other, as in PyG."""

    def __init__(
        self,
        data: Data,
        num_neighbors: list[int],
        input_nodes: Tensor | None = None,
        *,
        disjoint: bool = False,
        num_workers: int = 0,
        persistent_workers: bool = False,
        **kwargs: Any,
    ) -> None:
        if set(num_neighbors) != {-1}:
            raise ValueError(f"'num_neighbors' must be -1 in each hop (got {num_neighbors})")
        self.data, self.num_hops, self.is_disjoint = data, len(num_neighbors), disjoint
        self.seeds = torch.arange(data.num_nodes) if input_nodes is None else input_nodes
        if self.seeds.dtype == torch.bool:
            self.seeds = self.seeds.nonzero().view(-1)
        order = data.edge_index[1].argsort(stable=True)
        counts = data.edge_index[1].bincount(minlength=data.num_nodes)
        self.in_edges = order.split(counts.tolist())
        super().__init__(range(len(self.seeds)), collate_fn=self.batch, **kwargs)  # type: ignore[arg-type]

    def batch(self, index: list[int]) -> Data:
        """The batch of chosen seeds."""
        size, sources = self.data.num_nodes, self.data.edge_index[0]
        seeds = self.seeds[index].tolist()
        # A number for each node, or with `disjoint` for each node of each seed.
        keys = [seed + size * place * self.is_disjoint for place, seed in enumerate(seeds)]
        places = {key: place for place, key in enumerate(keys)}
        rows: list[int] = []
        columns: list[int] = []
        edges: list[int] = []
        num_nodes, num_edges, begin = [len(keys)], [], 0
        for _ in range(self.num_hops):
            frontier, begin = keys[begin:], len(keys)
            before = len(edges)
            for key in frontier:
                for edge in self.in_edges[key % size].tolist():
                    source = int(sources[edge]) + key // size * size
                    if source not in places:
                        places[source] = len(keys)
                        keys.append(source)
                    rows.append(places[source])
                    columns.append(places[key])
                    edges.append(edge)
            num_nodes.append(len(keys) - begin)
            num_edges.append(len(edges) - before)
        all_keys = torch.tensor(keys)
        batch = Data(edge_index=torch.tensor([rows, columns]))
        batch.n_id, batch.e_id = all_keys % size, torch.tensor(edges)
        for name, value in self.data:
            if name != 'edge_index' and self.data.is_node_attr(name):
                batch[name] = value[batch.n_id]
            elif name != 'edge_index' and self.data.is_edge_attr(name):
                batch[name] = value[batch.e_id]
        batch.num_nodes, batch.batch_size = len(keys), len(seeds)
        batch.num_sampled_nodes, batch.num_sampled_edges = num_nodes, num_edges
        if self.is_disjoint:
            batch.batch = all_keys // size
        return batch
