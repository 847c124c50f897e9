"""``pyg_sar.profile``: where the time, the rows and the memory of an epoch go."""

from __future__ import annotations

import os
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from pyg_sar.comm import is_distributed
from pyg_sar.conv.sar_conv import SARConv
from pyg_sar.monitor import Ranges
from pyg_sar.profiling.gather import gather
from pyg_sar.profiling.recording import Recording
from pyg_sar.profiling.records import Summary
from pyg_sar.profiling.table import table_of_all, table_of_one

_TracerType = torch.profiler.profile


def profile(model: torch.nn.Module, *, trace: bool = False) -> Profile:
    """Profiles the SARConvs of a model while a ``with`` block lasts.

    >>> with pyg_sar.profile(model) as prof:
    ...     for epoch in range(3):
    ...         train(model)
    >>> print(prof.table())

    Results are the same bits. Each rank profiles itself, without any communication, and not all
    need to. Several profiles may be active at once, of the same or of different models; two models
    in one table: ``profile(torch.nn.ModuleList([first, second]))``.

    - **waiting** is the time inside operations with other ranks, of whatever kind: posting a
      message, waiting for rows or for one's own to be taken, sums and decisions of all ranks.
    - **computing** is all other time between the beginning and the end of a pass. A layer's
      backward is the sum of its steps of autograd, its linear layers included. Backward of a
      forward before the profile is outside of layers. So is the wait of DistributedDataParallel for
      the sums of gradients, which torch does not tell apart: it counts as computing there.
    - **rows and bytes** are counted when a message is complete. With exchanges of all ranks at once
      (mode one_shot, the gather path, plans made in the first epoch) everything that travels counts
      as rows, without what a rank sends to itself.
    - **memory** is, on a CPU, the high-water mark of the whole process's resident memory during a
      layer's passes, exact on Linux (it is set back for each pass, which other readers of VmHWM
      notice) and unknown elsewhere. On a GPU it is ``torch.cuda.max_memory_allocated``.
    - On a GPU the device is synchronised at both ends of every pass and operation, so that times
      are true ones, and the epoch takes longer than it does without a profile.

    Args:
        model: A wrapped model, a DistributedDataParallel of one, or a SARConv.
        trace: Whether torch.profiler records a timeline, for
            :meth:`Profile.export_chrome_trace`. It slows training down and takes memory with every
            operation: trace an epoch or two.

    Raises:
        ValueError: If there is no SARConv in the model; when entered, if the profile was entered
            before, or another one traces already.
    """
    return Profile(model, trace=trace)


class Profile:
    """What :func:`pyg_sar.profile` records.

    Attributes:
        summary: This rank's counts, as dataclasses; from the end of the ``with`` block on, also of
            one that an exception has ended.
    """

    _tracing = False

    def __init__(self, model: torch.nn.Module, *, trace: bool = False) -> None:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        if not any(isinstance(module, SARConv) for module in model.modules()):
            raise ValueError(
                f'expected a model that is wrapped (got {type(model).__name__} without any SARConv)'
            )
        self._recording = Recording(model)
        self._stack: ExitStack | None = None
        self._summary: Summary | None = None
        self._tracer = _TracerType(activities=_activities()) if trace else None

    def __enter__(self) -> Profile:
        if self._stack is not None:
            raise ValueError('expected a new profile: this one was entered before')
        if self._tracer is not None and Profile._tracing:
            raise ValueError('expected one profile with trace=True at a time (got a second one)')
        self._stack = ExitStack()
        Ranges.use()
        self._stack.callback(Ranges.let_go)
        if self._tracer is not None:
            Profile._tracing = True
            self._stack.callback(_let_trace)
            self._stack.enter_context(self._tracer)
        memory = self._recording.memory
        memory.reset()
        self._start_bytes = memory.peak()
        self._stack.enter_context(self._recording.running())
        self._start = self._recording.clock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._stack is not None
        name = self._recording.memory.name
        try:
            seconds = self._recording.clock() - self._start
        finally:
            self._stack.__exit__(kind, error, trace)
        layers, outside = self._recording.layers, self._recording.outside
        passes = [p for layer in layers for p in (layer.forward, layer.backward)]
        spent = sum(p.waiting + p.computing for p in passes) + outside.waiting
        outside.computing = max(seconds - spent, 0.0)
        rank, world_size = (dist.get_rank(), dist.get_world_size()) if is_distributed() else (0, 1)
        start_bytes = self._start_bytes
        self._summary = Summary(rank, world_size, seconds, layers, outside, start_bytes, name)

    @property
    def summary(self) -> Summary:
        """This rank's counts.

        Raises:
            ValueError: If the ``with`` block has not ended.
        """
        if self._summary is None:
            raise ValueError("expected the end of the profile's 'with' block first")
        return self._summary

    def all_ranks(self) -> list[Summary]:
        """The counts of all ranks, by rank.

        Collective: two all-to-alls of numbers; every rank has to profile its model.

        Raises:
            ValueError: On all ranks, if their models do not have the same layers.
        """
        return gather(self.summary, self._recording.device)

    def table(self, *, all_ranks: bool = False) -> str:
        """The counts as a table: two lines for each layer, then what is outside of layers.

        Args:
            all_ranks: Whether to show the least, the mean and the most over all ranks instead of
                this rank's own; collective, see :meth:`all_ranks`.
        """
        return table_of_all(self.all_ranks()) if all_ranks else table_of_one(self.summary)

    def as_dict(self) -> dict[str, Any]:
        """This rank's counts as numbers, strings, lists and dicts, for JSON."""
        return self.summary.as_dict()

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the timeline, one file per rank, for chrome://tracing or Perfetto.

        Beside torch's own operations it has ranges with names that begin with ``pyg_sar::``: layers
        and operations with other ranks.

        Raises:
            ValueError: Without ``trace=True``, and before the end of the ``with`` block.
        """
        if self._tracer is None:
            raise ValueError("expected a profile with 'trace=True' (got trace=False)")
        assert self.summary is not None
        self._tracer.export_chrome_trace(os.fspath(path))

    def __str__(self) -> str:
        return self.table() if self._summary is not None else repr(self)


def _let_trace() -> None:
    Profile._tracing = False


def _activities() -> list[torch.profiler.ProfilerActivity]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return activities
