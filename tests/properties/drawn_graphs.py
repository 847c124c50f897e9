"""Hypothesis strategies for small graphs of every awkward kind, each with what it must become.

PYG_SAR_EXAMPLES=2000 in the environment draws that many of each, at random; without it the same few
are drawn in every run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from drawn_values import GRAPH_VALUES, filled, laid_out, rows, sparse
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData

from pyg_sar.shard.format import EdgeKey, NodeKey

MANY = int(os.environ.get('PYG_SAR_EXAMPLES', '0'))
METHODS = ('metis', 'random', 'range', 'ldg', 'given', 'file')

NODE_NAMES = ('x', 'y', 'pos', 'train_mask', 'node_type', 'z', 'feats', 'global_id', 'time', 'size')
EDGE_NAMES = ('edge_attr', 'edge_weight', 'edge_type', 'edge_time', 'edge_label', 'is_edge')
GRAPH_NAMES = ('name', 'num_classes', 'label_names', 'rate', 'root')


def examples(few: int) -> Callable[..., Any]:
    """Settings of a test that draws `few` examples, or as many as the environment says."""
    return settings(
        max_examples=MANY or few,
        derandomize=not MANY,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@dataclass
class Drawn:
    """A graph to partition, and what it must become.

    Attributes:
        data: The graph as a user has it.
        num_nodes: Nodes of every type; the one type of a homogeneous graph is None.
        edges: Sources and destinations of every relation, int64 [2, E].
        node_attrs: Dense contiguous tensors by type and name.
        edge_attrs: Dense contiguous tensors by relation and name.
        extra: Values of the graph, of types and of relations, by name; the graph's under ``''``.
        method: How it is cut; with ``'file'`` and ``'given'`` into `parts`.
        num_parts: Into how many parts.
        parts: The part of every node, by type, int64; may leave parts empty.
    """

    data: Any
    num_nodes: dict[NodeKey, int] = field(default_factory=dict)
    edges: dict[EdgeKey, Tensor] = field(default_factory=dict)
    node_attrs: dict[NodeKey, dict[str, Tensor]] = field(default_factory=dict)
    edge_attrs: dict[EdgeKey, dict[str, Tensor]] = field(default_factory=dict)
    extra: dict[Any, dict[str, Any]] = field(default_factory=dict)
    method: str = 'given'
    num_parts: int = 1
    parts: dict[NodeKey, Tensor] = field(default_factory=dict)

    def store(self, data: Any, key: Any) -> Any:
        """What `data` holds of a type or relation."""
        return data if key in (None, '') else data[key]


@st.composite
def graphs(draw: st.DrawFn) -> Drawn:
    """A homogeneous or heterogeneous graph, and a way to cut it."""
    return draw(st.one_of(homogeneous(), heterogeneous()))


@st.composite
def homogeneous(draw: st.DrawFn, *, tame: bool = False, ranks: int = 1) -> Drawn:
    """Directed or not, with loops, parallel edges and isolated nodes; down to one node, no edge.

    With `tame` models can compute with it; the number of parts is a multiple of `ranks`.
    """
    drawn = Drawn(Data())
    num_nodes = draw(st.sampled_from([n for n in (5, 2, 7, 3, 1, 9, 4, 8, 6) if n >= ranks]))
    edges = draw(_edges(num_nodes, num_nodes))
    if draw(st.booleans()):
        edges = torch.cat([edges, edges.flip(0)], dim=1)
    drawn.num_nodes[None], drawn.edges[None] = num_nodes, edges
    drawn.data.edge_index = draw(_edge_index(edges, num_nodes))
    draw(_attributes(drawn, None, num_nodes, NODE_NAMES, drawn.node_attrs, tame=tame))
    draw(_attributes(drawn, None, edges.size(1), EDGE_NAMES, drawn.edge_attrs, tame=tame))
    if not drawn.node_attrs[None].keys() & {'x', 'pos', 'node_type'} or draw(st.booleans()):
        drawn.data.num_nodes = num_nodes
    if not tame:
        draw(_graph_values(drawn, '', (num_nodes, edges.size(1))))
    draw(_cut(drawn, ranks))
    return drawn


@st.composite
def heterogeneous(draw: st.DrawFn, *, tame: bool = False, ranks: int = 1) -> Drawn:
    """Up to three types and four relations; some types without nodes, relations without edges."""
    drawn = Drawn(HeteroData())
    names = 'abc'[: draw(st.integers(1, 3))]
    for i, name in enumerate(names):
        count = draw(st.sampled_from([n for n in (4, 2, 5, 0, 1, 3, 6) if i or n >= ranks]))
        drawn.num_nodes[name] = drawn.data[name].num_nodes = count
        draw(_attributes(drawn, name, count, NODE_NAMES, drawn.node_attrs, tame=tame))
        if not tame:
            draw(_graph_values(drawn, name, (count, count)))
    for i in range(draw(st.integers(1, 4))):
        src, dst = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        key = (src, f'r{i}', dst)
        edges = draw(_edges(drawn.num_nodes[src], drawn.num_nodes[dst]))
        drawn.edges[key] = edges
        drawn.data[key].edge_index = draw(_edge_index(edges, 0))
        draw(_attributes(drawn, key, edges.size(1), EDGE_NAMES, drawn.edge_attrs, tame=tame))
        if not tame:
            draw(_graph_values(drawn, key, (edges.size(1),) * 2))
    if not tame:
        draw(_graph_values(drawn, '', (-1, -1)))
    draw(_cut(drawn, ranks))
    return drawn


@st.composite
def _edges(draw: st.DrawFn, num_src: int, num_dst: int) -> Tensor:
    least, most = draw(st.sampled_from([(6, 16), (0, 3)])) if num_src and num_dst else (0, 0)
    ends = st.tuples(st.integers(0, max(num_src - 1, 0)), st.integers(0, max(num_dst - 1, 0)))
    pairs = draw(st.lists(ends, min_size=least, max_size=most))
    edges = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t().contiguous()
    return torch.cat([edges, edges[:, ::2]], dim=1) if draw(st.booleans()) else edges


@st.composite
def _edge_index(draw: st.DrawFn, edges: Tensor, num_nodes: int) -> Tensor:
    if num_nodes and draw(st.integers(0, 9)) == 0:
        return EdgeIndex(edges.clone(), sparse_size=(num_nodes, num_nodes))
    dtypes = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
    return draw(laid_out(edges.to(draw(st.sampled_from(dtypes)))))


@st.composite
def _attributes(
    draw: st.DrawFn,
    drawn: Drawn,
    key: Any,
    count: int,
    names: tuple[str, ...],
    wanted: dict[Any, dict[str, Tensor]],
    *,
    tame: bool,
) -> None:
    wanted[key] = {}
    first = names[: draw(st.integers(0, 2))]  # what models read comes first
    others = draw(st.lists(st.sampled_from(names[2:]), unique=True, max_size=2))
    for name in (*first, *others):
        if name in ('x', 'y', 'edge_attr') and not tame and draw(st.integers(0, 3)) == 0:
            value, wanted[key][name] = draw(sparse(count))
        else:
            wanted[key][name] = draw(rows(count, tame=tame))
            value = draw(laid_out(wanted[key][name]))
        drawn.store(drawn.data, key)[name] = value


@st.composite
def _graph_values(draw: st.DrawFn, drawn: Drawn, key: Any, lengths: tuple[int, int]) -> None:
    """Lists as long as the graph are left out: they may mean one entry per node."""
    drawn.extra[key] = {}
    for name in draw(st.lists(st.sampled_from(GRAPH_NAMES), unique=True, max_size=2)):
        value = draw(GRAPH_VALUES)
        if isinstance(value, list) and len(value) in lengths:
            continue
        drawn.store(drawn.data, key)[name] = value
        if value is not None:
            drawn.extra[key][name] = value.item() if isinstance(value, Tensor) else value


@st.composite
def _cut(draw: st.DrawFn, drawn: Drawn, ranks: int) -> None:
    total = sum(drawn.num_nodes.values())
    possible = [n for n in (2, 3, 4, 1, 5) if n % ranks == 0 and n <= total]
    drawn.num_parts = draw(st.sampled_from(possible))
    drawn.method = draw(st.sampled_from(METHODS))
    few = draw(st.integers(1, drawn.num_parts))  # of the parts have nodes
    for i, (key, count) in enumerate(drawn.num_nodes.items()):
        drawn.parts[key] = torch.from_numpy(
            filled((count,), torch.uint8, draw(st.integers(0, 99)) + i, tame=False).numpy() % few
        ).long() + (drawn.num_parts - few)
