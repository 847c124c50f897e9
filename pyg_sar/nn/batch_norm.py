"""Norms of batches of a rank: PyG's own, also for batches without rows, and equal on all ranks.

On rows of the whole graph a norm runs as it is. On a plain tensor, as a loader gives it, it takes
the statistics of this rank's batch, and updates its running statistics by them. All ranks get the
mean of these. A step of a running mean is linear, ``(1 - m) running + m mean``, so that mean is the
one that follows from the mean of the batches' statistics. A rank whose batch had no rows does not
count.

:class:`pyg_sar.DistributedDataParallel` sends them with the gradients. Statistics that no backward
followed are made equal at their next use: in evaluation, or in training on the whole graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.nn import norm as pyg

from pyg_sar.comm.collectives import all_reduce_sum
from pyg_sar.comm.ranks import world_size
from pyg_sar.rows.rows import Rows, plain, tag
from pyg_sar.rows.sharding import Sharding

Kind: TypeAlias = tuple[torch.dtype, torch.device]


@dataclass(eq=False)
class OwnUpdates:
    """A norm's updates of its running statistics, kept on it as ``_own_updates``."""

    # Whether each row of them has changed, bool: of HeteroBatchNorm one for every type, else
    # ``[1]``; False for a batch without rows.
    is_updated: Tensor
    num_batches: Tensor | None  # ``num_batches_tracked`` before; None where that is not kept


def _updates_of(norm: Any) -> OwnUpdates | None:
    updates: OwnUpdates | None = vars(norm).get('_own_updates')
    return updates


class RunningStatistics:
    """Running statistics of all norms in a module, as vectors that can be added up over the ranks.

    They have the same sizes on all ranks, whether a rank has updated anything or not. A norm has
    ``[w, w * mean, w * var, num_batches, has_any]``, with w 1 for the rows it has updated.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._norms: dict[Kind, list[Any]] = {}
        for norm in module.modules():
            mean = norm._buffers.get('running_mean')
            if mean is not None:
                kind = torch.promote_types(mean.dtype, torch.float32), mean.device
                self._norms.setdefault(kind, []).append(norm)

    def packed(self) -> dict[Kind, Tensor]:
        """This rank's terms of the sum, a vector for every dtype and device."""
        packed = {}
        for kind, norms in self._norms.items():
            if any(map(_updates_of, norms)):
                packed[kind] = torch.cat([piece for norm in norms for piece in _pieces(norm, kind)])
            else:
                sizes = (sum(_sizes(norm)) for norm in norms)
                packed[kind] = torch.zeros(sum(sizes), dtype=kind[0], device=kind[1])
        return packed

    def set(self, kind: Kind, total: Tensor) -> None:
        """Sets them from the sum of all ranks' :meth:`packed`, or from a multiple of it."""
        norms = self._norms[kind]
        sizes = [sum(_sizes(norm)) for norm in norms]
        has_any = total[[end - 1 for end in accumulate(sizes)]].tolist()
        for norm, piece, count in zip(norms, torch.split(total, sizes), has_any, strict=True):
            if count > 0:
                _set(norm, piece)
            norm._own_updates = None


def make_equal(norm: Any) -> None:
    """Makes the running statistics of a norm equal, if it has updated them by itself (collective).

    Raises ExchangeError if another rank has not.
    """
    if _updates_of(norm) is None:
        return
    statistics = RunningStatistics(norm)
    for kind, vector in statistics.packed().items():
        statistics.set(kind, all_reduce_sum(vector, 'the mean of running statistics'))


def _by_row(buffer: Tensor) -> Tensor:
    return buffer.view(-1, buffer.size(-1))


def _sizes(norm: Any) -> list[int]:
    """The sizes of the pieces of a norm's vector."""
    mean = _by_row(norm.running_mean)
    return [mean.size(0), mean.numel(), mean.numel(), 1, 1]


