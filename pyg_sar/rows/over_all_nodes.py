"""Functions over the nodes of all ranks, by name: what torch's own give of rows, and more."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch_geometric.utils import scatter, softmax

from pyg_sar import over_all_nodes as own
from pyg_sar.comm import all_gather_alike, all_to_all, in_call, world_size
from pyg_sar.ground.nested import leaves
from pyg_sar.rows.attach import as_local
from pyg_sar.rows.rows import Rows, tag
from pyg_sar.rows.space import Space, rows_of_ranks

Function = TypeVar('Function', bound=Callable[..., Any])


@in_call('global_mean')
def global_mean(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    dim: int | None = None,
    batch: Tensor | None = None,
    size: int | None = None,
) -> Tensor:
    """The mean over the nodes of all ranks: ``values[mask].mean(dim)``.

    For a loss and for an accuracy::

        loss = pyg_sar.global_mean(losses, data.train_mask)
        accuracy = pyg_sar.global_mean(out.argmax(dim=-1) == data.y, data.val_mask)

    Args:
        values: Rows ``[num_nodes, ...]``; numbers of another kind than floating point, such as
            bool, are converted.
        mask: bool ``[num_nodes]``, or None for all nodes.
        dim: 0 for a mean per column; None for the mean of all numbers.
        batch: The graph of every node, int64 ``[num_nodes]``: a mean per graph and column.
        size: Number of graphs; None for one more than the largest in `batch`.

    Returns:
        A plain tensor, equal on all ranks: a scalar; ``[...]`` with `dim`; ``[size, ...]`` with
        `batch`, 0 for a graph without nodes. Collective.

    Raises:
        ValueError: If `values` are a plain tensor, and there are other ranks; if they are a number.
    """
    x, batch = _chosen('global_mean', values, mask, batch)
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    if batch is not None:
        return scatter(x, batch, 0, size, 'mean')
    return x.mean() if dim is None else x.mean(dim)


@in_call('global_sum')
def global_sum(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    dim: int | None = None,
    batch: Tensor | None = None,
    size: int | None = None,
) -> Tensor:
    """The sum over the nodes of all ranks: ``values[mask].sum(dim)``.

    Arguments, results ``[...]`` and errors are those of :func:`global_mean`. Collective. For the
    number of labelled nodes::

        num_labelled = pyg_sar.global_sum(data.train_mask)

    Raises:
        ValueError: See :func:`global_mean`.
    """
    x, batch = _chosen('global_sum', values, mask, batch)
    if batch is not None:
        return scatter(x, batch, 0, size, 'sum')
    return x.sum() if dim is None else x.sum(dim)


@in_call('global_max')
def global_max(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    batch: Tensor | None = None,
    size: int | None = None,
) -> Tensor:
    """The largest value of every column over the nodes of all ranks: ``values[mask].amax(0)``.

    Arguments and errors are those of :func:`global_mean`. The result is ``[...]``, or
    ``[size, ...]`` with `batch`; 0 for a graph without nodes, as PyG gives. Collective. To scale
    every column of the features::

        x = data.x / pyg_sar.global_max(data.x.abs()).clamp(min=1e-6)

    Raises:
        ValueError: See :func:`global_mean`.
    """
    x, batch = _chosen('global_max', values, mask, batch)
    return x.amax(0) if batch is None else scatter(x, batch, 0, size, 'max')


@in_call('global_min')
def global_min(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    batch: Tensor | None = None,
    size: int | None = None,
) -> Tensor:
    """The smallest value of every column over the nodes of all ranks: ``values[mask].amin(0)``.

    Arguments, results ``[...]`` and errors are those of :func:`global_max`. Collective. For the
    range of every column::

        low, high = pyg_sar.global_min(data.x), pyg_sar.global_max(data.x)

    Raises:
        ValueError: See :func:`global_mean`.
    """
    x, batch = _chosen('global_min', values, mask, batch)
    return x.amin(0) if batch is None else scatter(x, batch, 0, size, 'min')


@in_call('global_std')
def global_std(
    values: Tensor, mask: Tensor | None = None, *, dim: int = 0, correction: int = 1
) -> Tensor:
    """The standard deviation of every column over the nodes of all ranks: ``values[mask].std(0)``.

    Gives ``[...]``, equal on all ranks; `correction` is that of ``torch.std``. Collective. To
    standardise features of the whole graph::

        x = (data.x - pyg_sar.global_mean(data.x, dim=0)) / pyg_sar.global_std(data.x)

    Raises:
        ValueError: See :func:`global_mean`.
    """
    return _chosen('global_std', values, mask)[0].std(dim, correction=correction)


@in_call('global_softmax')
def global_softmax(
    values: Tensor, *, batch: Tensor | None = None, size: int | None = None
) -> Tensor:
    """The softmax of every column over the nodes of all ranks: ``values.softmax(0)``.

    Gives rows ``[num_nodes, ...]``; with `batch`, the graph of every node, a softmax within each
    graph. Collective. For a readout that attends to nodes::

        weights = pyg_sar.global_softmax(out.sum(dim=-1, keepdim=True))
        readout = pyg_sar.global_sum(weights * out, dim=0)

    Raises:
        ValueError: See :func:`global_mean`.
    """
    x, batch = _chosen('global_softmax', values, None, batch)
    return x.softmax(0) if batch is None else softmax(x, batch, num_nodes=size)


@in_call('mean_of_batches')
def mean_of_batches(losses: Tensor) -> Tensor:
    """The mean over the rows of all ranks' batches, equal on all ranks.

    A rank's own mean would weigh its rows by how many other rows its batch has. Batches may be of
    unequal size, or empty on some ranks. Gradients are those of one process with all rows::

        out, y = torch.randn(6, 3, requires_grad=True), torch.arange(6) % 3  # of a rank's batch
        losses = F.cross_entropy(out, y, reduction='none')
        loss = pyg_sar.mean_of_batches(losses)

    Collective: one sum over all ranks, and one in backward.

    Args:
        losses: A number or more for every row of this rank's batch, ``[num_rows, ...]``; also of
            own rows, as :func:`pyg_sar.local` and :func:`pyg_sar.restrict` give them. Numbers that
            are not floating point, such as ``out.argmax(dim=-1) == y``, are counted.

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
    return own.global_mean(losses)


