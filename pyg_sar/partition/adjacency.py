"""The entries of ``data.adj_t`` as edges; :func:`pyg_sar.load_shard` makes the matrix of them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import to_edge_index, to_torch_sparse_tensor

from pyg_sar.shard.format import LAYOUT, VALUE, Kind

_LAYOUTS = {torch.sparse_coo: 'coo', torch.sparse_csr: 'csr', torch.sparse_csc: 'csc'}
_OF_NAME = {name: layout for layout, name in _LAYOUTS.items()}


def with_edges_of_adj_t(data: Data) -> Data:
    """Data with ``edge_index`` in place of a square ``adj_t``, or the same object.

    The edges run from columns to rows, in the order of the entries. A graph with both keeps both if
    they have the same edges in one order, as by ``T.ToSparseTensor(remove_edge_index=False)``.
    """
    matrix = data.get('adj_t')
    name = 'SparseTensor' if isinstance(matrix, SparseTensor) else None
    if isinstance(matrix, Tensor):
        name = _LAYOUTS.get(matrix.layout)
    if name is None or matrix.size(0) != matrix.size(1):
        return data
    matrix = matrix.coalesce() if name == 'coo' else matrix
    (row, col), value = to_edge_index(matrix)
    edge_index = torch.stack([col, row])
    given: Any = data.get('edge_index')
    if given is not None and not torch.equal(torch.as_tensor(given), edge_index):
        return data
    out = copy.copy(data)
    if given is None and data.get('num_nodes') is None:
        out.num_nodes = matrix.size(0)
    del out['adj_t']
    out.edge_index = edge_index
    if name != 'SparseTensor' or matrix.has_value():
        out[VALUE] = value.detach()
    out[LAYOUT] = Kind(name, has_edge_index=given is not None).text
    return out


def with_symmetric_adj_t(data: Data, size: int) -> Data:
    """What :func:`with_edges_of_adj_t` gave, as a matrix of `size` again, of edges both ways.

    A tensor of torch has a value for every edge. Where all were ones, the edges had no weights, and
    ones they stay. `data` is changed; its edges are sorted by source and destination.
    """
    kind, value = Kind.of(data[LAYOUT]), data.get(VALUE)
    edges: Any = data.edge_index  # as it is the same both ways: the entries, by rows or by columns
    if kind.name == 'SparseTensor':
        data.adj_t = SparseTensor.from_edge_index(edges, value, (size, size))
    else:
        data.adj_t = to_torch_sparse_tensor(edges, value, size, layout=_OF_NAME[kind.name])
    for name in (LAYOUT, VALUE, *([] if kind.has_edge_index else ['edge_index'])):
        if name in data:
            del data[name]
    if kind.has_edge_index and kind.name != 'csc':
        data.edge_index = edges.flip(0)
    return data
