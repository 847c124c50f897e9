"""Tensors of several dtypes and widths for all ranks at once, in one message to each.

A message costs the same however many tensors are in it, so these travel one after another as bytes.
Each begins at a multiple of 16 bytes, as its dtype asks for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyg_sar.comm import exchange_bytes

_ALIGNMENT = 16


def all_to_all_packed(
    tensors: Sequence[Tensor],
    send_counts: Sequence[Sequence[int]],
    recv_counts: Sequence[Sequence[int]],
) -> list[Tensor]:
    """Sends the first rows of each tensor to rank 0, the next ones to rank 1, ... (collective).

    The ranks must just have compared that they are at the same run of operations: nothing is
    compared here.

    Args:
        tensors: As many on all ranks, each of one dtype and width on all; on any device.
        send_counts: Of each tensor the rows for every rank, this one included.
        recv_counts: Of each tensor the rows from every rank.

    Returns:
        Of each tensor what came, by the rank it came from, on the CPU.
    """
    if len(send_counts[0]) == 1:
        return [tensor.cpu() for tensor in tensors]
    row_bytes = [math.prod(t.shape[1:]) * t.element_size() for t in tensors]
    ranks = range(len(send_counts[0]))

    def sizes(counts: Sequence[Sequence[int]]) -> list[int]:
        """Bytes by rank."""
        of_tensors = list(zip(counts, row_bytes, strict=True))
        return [sum(_padded(n[rank] * row) for n, row in of_tensors) for rank in ranks]

    parts = [
        torch.split(t.cpu().contiguous(), list(n))
        for t, n in zip(tensors, send_counts, strict=True)
    ]
    sent = torch.cat([piece for rank in ranks for of in parts for piece in _bytes(of[rank])])
    received = torch.empty(sum(sizes(recv_counts)), dtype=torch.uint8)
    came, went = (
        [sum(n[rank] for n in counts) for rank in ranks] for counts in (recv_counts, send_counts)
    )
    exchange_bytes(
        received, sent, sizes(recv_counts), sizes(send_counts), (came, went), 'packed', True
    )
    out: list[list[Tensor]] = [[] for _ in tensors]
    start = 0
    for rank in ranks:
        for found, tensor, n, row in zip(out, tensors, recv_counts, row_bytes, strict=True):
            part = received[start : start + n[rank] * row].view(tensor.dtype)
            found.append(part.view(n[rank], *tensor.shape[1:]))
            start += _padded(n[rank] * row)
    return [torch.cat(found) for found in out]


def _padded(size: int) -> int:
    return size + -size % _ALIGNMENT


def _bytes(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """A tensor as bytes, and what fills up the last ones."""
    flat = tensor.view(-1).view(torch.uint8)
    return flat, flat.new_zeros(-flat.numel() % _ALIGNMENT)
