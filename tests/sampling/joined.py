"""Batches of several ranks, put together as one rank with all parts would have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import pyg_sar
from pyg_sar.comm import rank, world_size

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
    loader = pyg_sar.NeighborLoader(
        data, input_nodes=rows if key is None else (key, rows), **options
    )
    out = []
    for _ in range(epochs):
        taken = [take(batch) for batch in loader]
        assert len(taken) == len(loader)
        out += taken
    return out


def link_batches(
    root: str,
    epochs: int = 1,
    *,
    relation: Any = None,
    pairs: Tensor | None = None,
    more: dict[str, Tensor] | None = None,
    **options: Any,
) -> Taken:
    """All batches of links: own edges, or ids of the whole graph, a share from each rank.

    Args:
        root: Of the shards.
        epochs: How many.
        relation: Of the links.
        pairs: Ids of the whole graph, int64 ``[2, num_links]``.
        more: What belongs to these, such as `edge_label`.
        **options: Of the loader.
    """
    data, size = pyg_sar.load_shard(root), world_size()
    links = None
    if pairs is not None:
        links = pairs.tensor_split(size, dim=1)[rank()]
        more = {name: value.tensor_split(size)[rank()] for name, value in (more or {}).items()}
    loader = pyg_sar.LinkNeighborLoader(
        data,
        edge_label_index=links if relation is None else (relation, links),
        **(more or {}),
        **options,
    )
    out = []
    for _ in range(epochs):
        taken = [take(batch) for batch in loader]
        assert len(taken) == len(loader)
        out += taken
    return out


def join(of_ranks: Sequence[Taken]) -> Taken:
    """Batch by batch: hop after hop, the ranks' nodes and edges one after another."""
    return [_joined(same) for same in zip(*of_ranks, strict=True)]


def _joined(batches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    nodes, places = {}, {}
    for key in batches[0]['nodes']:
        each = [batch['nodes'][key] for batch in batches]
        hops = [store['num_sampled_nodes'] for store in each]
        values = _by_hop(_only(each, False), hops)
        values['num_sampled_nodes'] = [sum(n) for n in zip(*hops, strict=True)]
        order = _by_hop(
            [{'at': torch.arange(sum(h)) + 10**6 * r} for r, h in enumerate(hops)], hops
        )
        places[key] = order['at']
        nodes[key] = values
    edges = {}
    for key in batches[0]['edges']:
        src, dst = (None, None) if key is None else (key[0], key[2])
        each = []
        for number, batch in enumerate(batches):
            store = dict(batch['edges'][key])
            store['src'], store['dst'] = (
                _at(places[end], row + 10**6 * number)
                for end, row in zip((src, dst), store['edge_index'], strict=True)
            )
            each.append(store)
        hops = [store.get('num_sampled_edges') or [store['src'].numel()] for store in each]
        values = _by_hop(_only(each, True), hops)
        values['edge_index'] = torch.stack([values.pop('src'), values.pop('dst')])
        values['num_sampled_edges'] = [sum(n) for n in zip(*hops, strict=True)]
        if 'num_sampled_edges' not in each[0]:  # induced edges are in the order of destinations
            order = values['edge_index'][1].argsort(stable=True)
            values = {
                k: v[..., order] if k == 'edge_index' else v[order]
                for k, v in values.items()
                if isinstance(v, Tensor)
            }
        edges[key] = values
    return {'nodes': nodes, 'edges': edges, 'links': _links(batches, places)}


def _links(batches: Sequence[dict[str, Any]], places: dict[Any, Tensor]) -> dict[Any, Any]:
    """What batches say of links: those of the first rank, of the second, ...; then negatives."""
    out: dict[Any, Any] = {}
    for key in batches[0]['edges']:
        src, dst = (None, None) if key is None else (key[0], key[2])
        ends = {
            'src_index': src,
            'dst_pos_index': dst,
            'dst_neg_index': dst,
        }
        found: dict[str, list[list[Tensor]]] = {}

        def add(name: str, value: Tensor, num: int) -> None:
            found.setdefault(name, []).append([value[:num], value[num:]])  # noqa: B023

        for of, batch in enumerate(batches):
            store = batch['edges'][key]
            num = store['input_id'].numel() if 'input_id' in store else 0
            if 'edge_label_index' in store:
                for i, end in enumerate((src, dst)):
                    number = store['edge_label_index'][i] + 10**6 * of
                    add(f'edge_label_index {i}', _at(places[end], number), num)
                for name in ('edge_label', 'edge_label_time'):
                    if name in store:
                        add(name, store[name], num)
            if dst is not None or 'src_index' in store:
                for name, end in ends.items():
                    value = batch['nodes'][end].get(name)
                    if value is not None:
                        flat = _at(places[end], value.view(-1) + 10**6 * of).view(value.shape)
                        add(name, flat, len(flat))
        for name, each in found.items():
            out[key, name] = torch.cat([v[0] for v in each] + [v[1] for v in each])
    return {'': out}


def _only(stores: list[dict[str, Any]], is_edge: bool) -> list[dict[str, Any]]:
    """What is of nodes, or of edges, of what a homogeneous batch has together."""
    of_edges, of_links = ('src', 'dst', 'e_id'), ('edge_label', 'dst_', 'src_index')
    return [
        {
            k: v
            for k, v in store.items()
            if ('edge' in k or k in of_edges) == is_edge and not k.startswith(of_links)
        }
        for store in stores
    ]


def _by_hop(stores: list[dict[str, Any]], hops: list[list[int]]) -> dict[str, Tensor]:
    """Tensors with a row for every node or edge, hop after hop, rank after rank."""
    counts = [sum(each) for each in hops]
    names = [
        name
        for name, value in stores[0].items()
        if isinstance(value, Tensor)
        and name not in ('edge_index', 'input_id', 'seed_time', 'batch')
        and all(store[name].size(0) == n for store, n in zip(stores, counts, strict=True))
    ]
    out = {}
    for name in names:
        split = [store[name].split(h) for store, h in zip(stores, hops, strict=True)]
        out[name] = torch.cat([piece for hop in zip(*split, strict=True) for piece in hop])
    return out


def _at(places: Tensor, wanted: Tensor) -> Tensor:
    """Where each of some distinct numbers stands."""
    order = places.argsort()
    return order[torch.searchsorted(places[order], wanted)]


def assert_same(got: Taken, want: Taken) -> None:
    """Every tensor of every batch has the same numbers, the order of rows included."""
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        for kind in ('nodes', 'edges', 'links'):
            if kind not in one or kind not in other:
                continue
            assert one[kind].keys() == other[kind].keys()
            for key, values in one[kind].items():
                wanted = other[kind][key]
                assert values.keys() <= wanted.keys()
                for name, value in values.items():
                    if isinstance(value, Tensor):
                        assert value.dtype == wanted[name].dtype, (key, name)
                        assert torch.equal(value, wanted[name]), (key, name)
                    else:
                        assert value == wanted[name], (key, name)


class Own:
    """A value that depends on the rank."""

    def __init__(self, *values: Any) -> None:
        self.values = values
