"""Gradients in vectors of some MiB, whose mean over the ranks replaces them.

With them travel, at no cost, flags of the parameters that have a new gradient, and a checksum of
the parameters and of gradients from before, by which ranks notice that they have parted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from pyg_sar.comm.collectives import per_rank
from pyg_sar.comm.ranks import current
from pyg_sar.comm.vote import differ, odd_and_usual
from pyg_sar.rows.rows import Rows
from pyg_sar.utils.tensor_state import digest

SUM = 'the sum of the gradients of parameters'

SumOverRanks = Callable[[Tensor], Tensor]
"""Makes a vector the sum over the ranks, in place (collective)."""


def common(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The parameters or buffers that are equal on all ranks and have numbers already."""
    return {
        name: tensor
        for name, tensor in named
        if not (isinstance(tensor, Rows) or is_lazy(tensor))
        and tensor.layout == torch.strided
        and tensor.device.type != 'meta'
    }


@dataclass(eq=False)
class Bucket:
    """Parameters of one dtype and device."""

    kind: tuple[torch.dtype, torch.device]
    parameters: list[Tensor] = field(default_factory=list)
    common: list[Tensor] = field(default_factory=list)  # without rows of a rank's own
    num_bytes: int = 0  # of `common`

    def average(
        self,
        new: set[Tensor],
        more_flags: list[bool],
        more: Tensor | None,
        before: Mapping[Tensor, int],
        summed: SumOverRanks,
        parted: Callable[[list[Tensor]], None],
    ) -> tuple[list[Tensor], list[int], Tensor | None]:
        """Sets ``.grad`` of parameters of which a rank has a `new` one to its mean (collective).

        With the gradients travel `more_flags`, which this rank tells the others, and a vector
        `more`, which is averaged, too. `before` has numbers of gradients from before. `summed` adds
        up a vector; `parted` raises, on all ranks, if parameters or these numbers differ.

        Returns:
            These parameters, how many ranks have set each of `more_flags`, and the mean of `more`.
        """
        for p in self.parameters:
            if p.grad is not None and p.grad.requires_grad:
                raise RuntimeError(
                    'expected backward() without create_graph=True: on a graph that is cut pyg_sar '
                    'computes no second derivatives'
                )
            if p.grad is not None and p.grad.is_sparse and not isinstance(p, Rows):
                p.grad = p.grad.to_dense()
        comm = current()
        flags = [p in new and p.grad is not None for p in self.parameters]
        # Python's hash of whole numbers is the same in every process.
        number = digest(self.common) ^ hash(tuple(before.get(p, 0) for p in self.common))
        message = _Message([*flags, *more_flags], number, comm.size, self.kind[0])
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.common]
        vectors = [*(grad.reshape(-1) for grad in gradients), *([] if more is None else [more])]
        sizes = [vector.numel() for vector in vectors]
        numbers = torch.as_tensor(message.numbers, dtype=self.kind[0], device=self.kind[1])
        vectors.insert(len(self.common), numbers)
        total = per_rank(torch.cat(vectors))
        del gradients, vectors
        summed(total)
        sizes.insert(len(self.common), numbers.numel())
        means = [*torch.split(total, sizes)]
        numbers = means.pop(len(self.common))
        counts = message.read((numbers.real if numbers.is_complex() else numbers).tolist())
        if self.kind[1].type != 'cpu':
            comm.met.arrived()
        comm.check(SUM)  # transfers may have been lost: before anyone's gradient changes
        if not message.is_alike:
            parted(self.common)
        whole = {p: None for p, count in zip(self.parameters, counts, strict=False) if count}
        for p in whole:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        for p, mean in zip(self.common, means, strict=False):
            if p in whole and p.grad is not None:
                p.grad.copy_(mean.view_as(p))
        return list(whole), counts[len(flags) :], None if more is None else means[-1]

    def average_asked(self, asked: dict[Tensor, Tensor], summed: SumOverRanks) -> None:
        """Sets gradients that autograd.grad gives to their mean, in place (collective)."""
        if not self.common:
            return
        comm = current()
        shares = [asked.get(p, torch.zeros_like(p)) for p in self.common]
        total = per_rank(torch.cat([share.reshape(-1) for share in shares]))
        summed(total)
        comm.check(SUM)
        means = torch.split(total, [share.numel() for share in shares])
        for share, mean in zip(shares, means, strict=True):
            share.copy_(mean.view_as(share))


