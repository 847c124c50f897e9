"""Which norm becomes which."""

from __future__ import annotations

import torch
from torch_geometric.nn import norm

from pyg_sar.norm.base import GlobalNorm
from pyg_sar.norm.batch import GlobalBatchNorm, GlobalDiffGroupNorm, GlobalPyGBatchNorm
from pyg_sar.norm.graph import (
    GlobalGraphNorm,
    GlobalGraphSizeNorm,
    GlobalInstanceNorm,
    GlobalLayerNorm,
    GlobalMeanSubtractionNorm,
    GlobalPairNorm,
)
from pyg_sar.norm.hetero import GlobalHeteroBatchNorm

_GLOBAL: dict[type[torch.nn.Module], type[GlobalNorm]] = {
    torch.nn.BatchNorm1d: GlobalBatchNorm,
    torch.nn.SyncBatchNorm: GlobalBatchNorm,
    norm.BatchNorm: GlobalPyGBatchNorm,
    norm.DiffGroupNorm: GlobalDiffGroupNorm,
    norm.GraphNorm: GlobalGraphNorm,
    norm.GraphSizeNorm: GlobalGraphSizeNorm,
    norm.HeteroBatchNorm: GlobalHeteroBatchNorm,
    norm.InstanceNorm: GlobalInstanceNorm,
    norm.LayerNorm: GlobalLayerNorm,
    norm.MeanSubtractionNorm: GlobalMeanSubtractionNorm,
    norm.PairNorm: GlobalPairNorm,
}


def global_form(module: torch.nn.Module) -> type[GlobalNorm] | None:
    """The class that a plain norm is to become.

    Norms of a row alone (LayerNorm in mode 'node', HeteroLayerNorm, MessageNorm) need none.

    Args:
        module: Any module. A subclass of a norm may do anything in its forward: it is none.

    Returns:
        The class, or None if `module` is no norm over rows that is known here.
    """
    cls = _GLOBAL.get(type(module))
    if cls is None or (isinstance(module, norm.LayerNorm) and module.mode != 'graph'):
        return None
    return cls
