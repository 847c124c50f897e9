"""What happens to a model between forward and backward does not reach messages computed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from replicated import NUM_EDGE_FEATURES, NUM_FEATURES, replicated_graph
from small_graphs import assert_close
from torch import Tensor
from torch.func import functional_call
from torch_geometric.data import Data
from torch_geometric.nn import aggr, conv

import pyg_sar

PATHS: dict[str, Callable[[], torch.nn.Module]] = {
    'replay': lambda: conv.GATv2Conv(
        NUM_FEATURES, 2, edge_dim=NUM_EDGE_FEATURES, dropout=0.5, add_self_loops=False
    ),
    'online': lambda: conv.TransformerConv(
        NUM_FEATURES, 2, edge_dim=NUM_EDGE_FEATURES, dropout=0.5
    ),
    'gather': lambda: conv.GENConv(
        NUM_FEATURES, 2, edge_dim=NUM_EDGE_FEATURES, aggr=aggr.LSTMAggregation(2, 2)
    ),
}
"""Messages with learnable tensors inside, and dropout where there can be."""


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp('between') / 'parts'
    pyg_sar.partition_graph(replicated_graph(), 1, folder)
    return folder


def _model(name: str, *, wrapped: bool) -> torch.nn.Module:
    torch.manual_seed(2)
    model = PATHS[name]().double()
    return pyg_sar.DistributedDataParallel(model) if wrapped else model


def _nothing(model: torch.nn.Module) -> None:
    """The plain case, which the others must give too."""


def _evaluate(model: torch.nn.Module) -> None:
    model.eval()


def _lower_dropout(model: torch.nn.Module) -> None:
    for module in model.modules():
        if hasattr(module, 'dropout'):
            vars(module)['dropout'] = 0.1


def _assign(model: torch.nn.Module) -> None:
    state = {key: torch.zeros_like(value) for key, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def _gradients(model: torch.nn.Module, data: Data, between: Callable[..., None]) -> list[Tensor]:
    parameters = list(model.parameters())
    x = data.x.clone().requires_grad_()
    torch.manual_seed(3)
    loss = model(x, data.edge_index, data.edge_attr).square().sum()
    between(model)
    return list(torch.autograd.grad(loss, [x, *parameters], allow_unused=True))


@pytest.mark.parametrize('name', PATHS)
@pytest.mark.parametrize('between', [_nothing, _evaluate, _lower_dropout, _assign])
def test_changes(root: Path, name: str, between: Callable[..., None]) -> None:
    whole, shard = _data(root)
    expected = _gradients(_model(name, wrapped=False), whole, _nothing)
    found = _gradients(_model(name, wrapped=True), shard, between)
    _assert_all_close(found, expected)


@pytest.mark.parametrize('name', PATHS)
def test_functional_call(root: Path, name: str) -> None:
    """The conv's own parameters are back when backward runs."""
    found = []
    for wrapped in (False, True):
        model = _model(name, wrapped=wrapped).eval()
        data = _data(root)[wrapped]
        names = [key for key, _ in _model(name, wrapped=wrapped).named_parameters()]
        others = [(p.detach() + 0.1).requires_grad_() for p in model.parameters()]
        args = data.x, data.edge_index, data.edge_attr
        loss = functional_call(model, dict(zip(names, others, strict=True)), args).square().sum()
        found.append(torch.autograd.grad(loss, others))
    _assert_all_close(found[1], found[0])


@pytest.mark.parametrize('name', PATHS)
def test_hooks_run_once(root: Path, name: str) -> None:
    """A hook that changes a gradient, as clipping does, sees the whole gradient, once."""
    found = []
    for wrapped in (False, True):
        model = _model(name, wrapped=wrapped).eval()
        data = _data(root)[wrapped]
        calls = []
        for parameter in model.parameters():
            parameter.register_hook(lambda g, calls=calls: calls.append(1) or 3 * g.clamp(-1, 1))
        model(data.x, data.edge_index, data.edge_attr).square().sum().backward()
        assert len(calls) == sum(p.grad is not None for p in model.parameters())
        found.append([p.grad for p in model.parameters()])
    _assert_all_close(found[1], found[0])


@pytest.mark.parametrize('name', PATHS)
def test_saved_tensors_elsewhere(root: Path, name: str) -> None:
    """Hooks on what autograd saves hand other tensors back; parameters keep their gradients."""
    whole, shard = _data(root)
    expected = _gradients(_model(name, wrapped=False), whole, _nothing)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        found = _gradients(_model(name, wrapped=True), shard, _nothing)
    _assert_all_close(found, expected)


def _data(root: Path) -> tuple[Data, Data]:
    """The whole graph and its only part, in one order of edges: dropout draws PyG's mask."""
    whole, shard = replicated_graph(), pyg_sar.load_shard(root)
    assert torch.equal(whole.edge_index, shard.edge_index)
    return whole, shard


def _assert_all_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert_close(torch.zeros(()) if a is None else a, torch.zeros(()) if b is None else b)
