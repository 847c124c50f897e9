r"""Softmax attention of own rows to the rows of all ranks.

Keys and values go round: each rank passes the block that it has to the next rank. In backward they
go round once more, and their gradients with them, until these are home. That is sequential
aggregation and rematerialization on the graph of all pairs, and Ring Attention (Liu et al.,
`arXiv 2310.01889 <https://arxiv.org/abs/2310.01889>`_). A rank holds two blocks and its own
rows: the next block travels while one is used. It computes ``N / P`` rows by ``N`` keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.functions import communicates, once_differentiable
from pyg_sar.comm.send_recv import GRADIENTS_TAG, start_round
from pyg_sar.ops.attention_block import Attended, KeyBlock, gradients


def attend_to_all(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    scale: float,
    counts: Sequence[int],
) -> Tensor:
    """``softmax(query @ key.T * scale + bias) @ value`` over the keys of all ranks.

    Own queries ``[H, L, E]``, keys ``[H, S, E]`` and values ``[H, S, V]`` give ``[H, L, V]``.
    `bias` ``[H, 1, S]`` of a key takes no gradient; `counts` are the numbers S of all ranks.
    Collective: as many passes as there are ranks, less one; in backward as many as there are ranks.
    """
    out: Tensor = _AttendToAll.apply(query, key, value, bias, scale, list(counts))
    return out


@communicates
class _AttendToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        scale: float,
        counts: list[int],
    ) -> Tensor:
        ctx.scale, ctx.counts = scale, counts
        attended = Attended(query, value.size(-1), scale)
        for block in _round(KeyBlock(key, value, bias), counts):
            attended.add(block)
        out, log_total = attended.finish()
        ctx.save_for_backward(query, key, value, bias, out, log_total)
        return out.to(value.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        with torch.autocast(grads[0].device.type, enabled=False):
            return _gradients(ctx, grads[0])


def _gradients(ctx: Any, grad: Tensor) -> Any:
    query, key, value, bias, out, log_total = ctx.saved_tensors
    grad, of_query = grad.to(out.dtype), torch.zeros_like(query, dtype=out.dtype)
    arriving: Callable[[], Tensor] | None = None
    for turn, block in enumerate(_round(KeyBlock(key, value, bias), ctx.counts), 1):
        own, of_key, of_value = gradients(query, block, ctx.scale, grad, out, log_total)
        of_query += own
        of_rows = _rows(of_key, of_value)
        if arriving is not None:
            of_rows += arriving()
        arriving = start_round(of_rows, turn, ctx.counts, GRADIENTS_TAG)
    assert arriving is not None
    of_key, of_value, _ = _block(arriving(), KeyBlock(key, value, None))
    return of_query.to(query.dtype), of_key, of_value, None, None, None


def _round(own: KeyBlock, counts: list[int]) -> Iterator[KeyBlock]:
    """The blocks of all ranks, the own one first; the next one travels while one is used."""
    rows, block = _rows(*own), own
    for turn in range(1, len(counts)):
        arriving = start_round(rows, turn, counts)
        yield block
        rows = arriving()
        block = _block(rows, own)
    yield block


def _rows(key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """Keys, values and bias, as one row for each key."""
    parts = [key, value] if bias is None else [key, value, bias.mT]
    return torch.cat([part.movedim(1, 0).flatten(1) for part in parts], dim=1)


def _block(rows: Tensor, like: KeyBlock) -> KeyBlock:
    """The inverse of :func:`_rows`."""
    heads = like.key.size(0)
    widths = [like.key.size(-1), like.value.size(-1), *([1] if like.bias is not None else [])]
    key, value, *bias = (
        part.view(-1, heads, width).movedim(0, 1).to(of.dtype)
        for part, width, of in zip(
            torch.split(rows, [heads * w for w in widths], 1), widths, like, strict=False
        )
        if of is not None
    )
    return KeyBlock(key, value, bias[0].mT if bias else None)
