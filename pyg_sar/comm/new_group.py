"""Makes the process group of the exchanges, which is not the default group."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from pyg_sar.comm.faults import for_operations

_SETTINGS = {'TORCH_NCCL_ASYNC_ERROR_HANDLING': '0', 'TORCH_NCCL_DUMP_ON_TIMEOUT': '0'}


def meet(group: dist.ProcessGroup | None) -> None:
    """Waits until all ranks of a group, or of the default one, come here (collective)."""
    default = dist.group.WORLD
    group = group or default
    if torch.device('cpu') in group._device_types:  # type: ignore[union-attr]
        work = dist.barrier(group=group, async_op=True)
        limit = for_operations(timeout_of(group)) if group is default else None
        assert work is not None
        work.wait(limit) if limit is not None else work.wait()


def new_group(limit: timedelta | None) -> dist.ProcessGroup:
    """A group of all ranks whose operations may take that long (collective).

    Its backends are those of the default group, with gloo for what is no row: decisions and texts
    of a few bytes go from host to host. With NCCL alone each of them would wait for a device: the
    current one, which need not be the one that holds the rank's rows.

    :mod:`pyg_sar.comm.faults` reports a rank that is lost under NCCL. torch's own watchdog
    would end the process, and sleep for a minute at every failed transfer, for dumps that nobody
    reads. Two environment variables turn both off; torch reads them while the group is made.
    """
    backend = None
    if torch.device('cpu') not in dist.group.WORLD._device_types:  # type: ignore[union-attr]
        backend = f'cpu:gloo,{dist.get_backend_config()}'
    with mock.patch.dict(os.environ, _SETTINGS):
        group: Any = dist.new_group(timeout=for_operations(limit), backend=backend)
    return group


def timeout_of(group: dist.ProcessGroup | None) -> timedelta | None:
    """The timeout of a group, which torch does not hand on to new ones; None if unknown."""
    if group is None:
        return None
    for device in group._device_types:
        with suppress(RuntimeError):  # a backend that cannot tell
            options: Any = getattr(group._get_backend(device), 'options', None)
            limit: timedelta | None = getattr(options, '_timeout', None)
            if limit is not None:
                return limit
    return None
