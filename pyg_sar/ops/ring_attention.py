"""Softmax attention of own rows to the rows of all ranks.

Keys and values go round: each rank passes the block that it has to the next rank. In backward they
go round once more, and their gradients with them, until these are home. That is sequential
aggregation and rematerialization on the graph of all pairs, and Ring Attention (Liu et al.,
`arXiv 2310.01889 <https://arxiv.org/abs/2310.01889>`_). A rank holds two blocks and its own
rows: the next block travels while one is used. It computes ``N / P`` rows by ``N`` keys.

The softmax of a query runs over the keys of all blocks, which are never here together. As in
FlashAttention (Dao et al., `arXiv 2205.14135 <https://arxiv.org/abs/2205.14135>`_) the largest
score and the sum so far are kept with the output, and scaled when a larger score comes.

============ ============= ===========================================
tensor       shape         meaning
============ ============= ===========================================
``query``    ``[H, L, E]`` own queries, of every head
``key``      ``[H, S, E]`` keys of the block
``value``    ``[H, S, V]`` values of the block
``bias``     ``[H, 1, S]`` added to the scores of a key; may be None
============ ============= ===========================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_sar.comm.collectives import communicates, once_differentiable
from pyg_sar.comm.exchange import start_round
from pyg_sar.utils.installed import find_or_none

MOST_SCORES = 2**22

# Torch's kernels of a CPU that also give the sum of exponentials; None if they are gone.
_FORWARD = find_or_none('torch.ops.aten._scaled_dot_product_flash_attention_for_cpu')
_BACKWARD = find_or_none('torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward')


class KeyBlock(NamedTuple):
    """Keys and values of a rank; see the module."""

    key: Tensor
    value: Tensor
    bias: Tensor | None


class Attended:
    """The output for own queries over the blocks so far.

    `top` ``[H, L, 1]`` is the largest score of each query, `total` the sum of ``exp(score - top)``,
    and `out` ``[H, L, V]`` that of ``exp(score - top) * value``, divided in the end.
    """

    def __init__(self, query: Tensor, width: int, scale: float) -> None:
        heads, length, _ = query.shape
        exact = torch.promote_types(query.dtype, torch.float32)
        self.query, self.scale = query, scale
        self.out = query.new_zeros(heads, length, width, dtype=exact)
        self.top = query.new_full((heads, length, 1), -torch.inf, dtype=exact)
        self.total = query.new_zeros(heads, length, 1, dtype=exact)

    def add(self, block: KeyBlock) -> None:
        """Takes in the keys of one more block."""
        if _has_kernel(self.query, block):
            options = {'attn_mask': _mask(block), 'scale': self.scale}
            out, log_total = _FORWARD(*_four(self.query, *block[:2]), **options)
            top = log_total[0].unsqueeze(-1)
            if block.bias is not None:  # of a block without a key to ask the kernel says 0
                top = top.masked_fill((block.bias == -torch.inf).all(-1, keepdim=True), -torch.inf)
            self._add(slice(None), out[0], top, torch.ones_like(self.total))
            return
        for at in chunks(self.query, block):
            scores = _scores(self.query[:, at], block, self.scale)
            top = scores.amax(-1, keepdim=True)
            weights = (scores - _finite(top)).exp_()
            out = weights @ block.value.to(weights.dtype)
            self._add(at, out, top, weights.sum(-1, keepdim=True))

    def _add(self, at: slice, out: Tensor, top: Tensor, total: Tensor) -> None:
        """Takes in output, largest scores and sums of some queries over one block."""
        base = _finite(torch.maximum(self.top[:, at], top))
        before, now = (self.top[:, at] - base).exp_(), (top - base).exp_()
        self.out[:, at] = self.out[:, at] * before + out * now
        self.total[:, at] = self.total[:, at] * before + total * now
        self.top[:, at] = torch.maximum(self.top[:, at], top)

    def finish(self) -> tuple[Tensor, Tensor]:
        """The output ``[H, L, V]``, and ``log sum exp(score)`` of every query ``[H, L, 1]``.

        Where all keys are masked both are 0, as in torch.
        """
        total = self.total.masked_fill(self.total == 0, 1)
        return self.out.div_(total), _finite(self.top) + total.log()


def gradients(
    query: Tensor, block: KeyBlock, scale: float, grad: Tensor, out: Tensor, log_total: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the queries ``[H, L, E]``, and of the block's keys and values.

    `grad` is that of the output, ``[H, L, V]``; `log_total` is as :meth:`Attended.finish` gives it.
    """
    if _has_kernel(query, block):
        tensors = _four(grad, query, *block[:2], out, log_total.squeeze(-1))
        options = {'attn_mask': _mask(block), 'scale': scale}
        of_query, of_key, of_value = _BACKWARD(*tensors, 0.0, False, **options)
        return of_query[0], of_key[0], of_value[0]
    of_query = torch.zeros_like(query, dtype=out.dtype)
    of_key = torch.zeros_like(block.key, dtype=out.dtype)
    of_value = torch.zeros_like(block.value, dtype=out.dtype)
    shift = (grad * out).sum(-1, keepdim=True)
    for at in chunks(query, block):
        own, of_out = query[:, at].to(out.dtype), grad[:, at]
        weights = (_scores(query[:, at], block, scale) - log_total[:, at]).exp_()
        of_value += weights.mT @ of_out
        of_scores = (of_out @ block.value.to(out.dtype).mT).sub_(shift[:, at])
        of_scores.mul_(weights).mul_(scale)
        of_query[:, at] = of_scores @ block.key.to(out.dtype)
        of_key += of_scores.mT @ own
    return of_query, of_key, of_value


def chunks(query: Tensor, block: KeyBlock) -> Iterator[slice]:
    """Runs of queries; none where there are no queries or no keys."""
    heads, length, _ = query.shape
    num_keys = block.key.size(1)
    size = max(1, MOST_SCORES // max(heads * num_keys, 1))
    for start in range(0, length if num_keys else 0, size):
        yield slice(start, start + size)


def _has_kernel(query: Tensor, block: KeyBlock) -> bool:
    return (
        _FORWARD is not None
        and _BACKWARD is not None
        and query.device.type == 'cpu'
        and query.dtype in (torch.float32, torch.float64)
        and query.size(-1) == block.value.size(-1)
        and query.numel() > 0
        and block.key.numel() > 0
    )


def _mask(block: KeyBlock) -> Tensor | None:
    return None if block.bias is None else block.bias.unsqueeze(0)


def _four(*tensors: Tensor) -> Iterator[Tensor]:
    return (tensor.unsqueeze(0) for tensor in tensors)


def _finite(top: Tensor) -> Tensor:
    """0 where all keys so far are masked."""
    return top.masked_fill(top == -torch.inf, 0)


def _scores(query: Tensor, block: KeyBlock, scale: float) -> Tensor:
    scores = (query @ block.key.mT).to(torch.promote_types(query.dtype, torch.float32)) * scale
    return scores if block.bias is None else scores + block.bias


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
        arriving = start_round(of_rows, turn, ctx.counts, 'gradients of keys')
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
