"""Gradients in vectors of some MiB, whose mean over the ranks replaces them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pyg_sar.comm import check_arrived, world_size
from pyg_sar.own_rows import OwnRows

SUM = 'the sum of the gradients of parameters'

SumOverRanks = Callable[[Tensor], Tensor]
"""Makes a vector the sum over the ranks, in place (collective)."""


@dataclass(eq=False)
class Bucket:
    """Parameters of one dtype and device."""

    kind: tuple[torch.dtype, torch.device]
    parameters: list[Tensor] = field(default_factory=list)
    common: list[Tensor] = field(default_factory=list)  # without rows of a rank's own
    num_bytes: int = 0  # of these

    def average(
        self, new: set[Tensor], more: Tensor, summed: SumOverRanks
    ) -> tuple[list[Tensor], Tensor]:
        """Sets ``.grad`` to its mean, of parameters of which a rank has a new one (collective).

        Returns:
            These parameters, of which `new` are this rank's; and the mean of the vector `more`.
        """
        for p in self.parameters:
            if p.grad is not None and p.grad.requires_grad:
                raise RuntimeError(
                    'expected backward() without create_graph=True: on a graph that is cut pyg_sar '
                    'computes no second derivatives'
                )
            if p.grad is not None and p.grad.is_sparse and not isinstance(p, OwnRows):
                p.grad = p.grad.to_dense()
        flags = [float(p in new and p.grad is not None) for p in self.parameters]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.common]
        total = torch.cat([*(grad.reshape(-1) for grad in gradients), more.new_tensor(flags), more])
        total /= world_size()
        del gradients
        summed(total)
        sizes = [p.numel() for p in self.common]
        *means, shares, more = torch.split(total, [*sizes, len(flags), more.numel()])
        pairs = zip(self.parameters, shares.real.tolist(), strict=True)
        whole = {p: None for p, share in pairs if share > 0}
        check_arrived(SUM)  # before anyone's gradient changes
        for p in whole:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        for p, mean in zip(self.common, means, strict=True):
            if p in whole and p.grad is not None:
                p.grad.copy_(mean.view_as(p))
        return list(whole), more

    def average_asked(self, asked: dict[Tensor, Tensor], summed: SumOverRanks) -> None:
        """Sets gradients that autograd.grad gives to their mean, in place (collective)."""
        if not self.common:
            return
        shares = [asked.get(p, torch.zeros_like(p)) for p in self.common]
        total = torch.cat([share.reshape(-1) for share in shares]) / world_size()
        summed(total)
        check_arrived(SUM)
        for share, mean in zip(
            shares, torch.split(total, [s.numel() for s in shares]), strict=True
        ):
            share.copy_(mean.view_as(share))


def buckets_of(parameters: Iterable[Tensor], max_bytes: float) -> list[Bucket]:
    """The parameters in their order; a bucket has `max_bytes` at most, or one larger parameter."""
    found: list[Bucket] = []
    last: dict[tuple[torch.dtype, torch.device], Bucket] = {}
    for p in parameters:
        kind, is_common = (p.dtype, p.device), not isinstance(p, OwnRows)
        num_bytes = p.numel() * p.element_size() if is_common else 0
        if kind not in last or last[kind].num_bytes + num_bytes > max_bytes:
            last[kind] = Bucket(kind)
            found.append(last[kind])
        bucket = last[kind]
        bucket.parameters.append(p)
        bucket.common += [p] if is_common else []
        bucket.num_bytes += num_bytes
    return found
