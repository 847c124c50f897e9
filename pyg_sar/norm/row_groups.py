"""Groups of rows, whichever ranks own them, and their means.

One differentiable sum over the ranks is enough: a norm written with it is ordinary autograd code,
and reads like the norm of one process. The losses of all ranks depend on the sum, so its adjoint is
the sum of the ranks' gradients. Of a batch of this rank the sum is that of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyg_sar.comm import agree, all_reduce_sum, check_equal, sum_over_ranks


@dataclass(frozen=True)
class Groups:
    """The groups that the rows of all ranks fall into."""

    index: Tensor | None  # the group of every own row, ``[num_own]``, or None if there is one group
    count: Tensor  # the number of rows of every group on all ranks, int64 ``[num_groups]``
    is_of_batch: bool = False  # whether they are this rank's alone; nothing here is collective then

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every group, ``[num_groups, ...]``, in float32 or float64 (collective)."""
        dtype = x.dtype if x.dtype == torch.float64 else torch.float32
        if self.index is None:
            sums = x.sum(0, keepdim=True, dtype=dtype)
        else:
            sums = x.new_zeros((self.count.numel(), *x.shape[1:]), dtype=dtype)
            sums = sums.index_add(0, self.index, x.to(dtype))
        return sums if self.is_of_batch else sum_over_ranks(sums)

    def mean(self, x: Tensor) -> Tensor:
        """The mean of every group's rows, in the dtype of `x`; zero of no rows (collective)."""
        sums = self.sum(x)
        count = self.count.clamp(min=1).view(-1, *[1] * (x.dim() - 1))
        return (sums / count).to(x.dtype)

    def centered(self, x: Tensor) -> Tensor:
        """Own rows less the mean of their group (collective)."""
        return x - self.of_rows(self.mean(x))

    def of_rows(self, values: Tensor) -> Tensor:
        """The values of every row's group, ``[num_own, ...]`` (or ``[1, ...]``, to broadcast)."""
        return values if self.index is None else values.index_select(0, self.index)


def groups_of(
    x: Tensor,
    index: Tensor | None = None,
    num_groups: int | None = None,
    *,
    is_of_batch: bool = False,
) -> Groups:
    """The groups of all ranks' rows (collective: an all-reduce; with `index` also an all-gather).

    Args:
        x: Own rows, ``[num_own, ...]``.
        index: The group of every own row, integer ``[num_own]``; None puts all rows into one.
        num_groups: The same on all ranks; None takes the largest group that any rank has, plus one.
        is_of_batch: Whether the groups are those of this rank's rows alone; not collective then.

    Raises ValueError on every rank, if `index` or `num_groups` does not fit on any.
    """
    if x.dim() < 2:
        raise ValueError(f"expected 'x' of shape [num_own, num_features] (got {tuple(x.shape)})")
    if index is None:
        count = torch.full((1,), x.size(0), device=x.device)  # no copy that waits
    else:
        num_groups = _agree_on_groups(x, index, num_groups, is_of_batch=is_of_batch)
        count = torch.bincount(index, minlength=num_groups)
    return Groups(index, count if is_of_batch else all_reduce_sum(count), is_of_batch)


def _agree_on_groups(x: Tensor, index: Tensor, num_groups: int | None, *, is_of_batch: bool) -> int:
    error, needed = None, 0
    if index.shape != x.shape[:1] or index.dtype not in (torch.int64, torch.int32):
        error = (
            f'expected a group (a graph or a type) for every row: integers of shape '
            f'{tuple(x.shape[:1])} (got {index.dtype} of shape {tuple(index.shape)})'
        )
    elif index.numel():
        low, high = (int(value) for value in index.aminmax())
        needed = high + 1
        if low < 0 or (num_groups is not None and needed > num_groups):
            most = '' if num_groups is None else f' and below {num_groups}'
            error = f'expected groups (graphs or types) from 0{most} (got {low} to {high})'
    answers = [(num_groups, needed, error)]
    if not is_of_batch:
        answers = agree(answers[0])
    if error is not None:
        raise ValueError(error)
    for rank, (_, _, other) in enumerate(answers):
        if other is not None:
            raise ValueError(f'rank {rank}: {other}')
    check_equal('number of groups', num_groups, [given for given, _, _ in answers])
    return max(n for _, n, _ in answers) if num_groups is None else num_groups
