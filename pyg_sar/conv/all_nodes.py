"""PyG's models with attention over all nodes: of a cut graph they take rows of all ranks only.

Their convs would exchange rows of a plain tensor, too; their attention would see those of one rank.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch_geometric import nn

from pyg_sar.comm import world_size
from pyg_sar.rows.rows import Rows
from pyg_sar.shard.edge_index import ShardEdgeIndex

_NAMES = 'GPSConv', 'Polynormer', 'SGFormer'  # PyG 2.6 has the first alone
_ATTENTIVE = tuple(getattr(nn, name) for name in _NAMES if hasattr(nn, name))


def watch_attention(model: torch.nn.Module) -> None:
    """Has models with attention over all nodes refuse plain own rows."""
    for module in model.modules():
        if isinstance(module, _ATTENTIVE):
            vars(module).setdefault('forward', partial(_forward, module))


def _forward(module: Any, x: Any, edge_index: Any, *args: Any, **kwargs: Any) -> Any:
    is_cut = isinstance(edge_index, ShardEdgeIndex) and world_size() > 1
    if is_cut and not isinstance(x, Rows):
        raise ValueError(
            f"'x' of {type(module).__name__} must be rows of all ranks, as load_shard gives them: "
            f'it attends to all nodes (got a plain {type(x).__name__}, as pyg_sar.local gives it)'
        )
    return type(module).forward(module, x, edge_index, *args, **kwargs)
