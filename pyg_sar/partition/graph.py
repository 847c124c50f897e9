"""One description of homogeneous and heterogeneous graphs, checked; all that comes after reads it.

A homogeneous graph is a heterogeneous one with one type of nodes and one relation, both named None.
The entries of a matrix ``adj_t`` are edges here; :func:`pyg_sar.load_shard` makes the matrix again.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.hypergraph_data import HyperGraphData
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import to_edge_index, to_torch_sparse_tensor

from pyg_sar.partition.attributes import (
    count_rows,
    is_counted,
    label_facts,
    odd_kind,
    sort_attributes,
)
from pyg_sar.partition.memmap import (
    INTEGERS,
    MEMORY,
    UNSIGNED,
    Scratch,
    edge_chunks,
    join_edges,
    smallest_and_largest,
)
from pyg_sar.shard.format import LAYOUT, VALUE, EdgeKey, NodeKey, type_name


def checked_edge_index(data: Data | Mapping[str, Any], relation: str = '') -> Tensor:
    """The plain ``edge_index`` [2, E] of a graph or relation, of its own integer type."""
    of, where = (f' of {relation}', relation) if relation else ('', "'data'")
    edge_index = data.get('edge_index')
    if edge_index is None and ('adj_t' in data or 'adj' in data):
        matrix = 'data.adj_t.t()' if 'adj_t' in data else 'data.adj'
        raise ValueError(
            f"expected 'edge_index' in {where} (got a sparse adjacency matrix; convert it: "
            f'data.edge_index, data.edge_weight = torch_geometric.utils.to_edge_index({matrix}))'
        )
    if not isinstance(edge_index, Tensor):
        raise ValueError(
            f"expected a tensor 'edge_index' in {where} (got {type(edge_index).__name__})"
        )
    kind = odd_kind(edge_index)
    if kind is None and edge_index.layout is not torch.strided:
        kind = 'sparse'
    got = f'a {kind} tensor' if kind else f'shape {list(edge_index.shape)}'
    if kind or edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ValueError(f"'edge_index'{of} must be a dense tensor of shape [2, E] (got {got})")
    edge_index = edge_index.detach().as_subclass(Tensor)
    if edge_index.dtype not in (*INTEGERS, *UNSIGNED):
        raise ValueError(f"'edge_index'{of} must hold integers (got {edge_index.dtype})")
    return edge_index.cpu()


def check_ids(edge_index: Tensor, num_nodes: tuple[int, int], relation: str = '') -> None:
    """Raises ValueError unless ids are below the numbers of nodes at both ends."""
    if edge_index.numel() == 0:
        return
    of = f' of {relation}' if relation else ''
    for ids, count in zip(edge_index, num_nodes, strict=True):
        low, high = smallest_and_largest(ids)
        if low < 0:
            raise ValueError(f"'edge_index'{of} must hold ids >= 0 (got {low})")
        if high >= count:
            raise ValueError(
                f"'edge_index'{of} must hold ids below the number of nodes, {count} (got {high})"
            )


@dataclass(frozen=True)
class NodeSet:
    """The N nodes of one type."""

    num_nodes: int
    is_counted: bool  # whether PyG counts the rows of an attribute
    attrs: dict[str, Tensor]  # [N, ...]
    extra: dict[str, Any]  # values that belong to the type
    names: Any = None  # pyarrow's Array [N]


@dataclass(frozen=True)
class Relation:
    """The E edges of one type."""

    src: NodeKey
    dst: NodeKey
    edge_index: Tensor  # ids within the types of the ends, of any integer type [2, E]
    attrs: dict[str, Tensor]  # [E, ...]
    extra: dict[str, Any]  # values that belong to the relation


@dataclass(frozen=True)
class TypedGraph:
    """A graph by types; `whole` and `dropped` by the name of a type, '' for the graph."""

    nodes: dict[NodeKey, NodeSet]
    relations: dict[EdgeKey, Relation]
    attrs: dict[str, Any]  # values that belong to the whole graph
    whole: dict[str, dict[str, Tensor]]  # tensors that every rank has whole
    dropped: dict[str, dict[str, str]]  # what attributes were that no folder can hold
    is_hetero: bool
    scratch: Scratch  # for temporary arrays with a row per edge

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(nodes.num_nodes for nodes in self.nodes.values())

    @property
    def num_edges(self) -> int:
        """Number of edges of all relations."""
        return sum(relation.edge_index.size(1) for relation in self.relations.values())

    @property
    def offsets(self) -> dict[NodeKey, int]:
        """The number of the first node of every type, the types counted one after another."""
        ends = accumulate(nodes.num_nodes for nodes in self.nodes.values())
        return dict(zip(self.nodes, (0, *ends), strict=False))

    def homogeneous_edge_index(self) -> Tensor:
        """All edges in one numbering of all nodes, that of :attr:`offsets`; integer [2, E]."""
        offsets = self.offsets
        parts = [(r.edge_index, offsets[r.src], offsets[r.dst]) for r in self.relations.values()]
        if len(parts) == 1 and not any(parts[0][1:]):
            return parts[0][0]
        pairs = (
            (src + add_src, dst + add_dst)
            for edges, add_src, add_dst in parts
            for _, src, dst in edge_chunks(edges)
        )
        return join_edges(pairs, self.num_edges, self.scratch)

    def by_type(self, values: Tensor) -> dict[NodeKey, Tensor]:
        """Rows in the numbering of :attr:`offsets`, by type."""
        sizes = [nodes.num_nodes for nodes in self.nodes.values()]
        return dict(zip(self.nodes, torch.split(values, sizes), strict=True))


def typed_graph(data: Data | HeteroData, scratch: Scratch = MEMORY) -> TypedGraph:
    """Checks a PyG graph and sorts what it holds; a ValueError says what is not as it must be."""
    num_graphs = {'num_graphs': data.num_graphs} if isinstance(data, Batch) else {}
    if isinstance(data, HeteroData):
        return _hetero_graph(data, num_graphs, scratch)
    if not isinstance(data, Data):
        raise ValueError(
            f"'data' must be a torch_geometric.data.Data or HeteroData (got {type(data).__name__})"
        )
    if isinstance(data, HyperGraphData):
        raise ValueError(
            "'data' must have edges between nodes (got a HyperGraphData; give its incidence as a "
            "relation of a HeteroData: hetero['node', 'in', 'hyperedge'].edge_index)"
        )
    data = with_edges_of_adj_t(data)
    edge_index = checked_edge_index(data)
    num_nodes = count_rows(data, edge_index)
    check_ids(edge_index, (num_nodes, num_nodes))
    attributes = sort_attributes(data, num_nodes, edge_index.size(1))
    return TypedGraph(
        nodes={None: NodeSet(num_nodes, is_counted(data), attributes.node, {}, *attributes.names)},
        relations={None: Relation(None, None, edge_index, attributes.edge, {})},
        attrs=num_graphs | attributes.graph | label_facts(attributes.node, data),
        whole={'': attributes.whole},
        dropped={'': attributes.dropped},
        is_hetero=False,
        scratch=scratch,
    )


def _hetero_graph(data: HeteroData, attrs: dict[str, Any], scratch: Scratch) -> TypedGraph:
    whole = data.stores[0].to_dict()  # what is of no type
    node_stores = {key: store.to_dict() for key, store in data.node_items()}
    edge_stores = {key: store.to_dict() for key, store in data.edge_items()}
    if not edge_stores:
        raise ValueError(
            f"expected at least one relation in 'data' (got node types {list(node_stores)} alone)"
        )
    _check_names([*node_stores, *edge_stores])
    edge_indices = {}
    for key, store in edge_stores.items():
        for end in (key[0], key[2]):
            if end not in node_stores:
                raise ValueError(
                    f"expected the nodes of type '{end}' in 'data', as {key} has its ends there "
                    f'(got types {list(node_stores)})'
                )
        edge_indices[key] = checked_edge_index(store, f'{key}')

    nodes: dict[NodeKey, NodeSet] = {}
    tensors: dict[str, dict[str, Tensor]] = {}
    dropped: dict[str, dict[str, str]] = {}
    for name, store in node_stores.items():
        ids = [e[i] for k, e in edge_indices.items() for i in (0, 1) if k[2 * i] == name]
        num_nodes = count_rows(store, ids, f" of '{name}'")
        attributes = sort_attributes(store, num_nodes, None, where=f" of '{name}'")
        extra = attributes.graph | label_facts(attributes.node, store)
        counted = is_counted(store)
        nodes[name] = NodeSet(num_nodes, counted, attributes.node, extra, *attributes.names)
        tensors[name], dropped[name] = attributes.whole, attributes.dropped
    relations: dict[EdgeKey, Relation] = {}
    for key, store in edge_stores.items():
        edge_index = edge_indices[key]
        check_ids(edge_index, (nodes[key[0]].num_nodes, nodes[key[2]].num_nodes), f'{key}')
        attributes = sort_attributes(store, None, edge_index.size(1), where=f' of {key}')
        relations[key] = Relation(key[0], key[2], edge_index, attributes.edge, attributes.graph)
        tensors[type_name(key)], dropped[type_name(key)] = attributes.whole, attributes.dropped
    attributes = sort_attributes(whole, None, None, where=' of the whole graph')
    tensors[''], dropped[''] = attributes.whole, attributes.dropped
    attrs = attrs | attributes.graph
    return TypedGraph(nodes, relations, attrs, tensors, dropped, is_hetero=True, scratch=scratch)


def _check_names(keys: list[Any]) -> None:
    relations: dict[str, Any] = {}
    for key in keys:
        name = type_name(key)
        is_odd = not name.isprintable() or '/' in name or '\\' in name or name in ('', '.', '..')
        if is_odd or len(name.encode()) > 250:  # of 255 that a file may have, with its suffix
            raise ValueError(
                f'expected names of types that a file may have (got {key!r}): a folder of the cut '
                "has that name, so write 'to_from' for 'to/from', and at most 250 bytes"
            )
        if isinstance(key, tuple) and relations.setdefault(name, key) != key:
            raise ValueError(
                f'expected names of relations that differ (got {relations[name]} and {key}, both '
                f"'{name}')"
            )


_OF_IDS = 'index', 'face', 'batch'
"""Words in names of ids, to which PyG's Batch adds those of the graphs in front."""


