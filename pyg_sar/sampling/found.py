"""What a round has found: the nodes and edges of its batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyg_sar.sampling.attributes import NodeKey, Values


@dataclass(eq=False)
class Grown:
    """The nodes of one type in a round, in the order in which they were found.

    Attributes:
        keys: int64 ``[N]``; see the module.
        hops: How many nodes there were before each hop, and after the last.
        cuts: Of every hop, where each batch's nodes begin, and where the last ends: K + 1 places.
        row: Where their attributes are; see :func:`pyg_sar.sampling.attributes.take`.
        came: Rows of other ranks' attributes by name: those that are kept, and then those that
            were fetched; empty where all are own.
    """

    keys: Tensor
    hops: list[int]
    cuts: list[list[int]]
    row: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    came: list[Values] = field(default_factory=list)


@dataclass(eq=False)
class Linked:
    """The edges of one relation in a round.

    Attributes:
        src: Numbers of their sources among the nodes of the round, by hop, int64.
        dst: Those of their destinations.
        row: Where their attributes are.
        cuts: Of every hop, where each batch's edges begin, and where the last ends.
        came: Edges' attributes that came from other ranks, piece by piece.
    """

    src: list[Tensor] = field(default_factory=list)
    dst: list[Tensor] = field(default_factory=list)
    row: list[Tensor] = field(default_factory=list)
    cuts: list[list[int]] = field(default_factory=list)
    came: list[Values] = field(default_factory=list)
    num_came: int = 0


@dataclass(eq=False)
class Kept:
    """Rows of other ranks' nodes that are kept for all rounds.

    Attributes:
        position: Of their nodes, by type, ascending.
        values: Their attributes.
        of: The attributes when they were fetched; see :func:`pyg_sar.sampling.cache.is_fresh`.
        num_found: Of the rows that batches have read of other ranks, how many were here.
        num_read: How many they have read.
    """

    position: dict[NodeKey, Tensor]
    values: dict[NodeKey, Values]
    of: Any = None
    num_found: int = 0
    num_read: int = 0
