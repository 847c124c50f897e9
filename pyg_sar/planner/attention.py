"""What softmax attention of every node to all nodes costs, beside what is rehearsed.

A rank computes ``N / P`` rows by N keys, by the loop that :mod:`pyg_sar.attention.ring` runs. One
block of it is timed, forward and backward, and the time grows with the number of pairs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from pyg_sar.attention.block import Attended, Block, gradients

_ROWS, _KEYS = 512, 2048
"""Of the block that is timed."""


@dataclass(frozen=True)
class AttentionPrediction:
    """What attention adds to an epoch of a rank.

    Attributes:
        num_ranks: Number of ranks.
        seconds: Of computing; None if it was not timed.
        bytes_received: Keys and values, twice, and gradients of both.
    """

    num_ranks: int
    seconds: float | None
    bytes_received: int


def predict_attention(
    num_nodes: int,
    num_ranks: int,
    *,
    width: int,
    heads: int,
    layers: int,
    dtype: torch.dtype = torch.float32,
    timed: bool = True,
) -> AttentionPrediction:
    """Predicts an epoch of attention over all nodes, as of ``GPSConv(attn_type='multihead')``.

    `width` is that of all heads together. Not collective::

        pyg_sar.planner.predict_attention(8_000, 4, width=64, heads=4, layers=3, timed=False)

    Raises:
        ValueError: If `heads` does not divide `width`.
    """
    if width < 1 or heads < 1 or width % heads:
        raise ValueError(f"'heads' must divide the width of attention (got {heads} and {width})")
    own = -(-num_nodes // num_ranks)
    seconds = None
    if timed:
        pairs = layers * own * num_nodes
        seconds = _seconds_of_block(width, heads, dtype) * pairs / (_ROWS * _KEYS)
    passes = (num_ranks - 1) * 2 + num_ranks if num_ranks > 1 else 0
    num_bytes = layers * passes * own * 2 * width * dtype.itemsize
    return AttentionPrediction(num_ranks, seconds, num_bytes)


def _seconds_of_block(width: int, heads: int, dtype: torch.dtype) -> float:
    """The least of three times: forward and backward of one block."""
    generator = torch.Generator().manual_seed(0)
    query, grad, key, value = (
        torch.randn(heads, rows, width // heads, dtype=dtype, generator=generator)
        for rows in (_ROWS, _ROWS, _KEYS, _KEYS)
    )
    scale, block, times = (width // heads) ** -0.5, Block(key, value, None), []
    for _ in range(3):
        start = time.perf_counter()
        attended = Attended(query, width // heads, scale)
        attended.add(block)
        gradients(query, block, scale, grad, *attended.finish())
        times.append(time.perf_counter() - start)
    return min(times)
