"""Rows of all ranks that tests make by hand, without a graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.ranks import rank
from pyg_sar.rows.rows import tag
from pyg_sar.rows.sharding import Space


def space_of(counts: list[int]) -> Space:
    """So many rows on every rank, one rank's after another's."""
    start = sum(counts[: rank()])
    ids = torch.arange(start, start + counts[rank()])
    return Space(ids.numel(), what='nodes', ids=ids, total=sum(counts))


def as_rows(whole: Tensor, space: Space) -> Any:
    """The own rows of a tensor that all ranks have whole."""
    return tag(whole.detach()[space.ids(whole.device)], 0, space)