def _pieces(norm: Any, kind: Kind) -> Iterator[Tensor]:
    own = _updates_of(norm)
    if own is None:
        yield torch.zeros(sum(_sizes(norm)), dtype=kind[0], device=kind[1])
        return
    weight = own.is_updated.to(dtype=kind[0], device=kind[1])
    yield weight
    for buffer in (norm.running_mean, norm.running_var):
        yield (weight.unsqueeze(1) * _by_row(buffer)).view(-1)
    num_batches = weight.new_zeros(1)
    if own.num_batches is not None:
        num_batches += norm.num_batches_tracked - own.num_batches
    yield num_batches
    yield weight.amax().view(1)


def _set(norm: Any, piece: Tensor) -> None:
    own = _updates_of(norm)
    weight, means, variances, num_batches, has_any = torch.split(piece, _sizes(norm))
    weight = weight.unsqueeze(1)
    for buffer, total in ((norm.running_mean, means), (norm.running_var, variances)):
        rows = _by_row(buffer)
        new = (total.view_as(rows) / weight).to(rows.dtype)
        rows.copy_(torch.where(weight > 0, new, rows))
    tracked = getattr(norm, 'num_batches_tracked', None)
    if tracked is not None:
        before: Any = tracked if own is None else own.num_batches
        tracked.copy_(before + (num_batches / has_any).round().view(()))


_NORMS = (
    torch.nn.BatchNorm1d.__mro__[-3],  # of all norms of batches, above Module
    *(pyg.HeteroBatchNorm, pyg.InstanceNorm),
    *(pyg.LayerNorm, pyg.GraphNorm),  # which fail without rows
)


def watch_norms(model: torch.nn.Module) -> None:
    """Lets the norms of a model note their updates by batches; a norm keeps its class.

    Only torch's SyncBatchNorm, which runs on GPUs alone, becomes :class:`SyncBatchNorm`.
    """
    for module in model.modules():
        if type(module) is torch.nn.SyncBatchNorm:
            module.__class__ = SyncBatchNorm
        elif isinstance(module, _NORMS) and not isinstance(module, SyncBatchNorm):
            vars(module).setdefault('forward', partial(_forward, module))


class SyncBatchNorm(torch.nn.BatchNorm1d, torch.nn.SyncBatchNorm):
    """torch's SyncBatchNorm for rows, on any device: the statistics are of all ranks' batches."""

    def forward(self, input: Tensor) -> Any:
        """The normalised rows ``[num_rows, C]`` (collective in training)."""
        if isinstance(input, Rows):
            return torch.nn.BatchNorm1d.forward(self, input)
        rows = tag(input.view_as(input), 0, Sharding(input.size(0), what='rows of batches'))
        return plain(torch.nn.BatchNorm1d.forward(self, rows))


def _forward(norm: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    forward = partial(type(norm).forward, norm)
    is_of_all = isinstance(x, Rows)
    if is_of_all or not norm.training:
        make_equal(norm)
    if is_of_all or world_size() == 1:
        return forward(x, *args, **kwargs)
    if norm.training and getattr(norm, 'running_mean', None) is not None:
        has_rows = torch.tensor([x.numel() > 0])
        if isinstance(norm, pyg.HeteroBatchNorm):
            types = args[0] if args else kwargs['type_vec']
            has_rows = torch.bincount(types, minlength=norm.running_mean.size(0)) > 0
        own, tracked = _updates_of(norm), getattr(norm, 'num_batches_tracked', None)
        if own is None:
            norm._own_updates = OwnUpdates(has_rows, None if tracked is None else tracked.clone())
        else:
            own.is_updated = own.is_updated | has_rows
    with _kept_for_backward(norm):
        return forward(x, *args, **kwargs) if x.numel() else x.view_as(x)


@contextmanager
def _kept_for_backward(norm: Any) -> Iterator[None]:
    """Lets a forward in training save running statistics that nobody changes in place.

    A first backward makes the norm's own equal. A second one through the forward may follow.
    """
    names = ('running_mean', 'running_var') if norm.training else ()
    buffers = {n: buffer for n, buffer in norm.named_buffers(recurse=False) if n in names}
    for name, buffer in buffers.items():
        setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for name, buffer in buffers.items():
            buffer.detach_().copy_(getattr(norm, name).detach())
            setattr(norm, name, buffer)