@in_call('gather_batches')
def gather_batches(values: Tensor) -> Tensor:
    """The rows of all ranks' batches, one rank after another, on every rank.

    For a metric of all of them, such as scikit-learn's ``roc_auc_score``::

        scores, labels = torch.rand(6), torch.arange(6) % 2  # of all batches of this rank
        scores, labels = pyg_sar.gather_batches(scores), pyg_sar.gather_batches(labels)

    Collective: two exchanges with all ranks.

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


def _chosen(
    name: str, values: Any, mask: Tensor | None, batch: Tensor | None = None
) -> tuple[Any, Any]:
    """The rows that a mask selects, and their graphs."""
    is_whole = isinstance(values, Tensor) and values.dim() > 0 and world_size() == 1
    if not isinstance(values, Rows) and not is_whole:
        kind = 'a plain tensor' if isinstance(values, Tensor) else f'a {type(values).__name__}'
        if isinstance(values, (int, float)) or (isinstance(values, Tensor) and not values.dim()):
            raise ValueError(
                f"'{name}' takes a value of every row (got one number, which has no rows): a loss "
                "with reduction='none' gives them; one number of load_shard's rows is that of all "
                'ranks already'
            )
        raise ValueError(
            f"'{name}' takes rows of load_shard's data (got {kind}): a plain tensor is equal on "
            'all ranks, so it is the whole already'
        )
    if mask is None:
        return values, batch
    return values[mask], None if batch is None else batch[mask]


def _of_rows(function: Function, as_rows: Callable[[Any, list[Rows]], Any]) -> Function:
    """A function of plain own rows that takes rows as well, and what is rows then."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = [each for each in leaves((args, kwargs)) if isinstance(each, Rows)]
        out = function(*as_local(args), **as_local(kwargs))
        return as_rows(out, given) if given else out

    return call  # type: ignore[return-value]


def _like(out: Tensor, rows: Rows) -> Any:
    return tag(out, rows._dim, rows._space)


def _negative_edges(own: int) -> Space:
    return Space(own, what='negative edges', total=rows_of_ranks(own))


negative_sampling = _of_rows(
    own.negative_sampling,
    lambda out, given: tag(out, 1, _negative_edges(out.size(1))),
)
permute_rows = _of_rows(
    own.permute_rows, lambda out, given: _like(out, given[0]) if len(given) > 1 else out
)
rows = _of_rows(  # with ids that are rows
    own.rows, lambda out, given: _like(out, given[1]) if len(given) > 2 else out
)
