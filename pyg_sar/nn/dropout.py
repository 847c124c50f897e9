"""One dropout: its mask as a function of a state and of the ids of the rows.

A mask is drawn again in backward and not kept: that is cheaper than torch's draws on a CPU.

Convs add self loops, so stored ids do not reach all edges. An edge is named by its ends and by its
number among the edges between them: neither a partition nor a selection changes their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyg_sar.comm.exchange import with_halo_ids
from pyg_sar.shard.edges import ShardEdges
from pyg_sar.shard.shard import Shard
from pyg_sar.utils.rng import LANES, hashed, hashed_on, kept_of

_DROPOUTS = {F.dropout, torch.dropout, torch.dropout_}
"""The functions whose masks are drawn by id."""

_HASHES = 2**15
"""Hashes of one step and thread: so few that their results stay in the cache of a core."""


def factors(p: float, state: Tensor, ids: Tensor, like: Tensor) -> Tensor:
    """Factors of a dropout of rows ``[num_rows, ...]`` like these, which have `ids`.

    They are 0, or the reciprocal of the share that is kept. The share `p` that is dropped is
    rounded to a multiple of ``2^-16``. `state` comes from :func:`pyg_sar.utils.rng.hashed_on`.
    """
    width = prod(like.shape[1:])
    kept = torch.empty(like.size(0), width, dtype=torch.bool, device=like.device)
    groups = torch.arange(-(-width // LANES), device=like.device)
    hashes = _HASHES * torch.get_num_threads() if like.device.type == 'cpu' else 2**30
    step = max(hashes // max(groups.numel(), 1), 1)
    for start in range(0, like.size(0) if width else 0, step):
        some = ids[start : start + step].unsqueeze(1)
        kept[start : start + step] = kept_of(hashed_on(state, some, groups), p, width)
    share = round(p * 2**16) / 2**16
    return kept.view(like.shape).to(like.dtype).mul_(0.0 if share == 1 else 1 / (1 - share))


class Dropout(torch.autograd.Function):
    """A dropout that keeps how its :func:`factors` are drawn and not the factors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, draw: Callable[[Tensor], Tensor]) -> Tensor:
        """The rows after dropout."""
        ctx.draw = draw
        return x * draw(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The gradient through the same mask."""
        return grads[0] * ctx.draw(grads[0]), None


def _arguments(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    train: bool | None = None,  # torch.dropout's name for it
) -> tuple[Tensor, float, bool, bool]:
    return input, p, training if train is None else train, inplace


class Drops(TorchFunctionMode):
    """While it lasts, :meth:`drop` draws the masks of dropouts."""

    def drop(self, x: Tensor, p: float, inplace: bool) -> Any:
        """The result of a dropout that drops something."""
        raise NotImplementedError

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _DROPOUTS:
            return func(*args, **kwargs)
        x, p, training, inplace = _arguments(*args, **kwargs)
        if not 0 <= p <= 1:  # as torch says it
            raise ValueError(f'dropout probability has to be between 0 and 1, but got {p}')
        return self.drop(x, p, inplace or func is torch.dropout_) if training and p > 0 else x


class EdgeDraws(Drops):
    """The dropouts in a message function, the same whichever edges it runs on.

    The masks of a call of message passing are drawn from its `state`; None is that of a run on
    samples, which drops nothing. `has_drawn` says whether there were any.
    """

    def __init__(self, state: Tensor | None = None) -> None:
        super().__init__()
        self._state, self.has_drawn = state, False

    @contextmanager
    def of(self, ids: Tensor | None, *, in_aggregation: bool = False) -> Iterator[None]:
        """While it lasts, dropouts drop rows of edges with these ids, int64 ``[num_edges]``.

        `in_aggregation` they are refused.
        """
        self._ids, self._in_aggregation, self._number = ids, in_aggregation, 0
        with self:
            yield

    def drop(self, x: Tensor, p: float, inplace: bool) -> Any:  # noqa: D102
        if self._in_aggregation:
            raise ValueError(
                "'dropout_seed' takes no dropout inside an aggregation (got one of shape "
                f'{tuple(x.shape)}): drop messages, or what the conv returns'
            )
        self.has_drawn = True
        if self._state is None:
            factor = torch.ones_like(x)
        elif self._ids is None:
            raise ValueError(
                f"'dropout_seed' needs ids for a dropout of {tuple(x.shape)} in a message (got "
                'none): a message drops in all of its calls, or in none'
            )
        elif x.dim() == 0 or x.size(0) != self._ids.numel():
            raise ValueError(
                "'dropout_seed' takes dropouts of one row per edge in a message: "
                f'{self._ids.numel()} rows (got shape {tuple(x.shape)}); drop rows of nodes before '
                'they are given to propagate'
            )
        else:
            factor = factors(p, hashed_on(self._state, self._number), self._ids, x)
        self._number += 1
        return x.mul_(factor) if inplace else x * factor


def has_ids(shard: Shard) -> bool:
    """Whether the ids of the nodes at both ends are known; the same on all ranks."""
    return shard.n_id is not None and (shard.dst_id is not None or not shard.is_bipartite)


@torch.inference_mode(False)  # they outlive the caller's mode
def edge_ids(edges: ShardEdges) -> Tensor:
    """A hash of ends and number of every edge, int64 ``[num_edges]``.

    The shard of the edges :func:`has_ids`. Collective at the first time for a shard: one
    all-to-all for the ids of the halo, which it keeps.
    """
    shard = edges.shard
    assert shard.n_id is not None
    ids = with_halo_ids(shard, shard.n_id)
    src, dst = edges.sources_first().ids
    of_dst = shard.dst_id if shard.is_bipartite else shard.n_id
    assert of_dst is not None
    number = _number_among_equals(dst * max(ids.numel(), 1) + src)
    return hashed_on(hashed(0).to(src.device), of_dst[dst], ids[src], number)


def _number_among_equals(values: Tensor) -> Tensor:
    """How many equal values come before each."""
    order = torch.argsort(values, stable=True)
    ordered = values[order]
    positions = torch.arange(values.numel(), device=values.device)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    first = torch.where(begins, positions, 0).cummax(0).values
    return torch.empty_like(order).index_copy_(0, order, positions - first)
