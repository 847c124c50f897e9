"""The exchanges of one forward: one for each shard among the arguments of a conv."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from pyg_sar.comm import Exchange
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.shard import Shard


class Exchanges:
    """The exchange of every shard that a forward meets.

    Args:
        shards: The shards of the conv's arguments.
        depth: The prefetch depth.

    Raises:
        ValueError: If a shard is not this rank's.
    """

    def __init__(self, shards: list[Shard], depth: int) -> None:
        self.shards = shards
        self.depth = depth
        self._exchanges = {id(shard): Exchange(shard, depth=depth) for shard in shards}

    def of(self, edge_index: Tensor) -> Exchange:
        """The exchange of an edge_index.

        Raises:
            ValueError: If it carries no shard, and the conv was given several.
        """
        if isinstance(edge_index, ShardEdgeIndex):
            shard = edge_index.shard
            if id(shard) not in self._exchanges:
                self._exchanges[id(shard)] = Exchange(shard, depth=self.depth)
            return self._exchanges[id(shard)]
        if len(self.shards) > 1:
            raise ValueError(
                'expected an edge_index of one of the shards (got a plain tensor, in a conv that '
                f'was given edge indices of {len(self.shards)} shards)'
            )
        return self._exchanges[id(self.shards[0])]


def find_shards(values: Iterable[Any]) -> list[Shard]:
    """The shards of the handles among a conv's arguments, in lists and dicts too.

    Raises:
        ValueError: If they belong to different partitions.
    """
    found: dict[int, Shard] = {}
    for value in values:
        if isinstance(value, ShardEdgeIndex):
            found[id(value.shard)] = value.shard
        elif isinstance(value, (list, tuple)):
            found |= {id(shard): shard for shard in find_shards(value)}
        elif isinstance(value, Mapping):
            found |= {id(shard): shard for shard in find_shards(value.values())}
    shards = list(found.values())
    for shard in shards[1:]:
        if shard.partition != shards[0].partition:
            raise ValueError(
                f"expected edge indices of one partition (got of '{shards[0].root}' and "
                f"'{shard.root}')"
            )
    return shards
