"""Which classes of PyG have a version for cut graphs, and how a module becomes one."""

from __future__ import annotations

import torch
from torch_geometric.nn import SuperGATConv
from torch_geometric.nn.models import RECT_L, CorrectAndSmooth, LabelPropagation, LightGCN
from torch_geometric.nn.models.linkx import SparseLinear

from pyg_sar.models.counts import (
    GlobalCorrectAndSmooth,
    GlobalLabelPropagation,
    GlobalRECT_L,
    GlobalSuperGATConv,
)
from pyg_sar.models.whole_graph_rows import GlobalLightGCN, GlobalSparseLinear

_GLOBAL: dict[type, type] = {
    CorrectAndSmooth: GlobalCorrectAndSmooth,
    LabelPropagation: GlobalLabelPropagation,
    LightGCN: GlobalLightGCN,
    RECT_L: GlobalRECT_L,
    SparseLinear: GlobalSparseLinear,
    SuperGATConv: GlobalSuperGATConv,
}


def why_not_global(module: torch.nn.Module) -> str | None:
    """Why a module cannot become one of these classes, as the end of a sentence; None if it can."""
    for plain, form in _GLOBAL.items():
        if isinstance(module, plain) and type(module) is not plain and not isinstance(module, form):
            return (
                f'it is derived from {plain.__name__}, which looks at all nodes; derive it from '
                f'{form.__module__}.{form.__name__}, which is the same class for a cut graph'
            )
    return None


def make_global(model: torch.nn.Module) -> None:
    """Gives every module of `model` that has one the class that is right on a cut graph.

    Each is a subclass that overrides methods alone, so the module keeps its attributes, parameters
    and hooks, and on a plain edge_index does what it did.

    Args:
        model: Any module; changed in place.
    """
    for module in model.modules():
        if type(module) in _GLOBAL:
            module.__class__ = _GLOBAL[type(module)]
