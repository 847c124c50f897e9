"""What one run of the check has of the small graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

EdgeKey = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows that one of the runs has of a set of nodes or of the edges of a relation."""

    num_rows: int  # how many there are in the small graph
    ids: Tensor  # which of them this run has, in its order, int64


@dataclass(frozen=True, eq=False)
class View:
    """What one run has of the small graph: all of it, or a part."""

    rows: dict[Any, Rows]  # by set of nodes, and by relation
    handles: dict[EdgeKey, Tensor]  # the edge_index of every relation

    def key_of_size(self, size: int) -> Any:
        """Of what a tensor with so many rows has rows: a key of :meth:`rows_of`, or None."""
        loops = [('with loops', key) for key in self.handles if key[0] == key[2]]
        return next((k for k in (*self.rows, *loops) if self.rows_of(k).ids.numel() == size), None)

    def rows_of(self, key: Any) -> Rows:
        """Those of a set or relation, or of a relation's edges and then a loop for every node."""
        if key in self.rows:
            return self.rows[key]
        edges, nodes = self.rows[key[1]], self.rows[key[1][0]]
        ids = torch.cat([edges.ids, edges.num_rows + nodes.ids])
        return Rows(edges.num_rows + nodes.num_rows, ids)


def rows_of(tensor: Tensor, view: View) -> tuple[int, Any] | None:
    """The dimension that a tensor has rows in, and of what; the first that may be one."""
    for dim, size in enumerate(tensor.shape):
        key = view.key_of_size(size)
        if key is not None:
            return dim, key
    return None
