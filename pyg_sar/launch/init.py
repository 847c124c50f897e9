"""``init``: a program begins with it, and then runs under every launcher and as one process."""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import os
import random
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from pyg_sar.comm.environment import Launched, launched
from pyg_sar.comm.errors import end_in_a_line
from pyg_sar.comm.new_group import timeout_of
from pyg_sar.comm.ranks import as_timedelta, current, is_distributed
from pyg_sar.comm.vote import agree
from pyg_sar.launch.fast_start import THREADS, has_allocator
from pyg_sar.launch.machines import Sight, have_own_gpus, own_sight, shares
from pyg_sar.utils.log import say

_logger = logging.getLogger(__name__)

_num_joins = itertools.count()
_INTERFACES = ('GLOO_SOCKET_IFNAME', 'NCCL_SOCKET_IFNAME')


@dataclass(frozen=True)
class Process:
    """This process among those that train together.

    Attributes:
        rank: Which one it is; 0 of a process by itself.
        world_size: How many there are.
        device: Where its data and its model belong.
    """

    rank: int
    world_size: int
    device: torch.device


def init(*, interface: str | None = None, timeout: float | timedelta | None = None) -> Process:
    """Joins the processes that were started together; the first line of a program.

    Where no rank has set a seed since it has imported pyg_sar, all of them get the random states of
    rank 0 (Python's and NumPy's; torch's are equal). So they make the same model.

    A launcher tells the process its rank: torchrun, Slurm (``srun``), Open MPI, MPICH or Intel MPI
    (``mpirun``), :func:`pyg_sar.launch`, or a script that sets RANK, WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT. Without a launcher the process runs alone and needs no process group. After
    ``torch.distributed.init_process_group`` this function only returns rank, size and device.

    Each rank gets a GPU of its own, which becomes the current one. Then rows travel by NCCL, and
    everything else by gloo. Ranks on CPUs, and ranks that share a GPU, use gloo alone. The ranks of
    a machine share its cores, unless OMP_NUM_THREADS or MKL_NUM_THREADS is set (torchrun sets it
    to 1). If all ranks are on one machine, they use its loopback interface, unless
    GLOO_SOCKET_IFNAME is set.

    Collective: all ranks meet at rank 0.

    Args:
        interface: The network interface that ranks use on every machine, such as ``'eth0'``; it
            becomes GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME.
        timeout: Seconds, or a timedelta, that ranks wait for each other, here and later; torch's by
            default (30 minutes for gloo).

    Returns:
        ``rank``, ``world_size`` and ``device`` of this process.

    Raises:
        ValueError: If variables of the launcher are missing or contradict each other; if there is
            no such interface; if some ranks see GPUs and others none; if options are given and
            there is a process group already, other than the timeout that it has.
        ConnectionError: If the ranks do not meet.

    Example::

        process = pyg_sar.init()
        data = pyg_sar.load_shard('parts/').to(process.device)
    """
    limit = as_timedelta(timeout)
    if is_distributed():
        for name, value in (('interface', interface), ('timeout', timeout)):
            is_there = name == 'timeout' and limit == timeout_of(dist.group.WORLD)
            if value is not None and not is_there:
                raise ValueError(
                    f"'{name}' must be given before there is a process group (got {value!r} and a "
                    f'group of {current().size} ranks): write pyg_sar.init() here'
                )
    else:
        start = launched(os.environ)
        if start.world_size > 1:
            _join(start, interface, limit)
            _seed_alike()
        else:
            by = f' by {start.launcher}' if start.launcher else ''
            say(_logger, logging.INFO, f'one process{by}, {_current_device()}')
        if not has_allocator():
            say(
                _logger,
                logging.INFO,
                'no allocator is preloaded that keeps freed memory, which costs up to a third of '
                "the time on CPUs: pyg-sar run does it, after pip install 'pyg_sar[fast]'",
            )
    return Process(current().rank, current().size, _current_device())


def _current_device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device('cuda', torch.cuda.current_device())
    return torch.device('cpu')


