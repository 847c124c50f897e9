"""The counts of all ranks, as floating-point numbers, and what lies between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
import torch.distributed as dist
from torch import Tensor

from pyg_sar.comm import check_equal, exchange_group, is_distributed
from pyg_sar.comm.all_to_all import all_to_all
from pyg_sar.profiling.records import PassProfile, Summary


@dataclass
class Spread:
    """The least, the mean and the most of every count, each by itself, over all ranks.

    Attributes:
        least: Of every count the smallest that a rank has; not the counts of one rank.
        mean: Of every count the mean.
        most: Of every count the largest.
    """

    least: Summary
    mean: Summary
    most: Summary


def gather(summary: Summary, device: torch.device) -> Spread:
    """Compares the ranks' counts (collective: two all-to-alls of float64).

    Raises:
        ValueError: On all ranks, if they do not have the same number of layers.
    """
    numbers = torch.tensor(list(_numbers(summary)), dtype=torch.float64)
    num_layers = _of_all(torch.tensor([float(len(summary.layers))], device=device))
    each = [int(number) for number in num_layers.flatten()]
    check_equal('number of profiled layers', len(summary.layers), each)
    table = _of_all(numbers.to(device)).cpu()
    found = table.amin(0), table.mean(0), table.amax(0)
    return Spread(*(_summary(summary, row.tolist()) for row in found))


def _of_all(own: Tensor) -> Tensor:
    """The vectors of all ranks, ``[world_size, n]``."""
    if not is_distributed():
        return own.unsqueeze(0)
    size = dist.get_world_size()
    sizes = [own.numel()] * size
    return all_to_all(own.repeat(size), sizes, sizes, exchange_group()).view(size, -1)


def _numbers(summary: Summary) -> Iterator[float]:
    """All counts, in one order."""
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


def _or_nan(number: float | None) -> float:
    return float('nan') if number is None else float(number)


def _summary(like: Summary, numbers: list[float]) -> Summary:
    """The reverse of :func:`_numbers`."""
    rest = iter(numbers)

    def number() -> float | None:
        value = next(rest)
        return None if value != value else value

    def passes() -> PassProfile:
        return PassProfile(*(next(rest) for _ in fields(PassProfile)))

    seconds, start_bytes, outside = next(rest), number(), passes()
    layers = [
        replace(layer, peak_bytes=number(), forward=passes(), backward=passes())
        for layer in like.layers
    ]
    return replace(like, seconds=seconds, start_bytes=start_bytes, outside=outside, layers=layers)
