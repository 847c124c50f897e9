"""Rows of a tensor to every rank at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pyg_sar.comm import transport
from pyg_sar.comm.faults.guarded import connected, exchange_group, guard
from pyg_sar.comm.faults.program_check import form_of
from pyg_sar.monitor import hook


def all_to_all(rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]) -> Tensor:
    """Sends the first rows to rank 0, the next ones to rank 1, ... (collective).

    Args:
        rows: ``[sum(send_counts), ...]``, of any dtype.
        send_counts: Rows for every rank, this one included.
        recv_counts: Rows from every rank.

    Returns:
        ``[sum(recv_counts), ...]``, by the rank they came from.
    """
    if len(send_counts) == 1:
        return rows
    received = rows.new_empty(sum(recv_counts), *rows.shape[1:])
    # As bytes: every dtype goes through every backend.
    row_bytes = math.prod(rows.shape[1:]) * rows.element_size()
    what = 'an exchange of rows with all ranks at once'
    alike = f'{what} ({form_of(rows, is_rows=True)})'
    with guard(what, alike=alike):
        if rows.device.type == 'cpu':  # others are no affair of gloo's
            connected().sum_alike(what, alike)
        transport.all_to_all(
            received.view(-1).view(torch.uint8),
            rows.contiguous().view(-1).view(torch.uint8),
            [n * row_bytes for n in recv_counts],
            [n * row_bytes for n in send_counts],
            exchange_group(),
        )
        if hook.watchers:
            own = dist.get_rank()  # its rows stay here
            came, went = (sum(n) - n[own] for n in (recv_counts, send_counts))
            moved = came, went, came * row_bytes, went * row_bytes
            hook.moved(hook.Transfer('all ranks', 'rows', *moved))
    return received


def all_to_all_counts(counts: Tensor) -> Tensor:
    """What every rank counts for this one: row r of ``[world_size, ...]`` goes to rank r."""
    ones = [1] * counts.size(0)
    return all_to_all(counts, ones, ones)
