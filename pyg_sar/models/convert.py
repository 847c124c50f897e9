"""Which classes of PyG have a version for cut graphs, and how a module becomes one."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.nn.models import GAE

from pyg_sar.models import counts, unsupervised, whole_graph_rows
from pyg_sar.models.unsupervised import Unsupervised

_GLOBAL: dict[type, Any] = {
    form.__bases__[-1]: form
    for file in (counts, unsupervised, whole_graph_rows)
    for name, form in vars(file).items()
    if name.startswith('Global')
}
"""The class for cut graphs of every plain one, its last base."""


def why_not_global(module: torch.nn.Module) -> str | None:
    """Why a module cannot become one of these classes, as the end of a sentence; None if it can."""
    if isinstance(module, GAE) and not isinstance(module.decoder, torch.nn.Module):
        return 'its decoder is a function; make it a torch.nn.Module'
    if type(module) in _GLOBAL:
        return None
    for plain in type(module).__mro__:
        form = _GLOBAL.get(plain)
        if form is not None and not isinstance(module, form):
            return (
                f'it is derived from {plain.__name__}, which looks at all nodes; derive it from '
                f'{form.__module__}.{form.__name__}, which is the same class for a cut graph'
            )
    return None


def make_global(model: torch.nn.Module) -> None:
    """Gives every module of `model` that has one the class that is right on a cut graph, in place.

    Each is a subclass that overrides methods alone, so the module keeps its attributes, parameters
    and hooks, and on a plain edge_index does what it did.
    """
    for module in model.modules():
        if type(module) in _GLOBAL:
            module.__class__ = _GLOBAL[type(module)]
        if isinstance(module, Unsupervised):
            module.watch()


def decoders_in(model: torch.nn.Module) -> set[torch.nn.Module]:
    """The decoders of autoencoders, which are given the rows of pairs of nodes."""
    return {module.decoder for module in model.modules() if isinstance(module, GAE)}
