"""The reverse of every edge added, as PyG's ToUndirected does, for graphs larger than memory."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.adjacency import with_edges_of_adj_t, with_symmetric_adj_t
from pyg_sar.partition.checks import check_ids, checked_edge_index
from pyg_sar.partition.mapped import MEMORY, Scratch, release, tensor_of, trim
from pyg_sar.partition.neighbours import both_ways
from pyg_sar.partition.row_files import RowStream, edge_chunks, join_edges, smallest_and_largest
from pyg_sar.shard.format import LAYOUT, VALUE


def add_reverse_edges(data: Data | HeteroData, scratch: Scratch = MEMORY) -> Data | HeteroData:
    """The graph with every edge in both directions.

    Edges come sorted by (source, destination); duplicates are merged and their attributes added up,
    in the order of the edges; so are the entries of ``adj_t``, but for
    ones of a tensor of torch. A relation between two types of nodes gets a relation of its
    own for the way back, ``rev_...``, and stays as it is. `data` is not changed; what is new lies
    in `scratch`, or in memory. Raises ValueError if edges are not as they must be, what belongs to
    them is no tensor, or there is such a relation.
    """
    given, data = data, copy.copy(data)
    if isinstance(data, Data):
        data = with_edges_of_adj_t(data)
    types: Any = data.edge_types if isinstance(data, HeteroData) else ['']
    for type_, store in zip(types, data.edge_stores, strict=True):
        edge_index = checked_edge_index(store, f'{type_}')
        if isinstance(data, HeteroData) and store.is_bipartite():
            src, relation, dst = type_
            way_back = dst, f'rev_{relation}', src
            if way_back in types:
                raise ValueError(
                    f'expected no relation {way_back}, as the reverse edges of {type_} get that '
                    'name: rename it, or leave --undirected out where both ways are there'
                )
            back = data[way_back]
            turned = ((dst, src) for _, src, dst in edge_chunks(edge_index))
            back.edge_index = join_edges(turned, edge_index.size(1), scratch, edge_index.dtype)
            for key, value in store.items():
                is_row = isinstance(value, Tensor) and value.dim() > 0
                if key != 'edge_index' and is_row and value.size(0) == edge_index.size(1):
                    back[key] = value
        else:
            attrs = {
                key: _tensor(key, value)
                for key, value in store.items()
                if key != 'edge_index' and store.is_edge_attr(key)
            }
            of_torch = VALUE in attrs and 'SparseTensor' not in data[LAYOUT]
            are_ones = of_torch and bool((attrs[VALUE] == 1).all())
            store.update(_merged(edge_index, attrs, scratch, f'{type_}'))
            if are_ones:
                store[VALUE].fill_(1)
    if isinstance(data, Data) and LAYOUT in data:
        return with_symmetric_adj_t(data, given.adj_t.size(0))
    return data


def _tensor(key: str, value: Any) -> Tensor:
    value = tensor_of(value) if isinstance(value, np.ndarray) else value
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        raise ValueError(
            f"expected a dense tensor in '{key}', as edges are merged (got {type(value).__name__})"
        )
    return value.detach().cpu().as_subclass(Tensor)


def _merged(
    edge_index: Tensor, attrs: dict[str, Tensor], scratch: Scratch, relation: str
) -> dict[str, Tensor]:
    """Edges both ways by (source, destination) without duplicates, and the sums of attributes."""
    num_edges = edge_index.size(1)
    bound = max((smallest_and_largest(ids)[1] + 1 for ids in edge_index if num_edges), default=0)
    check_ids(edge_index, (bound, bound), relation)
    records = both_ways(edge_index, bound, scratch, has_loops=True, has_numbers=bool(attrs))
    both = scratch.empty((2, 2 * num_edges), edge_index.dtype)
    sums = {
        key: scratch.empty((2 * num_edges, *value.shape[1:]), value.dtype)
        for key, value in attrs.items()
    }
    end = 0
    for bucket, _, _ in records:
        keys = records.read(bucket)
        order = torch.argsort(keys, stable=True)
        unique, position = torch.unique_consecutive(keys[order], return_inverse=True)
        merged = both[:, end : end + unique.numel()]
        merged[0] = unique // max(bound, 1)
        merged[1] = unique % max(bound, 1)
        release(*merged)
        for key, values in attrs.items():
            ids = records.read(bucket, 1).index_select(0, order) % num_edges
            _add_up(sums[key][end:], position, values, ids)
        end += unique.numel()
    trim()
    return {'edge_index': both[:, :end], **{key: value[:end] for key, value in sums.items()}}


def _add_up(sums: Tensor, position: Tensor, values: Tensor, ids: Tensor) -> None:
    """``sums[position[i]] += values[ids[i]]`` in this order; `position` ascends from zero on."""
    start, written = 0, 0
    for rows in RowStream(values, ids).chunks():
        at = position[start : start + rows.size(0)]
        first, last = int(at[0]), int(at[-1]) + 1
        total = torch.zeros((last - first, *rows.shape[1:]), dtype=rows.dtype)
        if first < written:  # begun in the chunk before
            total[0] = sums[first]
        total.index_add_(0, at - first, rows)
        sums[first:last] = total
        release(sums[first:last])
        start, written = start + rows.size(0), last
