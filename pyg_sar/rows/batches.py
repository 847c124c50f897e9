"""Functions over the batches of all ranks that torch has no name for."""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_sar.comm.collectives import all_gather_alike, all_to_all
from pyg_sar.comm.errors import collective
from pyg_sar.comm.ranks import world_size
from pyg_sar.rows.over_ranks import sum_of_ranks
from pyg_sar.rows.rows import Rows


@collective('mean_of_batches', 'one sum over all ranks, and one in backward')
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
    local = losses.sum(dtype=losses.dtype if losses.dtype == torch.float64 else torch.float32)
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
