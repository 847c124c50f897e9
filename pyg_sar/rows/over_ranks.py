"""Extrema over the rows of all ranks, rows by their place in the whole, all rows in one place."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.collectives import all_gather_alike, all_to_all
from pyg_sar.comm.errors import collective, warn
from pyg_sar.comm.ranks import check_lives, world_size
from pyg_sar.comm.rows_by_id import rows as rows_by_id
from pyg_sar.rows.one_loss import has_fractions, of_batches, read_alone, sum_of_ranks
from pyg_sar.rows.registry import name_of
from pyg_sar.rows.rows import Rows, plain, plainly, refuse
from pyg_sar.rows.slices import remember
from pyg_sar.utils.log import bytes_text
from pyg_sar.utils.nested import in_nested, leaves
from pyg_sar.utils.tensor_state import storage_of

_MANY = 2**28


def largest_of_ranks(
    values: Tensor, dims: list[int], *, keepdim: bool, least: bool, nan_is_top: bool = False
) -> Tensor:
    """The largest numbers along dimensions, or the least; equal ones share a gradient evenly.

    So do all NaN with `nan_is_top`, as in torch's ``max()``; else they have 0 / 0, as in ``amax``.
    Collective: an all-gather; with a gradient two sums.
    """
    part = largest_here(values.detach(), dims, least=least)
    top = part
    if world_size() > 1:
        of_ranks = all_gather_alike(part.long() if part.dtype == torch.bool else part)
        top = (of_ranks.amin(0) if least else of_ranks.amax(0)).to(part.dtype)
    if values.is_floating_point() and torch.is_grad_enabled():
        is_top = values.detach() == top
        if nan_is_top:
            is_top |= values.detach().isnan() & top.isnan()
        share = sum_of_ranks(is_top.sum(dims, keepdim=True))
        ties = zeros_of(values) * is_top
        total = sum_of_ranks(ties.sum(dims, keepdim=True)) / share
        if total.requires_grad:
            top = top + total
    return top if keepdim else top.squeeze(dims)


def zeros_of(values: Tensor) -> Tensor:
    """Zeros that pass a gradient on as it is, also where the numbers are infinite."""
    out: Tensor = _Zeros.apply(values)
    return out


class _Zeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return torch.zeros_like(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def largest_here(values: Tensor, dims: list[int], *, least: bool) -> Tensor:
    """The largest or least own number, dimensions kept; of none the worst that the type has."""
    if values.numel():
        return values.amin(dims, keepdim=True) if least else values.amax(dims, keepdim=True)
    shape = [1 if i in dims else size for i, size in enumerate(values.shape)]
    if values.dtype == torch.bool:
        return torch.full(shape, least, device=values.device)
    if values.is_floating_point():
        worst: float = math.inf if least else -math.inf
    else:
        limits = torch.iinfo(values.dtype)
        worst = limits.max if least else limits.min
    return values.new_full(shape, worst)


def fetched(rows: Rows, ids: Tensor, *, are_rows: bool = False) -> Tensor:
    """Rows by their place in the whole; `ids` may differ from rank to rank.

    From int64 of any shape to ``[*ids.shape, ...]`` (collective, see
    :func:`pyg_sar.comm.rows_by_id.rows`). `are_rows` says that the result is made rows again;
    else a rank reads it by itself.
    """
    check_lives(rows._sharding.comm)
    rows = getattr(rows, 'whole_ids', rows)  # of edges the ids of the whole
    sharding = rows._sharding
    if not sharding.has_ids():
        refuse('indexing', f'by numbers is not known where the rows lie ({sharding!r})')
    with plainly():
        x = plain(rows).movedim(rows._dim, 0)
        ids = torch.where(ids < 0, ids + sharding.total, ids)
        if world_size() == 1:
            places = sharding.local_index(ids)
            missing = ids[places < 0]
            if missing.numel():
                size = f'dimension 0 with size {sharding.total}'
                raise IndexError(f'index {int(missing[0])} is out of bounds for {size}')
            return x[places]
        if not has_fractions(x):
            x = x.detach()
        return rows_by_id(x if are_rows else read_alone(x), ids, sharding.ids(x.device))


def all_rows(rows: Rows) -> Tensor:
    """All rows in the order of the whole, on every rank (collective)."""
    if rows._sharding.is_whole:  # edges: all else is plain
        return plain(rows)
    everything = torch.arange(rows._sharding.total, device=rows.device)
    return fetched(rows, everything).movedim(0, rows._dim).contiguous()


def whole(value: Any) -> Any:
    """All rows as a plain tensor on every rank; any other value as it is."""
    return all_rows(value) if isinstance(value, Rows) else value


def on_all_rows(func: Any, *args: Any, **kwargs: Any) -> Any:
    """What a function gives of all rows, which every rank gathers: plain, equal on all ranks."""
    with plainly():
        gathered: list[tuple[Rows, Tensor]] = []

        def gather(value: Any) -> Any:
            everything = in_one_place(func, value)
            if everything is not value:
                gathered.append((value, everything))
            return everything

        args, kwargs = in_nested((args, kwargs), gather)
        result = func(*args, **kwargs)
        found = {storage_of(each) for each in leaves(result) if isinstance(each, Tensor)}
        for rows, everything in gathered:
            if storage_of(everything) in found:  # torch gives views
                remember(everything, rows, None)
        return result


def in_one_place(func: Any, value: Any) -> Any:
    """All rows for a function that needs them so; warns if these are many (collective)."""
    if not isinstance(value, Rows):
        return value
    with plainly():
        others = [size for dim, size in enumerate(value.shape) if dim != value._dim]
        num_bytes = math.prod(others) * value._sharding.total * value.element_size()
        if num_bytes > _MANY:
            warn(f"'{name_of(func)}' gathers all rows, {bytes_text(num_bytes)}, on every rank")
        return all_rows(value)


@collective('mean_of_batches', 'one sum over all ranks')
def mean_of_batches(losses: Tensor) -> Tensor:
    """The mean over the rows of all ranks' batches, equal on all ranks.

    A rank's own mean would weigh its rows by how many other rows its batch has. Batches may be of
    unequal size, or empty on some ranks. Gradients are those of one process with all rows::

        out, y = torch.randn(6, 3, requires_grad=True), torch.arange(6) % 3  # of a rank's batch
        losses = F.cross_entropy(out, y, reduction='none')
        loss = pyg_sar.loader.mean_of_batches(losses)

    Args:
        losses: A number or more for every row of this rank's batch, ``[num_rows, ...]``. Numbers
            that are not floating point, such as ``out.argmax(dim=-1) == y``, are counted.

    Returns:
        One number, ``[]``; 0 if no rank has any rows.

    Raises:
        ValueError: If `losses` are rows of the whole graph, whose ``mean()`` is over all ranks, or
            one number, which has no rows.
    """
    if isinstance(losses, Rows):
        raise ValueError(
            "expected plain numbers of a batch in 'losses' (got rows of the whole graph): "
            'losses.mean() is the mean over those of all ranks'
        )
    if not losses.dim():
        raise ValueError(
            "'mean_of_batches' takes a number for every row of a batch (got one number): a loss "
            "with reduction='none' gives them"
        )
    if not losses.is_floating_point():
        losses = losses.to(torch.get_default_dtype())
    local = of_batches(losses).sum(
        dtype=losses.dtype if losses.dtype == torch.float64 else torch.float32
    )
    # float64 counts exactly up to 2^53.
    total, count = sum_of_ranks(
        torch.stack([local.double(), local.new_tensor(losses.numel()).double()])
    )
    mean: Tensor = total / count.detach().clamp(min=1)
    return mean.to(losses.dtype)


@collective('gather_batches', 'two exchanges with all ranks')
def gather_batches(values: Tensor) -> Tensor:
    """The rows of all ranks' batches, one rank after another, on every rank.

    For a metric of all of them, such as scikit-learn's ``roc_auc_score``::

        scores, labels = torch.rand(6), torch.arange(6) % 2  # of all batches of this rank
        scores = pyg_sar.loader.gather_batches(scores)
        labels = pyg_sar.loader.gather_batches(labels)

    Args:
        values: ``[num_rows, ...]``; ranks may have unequal numbers of rows, or none.

    Returns:
        ``[num_rows of all ranks, ...]``, without history.

    Raises:
        ValueError: If `values` are rows of the whole graph, which :func:`pyg_sar.gather` takes, or
            one number, which has no rows.
    """
    if isinstance(values, Rows):
        raise ValueError(
            "'gather_batches' takes plain tensors of batches (got rows of the whole graph): "
            'pyg_sar.gather(x) gives all rows of these'
        )
    if not values.dim():
        raise ValueError(
            "'gather_batches' takes a number for every row of a batch (got one number): "
            'torch.cat(batches) joins those of a rank'
        )
    values, num_ranks = values.detach(), world_size()
    counts = all_gather_alike(torch.tensor(values.size(0))).tolist()
    sent = values.expand(num_ranks, *values.shape).flatten(0, 1)
    return all_to_all(sent, [values.size(0)] * num_ranks, counts)
