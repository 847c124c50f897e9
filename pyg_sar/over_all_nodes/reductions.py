"""Means and sums of plain own rows with those of all ranks, for losses made inside of this library.

They have the value of the whole graph on every rank. Backward adds up what the losses of the ranks
make of it (collective). What differs between ranks, such as a mask that does not fit on one of
them, is an error on all. Users have functions of rows (:mod:`pyg_sar.rows.over_all_nodes`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_sar.comm import all_reduce_sum, check_arrived, in_call, sum_over_ranks
from pyg_sar.comm.end_of_backward import note_backward_of


@in_call('global_sum')
def global_sum(values: Tensor, *, dim: int | None = None) -> Tensor:
    """The sum of the ranks' tensors of one shape, with ``dim=0`` of their rows (collective)."""
    if dim is not None:
        values = values.sum(dim)
    if not values.is_floating_point():
        return all_reduce_sum(values.clone())
    return sum_with_history(values.reshape(-1)).view(values.shape)


@in_call('global_mean')
def global_mean(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean of all numbers of own rows ``[num_own, ...]`` of all ranks, or of selected rows.

    Collective: one all-reduce of five numbers, and one in backward. 0 if no rank has any rows.

    Raises:
        ValueError: On all ranks, if `mask` is no bool ``[num_own]`` on one of them, or selects
            nothing on all.
    """
    error: Exception | None = None
    count: Tensor | int = values.numel()
    if mask is not None:
        if mask.dtype == torch.bool and mask.shape == values.shape[:1]:
            values, count = _selected(values, mask)
        else:
            error = ValueError(
                f"expected a bool 'mask' of shape {tuple(values.shape[:1])} "
                f'(got {mask.dtype} of shape {tuple(mask.shape)})'
            )
    if not values.is_floating_point():
        values = values.to(torch.get_default_dtype())
    local = values.sum(dtype=values.dtype if values.dtype == torch.float64 else torch.float32)
    # float64 counts exactly up to 2^53; the other ranks are told of an error, and of a mask.
    told: list[Tensor | float] = [local, count, error is not None, mask is not None]
    sums, read = sum_and_read(torch.cat([_as_double(n, local) for n in told]), 3)
    num_values, num_errors, num_masks = read
    if error is not None:
        raise error
    if num_errors > 0:
        raise ValueError(
            f"expected a bool 'mask' of shape {tuple(values.shape[:1])} (got another on some rank)"
        )
    if num_values == 0 and num_masks > 0:
        raise ValueError("expected at least one value selected by 'mask' on all ranks (got none)")
    mean: Tensor = sums[0] / sums[1].detach().clamp(min=1)
    return mean.to(values.dtype)


def _selected(values: Tensor, mask: Tensor) -> tuple[Tensor, int | Tensor]:
    """Rows of which only the selected count, and how many numbers those hold."""
    if values.device.type == 'cpu':
        values = values[mask]
        return values, values.numel()
    # A device would be waited for to know how many rows there are.
    mask = mask.to(values.device)  # it may be on the host, like any index
    is_selected = mask.view(-1, *[1] * (values.dim() - 1))
    return torch.where(is_selected, values, 0), mask.sum() * values[:1].numel()


def _as_double(number: Tensor | float, like: Tensor) -> Tensor:
    if isinstance(number, Tensor):
        return number.double().view(1)
    return like.new_full((1,), number, dtype=torch.float64)


def sum_with_history(values: Tensor) -> Tensor:
    """The sum of a vector over the ranks; with a history on all ranks if it has one on any."""
    return sum_and_read(values, 0)[0]


def sum_and_read(values: Tensor, num_read: int) -> tuple[Tensor, list[float]]:
    """A sum of vectors over the ranks, and its last numbers, for which a device is waited once."""
    anchor = values.new_full((1,), float(values.requires_grad)).requires_grad_()
    total = sum_over_ranks(torch.cat([values, anchor]))
    *read, histories = total.detach()[values.numel() - num_read :].tolist()
    check_arrived('a sum over all ranks')
    if histories == 0:
        total = total.detach()
    elif total.requires_grad:
        note_backward_of(total)
    return total[:-1], read
