"""Sums travel instead of rows, along edges and weights that stay as they are.

A reader asks the owner of rows once for sums (:mod:`pyg_sar.ops.partial_sums`). Along the
loaded edges without weights all ranks ask at the first call, and keep the answer with the shard. In
any other call they decide together whether all have asked for these edges with these weights.
Weights are compared by content.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyg_sar.comm.exchange import Exchange, exchange_of
from pyg_sar.comm.vote import Agreed
from pyg_sar.ops.partial_sums import covered
from pyg_sar.shard.blocks import Plan
from pyg_sar.shard.edges import ShardEdges
from pyg_sar.shard.shard import Kept
from pyg_sar.utils.checksum import checksum

_MAX_WEIGHTS = 4
_COVERS: Kept[Agreed[_Answer]] = Kept()
_ALL: Kept[_Answer] = Kept()  # of all edges without weights
_IN_VAIN: Kept[int] = Kept()

_MAX_IN_VAIN = 4
"""How many times the edges of a shard may be asked for in vain."""


def with_partial_sums(
    edges: ShardEdges, plan: Plan, exchange: Exchange, weight: Tensor | None
) -> tuple[Plan, Exchange]:
    """The plan and exchange of a sum, by rows and sums where that spares rows, else unchanged.

    `weight` are constant weights ``[num_edges]`` of the plan's `edges`, or None. Collective but for
    all edges without weights: one small all-gather, see :meth:`pyg_sar.comm.vote.Agreed.find`;
    where the ranks ask, see :func:`pyg_sar.ops.partial_sums.covered`.

    For edges or weights that a program makes anew in every forward ranks ask in vain: after a few
    of them rows travel.
    """
    shard = plan.shard
    if shard.world_size == 1:
        return plan, exchange
    if (
        weight is not None and weight.device.type != 'cpu'
    ):  # reading its content would wait for the device
        return plan, exchange
    if edges.is_whole and weight is None:
        return _along(_ALL.of(shard, lambda: _Answer(covered(plan, None), 0)), plan, exchange)
    key = None if weight is None else (weight.dtype, *checksum(weight))
    answers = _COVERS.of(plan, lambda: Agreed(_MAX_WEIGHTS))
    in_vain = _IN_VAIN.of(shard, int)
    limit = _MAX_IN_VAIN * max(shard.num_edges, shard.num_own, shard.num_dst)
    # Without gradients the weights that a model computes look like constants.
    may_last = weight is None or torch.is_grad_enabled()
    asks = may_last and in_vain + plan.num_edges <= limit
    answer, all_ask = answers.find(key, asks)
    if answer is not None:
        in_vain, answer.in_vain = in_vain - answer.in_vain, 0
    elif all_ask:
        in_vain += plan.num_edges
        answer = _Answer(covered(plan, weight), plan.num_edges)
        answers.keep(key, answer)
    else:
        return plan, exchange
    _IN_VAIN.put(shard, in_vain)
    return _along(answer, plan, exchange)


def _along(answer: _Answer, plan: Plan, exchange: Exchange) -> tuple[Plan, Exchange]:
    if answer.plan is None:
        return plan, exchange
    return answer.plan, exchange_of(answer.plan.shard, dtype=exchange.wire.dtype)


@dataclass(eq=False)
class _Answer:
    """The result of asking once."""

    plan: Plan | None  # by which rows and sums travel; None if that spares too little
    in_vain: int  # number of edges that were asked for; 0 once it has been used again
