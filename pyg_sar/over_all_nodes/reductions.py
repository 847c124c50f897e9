"""Means, sums, extrema and softmax over the nodes of all ranks, for losses, metrics and readouts.

All of them have the value of the whole graph on every rank. Backward adds up what the losses of
the ranks make of that value (collective), so with the mean over the ranks that
:class:`pyg_sar.DistributedDataParallel` takes, gradients are those of one process, whatever is
computed from the value and on whichever ranks. A rank without nodes takes part as well.

What differs between ranks, such as a mask that does not fit on one of them, is an error on all:
each begins with one small all-gather or sum that tells of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_sar.comm import (
    agree,
    all_gather_alike,
    all_reduce_sum,
    in_call,
    raise_together,
    sum_over_ranks,
)
from pyg_sar.over_all_nodes.backward import note_backward_of


@in_call('global_mean')
def global_mean(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    dim: int | None = None,
    batch: Tensor | None = None,
    size: int | None = None,
) -> Tensor:
    """The mean over the nodes of all ranks.

    ``global_mean(losses, data.train_mask)`` is the loss of the whole graph, ``global_mean(x,
    dim=0)`` is ``x.mean(dim=0)`` of the whole graph, and ``global_mean(x, batch=batch)`` is
    ``global_mean_pool(x, batch)`` where graphs are spread over the ranks.

    Args:
        values: One row per own node, floating point or bool, ``[num_own, ...]``. Rows that the mask
            leaves out may be anything, also NaN.
        mask: bool ``[num_own]``, or None for all nodes.
        dim: 0 for a mean per column; None for the mean of all numbers.
        batch: The graph of every own node, int64 ``[num_own]``: a mean per graph and column.
        size: Number of graphs; None for one more than the largest in any rank's `batch`.

    Returns:
        A scalar; ``[...]`` with `dim`; ``[size, ...]`` with `batch`, 0 for a graph without nodes.
        Collective: one all-reduce (two more small ones with `dim` or `batch`), one in backward.

    Raises:
        ValueError: On all ranks, if `mask` or `batch` does not fit on one of them, `dim` is not 0,
            or no rank selects a value.
    """
    if dim is None and batch is None:
        return _mean_of_all(values, mask)
    rows = _Rows(values, mask, dim, batch, size)
    counts = rows.counts()
    if batch is None and counts == 0:
        raise ValueError("expected at least one value selected by 'mask' on all ranks (got none)")
    return rows.sum() / counts.clamp(min=1)


@in_call('global_sum')
def global_sum(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    dim: int | None = None,
    batch: Tensor | None = None,
    size: int | None = None,
) -> Tensor:
    """The sum over the nodes of all ranks; of tensors of one shape, the sum over the ranks.

    Args:
        values: With `dim` or `batch` one row per own node ``[num_own, ...]``; without, any shape
            that is the same on all ranks, and what is summed are the ranks' tensors.
        mask: bool ``[num_own]``, with `dim` or `batch`.
        dim: See :func:`global_mean`.
        batch: See :func:`global_mean`.
        size: See :func:`global_mean`.

    Returns:
        A new tensor, equal on all ranks: ``[...]`` with `dim`, ``[size, ...]`` with `batch`, else
        of the shape of `values`. Collective as :func:`global_mean`.

    Raises:
        ValueError: On all ranks, as of :func:`global_mean`.
    """
    if dim is not None or batch is not None:
        return _Rows(values, mask, dim, batch, size).sum()
    if mask is not None:
        raise ValueError("'mask' needs dim=0 or 'batch' (got neither)")
    if not values.is_floating_point():
        return all_reduce_sum(values.clone())
    return _sum(values.reshape(-1)).view(values.shape)


@in_call('global_max')
def global_max(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    batch: Tensor | None = None,
    size: int | None = None,
) -> Tensor:
    """The largest value of every column over the nodes of all ranks: ``x.amax(dim=0)``.

    Args:
        values: ``[num_own, ...]``, floating point.
        mask: bool ``[num_own]``, or None for all nodes.
        batch: See :func:`global_mean`.
        size: See :func:`global_mean`.

    Returns:
        ``[...]``, or ``[size, ...]`` with `batch`; 0 for a graph without nodes, as PyG gives.
        Nodes with the same largest value share its gradient evenly, as ``amax`` has it. Collective:
        a few small all-reduces and all-gathers, one in backward.

    Raises:
        ValueError: On all ranks, as of :func:`global_mean`.
    """
    return _Rows(values, mask, 0, batch, size).max()


@in_call('global_min')
def global_min(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    batch: Tensor | None = None,
    size: int | None = None,
) -> Tensor:
    """The smallest value of every column over the nodes of all ranks; see :func:`global_max`."""
    return -_Rows(-values, mask, 0, batch, size).max()


@in_call('global_std')
def global_std(
    values: Tensor, mask: Tensor | None = None, *, dim: int = 0, correction: int = 1
) -> Tensor:
    """The standard deviation of every column over the nodes of all ranks: ``x.std(dim=0)``.

    ``(x - global_mean(x, dim=0)) / global_std(x)`` standardises features of the whole graph.

    Args:
        values: ``[num_own, ...]``, floating point.
        mask: bool ``[num_own]``, or None for all nodes.
        dim: 0.
        correction: What the number of nodes is lessened by, as in ``torch.std``.

    Returns:
        ``[...]``. Collective: a few small all-reduces, two in backward.

    Raises:
        ValueError: On all ranks, as of :func:`global_mean`.
    """
    rows = _Rows(values, mask, dim, None, None)
    count = rows.counts()
    centred = rows.values - rows.sum() / count
    total = rows.like(centred.square()).sum()
    return (total / (count - correction)).sqrt()


@in_call('global_softmax')
def global_softmax(
    values: Tensor, *, batch: Tensor | None = None, size: int | None = None
) -> Tensor:
    """The softmax of every column over the nodes of all ranks: ``x.softmax(dim=0)``.

    Args:
        values: ``[num_own, ...]``, floating point.
        batch: The graph of every own node: a softmax within each graph.
        size: See :func:`global_mean`.

    Returns:
        The own rows, ``[num_own, ...]``. Collective: a few small all-reduces, one in backward.

    Raises:
        ValueError: On all ranks, as of :func:`global_mean`.
    """
    rows = _Rows(values, None, 0, batch, size)
    largest = rows.like(values.detach()).max()
    powers = (values - (largest if batch is None else largest[batch])).exp()
    total = rows.like(powers).sum()
    return powers / (total if batch is None else total[batch])


class _Rows:
    """Rows of own nodes that are reduced, by graph or all together, after all ranks agree."""

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
            error = _wrong_mask(values, mask)
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
        return _sum(local.reshape(-1)).view(local.shape)

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

    def like(self, values: Tensor) -> _Rows:
        """Other values of the same rows."""
        other = object.__new__(_Rows)
        other.values, other.batch, other.size = values, self.batch, self.size
        return other

    def _local(self, values: Tensor) -> Tensor:
        if self.batch is None:
            return values.sum(dim=0)
        out = values.new_zeros((self.size or 0, *values.shape[1:]))
        return out.index_add(0, self.batch, values)


def _wrong_mask(values: Tensor, mask: Tensor) -> str:
    return (
        f"expected a bool 'mask' of shape {tuple(values.shape[:1])} "
        f'(got {mask.dtype} of shape {tuple(mask.shape)})'
    )


def _mean_of_all(values: Tensor, mask: Tensor | None) -> Tensor:
    """A scalar, by one all-reduce of four numbers."""
    error = None
    if mask is not None:
        if mask.dtype == torch.bool and mask.shape == values.shape[:1]:
            values = values[mask]
        else:
            error = ValueError(_wrong_mask(values, mask))
    if not values.is_floating_point():
        values = values.to(torch.get_default_dtype())
    local = values.sum(dtype=values.dtype if values.dtype == torch.float64 else torch.float32)
    # float64 counts exactly up to 2^53; the third number tells the other ranks of an error.
    counted = local.new_tensor([values.numel(), error is not None], dtype=torch.float64)
    total, count, num_errors = _sum(torch.cat([local.double().view(1), counted]))
    if error is not None:
        raise error
    if num_errors > 0:
        raise ValueError(
            f"expected a bool 'mask' of shape {tuple(values.shape[:1])} (got another on some rank)"
        )
    if count == 0:
        raise ValueError("expected at least one value selected by 'mask' on all ranks (got none)")
    mean: Tensor = total / count.detach()
    return mean.to(values.dtype)


def _sum(values: Tensor) -> Tensor:
    """Of a vector; with a history on all ranks if on any, as all have to take part in backward."""
    anchor = values.new_tensor([values.requires_grad]).requires_grad_()
    total = sum_over_ranks(torch.cat([values, anchor]))
    if total[-1] == 0:
        total = total.detach()
    elif total.requires_grad:
        note_backward_of(total)
    return total[:-1]
