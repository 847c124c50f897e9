"""Rows of a table by ids of edges, such as ``weight[edge_type]``, with a fast gradient on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class TableReads(TorchFunctionMode):
    """While it lasts, ``table[ids]`` is ``table.index_select(0, ids)``, whose gradients are sums.

    The gradient of indexing adds number by number, on one thread: two thirds of the time of a
    FastRGCNConv. On a GPU it adds in a fixed order, which index_select does not.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            table, ids = args
            is_read = isinstance(ids, Tensor) and ids.dtype == torch.int64 and ids.dim() == 1
            if is_read and table.dim() and table.requires_grad and table.device.type == 'cpu':
                return table.index_select(0, torch.where(ids < 0, ids + table.size(0), ids))
        return func(*args, **(kwargs or {}))
