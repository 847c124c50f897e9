"""Unsigned numbers of 2, 4 and 8 bytes, of which torch picks no rows: signed ones of their bits."""

from __future__ import annotations

import torch
from torch import Tensor

AS_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def signed(tensor: Tensor) -> Tensor:
    """The same bits as signed numbers; other tensors as they are."""
    return tensor.view(AS_SIGNED[tensor.dtype]) if tensor.dtype in AS_SIGNED else tensor


def in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """What was computed with :func:`signed` of a tensor of this dtype, in it."""
    return tensor.view(dtype) if dtype in AS_SIGNED else tensor


def picked(tensor: Tensor, dim: int, index: Tensor) -> Tensor:
    """``tensor.index_select(dim, index)`` of numbers of every dtype."""
    return in_dtype(signed(tensor).index_select(dim, index), tensor.dtype)
