"""The few small collectives beside the exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pyg_sar.comm.faults.guarded import exchange_group, guard
from pyg_sar.comm.faults.program_check import Step
from pyg_sar.comm.json_values import gather_plain


def is_distributed() -> bool:
    """Whether this process is one of several (``torch.distributed`` is initialised)."""
    return dist.is_available() and dist.is_initialized()


def raise_together(error: Exception | None) -> None:
    """Raises on every rank if any rank has an error (collective: one small all-gather).

    Args:
        error: What went wrong on this rank, a ValueError or FileNotFoundError, or None.

    Raises:
        ValueError, FileNotFoundError: The own error, or the first other rank's with its rank.
    """
    answer = None if error is None else (isinstance(error, FileNotFoundError), str(error))
    answers = agree(answer)
    if error is not None:
        raise error
    for rank, other in enumerate(answers):
        if other is not None:
            kind = FileNotFoundError if other[0] else ValueError
            raise kind(f'rank {rank}: {other[1]}')


def agree(value: Any) -> list[Any]:
    """The values of all ranks in rank order (collective: one small all-gather).

    Args:
        value: Plain: None, bool, int, float, str, torch.dtype, a dense tensor, or lists, tuples,
            sets and dicts of them. It comes back equal and of the same type.
    """
    if not is_distributed():
        return [value]
    with guard('a comparison of all ranks'):
        return gather_plain(value, exchange_group())


def check_equal(what: str, own: object, values: Sequence[object]) -> None:
    """Raises a ValueError if the ranks' `values` of something differ from this rank's own."""
    for rank, value in enumerate(values):
        if value != own:
            raise ValueError(
                f'expected the same {what} on all ranks: {own} on rank {dist.get_rank()} '
                f'(got {value} on rank {rank})'
            )


def all_ranks(value: bool, device: torch.device, world_size: int) -> bool:
    """Whether `value` holds on all ranks (collective if there are others: a small all-reduce)."""
    return bool(least_of_ranks(int(value), device, world_size))


def least_of_ranks(value: int, device: torch.device, world_size: int) -> int:
    """The smallest `value` of all ranks (collective if there are others: a small all-reduce)."""
    if world_size == 1:
        return value
    number = torch.tensor([value], dtype=torch.int32, device=device)
    with guard('a decision of all ranks'):
        dist.all_reduce(number, dist.ReduceOp.MIN, group=exchange_group())
    return int(number)


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sums `tensor` over the ranks in place (collective) and returns it."""
    if is_distributed():
        what = 'a sum over all ranks'
        with guard(what, alike=lambda: Step.of_whole(what, tensor)):
            dist.all_reduce(tensor, group=exchange_group())
    return tensor


def are_alike(number: int, flag: bool, device: torch.device) -> tuple[bool, bool]:
    """Whether a number is the same on all ranks, and whether a flag is set on all.

    Collective: an all-reduce of three numbers.

    Args:
        number: Not negative, below 2^62.
        flag: This rank's flag.
        device: Where the numbers are put together.
    """
    numbers = torch.tensor([number, -number, int(flag)], device=device)
    with guard('a comparison of all ranks'):
        dist.all_reduce(numbers, dist.ReduceOp.MIN, group=exchange_group())
    least, most, flags = numbers.tolist()
    return least == -most, bool(flags)
