"""The two ways out: the own rows as a plain tensor, and all rows in the order of the whole."""

from __future__ import annotations

from typing import Any

from pyg_sar.comm import in_call
from pyg_sar.rows.attach import as_local
from pyg_sar.rows.over_ranks import all_rows
from pyg_sar.rows.rows import Rows, plainly


def local(x: Any) -> Any:
    """The plain tensor of this rank's own rows, on purpose; anything else as it is.

    What is computed from it is of this rank alone. Not collective.

    For the ids of the own nodes, and a count of this rank::

        ids = pyg_sar.local(data.n_id)
        print(len(ids), 'of', data.num_nodes)

    Args:
        x: Rows ``[num_total, ...]``; data of :func:`pyg_sar.load_shard`, or a store of it; tuples,
            lists and dicts of these; or any other value.

    Returns:
        ``[num_own, ...]`` in the order of the rank, with its history. Of data a copy, whose
        ``edge_index`` has numbers of the rank, a ``ShardEdgeIndex``: all edges into own nodes; own
        sources are ``0 .. num_own - 1``, those of other ranks follow. ``num_nodes_total`` is the
        number of nodes of the whole graph.

    Raises:
        Nothing.
    """
    return as_local(x)


@in_call('gather')
def gather(x: Any) -> Any:
    """All rows in the order of the whole graph, as a plain tensor on every rank.

    For what needs all rows in one place, such as NumPy, scikit-learn or a metric::

        scores = pyg_sar.gather(out).softmax(dim=-1).numpy(force=True)

    Collective: every rank calls it, one all-to-all in forward and one in backward. Every rank then
    holds all rows.

    Args:
        x: Rows ``[num_total, ...]``; a plain tensor is given back as it is.

    Returns:
        ``[num_total, ...]``, with its history.

    Raises:
        ValueError: If it is not known where the rows lie, as of numbers that a mask of several
            dimensions selects.
    """
    if not isinstance(x, Rows):
        return x
    with plainly():
        return all_rows(x)
