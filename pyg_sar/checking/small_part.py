"""A small part of a graph, and of what a model has for every node."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from pyg_sar.own_rows import OwnRows
from pyg_sar.rows.leaving import local

_NUM_NODES = 61
_NUM_SEEDS = 20

Chosen = dict[str | None, Tensor]


def small_part(data: Any, dtype: torch.dtype) -> tuple[Any, Chosen]:
    """Some nodes, those that they have edges from, and all edges between them; and which they are.

    Of every class a node is there, and some of every mask. Numbers are of `dtype`.
    """
    generator = torch.Generator().manual_seed(0)
    stores = {store._key: store for store in data.node_stores}
    chosen = {key: _seeds(store, generator) for key, store in stores.items()}
    limits = {key: max(_NUM_NODES + 2 * i, len(chosen[key])) for i, key in enumerate(stores)}
    ends = {
        store._key: (None, None) if store._key is None else (store._key[0], store._key[2])
        for store in data.edge_stores
    }
    for _ in range(3):
        for store in data.edge_stores:
            first, last = ends[store._key]
            src, dst = store.edge_index
            _add(chosen, first, src[torch.isin(dst, chosen[last])], limits)
    for key, store in stores.items():
        _add(chosen, key, torch.randperm(store.num_nodes, generator=generator), limits)
    chosen = {key: nodes.sort().values for key, nodes in chosen.items()}
    small = copy.copy(data).subgraph(chosen.get(None, chosen))
    return small.clone().apply(
        lambda t: t.double() if dtype == torch.float64 and t.dtype == torch.float32 else t
    ), chosen


def _seeds(store: Any, generator: torch.Generator) -> Tensor:
    """At random, and one of every class, and some of every mask."""
    found = [torch.randperm(store.num_nodes, generator=generator)[:_NUM_SEEDS]]
    y = store.get('y')
    if isinstance(y, Tensor) and y.shape == (store.num_nodes,) and not y.is_floating_point():
        classes, of_node = y.unique(return_inverse=True)
        found.append(classes.new_zeros(len(classes)).long().scatter_(0, of_node, _ids(y))[-40:])
    for value in store.values():
        is_mask = isinstance(value, Tensor) and value.dtype == torch.bool
        if is_mask and value.shape == (store.num_nodes,):
            found.append(value.nonzero().view(-1)[:5])
    return torch.cat(found).unique()


def _ids(y: Tensor) -> Tensor:
    return torch.arange(y.size(0))


def _add(chosen: Chosen, key: Any, more: Tensor, limits: dict[Any, int]) -> None:
    more = more[~torch.isin(more, chosen[key])]
    kept = chosen[key]
    chosen[key] = torch.cat([kept, more.unique()[: limits[key] - kept.numel()]])


def part_of_tables(model: torch.nn.Module, data: Any, chosen: Chosen) -> None:
    """Leaves the rows of the chosen nodes in tables that have a row for every node (in place)."""
    of_size = {int(store.num_nodes): store._key for store in reversed(data.node_stores)}
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) and module.num_embeddings in of_size:
            nodes = chosen[of_size[module.num_embeddings]]
            module.weight.data = module.weight.data[nodes]
            module.num_embeddings = nodes.numel()
    for p in model.parameters():
        if isinstance(p, OwnRows):
            nodes = chosen[p.node_type]
            _keep(p, nodes, torch.arange(nodes.numel()))
            p.num_nodes = nodes.numel()


def own_tables(model: torch.nn.Module, data: Any) -> None:
    """Leaves the own rows of this rank in learned rows of all nodes (in place)."""
    for p in model.parameters():
        if isinstance(p, OwnRows):
            store = data if p.node_type is None else data[p.node_type]
            n_id = local(store.n_id)
            _keep(p, n_id, n_id)


def _keep(p: OwnRows, places: Tensor, n_id: Tensor) -> None:
    with torch._C.DisableTorchFunctionSubclass():
        p.data = p.data[places]
    p.n_id = n_id
