"""The models that the command line names, as PyG builds them."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.nn.models import GAT, GCN, GIN, GraphSAGE

MODELS = {'sage': GraphSAGE, 'gcn': GCN, 'gat': GAT, 'gin': GIN}


def make_model(
    name: str,
    in_channels: int,
    hidden: int,
    layers: int,
    out_channels: int,
    *,
    heads: int = 4,
    norm: str | None = 'batch_norm',
    dropout: float = 0.0,
) -> torch.nn.Module:
    """One of PyG's own models.

    Args:
        name: A key of :data:`MODELS`.
        in_channels: Width of the features.
        hidden: Width of the layers, of all heads together.
        layers: Number of layers.
        out_channels: Number of classes.
        heads: Attention heads of ``'gat'``; must divide `hidden`.
        norm: PyG's name of a norm, or None.
        dropout: Probability.

    Raises:
        ValueError: If a number does not fit.
    """
    sizes = {'in': in_channels, 'hidden': hidden, 'layers': layers, 'out': out_channels}
    for what, value in {**sizes, 'heads': heads}.items():
        if value < 1:
            raise ValueError(f"'{what}' must be positive (got {value})")
    if not 0 <= dropout < 1:
        raise ValueError(f"'dropout' must lie in [0, 1) (got {dropout})")
    options: dict[str, Any] = {}
    if name == 'gat':
        if hidden % heads:
            raise ValueError(f"'heads' must divide 'hidden' (got {heads} and {hidden})")
        options = {'heads': heads}
    model: torch.nn.Module = MODELS[name](
        in_channels, hidden, layers, out_channels, norm=norm, dropout=dropout, **options
    )
    return model
