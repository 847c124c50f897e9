"""SARConv(conv) is conv, DistributedDataParallel(model) the model: later changes count, too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alike import Wrap, as_one_process, assert_alike, assert_same, cut_of, itself, leaves, take_step
from few import few
from object_programs import HasModule, Net
from on_ranks import on_ranks
from small_graphs import small_graph
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import parametrizations, parametrize
from torch_geometric import nn as pyg
from torch_geometric.nn.models import GCN

import pyg_sar
from pyg_sar import DistributedDataParallel, SARConv


def _sage() -> Any:
    return pyg.SAGEConv(6, 4)


def _drawn(make: Callable[[], Any]) -> Any:
    torch.manual_seed(7)
    return make().double()


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    'add_self_loops': (lambda: pyg.GCNConv(6, 4), lambda: {'add_self_loops': False}),
    'K': (lambda: pyg.APPNP(2, 0.1), lambda: {'K': 3}),
    'negative_slope': (lambda: pyg.GATConv(6, 4), lambda: {'negative_slope': 0.9}),
    'lin_l': (_sage, lambda: {'lin_l': _drawn(lambda: torch.nn.Linear(6, 4))}),
    'aggr_module': (_sage, lambda: {'aggr_module': pyg.aggr.MaxAggregation()}),
    'flow': (_sage, lambda: {'flow': 'target_to_source'}),
    'message': (_sage, lambda: {'message': lambda x_j: x_j.relu() ** 2}),
    'cache': (
        lambda: pyg.GCNConv(6, 4, cached=True),
        lambda: {'_cached_edge_index': None, 'improved': True},
    ),
    'weight': (_sage, lambda: {'lin_l.weight': Parameter(_drawn(lambda: torch.randn(4, 6)))}),
}
"""A conv, and attributes that it gets later."""


def _changed(data: Any, wrap: Wrap, name: str, before: bool) -> list[Any]:
    """Output and gradients of a conv that was changed, before its first forward or after it."""
    make, attributes = CHANGES[name]
    torch.manual_seed(1)
    conv = wrap(make().double())
    if not before:
        conv(data.x, data.edge_index)
    for path, value in attributes().items():
        owner, _, attribute = path.rpartition('.')
        setattr(conv.get_submodule(owner), attribute, value)
    return take_step(conv, data)


@pytest.mark.parametrize('before', [True, False], ids=['before', 'after'])
@pytest.mark.parametrize('name', few(CHANGES))
def test_attributes_set_later(name: str, before: bool) -> None:
    assert_alike(_changed, name, before, ranks=(1, 3))


@pytest.mark.parametrize('name', CHANGES)
def test_attributes_set_later_on_a_plain_graph(name: str) -> None:
    plain, converted = (_changed(small_graph(), wrap, name, False) for wrap in (itself, SARConv))
    assert_same(leaves(converted), leaves(plain), tolerance=0)


def test_the_object_and_its_class():
    conv = pyg.GATConv(6, 4, heads=2)
    parameters = dict(conv.named_parameters())
    sar = SARConv(conv, mode='one_shot')
    assert sar is conv
    assert isinstance(sar, pyg.GATConv)
    assert isinstance(sar, SARConv)
    for name in ('__name__', '__qualname__', '__module__', '__doc__'):
        assert getattr(type(sar), name) == getattr(pyg.GATConv, name)
    assert type(sar).__mro__[1:3] == (SARConv, pyg.GATConv)
    assert type(SARConv(pyg.GATConv(6, 4))) is type(sar)
    assert dict(sar.named_parameters()) == parameters
    assert list(sar.state_dict()) == list(parameters)
    assert type(type(sar)(6, 4)) is pyg.GATConv


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


class Double(torch.nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


MAKES = [pyg.GCNConv, pyg.GATConv, pyg.GATv2Conv, lambda i, o: pyg.ChebConv(i, o, 2)]


@pytest.mark.parametrize('make', MAKES)
@as_one_process(ranks=(1,), parts=2)
def test_parametrized(data: Any, wrap: Wrap, make: Any) -> list[Tensor]:
    """Spectral norm puts another class on top of a layer, parametrize on top of the conv."""
    conv = make(6, 4).double()
    layer = next(m for m in conv.modules() if type(m).__name__ == 'Linear')
    parametrizations.spectral_norm(layer)
    conv = wrap(conv.eval())
    parametrize.register_parametrization(conv, 'bias', Double())
    with torch.no_grad():
        conv.parametrizations.bias.original.fill_(0.5)
    again = copy.deepcopy(conv)
    assert wrap is itself or isinstance(again, SARConv)
    return [each(data.x, data.edge_index).detach() for each in (conv, again)]


# Models; programs that use them in every way: tests/programs/object_programs.py


def test_the_model_and_its_class() -> None:
    model = Net()
    keys = list(model.state_dict())
    made = DistributedDataParallel(model)
    assert made is model
    assert isinstance(made, DistributedDataParallel)
    assert made.module is made
    assert list(made.state_dict()) == keys
    for name in ('__name__', '__qualname__', '__module__', '__doc__'):
        assert getattr(type(made), name) == getattr(Net, name)
    assert type(type(made)(4)) is Net
    assert type(made) is type(DistributedDataParallel(Net()))
    assert made is DistributedDataParallel(made)
    other = HasModule()
    assert DistributedDataParallel(other).module is other._modules['module']


def test_a_model_of_torchscript_is_refused() -> None:
    with pytest.warns((DeprecationWarning, FutureWarning)):  # of torch 2.13, and later ones
        script = torch.jit.script(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r'without torch\.jit'):
        DistributedDataParallel(script)


@pytest.mark.filterwarnings('ignore::FutureWarning')
@on_ranks(by='threads')
def test_a_trace_is_refused_on_all_ranks(data):
    torch.manual_seed(0)
    model = DistributedDataParallel(Net().double())
    for each in (model, model.conv):
        with pytest.raises(ValueError, match=r"'torch.jit.trace' of rows.*trace the plain model"):
            torch.jit.trace(each, (data.x, data.edge_index))
    model.loss(data).backward()  # the ranks go on
