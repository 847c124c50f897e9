"""Edges and weights that change from call to call and come again, on one rank or on all.

What ranks make together for a call (sums in place of rows, chunks, reversed edges) is remembered.
On a rank whose own edges are equal in two calls it could be that of another call than on the
others. Drawn sequences of calls: tests/properties/test_sequence_properties.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, assert_alike
from shared import descend
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GraphConv, RGCNConv, SAGEConv, Sequential
from torch_geometric.nn.models import GraphSAGE

HALF = 40
ORDER = 'ABCABAABBA'


def _graph() -> Data:
    """Two rings of 40 nodes, a part each; every node has edges to two hubs of the other part."""
    ring = torch.arange(HALF)
    inside = torch.stack([ring, (ring + 1) % HALF])
    hubs = [torch.stack([ring + HALF, ring % 2]), torch.stack([ring, HALF + ring % 2])]
    hubs += [torch.stack([ring + HALF, (ring + 1) % 2]), torch.stack([ring, HALF + (ring + 1) % 2])]
    generator = torch.Generator().manual_seed(0)
    edges = torch.cat([inside, inside + HALF, *hubs], dim=1)
    return Data(
        x=torch.randn(2 * HALF, 6, generator=generator, dtype=torch.double),
        y=torch.randint(3, (2 * HALF,), generator=generator),
        edge_index=edges,
        edge_weight=torch.rand(edges.size(1), generator=generator, dtype=torch.double) + 0.5,
    )


def _kept(data: Any, which: str) -> Any:
    """A mask of edges: of A all, of B and C without some into part 1; part 0 sees no difference."""
    src, dst = data.edge_index
    dropped = {'A': (), 'B': (7,), 'C': (7, 8)}[which]
    keep = dst >= 0
    for node in dropped:
        keep = keep & ~((src == node) & (dst >= HALF))
    return keep


def _selected(conv: Any, data: Any, x: Any, which: str) -> Any:
    return conv(x, data.edge_index[:, _kept(data, which)])


def _weighted(conv: Any, data: Any, x: Any, which: str) -> Any:
    return conv(x, data.edge_index, data.edge_weight * _kept(data, which))


CASES: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    'sums in place of rows': (lambda: GraphConv(6, 4, aggr='add'), _selected),
    'means': (lambda: SAGEConv(6, 4), _selected),
    'weights': (lambda: GraphConv(6, 4, aggr='add'), _weighted),
    'against the edges': (lambda: GraphConv(6, 4, flow='target_to_source'), _selected),
    'chunks of destinations': (lambda: SAGEConv(6, 4, aggr='median'), _selected),
    'attention': (lambda: GATConv(6, 4), _selected),
}


CUT = [i // HALF for i in range(2 * HALF)]


def _sequence(data: Any, wrap: Wrap, name: str, order: str) -> list[Any]:
    """Outputs of all calls, then gradients of features and parameters."""
    make, call = CASES[name]
    conv = wrap(make().double())
    x = data.x.clone().requires_grad_()
    outs = [call(conv, data, x, which) for which in order]
    sum((i + 1) * out.square().mean() for i, out in enumerate(outs)).backward()
    return [[out.detach() for out in outs], x.grad, [p.grad for p in conv.parameters()]]


@pytest.mark.parametrize('name', CASES)
def test_every_call_has_its_own_edges(name: str) -> None:
    assert_alike(_sequence, name, ORDER, graph=_graph, cut=CUT, ranks=(2,), tolerance=1e-12)


def _temporal_graph() -> Data:
    data = _graph()
    src, dst = data.edge_index
    # Part 0 has in-edges at time 0 alone, part 1 at all three.
    data.time = torch.where(dst >= HALF, src % 3, 0)
    data.edge_type = data.time
    return data


def _relations() -> torch.nn.Module:
    of_edges = 'x, edge_index, edge_type'
    first, second = ((RGCNConv(*widths, 3), f'{of_edges} -> x') for widths in ((6, 8), (8, 3)))
    return Sequential(of_edges, [first, torch.nn.ReLU(), second])


def _trained(data: Any, wrap: Wrap, kind: str) -> list[float]:
    if kind == 'snapshots':
        model = wrap(GraphSAGE(6, 8, 2, 3).double())
        arguments = [(data.x, data.edge_index[:, data.time == t]) for t in range(3)]
    else:
        model = wrap(_relations().double())
        arguments = [(data.x, data.edge_index, data.edge_type)]
    given = itertools.cycle(arguments)
    steps = 4 * len(arguments)
    return descend(lambda: F.cross_entropy(model(*next(given)), data.y), model, 0.3, steps)


@pytest.mark.parametrize('kind', ['snapshots', 'relations without in-edges'])
def test_models_on_parts_of_the_edges(kind: str) -> None:
    assert_alike(_trained, kind, graph=_temporal_graph, cut=CUT, ranks=(2,), tolerance=1e-9)
