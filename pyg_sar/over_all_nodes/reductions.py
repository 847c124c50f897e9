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

from pyg_sar.comm import all_reduce_sum, in_call
from pyg_sar.over_all_nodes.reduced_rows import Rows, sum_and_read, sum_with_history, wrong_mask


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

    For a loss and for an accuracy::

        loss = pyg_sar.global_mean(losses, data.train_mask)
        accuracy = pyg_sar.global_mean(out.argmax(dim=-1) == data.y, data.val_mask)

    Args:
        values: One row per own node, floating point or bool, ``[num_own, ...]``. Rows that the mask
            leaves out may be anything, also NaN.
        mask: bool ``[num_own]``, or None for all nodes.
        dim: 0 for a mean per column; None for the mean of all numbers.
        batch: The graph of every own node, int64 ``[num_own]``: a mean per graph and column.
        size: Number of graphs; None for one more than the largest in any rank's `batch`.

    Returns:
        A scalar; ``[...]`` with `dim`; ``[size, ...]`` with `batch`, 0 for a graph without nodes.
        0 if no rank has any rows, as the batches of a step may all be empty. If it has a history on
        any rank it has one on all, also on those without rows. Collective: one all-reduce (two more
        small ones with `dim` or `batch`), one in backward.

    Raises:
        ValueError: On all ranks, if `mask` or `batch` does not fit on one of them, `dim` is not 0,
            or there is a `mask` and no rank selects a value.
    """
    if dim is None and batch is None:
        return _mean_of_all(values, mask)
    rows = Rows(values, mask, dim, batch, size)
    counts = rows.counts()
    if batch is None and mask is not None and counts == 0:
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

    For the number of labelled nodes, and the nodes of every class::

        num_labelled = pyg_sar.global_sum(data.train_mask.sum())
        counts = pyg_sar.global_sum(torch.bincount(data.y, minlength=3))

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
        return Rows(values, mask, dim, batch, size).sum()
    if mask is not None:
        raise ValueError("'mask' needs dim=0 or 'batch' (got neither)")
    if not values.is_floating_point():
        return all_reduce_sum(values.clone())
    return sum_with_history(values.reshape(-1)).view(values.shape)


@in_call('global_max')
def global_max(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    batch: Tensor | None = None,
    size: int | None = None,
) -> Tensor:
    """The largest value of every column over the nodes of all ranks: ``x.amax(dim=0)``.

    To scale every column of the features::

        x = data.x / pyg_sar.global_max(data.x.abs()).clamp(min=1e-6)

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
    return Rows(values, mask, 0, batch, size).max()


@in_call('global_min')
def global_min(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    batch: Tensor | None = None,
    size: int | None = None,
) -> Tensor:
    """The smallest value of every column over the nodes of all ranks: ``x.amin(dim=0)``.

    For the range of every column::

        low, high = pyg_sar.global_min(data.x), pyg_sar.global_max(data.x)

    Args:
        values: ``[num_own, ...]``, floating point.
        mask: bool ``[num_own]``, or None for all nodes.
        batch: See :func:`global_mean`.
        size: See :func:`global_mean`.

    Returns:
        ``[...]``, or ``[size, ...]`` with `batch`. Collective, as :func:`global_max`.

    Raises:
        ValueError: On all ranks, as of :func:`global_mean`.
    """
    return -Rows(-values, mask, 0, batch, size).max()


@in_call('global_std')
def global_std(
    values: Tensor, mask: Tensor | None = None, *, dim: int = 0, correction: int = 1
) -> Tensor:
    """The standard deviation of every column over the nodes of all ranks: ``x.std(dim=0)``.

    To standardise features of the whole graph::

        x = (data.x - pyg_sar.global_mean(data.x, dim=0)) / pyg_sar.global_std(data.x)

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
    rows = Rows(values, mask, dim, None, None)
    count = rows.counts()
    centred = rows.values - rows.sum() / count
    total = rows.like(centred.square()).sum()
    return (total / (count - correction)).sqrt()


@in_call('global_softmax')
def global_softmax(
    values: Tensor, *, batch: Tensor | None = None, size: int | None = None
) -> Tensor:
    """The softmax of every column over the nodes of all ranks: ``x.softmax(dim=0)``.

    For a readout that attends to nodes::

        weights = pyg_sar.global_softmax(out.sum(dim=-1, keepdim=True))
        readout = pyg_sar.global_sum(weights * out, dim=0)

    Args:
        values: ``[num_own, ...]``, floating point.
        batch: The graph of every own node: a softmax within each graph.
        size: See :func:`global_mean`.

    Returns:
        The own rows, ``[num_own, ...]``. Collective: a few small all-reduces, one in backward.

    Raises:
        ValueError: On all ranks, as of :func:`global_mean`.
    """
    rows = Rows(values, None, 0, batch, size)
    largest = rows.like(values.detach()).max()
    powers = (values - (largest if batch is None else largest[batch])).exp()
    total = rows.like(powers).sum()
    return powers / (total if batch is None else total[batch])


def _mean_of_all(values: Tensor, mask: Tensor | None) -> Tensor:
    """A scalar, by one all-reduce of five numbers."""
    error: Exception | None = None
    count: Tensor | int = values.numel()
    if mask is not None:
        if mask.dtype == torch.bool and mask.shape == values.shape[:1]:
            values, count = _selected(values, mask)
        else:
            error = ValueError(wrong_mask(values, mask))
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
