"""Means and sums over the nodes of the whole graph."""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_sar.comm import all_reduce_sum, in_call, sum_over_ranks
from pyg_sar.ddp.backward import started


@in_call('global_mean')
def global_mean(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean over all nodes of all ranks, for a loss or a metric.

    The value is equal on all ranks. Backward adds up what the ranks' losses make of it (collective:
    one all-reduce), so with the mean over the ranks that :class:`pyg_sar.DistributedDataParallel`
    takes, gradients are those of one process, whatever is computed from the value and on whichever
    ranks. A rank without a selected node takes part as well.

    Args:
        values: One value per own node (or more), floating point or bool, ``[num_own, ...]``. Values
            that the mask leaves out may be anything, also NaN.
        mask: bool ``[num_own]``, or None for all nodes.

    Returns:
        A scalar of the dtype of `values`. Collective: one all-reduce of four numbers.

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
    counted = local.new_tensor([values.numel(), error is not None], dtype=torch.float64)
    total, count, num_errors = _sum(torch.cat([local.double().view(1), counted]))
    if error is not None:
        raise error
    if num_errors > 0:
        raise ValueError(f"expected a bool 'mask' of shape {shape} (got another on some rank)")
    if count == 0:
        raise ValueError("expected at least one value selected by 'mask' on all ranks (got none)")
    mean: Tensor = total / count.detach()
    return mean.to(values.dtype)


@in_call('global_sum')
def global_sum(values: Tensor) -> Tensor:
    """Sums a tensor over the ranks, elementwise; with a gradient as :func:`global_mean` has one.

    Args:
        values: Any shape, the same on all ranks.

    Returns:
        A new tensor, equal on all ranks. Collective: one all-reduce, and one in backward.
    """
    if not values.is_floating_point():
        return all_reduce_sum(values.clone())
    return _sum(values.reshape(-1)).view(values.shape)


def _sum(values: Tensor) -> Tensor:
    """Of a vector; with a history on all ranks if on any, as all have to take part in backward."""
    anchor = values.new_tensor([values.requires_grad]).requires_grad_()
    total = sum_over_ranks(torch.cat([values, anchor]))
    if total[-1] == 0:
        total = total.detach()
    elif total.requires_grad:
        total.register_hook(_note)  # type: ignore[no-untyped-call]
    return total[:-1]


def _note(grad: Tensor) -> None:
    """The backward that runs hands gradients of all ranks' losses back."""
    started()
