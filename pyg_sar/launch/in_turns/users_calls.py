"""Replaces some functions of Python and torch while ranks take turns.

Programs use them to reach memory past torch's operations, or as if their process were one rank.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
import torch.utils.dlpack
from torch import Tensor

from pyg_sar.comm.ranks import rank
from pyg_sar.launch.in_turns.watch import Watch
from pyg_sar.utils.installed import find_or_none
from pyg_sar.utils.offload import keep_here, watcher

_are_all_disabled = find_or_none('torch._C._is_torch_function_all_disabled')


@contextmanager
def replaced() -> Iterator[None]:
    """Replaces these functions while it lasts."""
    with ExitStack() as stack:

        def replace(owner: Any, name: str, function: Any) -> None:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, function)

        replace(threading.Thread, 'start', _start_thread(threading.Thread.start))
        give_away = _give_away(torch.utils.dlpack.to_dlpack)
        for owner in (torch, torch.utils.dlpack):
            replace(owner, 'to_dlpack', give_away)
        replace(Tensor, '__dlpack__', _give_away(Tensor.__dlpack__))
        replace(Tensor, 'numpy', _give_away(Tensor.numpy))
        replace(Tensor, 'data_ptr', _give_away(Tensor.data_ptr))
        replace(Tensor, 'tolist', _read(Tensor.tolist))
        replace(Tensor, '__repr__', _read(Tensor.__repr__))
        replace(Tensor, 'untyped_storage', _read(Tensor.untyped_storage, is_written=True))
        profile, recorded = torch.profiler.profile, dict[Any, int]()
        replace(profile, 'start', _start_profile(profile.start, recorded))
        replace(profile, 'stop', _stop_profile(profile.stop, recorded))
        yield


def _start_thread(start: Any) -> Any:
    """Threads that a rank starts run during all turns, so memory that they touch stays here."""

    def start_seen(thread: threading.Thread) -> None:
        watch, run = watcher.value, thread.run
        if isinstance(watch, Watch):

            def run_seen() -> None:
                with watch.in_thread(stays=True):
                    run()

            thread.run = run_seen  # type: ignore[method-assign]
        start(thread)

    return start_seen


def _is_ours() -> bool:
    """Whether a call comes from within ``torch._C.DisableTorchFunction``, as ours do."""
    if _are_all_disabled is None:  # torch 2.5: in rules of rows, too
        return not torch._C._is_torch_function_enabled()
    return bool(_are_all_disabled())


def _give_away(give_away: Any) -> Any:
    """Wraps a function that torch reports to nobody, or not inside others such as a backward."""

    @wraps(give_away)  # rules of rows know a function by its name
    def give_away_seen(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        keep_here(tensor)
        return give_away(tensor, *args, **kwargs)

    return give_away_seen


def _read(read: Any, is_written: bool = False) -> Any:
    """As :func:`_give_away`, of a function that reads memory at once, or gives Python a storage.

    A storage that Python has stays here for that time.
    """

    @wraps(read)
    def read_seen(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        watch = watcher.value
        if watch is not None and not _is_ours():
            watch.needs(tensor, is_written=is_written)
        return read(tensor, *args, **kwargs)

    return read_seen


def _start_profile(start: Any, recorded: dict[Any, int]) -> Any:
    """A second profiler of torch in a process ends it, or both."""

    def start_alone(profile: torch.profiler.profile) -> None:
        if recorded:
            (other,) = recorded.values()
            raise RuntimeError(
                'expected one torch.profiler in a process of ranks in turn (got one on rank '
                f'{rank()} while that of rank {other} runs; start it on one rank, or take '
                "'pyg_sar.profile')"
            )
        start(profile)
        recorded[profile] = rank()

    return start_alone


def _stop_profile(stop: Any, recorded: dict[Any, int]) -> Any:
    def stop_alone(profile: torch.profiler.profile) -> None:
        recorded.pop(profile, None)
        stop(profile)

    return stop_alone
