"""Means and sums over the nodes of the whole graph."""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_sar.comm import all_reduce_sum, is_distributed


def global_mean(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean over all nodes of all ranks, for a loss or a metric.

    The value is the global mean, equal on all ranks. Its gradient is that of this rank's share,
    ``sum of own values / global count``: summed over the ranks, as
    :class:`pyg_sar.DistributedDataParallel` does, that is the gradient of the global mean. A rank
    without a selected node takes part with a zero share.

    Args:
        values: One value per own node (or more), floating point or bool, ``[num_own, ...]``. Values
            that the mask leaves out may be anything, also NaN.
        mask: bool ``[num_own]``, or None for all nodes.

    Returns:
        A scalar. Collective: one all-reduce of two numbers.

    Raises:
        ValueError: If the mask is not bool or does not fit, or no rank selects a value.
    """
    if mask is not None:
        if mask.dtype != torch.bool or mask.shape != values.shape[:1]:
            raise ValueError(
                f"expected a bool 'mask' of shape {tuple(values.shape[:1])} "
                f'(got {mask.dtype} of shape {tuple(mask.shape)})'
            )
        values = values[mask]
    if not values.is_floating_point():
        values = values.to(torch.get_default_dtype())
    local = values.sum()
    totals = torch.stack([local.detach().double(), local.new_tensor(values.numel()).double()])
    all_reduce_sum(totals)
    total, count = totals.unbind()
    if int(count) == 0:
        raise ValueError("expected at least one value selected by 'mask' on all ranks (got none)")
    share = local / count.to(local.dtype)
    if not is_distributed():
        return share
    # The share's gradient, the global value.
    return share + ((total / count).to(local.dtype) - share.detach())


def global_sum(values: Tensor) -> Tensor:
    """Sums a tensor over the ranks, elementwise; no gradient.

    Args:
        values: Any shape, the same on all ranks.

    Returns:
        A new tensor, equal on all ranks. Collective: one all-reduce.
    """
    return all_reduce_sum(values.detach().clone())
