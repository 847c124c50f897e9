"""What changes between forwards changes how messages are computed, on all ranks or as an error."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, as_one_process, assert_alike
from on_ranks import on_ranks
from sum_conv import SumConv
from three_steps import descend
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from pyg_sar import SARConv
from pyg_sar.comm.ranks import rank

CONVS: dict[str, Callable[[], pyg.MessagePassing]] = {
    'GCN': lambda: pyg.GCNConv(6, 4),
    'SAGE': lambda: pyg.SAGEConv(6, 4),
    'SAGE max': lambda: pyg.SAGEConv(6, 4, aggr='max'),
    'SAGE median': lambda: pyg.SAGEConv(6, 4, aggr='median'),
    'GAT': lambda: pyg.GATConv(6, 4),
    'Transformer': lambda: pyg.TransformerConv(6, 4),
    'GINE': lambda: pyg.GINEConv(torch.nn.Linear(6, 4), edge_dim=4),
}
HOOKS: dict[str, Callable[..., Any]] = {
    'scales': lambda _, args, out: out * 2,
    'mixes edges': lambda _, args, out: out - out.mean(0),
}


class MixesInTraining(SumConv):
    """A message that depends on the other edges only while the conv trains."""

    def message(self, x_j: Tensor) -> Tensor:
        return x_j - x_j.mean(0) if self.training else x_j


def _run(conv: Any, name: str, data: Data) -> Tensor:
    out: Tensor = conv(data.x, data.edge_index, *([data.edge_attr] if name == 'GINE' else []))
    return out


@pytest.mark.parametrize('name', CONVS)
@on_ranks(by='threads')
def test_a_hook_on_one_rank(data, name):
    """An error on all ranks at once, where the others waited before."""
    conv: Any = SARConv(CONVS[name]().double())
    _run(conv, name, data)
    if rank() == 1:
        conv.register_message_forward_hook(HOOKS['scales'])
    with pytest.raises(ValueError, match='message_forward_hooks'):
        _run(conv, name, data)


def _hooked_later(data: Any, wrap: Wrap, name: str, kind: str) -> Tensor:
    conv: Any = wrap(CONVS[name]().double())
    _run(conv, name, data)
    conv.register_message_forward_hook(HOOKS[kind])
    return _run(conv, name, data).detach()


@pytest.mark.parametrize('kind', HOOKS)
@pytest.mark.parametrize('name', CONVS)
def test_a_hook_on_all_ranks(name: str, kind: str) -> None:
    assert_alike(_hooked_later, name, kind)


def _modes(data: Any, wrap: Wrap) -> list[Tensor]:
    conv = wrap(MixesInTraining())
    return [conv.train(mode)(data.x, data.edge_index) for mode in (False, True)]


@on_ranks(by='threads')
def test_evaluation_on_one_rank(data):
    conv: Any = SARConv(pyg.GATConv(6, 4, dropout=0.5).double())
    conv(data.x, data.edge_index)
    conv.train(rank() != 2)
    with pytest.raises(ValueError, match='in evaluation on rank'):
        conv(data.x, data.edge_index)


def _widths(data: Any, wrap: Wrap) -> list[Tensor]:
    """One conv for several widths."""
    conv, x = wrap(pyg.SimpleConv('mean')), torch.cat([data.x, data.x.sin()], 1)
    return [conv(x[:, :width], data.edge_index) for width in (6, 2, 4, 2)]


def _looked_at(data: Any, wrap: Wrap) -> Tensor:
    """A program may log activations on rank 0 alone."""
    conv: Any = wrap(pyg.GATConv(6, 4).double())
    conv(data.x, data.edge_index)
    seen: list[Tensor] = []
    if rank() == 0:
        conv.register_forward_hook(lambda module, args, out: seen.append(out))
        conv.lin.register_forward_hook(lambda module, args, out: seen.append(out))
    out = conv(data.x, data.edge_index)
    assert len(seen) == (2 if rank() == 0 else 0)
    return out.detach()


@pytest.mark.parametrize('program', [_modes, _widths, _looked_at])
def test_forwards_that_differ(program: Any) -> None:
    assert_alike(program)


# Edges and weights that change from call to call and come again, on one rank or on all.
#
# What ranks make together for a call (sums in place of rows, chunks, reversed edges) is remembered.
# On a rank whose own edges are equal in two calls it could be that of another call than on the
# others. Drawn sequences of calls: tests/properties/test_sequence_properties.py.


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


CALLS: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    'sums in place of rows': (lambda: pyg.GraphConv(6, 4, aggr='add'), _selected),
    'means': (lambda: pyg.SAGEConv(6, 4), _selected),
    'weights': (lambda: pyg.GraphConv(6, 4, aggr='add'), _weighted),
    'against the edges': (lambda: pyg.GraphConv(6, 4, flow='target_to_source'), _selected),
    'chunks of destinations': (lambda: pyg.SAGEConv(6, 4, aggr='median'), _selected),
    'attention': (lambda: pyg.GATConv(6, 4), _selected),
}


CUT = [i // HALF for i in range(2 * HALF)]


@pytest.mark.parametrize('name', CALLS)
@as_one_process(graph=_graph, cut=CUT, ranks=(2,), tolerance=1e-12)
def test_every_call_has_its_own_edges(data: Any, wrap: Wrap, name: str) -> list[Any]:
    """Outputs of all calls, then gradients of features and parameters."""
    make, call = CALLS[name]
    conv = wrap(make().double())
    x = data.x.clone().requires_grad_()
    outs = [call(conv, data, x, which) for which in ORDER]
    sum((i + 1) * out.square().mean() for i, out in enumerate(outs)).backward()
    return [[out.detach() for out in outs], x.grad, [p.grad for p in conv.parameters()]]


def _temporal_graph() -> Data:
    data = _graph()
    src, dst = data.edge_index
    # Part 0 has in-edges at time 0 alone, part 1 at all three.
    data.time = torch.where(dst >= HALF, src % 3, 0)
    data.edge_type = data.time
    return data


def _relations() -> torch.nn.Module:
    of_edges = 'x, edge_index, edge_type'
    first, second = ((pyg.RGCNConv(*widths, 3), f'{of_edges} -> x') for widths in ((6, 8), (8, 3)))
    return pyg.Sequential(of_edges, [first, torch.nn.ReLU(), second])


@pytest.mark.parametrize('kind', ['snapshots', 'relations without in-edges'])
@as_one_process(graph=_temporal_graph, cut=CUT, ranks=(2,), tolerance=1e-9)
def test_models_on_parts_of_the_edges(data: Any, wrap: Wrap, kind: str) -> list[float]:
    if kind == 'snapshots':
        model = wrap(pyg.GraphSAGE(6, 8, 2, 3).double())
        arguments = [(data.x, data.edge_index[:, data.time == t]) for t in range(3)]
    else:
        model = wrap(_relations().double())
        arguments = [(data.x, data.edge_index, data.edge_type)]
    given = itertools.cycle(arguments)
    steps = 4 * len(arguments)
    return descend(lambda: F.cross_entropy(model(*next(given)), data.y), model, 0.3, steps)
