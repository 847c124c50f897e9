"""Means and sums over the nodes of the whole graph."""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_sar.comm import all_reduce_sum, in_call


@in_call('global_mean')
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
        A scalar of the dtype of `values`. Collective: one all-reduce of three numbers.

    Raises:
        ValueError: If the mask is not bool or does not fit, or no rank selects a value.
    """
    error = None
    shape = tuple(values.shape[:1])
    if mask is not None:
        if mask.dtype == torch.bool and mask.shape == values.shape[:1]:
            values = values[mask]
        else:
            error = ValueError(
                f"expected a bool 'mask' of shape {shape} "
                f'(got {mask.dtype} of shape {tuple(mask.shape)})'
            )
    if not values.is_floating_point():
        values = values.to(torch.get_default_dtype())
    local = values.sum(dtype=values.dtype if values.dtype == torch.float64 else torch.float32)
    # float64 counts exactly up to 2^53; the third number tells the other ranks of an error.
    counted = [values.numel(), error is not None]
    totals = torch.stack([local.detach().double(), *local.new_tensor(counted, dtype=torch.float64)])
    all_reduce_sum(totals)
    if error is not None:
        raise error
    if totals[2] > 0:
        raise ValueError(f"expected a bool 'mask' of shape {shape} (got another on some rank)")
    if totals[1] == 0:
        raise ValueError("expected at least one value selected by 'mask' on all ranks (got none)")
    share = local.double() / totals[1]
    # The global value, with the share's gradient; the parenthesis is exactly zero.
    mean = totals[0] / totals[1] + (share - share.detach())
    return mean.to(values.dtype)


@in_call('global_sum')
def global_sum(values: Tensor) -> Tensor:
    """Sums a tensor over the ranks, elementwise; no gradient.

    Args:
        values: Any shape, the same on all ranks.

    Returns:
        A new tensor, equal on all ranks. Collective: one all-reduce.
    """
    return all_reduce_sum(values.detach().clone())
