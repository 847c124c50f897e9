"""Batches of one rank or several, as plain values that can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import pyg_sar

Taken = list[dict[str, Any]]


def take(batch: Data | HeteroData) -> dict[str, Any]:
    """What a batch holds, as plain values by type of nodes or relation."""
    if isinstance(batch, HeteroData):
        nodes = {key: batch[key].to_dict() for key in batch.node_types}
        edges = {key: batch[key].to_dict() for key in batch.edge_types}
    else:
        nodes, edges = {None: batch.to_dict()}, {None: batch.to_dict()}
    return {'nodes': nodes, 'edges': edges}


def batches(root: str, epochs: int = 1, **options: Any) -> Taken:
    """All batches of a loader on this rank, epoch after epoch."""
    data = pyg_sar.load_shard(root)
    key = options.pop('input_type', None)
    mask = options.pop('mask', 'train_mask')
    store = data if key is None else data[key]
    rows = None if mask is None else store[mask]
    seeds = rows if key is None else (key, rows)
    return _all(pyg_sar.NeighborLoader(data, input_nodes=seeds, **options), epochs)


def link_batches(
    root: str, epochs: int = 1, *, relation: Any = None, pairs: Tensor | None = None, **options: Any
) -> Taken:
    """All batches of links: all edges of a relation, or pairs of ids of the whole graph."""
    links = pairs if relation is None else (relation, pairs)
    data = pyg_sar.load_shard(root)
    return _all(pyg_sar.LinkNeighborLoader(data, edge_label_index=links, **options), epochs)


def _all(loader: Any, epochs: int) -> Taken:
    out = []
    for _ in range(epochs):
        taken = [take(batch) for batch in loader]
        assert len(taken) == len(loader)
        out += taken
    return out


def content(of_ranks: Sequence[Taken]) -> list[dict[Any, Any]]:
    """Batch by batch what no number of ranks changes, by ids of the whole graph, in order.

    That are seeds and negatives; and nodes and edges where each seed has a tree of its own.
    """
    return [_content(same) for same in zip(*of_ranks, strict=True)]


def _content(same: Sequence[dict[str, Any]]) -> dict[Any, Any]:
    out: dict[Any, list[Any]] = {}
    for batch in same:
        for key, store in batch['nodes'].items():
            if 'input_id' in store and 'batch_size' in store:
                ids = store['n_id'][: store['batch_size']]
                _add(out, (key, 'seeds'), store['input_id'], ids)
        for key, store in batch['edges'].items():
            _add_links(out, key, batch, store)
        trees = [store for store in batch['nodes'].values() if 'batch' in store]
        if trees:
            for name, values in nodes_and_edges(batch).items():
                out.setdefault(name, []).extend(values)
    return {name: sorted(rows) for name, rows in out.items()}


def _add(out: dict[Any, list[Any]], name: Any, *columns: Tensor) -> None:
    out.setdefault(name, []).extend(zip(*(c.tolist() for c in columns), strict=True))


def _add_links(
    out: dict[Any, list[Any]], key: Any, batch: dict[str, Any], store: dict[str, Any]
) -> None:
    src, dst = (batch['nodes'][end] for end in ((None, None) if key is None else (key[0], key[2])))
    if 'edge_label_index' in store:
        row, col = store['edge_label_index']
        num = store['input_id'].numel()
        ends = src['n_id'][row], dst['n_id'][col]
        more = [store[name] for name in ('edge_label', 'edge_label_time') if name in store]
        _add(out, (key, 'links'), store['input_id'], *(t[:num] for t in (*ends, *more)))
        _add(out, (key, 'negatives'), *(t[num:] for t in (*ends, *more)))
    elif 'src_index' in src and 'input_id' in store:
        triplets = src['src_index'], dst['dst_pos_index'], dst['dst_neg_index']
        ends = [of['n_id'][at] for of, at in zip((src, dst, dst), triplets, strict=True)]
        _add(out, (key, 'triplets'), store['input_id'], *ends)


def nodes_and_edges(batch: dict[str, Any]) -> dict[Any, list[Any]]:
    """The nodes of a batch by type and hop, and its edges with their ends, by ids."""
    out: dict[Any, list[Any]] = {}
    for key, store in batch['nodes'].items():
        for hop, ids in enumerate(store['n_id'].split(list(store['num_sampled_nodes']))):
            out[key, 'nodes', hop] = sorted(ids.tolist())
    for key, store in batch['edges'].items():
        src, dst = (None, None) if key is None else (key[0], key[2])
        row, col = store['edge_index']
        ends = batch['nodes'][src]['n_id'][row], batch['nodes'][dst]['n_id'][col]
        out[key, 'edges'] = sorted(zip(*(t.tolist() for t in (*ends, store['e_id'])), strict=True))
    return out


class Own:
    """A value that depends on the rank."""

    def __init__(self, *values: Any) -> None:
        self.values = values


def drawn_pairs(num: int = 60, limits: tuple[int, int] = (40, 40)) -> Tensor:
    """Some edges or none, the same pair several times."""
    generator = torch.Generator().manual_seed(4)
    pairs = torch.stack([torch.randint(limit, (num,), generator=generator) for limit in limits])
    pairs[:, 20:24] = pairs[:, :4]
    return pairs
