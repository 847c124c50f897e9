"""Finds out whether what is summed over in-edges is x_j, times one number for each edge at most."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from pyg_sar.nn.call import NUM_EDGES, Call
from pyg_sar.nn.source_rows import LEAST_CHANNELS, SourceRows
from pyg_sar.rows.rows import Rows, plain, plainly


@dataclass(frozen=True)
class SummedProduct:
    """Reads rows that a run of a message has summed."""

    call: Call
    edge_samples: tuple[Tensor, ...]
    read: set[str]  # the source tensors that more than a product reads

    def read_from(
        self, out: Any, message: Rows, keeps: bool, uses_rng: bool
    ) -> tuple[str, int | None, bool]:
        """The name of x_j in `out`, the index of its weight, and whether the message computes one.

        No name if `out` is more than a product. The aggregation may multiply, too (EGConv).
        """
        call = self.call
        nothing = '', None, False
        if not isinstance(out, SourceRows) or out.source in self.read:
            return nothing
        x, dim = self._source(out), out._dim
        with plainly():
            dtype, factor = out.dtype, out.factor
            is_exact = dtype in (torch.float32, torch.float64) and out.numel() > 0
            is_hooked = call.conv._message_forward_pre_hooks or call.conv._message_forward_hooks
            if factor is None:
                is_copy = not (keeps or uses_rng) and out.dim() == x.dim() == 2 and dim == 0
                same = is_copy and plain(out).shape[1:] == x.shape[1:]
                return (out.source, None, False) if same else nothing
            # Under autocast rows may be narrower than weights, which come from a softmax.
            weight = self._edge_tensor(factor) if factor.dtype == dtype else None
            if weight is not None and not (keeps or uses_rng):
                return (out.source, weight, False) if is_exact or self.is_plain(out) else nothing
            is_narrow = LEAST_CHANNELS * prod(factor.shape[1:]) <= prod(x.shape[1:])
            is_exact = is_exact and x.dtype == factor.dtype == dtype
            if out is message and is_exact and dim == 0 and is_narrow and not is_hooked:
                return out.source, None, True
        return nothing

    def _source(self, out: SourceRows) -> Tensor:
        slot = next(slot for slot in self.call.slots if slot.name == out.source)
        return self.call.arguments.src[slot.index]

    def is_plain(self, out: SourceRows) -> bool:
        """Whether the weight is a number for every edge, without gradient, of rows of a matrix."""
        with plainly():
            weight, x = self._edge_tensor(out.factor), self._source(out)
            is_matrix = out.dim() == x.dim() == 2 and out._dim == 0
        if weight is None:
            return False
        values = self.edge_samples[weight]
        return is_matrix and values.numel() == NUM_EDGES and not values.requires_grad

    def _edge_tensor(self, factor: Any) -> int | None:
        """The index of the edge tensor that a factor is, perhaps reshaped."""
        for i, tensor in enumerate(self.edge_samples):
            is_same = (
                factor.data_ptr() == tensor.data_ptr()
                and factor.numel() == tensor.numel()
                and factor.is_contiguous()
                and factor.requires_grad == (tensor.requires_grad and torch.is_grad_enabled())
            )
            if is_same and factor.dtype == tensor.dtype:
                return i
        return None
