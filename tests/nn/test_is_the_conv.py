"""SARConv(conv) is conv: what a program does to the conv afterwards is done to what computes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alike import Wrap, assert_alike, assert_same, cut_of, itself, leaves, take_step
from few import few
from small_graphs import small_graph
from torch import Tensor
from torch_geometric.nn import (
    APPNP,
    ChebConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    MessagePassing,
    SAGEConv,
    aggr,
)
from torch_geometric.nn.models import GCN

import pyg_sar
from pyg_sar import DistributedDataParallel, SARConv


def _no_self_loops(conv: Any) -> None:
    conv.add_self_loops = False


def _more_hops(conv: Any) -> None:
    conv.K = 3


def _steeper(conv: Any) -> None:
    conv.negative_slope = 0.9


def _another_layer(conv: Any) -> None:
    torch.manual_seed(7)
    conv.lin_l = torch.nn.Linear(6, 4).double()


def _another_aggregation(conv: Any) -> None:
    conv.aggr_module = aggr.MaxAggregation()


def _against_the_edges(conv: Any) -> None:
    conv.flow = 'target_to_source'


def _another_message(conv: Any) -> None:
    conv.message = lambda x_j: x_j.relu() ** 2


def _nothing_cached(conv: Any) -> None:
    conv._cached_edge_index = None
    conv.improved = True


def _another_weight(conv: Any) -> None:
    torch.manual_seed(7)
    with torch.no_grad():
        conv.lin_l.weight = torch.nn.Parameter(torch.randn(4, 6).double())


CHANGES: dict[str, tuple[Callable[[], MessagePassing], Callable[[Any], None]]] = {
    'add_self_loops': (lambda: GCNConv(6, 4), _no_self_loops),
    'K': (lambda: APPNP(2, 0.1), _more_hops),
    'negative_slope': (lambda: GATConv(6, 4), _steeper),
    'lin_l': (lambda: SAGEConv(6, 4), _another_layer),
    'aggr_module': (lambda: SAGEConv(6, 4), _another_aggregation),
    'flow': (lambda: SAGEConv(6, 4), _against_the_edges),
    'message': (lambda: SAGEConv(6, 4), _another_message),
    'cache': (lambda: GCNConv(6, 4, cached=True), _nothing_cached),
    'weight': (lambda: SAGEConv(6, 4), _another_weight),
}


def _changed(data: Any, wrap: Wrap, name: str, before: bool) -> list[Any]:
    """Output and gradients of a conv that was changed, before its first forward or after it."""
    make, change = CHANGES[name]
    torch.manual_seed(1)
    conv = wrap(make().double())
    if not before:
        conv(data.x, data.edge_index)
    change(conv)
    ids = data.n_id if 'n_id' in data else torch.arange(data.num_nodes)
    factors = torch.linspace(-1, 1, 40).double()[ids, None]
    return take_step(conv, data, loss=lambda out: (out * factors).sum())


@pytest.mark.parametrize('before', [True, False], ids=['before', 'after'])
@pytest.mark.parametrize('name', few(CHANGES))
def test_attributes_set_later(name: str, before: bool) -> None:
    assert_alike(_changed, name, before, ranks=(1, 3))


@pytest.mark.parametrize('name', CHANGES)
def test_attributes_set_later_on_a_plain_graph(name: str) -> None:
    plain, converted = (_changed(small_graph(), wrap, name, False) for wrap in (itself, SARConv))
    assert_same(leaves(converted), leaves(plain), tolerance=0)


def test_the_object_and_its_class():
    conv = GATConv(6, 4, heads=2)
    parameters = dict(conv.named_parameters())
    sar = SARConv(conv, mode='one_shot')
    assert sar is conv
    assert isinstance(sar, GATConv)
    assert isinstance(sar, SARConv)
    for name in ('__name__', '__qualname__', '__module__', '__doc__'):
        assert getattr(type(sar), name) == getattr(GATConv, name)
    assert type(sar).__mro__[1:3] == (SARConv, GATConv)
    assert type(SARConv(GATConv(6, 4))) is type(sar)
    assert dict(sar.named_parameters()) == parameters
    assert list(sar.state_dict()) == list(parameters)
    assert type(type(sar)(6, 4)) is GATConv


LOAD = """
import sys, torch, pyg_sar
sar = torch.load(sys.argv[1], weights_only=False)
data = pyg_sar.load_shard(sys.argv[2])
torch.save(sar(data.x, data.edge_index).detach(), sys.argv[3])
"""


@pytest.mark.slow
def test_a_saved_model_in_another_process(tmp_path):
    """Where the class was never made, and PyG has not generated a method of it."""
    import subprocess
    import sys

    root = cut_of(small_graph, 2)
    data = pyg_sar.load_shard(root)
    model = DistributedDataParallel(GCN(6, 8, 2, 3).double().eval())
    torch.save(model, tmp_path / 'model.pt')
    paths = [str(tmp_path / 'model.pt'), str(root), str(tmp_path / 'out.pt')]
    subprocess.run([sys.executable, '-c', LOAD, *paths], check=True, timeout=600)
    want = model(data.x, data.edge_index).detach()
    torch.testing.assert_close(torch.load(tmp_path / 'out.pt'), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('make', [GCNConv, GATConv, GATv2Conv, lambda i, o: ChebConv(i, o, 2)])
def test_parametrized(make):
    """Spectral norm puts another class on top of a layer, parametrize on top of the conv."""
    from torch.nn.utils import parametrizations, parametrize

    class Double(torch.nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    torch.manual_seed(1)
    plain = make(6, 4).double()
    layer = next(m for m in plain.modules() if type(m).__name__ == 'Linear')
    parametrizations.spectral_norm(layer)
    plain.eval()
    sar = SARConv(copy.deepcopy(plain))
    for conv in (plain, sar):
        parametrize.register_parametrization(conv, 'bias', Double())
        with torch.no_grad():
            conv.parametrizations.bias.original.fill_(0.5)
    graph, data = small_graph(), pyg_sar.load_shard(cut_of(small_graph, 2))
    want = plain(graph.x, graph.edge_index)[data.n_id]
    torch.testing.assert_close(sar(data.x, data.edge_index), want, rtol=1e-10, atol=1e-10)
    again = copy.deepcopy(sar)
    assert isinstance(again, SARConv)
    torch.testing.assert_close(again(data.x, data.edge_index), want, rtol=1e-10, atol=1e-10)
