"""Norms of batches of a rank: PyG's own, also for batches without rows, and equal on all ranks.

On rows of the whole graph a norm runs as it is. On a plain tensor, as a loader gives it, it takes
the statistics of this rank's batch. So its running statistics have to be made equal
(:mod:`pyg_sar.nn.running`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import norm as pyg

from pyg_sar.comm.ranks import world_size
from pyg_sar.nn.running import make_equal, note_update
from pyg_sar.rows.rows import Rows, plain, tag
from pyg_sar.rows.sharding import Space

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
        rows = tag(input.view_as(input), 0, Space(input.size(0), what='rows of batches'))
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
        note_update(norm, has_rows)
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
