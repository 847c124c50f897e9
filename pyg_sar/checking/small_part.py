"""Cuts a small part out of a graph, and out of a model's tables of nodes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from pyg_sar.own_rows import NodeEmbedding
from pyg_sar.rows.attach import local, space_of_nodes

_NUM_NODES = 61
_NUM_SEEDS = 20

Chosen = dict[str | None, Tensor]


def small_part(data: Any, dtype: torch.dtype) -> tuple[Any, Chosen]:
    """The subgraph of some nodes and of sources of their edges, and the ids of these nodes by type.

    It has nodes of every class and of every mask. Floating-point attributes get `dtype`.
    """
    generator = torch.Generator().manual_seed(0)
    chosen = {store._key: _seeds(store, generator) for store in data.node_stores}
    limits = {key: max(_NUM_NODES + 2 * i, len(chosen[key])) for i, key in enumerate(chosen)}

    def add(key: Any, nodes: Tensor) -> None:
        new = torch.unique(nodes[~torch.isin(nodes, chosen[key])])
        chosen[key] = torch.cat([chosen[key], new])[: limits[key]]

    for store in [*data.edge_stores] * 3:
        src, dst = store.edge_index
        key = store._key or (None, None, None)
        add(key[0], src[torch.isin(dst, chosen[key[2]])])
    for store in data.node_stores:
        add(store._key, torch.randperm(store.num_nodes, generator=generator)[:_NUM_NODES])
    chosen = {key: nodes.sort().values for key, nodes in chosen.items()}
    small = copy.copy(data).subgraph(chosen.get(None, chosen)).clone()
    return small.apply(lambda t: t.to(dtype) if t.dtype == torch.float32 else t), chosen


def _seeds(store: Any, generator: torch.Generator) -> Tensor:
    """Random nodes, one of every class, and some of every mask."""
    seeds = [torch.randperm(store.num_nodes, generator=generator)[:_NUM_SEEDS]]
    for name, value in store.items():
        if isinstance(value, Tensor) and value.shape == (store.num_nodes,):
            if value.dtype == torch.bool:
                seeds.append(value.nonzero().view(-1)[:5])
            elif name == 'y' and not value.is_floating_point():
                classes, of_node = torch.unique(value, return_inverse=True)
                last = torch.zeros(len(classes), dtype=torch.int64)
                seeds.append(last.scatter_(0, of_node, torch.arange(len(value)))[-40:])
    return torch.unique(torch.cat(seeds))


def part_of_tables(model: torch.nn.Module, data: Any, chosen: Chosen, small: Any) -> None:
    """Keeps only the rows of the chosen nodes in tables with a row for every node (in place).

    A NodeEmbedding keeps those of this rank's nodes, which are in `small`.
    """
    of_size = {int(store.num_nodes): store._key for store in data.node_stores}
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) and module.num_embeddings in of_size:
            nodes = chosen[of_size[module.num_embeddings]]
            module.weight.data, module.num_embeddings = module.weight.data[nodes], len(nodes)
        if isinstance(module, NodeEmbedding):
            nodes, key = chosen[module.node_type], module.node_type
            store = small if key is None else small[key]
            module._space, n_id = space_of_nodes(store), local(store.n_id)
            module._hold(module.weight.detach()[nodes[n_id]], n_id, len(nodes))
