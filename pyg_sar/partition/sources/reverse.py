"""The reverse of every edge added, as PyG's ToUndirected does, for graphs larger than memory."""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import to_undirected

from pyg_sar.partition import graph, memmap
from pyg_sar.partition.attributes import owners
from pyg_sar.partition.external_sort import both_ways
from pyg_sar.partition.memmap import INTEGERS, MEMORY, Scratch
from pyg_sar.partition.sources.text_form import SECONDS
from pyg_sar.shard.format import LAYOUT, VALUE


def add_reverse_edges(data: Data | HeteroData, scratch: Scratch = MEMORY) -> Data | HeteroData:
    """The graph with every edge in both directions; `data` is not changed.

    Edges come sorted by (source, destination); duplicates are merged and their attributes added up;
    so are the entries of ``adj_t``, but for ones of a tensor of torch, which are no weights. A
    relation between two types of nodes stays, and gets one for the way back, ``rev_...``. What is
    new lies in `scratch`; edges that have attributes are merged in memory.
    """
    given, data = data, copy.copy(data)
    if isinstance(data, Data):
        data = graph.with_edges_of_adj_t(data)
    types: Any = data.edge_types if isinstance(data, HeteroData) else ['']
    for type_, store in zip(types, data.edge_stores, strict=True):
        edge_index = graph.checked_edge_index(store, f'{type_}')
        if isinstance(data, HeteroData) and store.is_bipartite():
            src, relation, dst = type_
            way_back = dst, f'rev_{relation}', src
            if way_back in types:
                raise ValueError(
                    f'expected no relation {way_back}, as the reverse edges of {type_} get that '
                    'name: rename it, or leave --undirected out where both ways are there'
                )
            back = data[way_back]
            turned = ((dst, src) for _, src, dst in memmap.edge_chunks(edge_index))
            back.edge_index = memmap.join_edges(
                turned, edge_index.size(1), scratch, edge_index.dtype
            )
            for key, value in store.items():
                is_row = isinstance(value, Tensor) and value.dim() > 0
                is_row = is_row and value.size(0) == edge_index.size(1)
                if key != 'edge_index' and (is_row or key.removesuffix('_names') in store):
                    back[key] = value
        else:
            attrs = {
                key: _tensor(key, value)
                for key, value in store.items()
                if key != 'edge_index' and _is_of_edges(data, store, key)
            }
            of_torch = VALUE in attrs and 'SparseTensor' not in data[LAYOUT]
            are_ones = of_torch and bool((attrs[VALUE] == 1).all())
            bound = max(
                (memmap.smallest_and_largest(ids)[1] + 1 for ids in edge_index if ids.numel()),
                default=0,
            )
            graph.check_ids(edge_index, (bound, bound), f'{type_}')
            if attrs:
                wide = [_wide(value) for value in attrs.values()]
                both, sums = to_undirected(edge_index.long(), wide, max(bound, 1))
                if both.size(1) < 2 * edge_index.size(1):
                    _check_sums(dict(zip(attrs, sums, strict=True)), attrs, store)
                summed = {key: sums[at].to(attrs[key].dtype) for at, key in enumerate(attrs)}
                store.update({'edge_index': both, **summed})
            else:
                store['edge_index'] = _merged(edge_index, bound, scratch)
            if are_ones:
                store[VALUE].fill_(1)
    if isinstance(data, Data) and LAYOUT in data:
        return graph.with_symmetric_adj_t(data, given.adj_t.size(0))
    return data


def _is_of_edges(data: Data | HeteroData, store: Any, key: str) -> bool:
    known = owners(data).get(key) if isinstance(data, Data) else None
    if known is None or not isinstance(store[key], Tensor):
        return bool(known is None and store.is_edge_attr(key))
    return known == 'edge'


def _tensor(key: str, value: Any) -> Tensor:
    value = memmap.tensor_of(value) if isinstance(value, np.ndarray) else value
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        raise ValueError(
            f"expected a dense tensor in '{key}', as edges are merged (got {type(value).__name__})"
        )
    return value.detach().cpu().as_subclass(Tensor)


def _wide(value: Tensor) -> Tensor:
    """Integers as int64, whose sums are right."""
    return value.long() if value.dtype in INTEGERS else value


def _check_sums(sums: dict[str, Tensor], attrs: dict[str, Tensor], store: Any) -> None:
    """Raises ValueError of attributes that are no weights, or of a dtype too small for sums."""
    for key, total in sums.items():
        dtype, what = attrs[key].dtype, ''
        if f'{key}_names' in store:
            what = 'categories'
        elif _TIME.search(key) or _are_seconds(attrs[key]):
            what = 'times'
        elif dtype in INTEGERS and not torch.equal(total.to(dtype).long(), total):
            what = f'sums that {dtype} does not hold'
        if what:
            raise ValueError(
                f"expected weights in '{key}', as edges are merged and weights added up (got "
                f'{what}): leave the column or --undirected out; weights get another name or dtype'
            )


def _are_seconds(values: Tensor) -> bool:
    is_whole = values.dtype in INTEGERS and values.numel() > 0
    return is_whole and bool(((values >= SECONDS[0]) & (values < SECONDS[1])).all())


_TIME = re.compile(
    r'(^|_)(time|timestamp|ts|date|datetime|year|month|day|hour)s?(_|$)', re.IGNORECASE
)


def _merged(edge_index: Tensor, bound: int, scratch: Scratch) -> Tensor:
    """Edges both ways by (source, destination) without duplicates."""
    records = both_ways(edge_index, bound, scratch, has_loops=True)
    unique = (torch.unique(records.read(bucket)) for bucket in range(len(records)))
    pairs = ((keys // max(bound, 1), keys % max(bound, 1)) for keys in unique)
    return memmap.join_edges(pairs, 2 * edge_index.size(1), scratch, edge_index.dtype)
