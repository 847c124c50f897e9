"""All that is asked of ``torch.distributed`` when something travels: five functions.

Who carries the rows another way, such as between threads of one process, has these to write, and
the group that :func:`pyg_sar.comm.exchange_group` gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


def is_distributed() -> bool:
    """Whether this process is one of several (``torch.distributed`` is initialised)."""
    return dist.is_available() and dist.is_initialized()


def start_swap(
    received: Iterable[Tensor],
    recv_rank: int,
    sent: Iterable[Tensor],
    send_rank: int,
    tag: int,
    group: Group,
) -> list[dist.Work]:
    """Begins to receive tensors from one rank and to send others to another.

    Receives come first: a send completes early only if its receive is posted already. Messages
    meet if their tags are equal, where the backend knows tags (gloo).
    """
    ops = [dist.P2POp(dist.irecv, t, recv_rank, group, tag) for t in received]
    ops += [dist.P2POp(dist.isend, t, send_rank, group, tag) for t in sent]
    return dist.batch_isend_irecv(ops) if ops else []


def all_to_all(
    received: Tensor, sent: Tensor, recv_sizes: list[int], send_sizes: list[int], group: Group
) -> None:
    """Sends runs of a vector to rank 0, 1, ...; what comes from them fills another one."""
    dist.all_to_all_single(received, sent, recv_sizes, send_sizes, group=group)


def all_reduce(tensor: Tensor, group: Group) -> Tensor:
    """Sums a tensor over the ranks in place."""
    dist.all_reduce(tensor, group=group)
    return tensor


def all_gather(own: Tensor, group: Group) -> Tensor:
    """The tensors of all ranks, of one shape, ``[world_size, ...]``."""
    out = own.new_empty(dist.get_world_size(group), *own.shape)
    dist.all_gather(list(out.unbind()), own, group=group)
    return out


def small_device(group: Group) -> torch.device:
    """Where tensors of a few bytes must be to travel: on the CPU, if the group can do that."""
    types: Sequence[torch.device] = getattr(group, '_device_types', ())
    if not types or torch.device('cpu') in types:
        return torch.device('cpu')
    if torch.device('cuda') in types:
        return torch.device('cuda', torch.cuda.current_device())
    return torch.device(types[0])
