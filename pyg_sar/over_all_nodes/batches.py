"""The mean over what all ranks' batches hold, for losses of batches."""

from __future__ import annotations

from torch import Tensor

from pyg_sar.comm import in_call
from pyg_sar.over_all_nodes.reductions import global_mean
from pyg_sar.rows.rows import Rows


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
        ValueError: If `losses` are rows of the whole graph, whose ``mean()`` is over all ranks.
    """
    if isinstance(losses, Rows):
        raise ValueError(
            "expected plain numbers of a batch in 'losses' (got rows of the whole graph): "
            'losses.mean() is the mean over those of all ranks'
        )
    return global_mean(losses)
