"""``data.adj_t`` of a graph that had it before the cut."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.typing import WITH_TORCH_SPARSE, SparseTensor

from pyg_sar.rows.adjacency_tensors import tensor_of, torch_matrix
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.shard.format import LAYOUT, VALUE


def restore_adj_t(store: Any) -> None:
    """Makes ``adj_t`` of the edges of a loaded graph, if they are its entries."""
    if LAYOUT not in store:
        return
    name, _, has_edge_index = store.pop(LAYOUT).partition(' and ')
    edges = store['edge_index']
    value = store.pop(VALUE) if VALUE in store else None
    if name == 'SparseTensor' and not WITH_TORCH_SPARSE:
        raise ValueError(
            "'adj_t' of this graph was a torch_sparse.SparseTensor: install torch_sparse, or "
            'apply T.ToSparseTensor(layout=torch.sparse_csr) before the graph is cut'
        )
    store['adj_t'] = _matrix(name, edges, value)
    if not has_edge_index:
        del store['edge_index']


def _matrix(name: str, edges: EdgeIndex, value: Any) -> Any:
    is_whole = edges._sharding.is_whole
    if name != 'SparseTensor':
        layout = getattr(torch, f'sparse_{name}')
        if not is_whole:
            return tensor_of(edges, value, layout, is_unique=True)
        col, row = edges.whole_ids
        n = edges.ends.dst.total
        return torch_matrix(layout, row, col, value, (n, n, *value.shape[1:]), is_unique=True)
    if not is_whole:
        from pyg_sar.rows.sparse_tensor import sparse_tensor_of

        return sparse_tensor_of(edges, value)
    col, row = edges.whole_ids
    sizes = (edges.ends.dst.total, edges.ends.src.total)
    return SparseTensor(row=row, col=col, value=value, sparse_sizes=sizes, is_sorted=True)
