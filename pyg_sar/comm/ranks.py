"""The :class:`~pyg_sar.comm.comm.Comm` of a thread."""

from __future__ import annotations

import atexit
import sys
import time
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary

from pyg_sar.comm.comm import Comm
from pyg_sar.comm.process_group import GroupComm
from pyg_sar.utils import hook
from pyg_sar.utils.scoped import Scoped

chosen: Scoped[Comm | None] = Scoped(None)
"""The comm that is set for a thread: that of a rank which is a thread."""

_ALONE = Comm()
_owners: Any = WeakIdKeyDictionary()
_of_groups: WeakKeyDictionary[dist.ProcessGroup, GroupComm] = WeakKeyDictionary()


def current() -> Comm:
    """The comm of this thread, else of the default process group, else of one rank by itself."""
    if chosen.value is not None:
        return chosen.value
    default = dist.group.WORLD
    return _ALONE if default is None else _of_groups.get(default) or _of_group(default)


def _of_group(default: dist.ProcessGroup) -> GroupComm:
    _of_groups[default] = GroupComm()
    atexit.unregister(_let_go)
    atexit.register(_let_go)
    return _of_groups[default]


def cache_of(what: str, kind: Any = WeakTensorKeyDictionary) -> Any:
    """What this rank keeps by tensors, which ranks that are threads may have in common."""
    caches = current().caches
    if (what, kind) not in caches:
        caches[what, kind] = kind()
    return caches[what, kind]


def check_own(thing: Any) -> None:
    """Raises a ValueError for a module or a leaf of another rank, where ranks are threads."""
    comm = current()
    if comm.takes_turns:
        owner = _owners.get(thing, lambda: None)() or comm
        if owner is not comm and owner.run is comm.run:  # of this run
            raise ValueError(
                f"expected a {'tensor' if isinstance(thing, Tensor) else 'model'} of this rank's "
                f'own (got that of rank {owner.rank}: make what learns inside of the function that '
                'every rank runs)'
            )
        _owners[thing] = ref(comm)


def is_distributed() -> bool:
    """Whether there are ranks: ``torch.distributed`` is initialised, or ranks are threads."""
    return current() is not _ALONE


def takes_turns() -> bool:
    """Whether the ranks are threads of one process."""
    return current().takes_turns


def rank() -> int:
    """The own rank; 0 of a process by itself."""
    return current().rank


def world_size() -> int:
    """Number of ranks; 1 of a process by itself."""
    return current().size


hook.rank_and_size = lambda: (rank(), world_size())


def check_lives(comm: Comm | None) -> None:
    """Raises RuntimeError if a rank's process group, or its thread, has ended."""
    if comm is None:
        return
    world = comm.world()
    is_group = world is not None and world is dist.group.WORLD
    if comm.size > 1 and not is_group and chosen.value is not comm:
        raise RuntimeError(
            'expected the ranks that have these rows (got rows of ranks that have ended, as by '
            'torch.distributed.destroy_process_group()): compute with them before, backward too, '
            'or call pyg_sar.init() and pyg_sar.load_shard() again'
        )


def left_by(error: BaseException) -> None:
    """See :meth:`Comm.left_by`."""
    current().left_by(error)


def as_timedelta(timeout: float | timedelta | None) -> timedelta | None:
    """A timeout in seconds, checked."""
    if timeout is None:
        return None
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not (is_number or isinstance(timeout, timedelta)):
        raise ValueError(f"'timeout' must be seconds or a timedelta (got {timeout!r})")
    limit = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    if limit < timedelta(milliseconds=1):
        raise ValueError(f"'timeout' must be positive (got {timeout!r})")
    return limit


def set_timeout(timeout: timedelta | None) -> None:
    """How long exchanges wait for a silent rank from now on (collective if it is another time)."""
    current().set_timeout(timeout)


def _let_go() -> None:
    """Reports the exception that ends the process, if nobody has caught it, and lets gloo go.

    A thread of gloo's that frees a tensor while the interpreter shuts down kills the process with
    "terminate called without an active exception" (torch 2.13, with or without
    ``destroy_process_group``): they get time to let go of the last ones.
    """
    error = getattr(sys, 'last_value', None)
    if error is not None and not hasattr(sys, 'ps1'):
        current().fail(error)
    time.sleep(0.2)
