"""Full backward hooks of modules see gradients of the whole graph, whatever else a module takes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, assert_alike
from on_ranks import on_ranks
from pairs import pairs
from small_graphs import small_graph
from torch import Tensor
from torch.nn.modules.module import (
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
)
from torch_geometric.nn import EdgeConv, GATConv, GCNConv, HeteroConv, SAGEConv
from two_types import two_types

import pyg_sar


class Net(torch.nn.Module):
    """Two layers; the second gets features that take a gradient, and whole numbers."""

    def __init__(self, conv: Any, form: str) -> None:
        super().__init__()
        self.first, self.second, self.form = conv(6, 8), conv(8, 3), form
        self.own = Own()

    def forward(self, x: Tensor, edge_index: Any, weight: Any, ids: Tensor, mask: Tensor) -> Tensor:
        more = [] if weight is None else [weight]
        x = self.first(x, edge_index, *more).relu()
        x = self.own(x, ids, mask, 3) if self.form == 'own' else x
        return self.second(x, edge_index, *more)


class Own(torch.nn.Module):
    def forward(self, x: Tensor, ids: Tensor, mask: Tensor, number: int) -> Tensor:
        return torch.where(mask.view(-1, 1), x, x * number) + ids.view(-1, 1)


class Hetero(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        relations = {('a', 'to', 'b'): SAGEConv((6, 6), 6), ('b', 'of', 'a'): SAGEConv((6, 6), 6)}
        self.first, self.second = HeteroConv(dict(relations)), HeteroConv(dict(relations))

    def forward(self, x_dict: Any, edges: Any) -> Any:
        return self.second(self.first(x_dict, edges), edges)


FORMS = ['plain', 'weight', 'own', 'model', 'hetero']
KINDS = ['hook', 'pre hook', 'changes', 'global', 'global pre']


def _numbers(grads: Any) -> list[Tensor | None]:
    grads = grads if isinstance(grads, (tuple, list)) else (grads,)
    return [None if g is None else pyg_sar.gather(g).detach().clone() for g in grads]


@contextmanager
def _hooked(
    kind: str, modules: list[Any], hook: Any, pre_hook: Any, classes: tuple[type, ...]
) -> Iterator[None]:
    """Hooks of modules, or of all modules, which see those of `classes`."""

    def of_all(module: Any, *grads: Any) -> Any:
        seen_by = pre_hook if 'pre' in kind else hook
        return seen_by(module, *grads) if isinstance(module, classes) else None

    if kind == 'global':
        handles = [register_module_full_backward_hook(of_all)]
    elif kind == 'global pre':
        handles = [register_module_full_backward_pre_hook(of_all)]
    elif kind == 'pre hook':
        handles = [module.register_full_backward_pre_hook(pre_hook) for module in modules]
    else:
        handles = [module.register_full_backward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _program(data: Any, wrap: Wrap, conv: Any, form: str, kind: str) -> Any:
    model = wrap((Hetero() if form == 'hetero' else Net(conv, form)).double())
    seen: list[Any] = []

    # That no input of a first layer takes a gradient, and that a dict has no node.
    warnings.simplefilter('ignore')

    def hook(module: Any, taken: Any, given: Any) -> Any:
        seen.append([_numbers(taken), _numbers(given)])
        if kind != 'changes':
            return None
        is_number = [g is not None and g.is_floating_point() for g in taken]
        return tuple(2 * g / g.norm() if n else g for g, n in zip(taken, is_number, strict=True))

    def pre_hook(module: Any, given: Any) -> None:
        seen.append(_numbers(given))

    modules = [model.get_submodule({'own': 'own', 'model': ''}.get(form, 'second'))]
    if form == 'hetero':
        modules = [c for c in model.second.modules() if isinstance(c, SAGEConv)]
    with _hooked(kind, modules, hook, pre_hook, (GCNConv, SAGEConv, GATConv, Own)):
        if form == 'hetero':
            x = {k: v.detach().clone().requires_grad_() for k, v in data.x_dict.items()}
            out = model(x, data.edge_index_dict)
            loss = sum(h.square().mean() for h in out.values())
        else:
            x = data.x.detach().clone().requires_grad_(form == 'model')
            weight = data.edge_weight if form == 'weight' else None
            loss = F.cross_entropy(
                model(x, data.edge_index, weight, data.y, data.train_mask), data.y
            )
        loss.backward()
    return [loss.detach(), seen, [p.grad for p in model.parameters()]]


# By processes: some hooks are of all modules.
ON_RANKS = {'cut': 'random', 'ranks': (1, 3), 'by': 'processes'}


@pairs(form=FORMS, kind=KINDS, conv=[GCNConv, SAGEConv, GATConv])
def test_they_see_what_one_process_sees(form: str, kind: str, conv: Any) -> None:
    conv = GCNConv if form in ('weight', 'hetero') else conv
    graph = two_types if form == 'hetero' else small_graph
    assert_alike(_program, conv, form, kind, graph=graph, tolerance=1e-11, rtol=0, **ON_RANKS)


def _inside(data: Any, wrap: Wrap, kind: str, at: str) -> Any:
    """What hooks of modules inside of a conv see and change, called once per edge or per node."""
    of_edges = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    model = wrap(EdgeConv(of_edges, aggr='mean').double())
    seen: list[Any] = []

    def of_rows(values: Any) -> list[Any]:
        """Sorted, as edges of other ranks have another order."""
        return [v if v is None else v.flatten().sort().values for v in _numbers(values)]

    def hook(module: Any, taken: Any, given: Any) -> Any:
        seen.append([of_rows(taken), of_rows(given)])
        return tuple(g if g is None else g.clamp(-0.002, 0.002) for g in taken)

    def pre_hook(module: Any, given: Any) -> Any:
        seen.append(of_rows(given))
        return tuple(g.clamp(-0.002, 0.002) for g in given)

    with _hooked(kind, [model.get_submodule(at)], hook, pre_hook, (torch.nn.Linear, torch.nn.Tanh)):
        x = data.x.detach().clone().requires_grad_()
        loss = F.cross_entropy(model(x, data.edge_index), data.y)
        loss.backward()
    assert seen
    return [loss.detach(), seen, [p.grad for p in model.parameters()]]


@pytest.mark.parametrize(
    ('kind', 'at'),
    [('hook', 'nn'), ('hook', 'nn.2'), ('pre hook', 'nn.0'), ('global', 'nn'), ('global pre', '')],
)
def test_modules_inside_of_convs(kind: str, at: str) -> None:
    """One call with the edges of all ranks, and a gradient that is no P times too large."""
    assert_alike(_inside, kind, at, tolerance=1e-12, rtol=1e-9, **ON_RANKS)


@pytest.mark.filterwarnings('ignore:Using a non-full backward hook', 'ignore:torch.compile leaves')
@pytest.mark.parametrize('before', ['nothing', 'torch.device', 'torch.compile'])
@on_ranks(by='own processes')
def test_a_deprecated_hook_is_refused(data: Any, before: str) -> None:
    """It would get the gradient of own rows."""
    layer = torch.nn.Linear(6, 4).double()
    layer.register_backward_hook(lambda *_: None)
    if before == 'torch.compile':  # it replaces how rows are called, for the rest of the process
        torch.compile(torch.sin, backend='eager')(data.x)
    in_device = torch.device('cpu') if before == 'torch.device' else nullcontext()
    with in_device, pytest.raises(ValueError, match='register_full_backward_hook'):
        layer(data.x)