def _join(start: Launched, interface: str | None, limit: timedelta | None) -> None:
    try:
        store, ranks = _meet(start, limit)
        all_shares = shares(ranks)
        share = all_shares[start.rank]
        _name_interface(interface, ranks)
        backend = 'gloo'
        if share.gpu is not None:
            torch.cuda.set_device(share.gpu)
            backend = 'cpu:gloo,cuda:nccl' if have_own_gpus(ranks, all_shares) else 'gloo'
        if not any(os.environ.get(name) for name in THREADS):
            torch.set_num_threads(share.num_threads)
        dist.init_process_group(
            backend,
            store=dist.PrefixStore('default_pg', store),
            rank=start.rank,
            world_size=start.world_size,
            timeout=limit,
        )
        # A rank that ended now would cut off those that are still connecting.
        if store.add('joined', 1) == start.world_size:
            store.set('all joined', '')
        store.wait(['all joined'])
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and 'gloo' not in str(error):
            raise  # of the device
        got = next(iter(str(error).splitlines()), 'no reason')
        raise ConnectionError(
            f'expected all {start.world_size} ranks at MASTER_ADDR={start.address}, '
            f'MASTER_PORT={start.port}, as rank {start.rank} by {start.launcher} (got {got}; is '
            'this the machine of rank 0, is the port free and open, is the interface right, do all '
            'ranks run?)'
        ) from error
    atexit.register(_leave)
    end_in_a_line()
    used = os.environ.get(_INTERFACES[0], 'the one of the name of the machine')
    say(
        _logger,
        logging.INFO,
        f'by {start.launcher}, {share.local_rank + 1} of {share.num_local} ranks on '
        f'{socket.gethostname()}, rank 0 at {start.address}:{start.port}, {backend}, '
        f'{_current_device()}, {torch.get_num_threads()} threads, interface: {used}',
    )


def _seed_alike() -> None:
    """Gives all ranks the random states of rank 0, of generators that no rank has used or seeded.

    Python, NumPy and torch begin with a seed of their own in every process.
    """
    states = _states()
    are_unset = [a == b for a, b in zip(states, _AT_IMPORT, strict=True)]
    answers = agree((states if current().rank == 0 else None, are_unset))
    by_generator = zip(_SET_STATE, answers[0][0], *(unset for _, unset in answers), strict=True)
    for set_state, state, *of_ranks in by_generator:
        if all(of_ranks):
            set_state(state)


def _states() -> tuple[Any, Any, Any]:
    """The states of the random generators of Python, NumPy and torch; PyG draws from all three."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    of_numpy = kind, np.asarray(keys).tolist(), *rest
    return random.getstate(), of_numpy, torch.get_rng_state().tolist()


_SET_STATE: Any = (
    random.setstate,
    np.random.set_state,
    lambda state: torch.set_rng_state(torch.tensor(state, dtype=torch.uint8)),
)
_AT_IMPORT = _states()


def _name_interface(interface: str | None, ranks: Sequence[Sight]) -> None:
    if interface is not None:
        without = [rank for rank, sight in enumerate(ranks) if interface not in sight.interfaces]
        if without:
            raise ValueError(
                f"'interface' must be there on every rank's machine (got {interface!r}, which is "
                f'missing on ranks {without}: rank {without[0]} has '
                f'{", ".join(ranks[without[0]].interfaces)})'
            )
        for name in _INTERFACES:
            os.environ[name] = interface
    elif len({sight.network for sight in ranks}) == 1 and 'lo' in ranks[0].interfaces:
        os.environ.setdefault(_INTERFACES[0], 'lo')


def _meet(start: Launched, limit: timedelta | None) -> tuple[dist.Store, list[Sight]]:
    host = f'[{start.address}]' if ':' in start.address else start.address
    options = {} if limit is None else {'timeout': limit}
    where = f'tcp://{host}:{start.port}'
    store, _, _ = next(dist.rendezvous(where, start.rank, start.world_size, **options))
    store = dist.PrefixStore(f'pyg_sar/{next(_num_joins)}', store)  # torchrun keeps its store
    names = [f'rank {rank}' for rank in range(start.world_size)]
    if store.add(f'{names[start.rank]} is here', 1) > 1:
        raise dist.DistStoreError(f'another {names[start.rank]} there')
    store.set(names[start.rank], json.dumps(own_sight()))
    if start.rank == 0:
        store.set('all ranks', json.dumps([json.loads(store.get(name)) for name in names]))
    sights = json.loads(store.get('all ranks'))
    return store, [Sight(machine, network, *map(tuple, r)) for machine, network, *r in sights]


def _leave() -> None:
    """Ends the group, as NCCL requires; not after an error, where a rank would wait for others."""
    if dist.is_initialized() and getattr(sys, 'last_value', None) is None:
        dist.destroy_process_group()
