"""The counts of all ranks, which travel as floating-point numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import torch
import torch.distributed as dist
from torch import Tensor

from pyg_sar.comm import check_equal, exchange_group, is_distributed
from pyg_sar.comm.all_to_all import all_to_all
from pyg_sar.profiling.records import PassProfile, Summary


def gather(summary: Summary, device: torch.device) -> list[Summary]:
    """The summaries of all ranks, by rank (collective: two all-to-alls of float64).

    Raises:
        ValueError: On all ranks, if they do not have the same number of layers.
    """
    num_layers = _of_all(torch.tensor([float(len(summary.layers))], device=device))
    each = [int(number) for number in num_layers.flatten()]
    check_equal('number of profiled layers', len(summary.layers), each)
    # Exact: float64 holds whole numbers up to 2^53.
    numbers = torch.tensor(list(_numbers(summary)), dtype=torch.float64, device=device)
    rows = _of_all(numbers).tolist()
    return [_summary(replace(summary, rank=rank), row) for rank, row in enumerate(rows)]


def _of_all(own: Tensor) -> Tensor:
    """The vectors of all ranks, ``[world_size, n]``."""
    if not is_distributed():
        return own.unsqueeze(0)
    size = dist.get_world_size()
    sizes = [own.numel()] * size
    return all_to_all(own.repeat(size), sizes, sizes, exchange_group()).view(size, -1)


def _numbers(summary: Summary) -> Iterator[float]:
    """All counts, in one order; memory that is not known is NaN."""
    yield summary.seconds
    yield _or_nan(summary.start_bytes)
    yield from _of_pass(summary.outside)
    for layer in summary.layers:
        yield _or_nan(layer.peak_bytes)
        yield from _of_pass(layer.forward)
        yield from _of_pass(layer.backward)


def _of_pass(passes: PassProfile) -> Iterator[float]:
    for field in fields(passes):
        yield float(getattr(passes, field.name))


def _or_nan(number: int | None) -> float:
    return float('nan') if number is None else float(number)


def _summary(like: Summary, numbers: list[float]) -> Summary:
    """The reverse of :func:`_numbers`."""
    rest = iter(numbers)

    def num_bytes() -> int | None:
        value = next(rest)
        return None if value != value else int(value)

    def passes() -> PassProfile:
        found = PassProfile()
        for field in fields(found):
            kind = type(getattr(found, field.name))  # int or float
            setattr(found, field.name, kind(next(rest)))
        return found

    seconds, start_bytes, outside = next(rest), num_bytes(), passes()
    layers = [
        replace(layer, peak_bytes=num_bytes(), forward=passes(), backward=passes())
        for layer in like.layers
    ]
    return replace(like, seconds=seconds, start_bytes=start_bytes, outside=outside, layers=layers)
