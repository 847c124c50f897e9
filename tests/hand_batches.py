"""Batches made by hand: what a rank samples around some seeds if it takes everything."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import k_hop_subgraph


def batch_of(graph: Data, seeds: Tensor, num_hops: int = 2) -> Data:
    """The subgraph around `seeds`, which come first, as PyG's loaders give it.

    Attributes: ``x``, ``y``, ``edge_index``, ``n_id``, ``is_seed`` bool, ``batch_size``; without
    seeds no nodes and no edges.
    """
    nodes, edges = torch.empty(0, dtype=torch.int64), torch.empty(2, 0, dtype=torch.int64)
    if seeds.numel():
        nodes, _, _, mask = k_hop_subgraph(
            seeds, num_hops, graph.edge_index, num_nodes=graph.num_nodes
        )
        nodes = torch.cat([seeds, nodes[~torch.isin(nodes, seeds)]])
        place = torch.full((graph.num_nodes,), -1)
        place[nodes] = torch.arange(nodes.numel())
        edges = place[graph.edge_index[:, mask]]
    return Data(
        x=graph.x[nodes],
        y=graph.y[nodes],
        edge_index=edges,
        n_id=nodes,
        is_seed=torch.arange(nodes.numel()) < seeds.numel(),
        batch_size=seeds.numel(),
    )


def hetero_batch_of(graph: HeteroData, of_type: str, seeds: Tensor) -> HeteroData:
    """The subgraph around seeds of one type, which come first; all types and relations are there.

    One hop of in-edges, and all edges between the nodes found; without seeds nothing at all.
    """
    chosen = {
        name: torch.zeros(graph[name].num_nodes, dtype=torch.bool) for name in graph.node_types
    }
    chosen[of_type][seeds] = True
    for src, name, dst in graph.edge_types if seeds.numel() else []:
        if dst == of_type:
            edges = graph[src, name, dst].edge_index
            chosen[src][edges[0, torch.isin(edges[1], seeds)]] = True
    batch, place = HeteroData(), {}
    for name, mask in chosen.items():
        nodes = mask.nonzero().view(-1)
        if name == of_type:
            nodes = torch.cat([seeds, nodes[~torch.isin(nodes, seeds)]])
        place[name] = torch.full((graph[name].num_nodes,), -1)
        place[name][nodes] = torch.arange(nodes.numel())
        batch[name].n_id, batch[name].num_nodes = nodes, nodes.numel()
        for key in ('x', 'y'):
            if key in graph[name]:
                batch[name][key] = graph[name][key][nodes]
    for key in graph.edge_types:
        edges = graph[key].edge_index
        inside = chosen[key[0]][edges[0]] & chosen[key[2]][edges[1]]
        ends = [place[end][row] for end, row in zip(key[::2], edges[:, inside], strict=True)]
        batch[key].edge_index = torch.stack(ends)
    batch[of_type].batch_size = seeds.numel()
    return batch
