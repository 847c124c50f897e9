"""Deals the cores and GPUs of the machines out to the ranks.

The ranks tell each other which cores and GPUs they see. So it does not matter how a launcher deals
out a machine: it may bind ranks to cores and GPUs of their own, or let all ranks see all of them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch


class Sight(NamedTuple):
    """What a rank sees."""

    machine: str  # a name that no other machine has
    network: str  # a name that no other network has; a container may have its own network
    cores: tuple[int, ...]  # the cores that it may run on
    gpus: tuple[str, ...]  # names of the GPUs, which no other GPU has
    interfaces: tuple[str, ...]  # names of the network's interfaces


class Share(NamedTuple):
    """The cores and the GPU that a rank gets."""

    local_rank: int  # its number among the ranks of its machine
    num_local: int  # number of ranks on its machine
    num_threads: int  # its share of the cores
    gpu: int | None  # the index of its GPU among those that it sees


def own_sight() -> Sight:
    """What this process sees."""
    host = socket.gethostname()
    try:
        machine = Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii').strip()
        network = f'{machine} {os.readlink("/proc/self/ns/net")}'
    except OSError:  # a container that has no /proc
        machine = network = host
    gpus = []
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(i)
            gpus.append(str(getattr(properties, 'uuid', f'{machine} {i}')))
    interfaces = tuple(name for _, name in socket.if_nameindex())
    return Sight(machine, network, tuple(sorted(os.sched_getaffinity(0))), tuple(gpus), interfaces)


def shares(ranks: Sequence[Sight]) -> list[Share]:
    """Deals out cores and GPUs: ranks that see the same ones share them, in the order of ranks."""
    blind = [rank for rank, sight in enumerate(ranks) if not sight.gpus]
    if blind and len(blind) < len(ranks):
        raise ValueError(
            f'expected GPUs for all {len(ranks)} ranks or for none (got none for ranks {blind}; '
            'CUDA_VISIBLE_DEVICES= hides those of the others)'
        )
    dealt = []
    for rank, sight in enumerate(ranks):
        local = [r for r, other in enumerate(ranks) if other.machine == sight.machine]
        of_cores = [r for r in local if ranks[r].cores == sight.cores]
        of_gpus = [r for r in local if ranks[r].gpus == sight.gpus]
        num_threads = max(1, len(sight.cores) // len(of_cores))
        gpu = of_gpus.index(rank) % len(sight.gpus) if sight.gpus else None
        dealt.append(Share(local.index(rank), len(local), num_threads, gpu))
    return dealt


def have_own_gpus(ranks: Sequence[Sight], dealt: Sequence[Share]) -> bool:
    """Whether every rank has a GPU, and none has another's: NCCL takes no others."""
    gpus = [s.gpus[p.gpu] for s, p in zip(ranks, dealt, strict=True) if p.gpu is not None]
    return len(set(gpus)) == len(ranks)
