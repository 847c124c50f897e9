"""Sums of the tensors of all ranks, with the bits of gloo's."""

from __future__ import annotations

import torch
from torch import Tensor

_SEGMENT_BYTES = 2**20  # gloo's largest segment of a ring all-reduce


def sum_as_gloo_does(tensors: list[Tensor]) -> Tensor:
    """Adds up the tensors of all ranks, in the order of gloo's ring.

    gloo (allreduce.cc) cuts the vector into one chunk per rank. Chunk k starts at rank k - 1 and
    goes down from rank to rank, ``((x[k-1] + x[k-2]) + ...) + x[k]``.
    """
    size, rows = len(tensors), [tensor.reshape(-1) for tensor in tensors]
    width = rows[0].element_size()
    num_bytes = rows[0].numel() * width
    segments = max(-(-num_bytes // _SEGMENT_BYTES), 2 * size)
    segments = -(-segments // size) * size
    of_segment = -(-num_bytes // segments)
    chunk = max(-(-of_segment // width) * segments // size, 1)
    chunks = [torch.split(row, chunk) for row in rows]
    sums = []
    for k in range(len(chunks[0])):
        total = chunks[(k - 1) % size][k].clone()
        for i in range(2, size + 1):
            total += chunks[(k - i) % size][k]
        sums.append(total)
    return torch.cat(sums).view(tensors[0].shape) if sums else tensors[0].clone()