class _Message:
    """Flags and a number, as numbers of a dtype that are added up exactly.

    With P ranks each is ``flag * P * 2^k + digit`` with a digit of k bits of the number. The sum
    over the ranks gives how many have set the flag, and the sum of their digits: P times the own
    one where they are equal. Where the dtype has too few bits for that, digits are left out.
    """

    def __init__(self, flags: list[bool], number: int, size: int, dtype: torch.dtype) -> None:
        self._size = size
        bits = 1 - round(math.log2(torch.finfo(dtype).eps)) - 1 - 2 * (size - 1).bit_length()
        bits = min(bits, 32)
        self._base, self._digits = size << bits if bits > 0 else 0, [0] * len(flags)
        if self._base:
            self._digits = [number >> i * bits & (1 << bits) - 1 for i in range(len(flags))]
            # The factor P makes the division by P exact.
            pairs = zip(flags, self._digits, strict=True)
            self.numbers = [float(size * (flag * self._base + digit)) for flag, digit in pairs]
        else:
            self.numbers = [float(flag) for flag in flags]
        self.is_alike = True

    def read(self, shares: list[float]) -> list[int]:
        """How many ranks have set each flag, by their mean; notes whether all have the number."""
        if not self._base:
            return [math.ceil(share * self._size - 0.5) or int(share > 0) for share in shares]
        pairs = [divmod(round(share), self._base) for share in shares]
        own = [self._size * digit for digit in self._digits]
        self.is_alike = [digits for _, digits in pairs] == own
        return [count for count, _ in pairs]


def buckets_of(parameters: Iterable[Tensor], max_bytes: float) -> list[Bucket]:
    """The parameters in their order; a bucket has `max_bytes` at most, or one larger parameter."""
    buckets: list[Bucket] = []
    last: dict[tuple[torch.dtype, torch.device], Bucket] = {}
    for p in parameters:
        kind, is_common = (p.dtype, p.device), not isinstance(p, Rows)
        num_bytes = p.numel() * p.element_size() if is_common else 0
        if kind not in last or last[kind].num_bytes + num_bytes > max_bytes:
            last[kind] = Bucket(kind)
            buckets.append(last[kind])
        bucket = last[kind]
        bucket.parameters.append(p)
        bucket.common += [p] if is_common else []
        bucket.num_bytes += num_bytes
    return buckets


def numbers_of_gradients(groups: Iterable[list[Tensor]]) -> dict[Tensor, int]:
    """A number for the gradients of each group, by the parameters that have one.

    Of a device it says that there are some: to read them makes the host wait.
    """
    numbers: dict[Tensor, int] = {}
    for group in groups:
        gradients = {
            p: p.grad
            for p in group
            if not (isinstance(p, Rows) or p.grad is None) and p.grad.layout == torch.strided
        }
        on_host = [grad for grad in gradients.values() if grad.device.type == 'cpu']
        if gradients:
            numbers |= dict.fromkeys(gradients, digest(on_host) if on_host else 1)
    return numbers


def check_before(of_ranks: list[list[int] | None]) -> None:
    """Raises a ValueError if ranks have other numbers of gradients; None stands for any."""
    first = next((numbers for numbers in of_ranks if numbers is not None), None)
    found = [first if numbers is None else numbers for numbers in of_ranks]
    if any(numbers != first for numbers in found):
        odd, usual = odd_and_usual(found)
        raise differ(
            f'gradients from before must be equal on all ranks (rank {odd} has other numbers than '
            f'rank {usual}): zero_grad() or a change of .grad is of one rank alone: run the same '
            'lines on every rank',
            odd,
        )
