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
def global_mean(values: Tensor) -> Tensor:
    """The mean of all numbers of own rows ``[num_own, ...]`` of all ranks; 0 if none has any.

    Collective: one all-reduce of three numbers, and one in backward.
    """
    if not values.is_floating_point():
        values = values.to(torch.get_default_dtype())
    local = values.sum(dtype=values.dtype if values.dtype == torch.float64 else torch.float32)
    # float64 counts exactly up to 2^53.
    count = local.new_full((1,), values.numel(), dtype=torch.float64)
    total, num_values = sum_with_history(torch.cat([local.double().view(1), count]))
    mean: Tensor = total / num_values.detach().clamp(min=1)
    return mean.to(values.dtype)


def sum_with_history(values: Tensor) -> Tensor:
    """Of a vector; with a history on all ranks if on any, as all have to take part in backward."""
    anchor = values.new_full((1,), float(values.requires_grad)).requires_grad_()
    total = sum_over_ranks(torch.cat([values, anchor]))
    num_histories = float(total.detach()[-1])
    check_arrived('a sum over all ranks')
    if num_histories == 0:
        total = total.detach()
    elif total.requires_grad:
        note_backward_of(total)
    return total[:-1]
