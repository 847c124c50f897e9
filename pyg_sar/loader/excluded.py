"""Edges that a batch must not have, because its links are asked for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.loader.arguments import Options
from pyg_sar.loader.attributes import ends_of
from pyg_sar.loader.choose import ranges
from pyg_sar.loader.numbering import number
from pyg_sar.shard.format import EdgeKey


def read_excluded(
    data: Data | HeteroData, key: EdgeKey, asked: Any, options: Options
) -> dict[EdgeKey, tuple[bool, ...]]:
    """Relations without edges between the ends of links: there (False), and back (True)."""
    src, dst = ends_of(key)
    if isinstance(asked, (tuple, list)) and isinstance(data, HeteroData):
        named = tuple(asked)
        if named not in data.edge_types or ends_of(named) != (dst, src):
            raise ValueError(
                f"'exclude_edges' must be a relation from '{dst}' to '{src}' of {data.edge_types} "
                f'(got {asked!r})'
            )
        return {key: (False, True)} if named == key else {key: (False,), named: (True,)}
    if asked == 'reverse':
        if src != dst:
            raise ValueError(
                f"'exclude_edges' must name the reverse of {key}, as its ends are of two types "
                "(got 'reverse')"
            )
        return {key: (False, True)}
    if type(asked) is not bool:
        raise ValueError(
            "'exclude_edges' must be False, True, 'reverse' or a relation that is the reverse "
            f'(got {asked!r})'
        )
    if asked is True and options.subgraph_type == 'bidirectional':
        raise ValueError(
            "exclude_edges=True leaves the reverse of links, which subgraph_type='bidirectional' "
            "turns round: say exclude_edges='reverse', or name the reverse relation (got True)"
        )
    return {key: (False,)} if asked else {}


class Excluded:
    """Pairs of nodes, by batches: no edge between them is in that batch.

    `pairs` are the batch, and positions of source and destination, int64 ``[M]`` each; `totals` how
    many nodes of these types there are; `batch_of_group` the batch of every group, None where
    groups are these.
    """

    def __init__(
        self, pairs: Sequence[Tensor], totals: Sequence[int], batch_of_group: Tensor | None
    ) -> None:
        batch, src, dst = pairs
        self._num_src, self._num_dst = totals
        self._batch_of_group = batch_of_group
        # Keys of batches and destinations; keys of their indices and sources. Both ascend.
        self._dst, index = number(dst[:0], batch * self._num_dst + dst)
        self._pair = torch.unique(index * self._num_src + src)

    def among(self, frontier: Any, count: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        """Which edges are between such pairs: indices of their destinations, and of the edges.

        Each of the destinations in `frontier` has `count` edges; `source` are positions, int64
        ``[E]``.
        """
        batch = frontier.group
        if not self._pair.numel():
            return batch[:0], batch[:0]
        if self._batch_of_group is not None:
            batch = self._batch_of_group[batch]
        index, is_listed = _find(self._dst, batch * self._num_dst + frontier.position)
        listed = is_listed.nonzero().view(-1)
        node = torch.repeat_interleave(listed, count[listed])
        edge = ranges((count.cumsum(0) - count)[listed], count[listed])
        _, is_pair = _find(self._pair, index[node] * self._num_src + source[edge])
        return node[is_pair], edge[is_pair]


def _find(values: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the wanted in ascending values, and whether they are there."""
    index = torch.searchsorted(values, wanted).clamp_(max=values.numel() - 1)
    return index, values[index] == wanted
