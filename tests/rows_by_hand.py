"""Rows of all ranks that tests make by hand, without a graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.ranks import rank
from pyg_sar.rows.rows import tag
from pyg_sar.rows.sharding import Sharding


def sharding_of(counts: list[int]) -> Sharding:
    """So many rows on every rank, one rank's after another's."""
    start = sum(counts[: rank()])
    ids = torch.arange(start, start + counts[rank()])
    return Sharding(ids.numel(), what='nodes', ids=ids, total=sum(counts))


def as_rows(whole: Tensor, sharding: Sharding) -> Any:
    """The own rows of a tensor that all ranks have whole."""
    return tag(whole.detach()[sharding.ids(whole.device)], 0, sharding)