def with_wide_ids(data: Data | HeteroData) -> Data | HeteroData:
    """The same graph, with ids of 64 bits: PyG computes row * N + col in the type of the ids."""
    for store in data.stores:
        for key, value in store.items():
            if not isinstance(value, Tensor):
                continue
            if value.layout is torch.sparse_csr:
                store[key] = torch.sparse_csr_tensor(
                    value.crow_indices().long(),
                    value.col_indices().long(),
                    value.values(),
                    value.shape,
                )
            elif any(word in key for word in _OF_IDS) and value.dtype in (*INTEGERS, *UNSIGNED):
                store[key] = value.long()
    return data


_LAYOUTS = {torch.sparse_coo: 'coo', torch.sparse_csr: 'csr', torch.sparse_csc: 'csc'}


def with_edges_of_adj_t(data: Data) -> Data:
    """Data with ``edge_index`` in place of a square ``adj_t``, or the same object.

    The edges run from columns to rows, in the order of the entries. A graph with both has the same
    edges in one order in them, as by ``T.ToSparseTensor(remove_edge_index=False)``; else both stay.
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
    if given is None and data.get('num_nodes') is None and not is_counted(data):
        out.num_nodes = matrix.size(0)
    del out['adj_t']
    out.edge_index = edge_index
    if name != 'SparseTensor' or matrix.has_value():
        out[VALUE] = value.detach()
    out[LAYOUT] = name + ' and edge_index' * (given is not None)
    return out


def with_symmetric_adj_t(data: Data, size: int) -> Data:
    """What :func:`with_edges_of_adj_t` gave, as a matrix of `size` again; of edges both ways."""
    (name, _, has_edge_index), value = data[LAYOUT].partition(' and '), data.get(VALUE)
    edges: Any = data.edge_index  # as it is the same both ways: the entries, by rows or by columns
    if name == 'SparseTensor':
        data.adj_t = SparseTensor.from_edge_index(edges, value, (size, size))
    else:
        layout = getattr(torch, f'sparse_{name}')
        data.adj_t = to_torch_sparse_tensor(edges, value, size, layout=layout)
    for key in {LAYOUT, VALUE, *([] if has_edge_index else ['edge_index'])} & {*data.keys()}:
        del data[key]
    if has_edge_index and name != 'csc':
        data.edge_index = edges.flip(0)
    return data
