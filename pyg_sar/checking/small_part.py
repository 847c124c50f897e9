"""A small part of a graph, and of what a model has for every node."""

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
    """Some nodes, those that they have edges from, and all edges between them; and which they are.

    Of every class a node is there, and some of every mask. Numbers are of `dtype`.
    """
    generator = torch.Generator().manual_seed(0)
    chosen = {store._key: _seeds(store, generator) for store in data.node_stores}
    limits = {key: max(_NUM_NODES + 2 * i, len(chosen[key])) for i, key in enumerate(chosen)}

    def add(key: Any, more: Tensor) -> None:
        more = torch.unique(more[~torch.isin(more, chosen[key])])
        chosen[key] = torch.cat([chosen[key], more])[: limits[key]]

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
    """Nodes at random, and one of every class, and some of every mask."""
    found = [torch.randperm(store.num_nodes, generator=generator)[:_NUM_SEEDS]]
    for name, value in store.items():
        if isinstance(value, Tensor) and value.shape == (store.num_nodes,):
            if value.dtype == torch.bool:
                found.append(value.nonzero().view(-1)[:5])
            elif name == 'y' and not value.is_floating_point():
                classes, of_node = torch.unique(value, return_inverse=True)
                last = torch.zeros(len(classes), dtype=torch.int64)
                found.append(last.scatter_(0, of_node, torch.arange(len(value)))[-40:])
    return torch.unique(torch.cat(found))


def part_of_tables(model: torch.nn.Module, data: Any, chosen: Chosen, shard: Any = None) -> None:
    """Leaves the rows of the chosen nodes in tables that have a row for every node (in place).

    Of learned rows a rank has its own, those of `shard`.
    """
    of_size = {int(store.num_nodes): store._key for store in data.node_stores}
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) and module.num_embeddings in of_size:
            nodes = chosen[of_size[module.num_embeddings]]
            module.weight.data, module.num_embeddings = module.weight.data[nodes], len(nodes)
        if isinstance(module, NodeEmbedding):
            nodes, key = chosen[module.node_type], module.node_type
            store = shard if key is None or shard is None else shard[key]
            module._space = None if store is None else space_of_nodes(store)
            n_id = torch.arange(len(nodes)) if store is None else local(store.n_id)
            module._hold(module.weight.detach()[nodes[n_id]], n_id, len(nodes))
