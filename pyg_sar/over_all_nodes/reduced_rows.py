"""Rows of own nodes that are reduced with those of all ranks, by graph or all together."""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_sar.comm import (
    agree,
    all_gather_alike,
    all_reduce_sum,
    check_arrived,
    raise_together,
    sum_over_ranks,
)
from pyg_sar.over_all_nodes.backward import note_backward_of


class Rows:
    """The rows of this rank, after all ranks agree that theirs fit."""

    def __init__(
        self,
        values: Tensor,
        mask: Tensor | None,
        dim: int | None,
        batch: Tensor | None,
        size: int | None,
    ) -> None:
        error = None
        num_rows = tuple(values.shape[:1])
        if values.dim() == 0 or dim not in (None, 0):
            error = (
                f"'dim' must be 0, of one row per own node (got {dim}, {values.dim()} dimensions)"
            )
        elif mask is not None and (mask.dtype != torch.bool or mask.shape != num_rows):
            error = wrong_mask(values, mask)
        elif batch is not None and (batch.dtype != torch.int64 or batch.shape != num_rows):
            error = (
                f"expected an int64 'batch' of shape {num_rows} "
                f'(got {batch.dtype} of shape {tuple(batch.shape)})'
            )
        largest = int(batch.max()) + 1 if error is None and batch is not None and len(batch) else 0
        if error is None and batch is not None and len(batch):
            limit = largest if size is None else size
            if int(batch.min()) < 0 or largest > limit:
                error = f"'batch' must hold graphs from 0 to {limit - 1} (got {largest - 1})"
        raise_together(None if error is None else ValueError(error))
        if mask is not None:
            values, batch = values[mask], None if batch is None else batch[mask]
        self.values = values if values.is_floating_point() else values.to(torch.get_default_dtype())
        self.batch = batch
        self.size = None
        if batch is not None:
            self.size = max(agree(largest)) if size is None else size

    def sum(self) -> Tensor:
        """``[...]``, or ``[size, ...]`` by graph."""
        local = self._local(self.values)
        return sum_with_history(local.reshape(-1)).view(local.shape)

    def counts(self) -> Tensor:
        """How many rows there are: a scalar, or ``[size, 1, ...]``."""
        ones = self.values.new_ones(self.values.size(0), dtype=torch.float64)
        counts = all_reduce_sum(self._local(ones)).to(self.values.dtype)
        return counts.view(-1, *[1] * (self.values.dim() - 1)) if self.batch is not None else counts

    def max(self) -> Tensor:
        """``[...]``, or ``[size, ...]``; gradients go to the rows that are largest, in shares."""
        values = self.values.detach()
        shape = values.shape[1:] if self.size is None else (self.size, *values.shape[1:])
        local = values.new_full(shape, float('-inf'))
        if self.batch is None:
            local = torch.maximum(local, values.amax(dim=0)) if values.size(0) else local
        else:
            index = self.batch.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
            local = local.scatter_reduce(0, index, values, 'amax')
        largest = all_gather_alike(local).amax(dim=0)
        is_largest = self.values.detach() == (
            largest if self.batch is None else largest[self.batch]
        )
        share = all_reduce_sum(self._local(is_largest.to(values.dtype))).clamp(min=1)
        total = self.like(self.values * is_largest).sum() / share
        largest = torch.where(largest == float('-inf'), 0.0, largest)
        return largest + (total - total.detach())

    def like(self, values: Tensor) -> Rows:
        """Other values of the same rows."""
        other = object.__new__(Rows)
        other.values, other.batch, other.size = values, self.batch, self.size
        return other

    def _local(self, values: Tensor) -> Tensor:
        if self.batch is None:
            return values.sum(dim=0)
        out = values.new_zeros((self.size or 0, *values.shape[1:]))
        return out.index_add(0, self.batch, values)


def wrong_mask(values: Tensor, mask: Tensor) -> str:
    """What is said of a mask that does not fit."""
    return (
        f"expected a bool 'mask' of shape {tuple(values.shape[:1])} "
        f'(got {mask.dtype} of shape {tuple(mask.shape)})'
    )


def sum_with_history(values: Tensor) -> Tensor:
    """Of a vector; with a history on all ranks if on any, as all have to take part in backward."""
    return sum_and_read(values, 0)[0]


def sum_and_read(values: Tensor, num_read: int) -> tuple[Tensor, list[float]]:
    """The same, and its last numbers as they are: a device is waited for once."""
    anchor = values.new_full((1,), float(values.requires_grad)).requires_grad_()
    total = sum_over_ranks(torch.cat([values, anchor]))
    *read, histories = total.detach()[values.numel() - num_read :].tolist()
    check_arrived('a sum over all ranks')
    if histories == 0:
        total = total.detach()
    elif total.requires_grad:
        note_backward_of(total)
    return total[:-1], read
