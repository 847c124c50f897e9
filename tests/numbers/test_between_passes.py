"""What happens to a model between forward and backward does not reach messages computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from alike import Program, Wrap, assert_alike, cut_of, itself
from replicated import NUM_EDGE_FEATURES, NUM_FEATURES, replicated_graph
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


def _gradients(data: Data, wrap: Wrap, name: str, between: Callable[..., None]) -> list[Tensor]:
    """Of x and all parameters as they were in forward, with something done before backward."""
    torch.manual_seed(2)
    model = wrap(PATHS[name]().double())
    parameters, x = list(model.parameters()), data.x.clone().requires_grad_()
    torch.manual_seed(3)
    loss = model(x, data.edge_index, data.edge_attr).square().sum()
    if wrap is not itself:
        between(model)
    return _or_zeros(torch.autograd.grad(loss, [x, *parameters], allow_unused=True))


def _or_zeros(gradients: Iterable[Tensor | None]) -> list[Tensor]:
    return [torch.zeros(()) if each is None else each for each in gradients]


def _assert_alike(program: Program, *args: Any) -> None:
    """On one rank with the only part, whose edges are in one order: dropout draws PyG's mask."""
    shard = pyg_sar.load_shard(cut_of(replicated_graph, 1))
    assert torch.equal(replicated_graph().edge_index, shard.edge_index)
    assert_alike(program, *args, graph=replicated_graph, ranks=(1,), parts=1, tolerance=1e-12)


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


@pytest.mark.parametrize('name', PATHS)
@pytest.mark.parametrize('between', [_nothing, _evaluate, _lower_dropout, _assign])
def test_changes(name: str, between: Callable[..., None]) -> None:
    _assert_alike(_gradients, name, between)


def _with_other_parameters(data: Data, wrap: Wrap, name: str) -> list[Tensor]:
    """The conv's own parameters are back when backward runs."""
    torch.manual_seed(2)
    model = wrap(PATHS[name]().double().eval())
    others = {key: (p.detach() + 0.1).requires_grad_() for key, p in model.named_parameters()}
    args = data.x, data.edge_index, data.edge_attr
    loss = functional_call(model, others, args).square().sum()
    return list(torch.autograd.grad(loss, [*others.values()]))


def _with_hooks(data: Data, wrap: Wrap, name: str) -> list[Tensor]:
    """A hook that changes a gradient, as clipping does, sees the whole gradient, once."""
    torch.manual_seed(2)
    model, calls = wrap(PATHS[name]().double().eval()), []
    for parameter in model.parameters():
        parameter.register_hook(lambda g: calls.append(1) or 3 * g.clamp(-1, 1))
    model(data.x, data.edge_index, data.edge_attr).square().sum().backward()
    gradients = [p.grad for p in model.parameters()]
    assert len(calls) == sum(grad is not None for grad in gradients)
    return _or_zeros(gradients)


def _with_saved_tensors_elsewhere(data: Data, wrap: Wrap, name: str) -> list[Tensor]:
    """Hooks on what autograd saves hand other tensors back; parameters keep their gradients."""
    if wrap is itself:
        return _gradients(data, wrap, name, _nothing)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        return _gradients(data, wrap, name, _nothing)


@pytest.mark.parametrize('name', PATHS)
@pytest.mark.parametrize(
    'program', [_with_other_parameters, _with_hooks, _with_saved_tensors_elsewhere]
)
def test_programs(name: str, program: Program) -> None:
    _assert_alike(program, name)
