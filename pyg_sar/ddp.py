"""Data-parallel training of one whole-graph loss: gradients are summed, not averaged."""

# No `from __future__ import annotations`: torch checks the annotations of a communication hook and
# does not resolve strings.
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from pyg_sar.comm import (
    for_operations,
    guard,
    in_call,
    is_distributed,
    left_by,
    lost_rank,
    raise_together,
    set_debug,
    set_timeout,
)
from pyg_sar.conv.options import Mode
from pyg_sar.fingerprint import check_same_model
from pyg_sar.memory import return_freed_memory
from pyg_sar.monitor import LogLevel
from pyg_sar.wrap import as_timedelta, wrap

_TorchDDP = torch.nn.parallel.DistributedDataParallel


class DistributedDataParallel(_TorchDDP):
    """Makes a PyG model train on a partitioned graph as on one machine.

    Wraps the model's convs and norms (:func:`pyg_sar.wrap`), sends rank 0's parameters and buffers
    to all ranks, and sums the gradients of the ranks after every backward. The loss must be this
    rank's share of the global one: :func:`pyg_sar.global_mean`. torch's own averages; with unequal
    parts neither an average nor a local mean gives the gradient of the whole graph.

    It is torch's DistributedDataParallel (``no_sync``, bucketing, ``model.module``) with a
    communication hook that sums. Without ``torch.distributed`` it runs the wrapped model as it is.

    Args:
        module: A PyG model.
        mode: The mode of every :class:`SARConv`.
        prefetch: The prefetch depth of every SARConv.
        max_rows: The bound of every SARConv on the rows of a chunk.
        memory_budget: The memory budget of every SARConv, in bytes, with mode ``'auto'``.
        exchange_dtype: What every SARConv rounds rows to on their way between ranks.
        checkpoint_activations: Whether norms, activations and dropouts are computed again in
            backward instead of kept.
        timeout: How long the exchanges, and the sum of the gradients unless ``process_group`` is
            given, wait for a rank that says nothing: seconds or a timedelta; None for the timeout
            of the default group.
        debug: Whether the ranks compare what they do before every exchange (:func:`pyg_sar.wrap`).
        log: What this process tells: ``'info'``, ``'debug'`` or ``'off'`` (:func:`pyg_sar.wrap`).
        return_memory: Have large freed tensors given back to the system at once
            (:func:`pyg_sar.return_freed_memory`).
        **kwargs: Options of torch's DistributedDataParallel. Buffers stay equal by themselves, so
            ``broadcast_buffers`` is False.

    Raises:
        ValueError: On all ranks, as :func:`pyg_sar.wrap` does; if the ranks' models differ; if
            ``broadcast_buffers`` is asked for.
        ExchangeError: If another rank has ended or is silent.
    """

    @in_call('DistributedDataParallel')
    def __init__(
        self,
        module: torch.nn.Module,
        *,
        mode: Mode = 'sequential',
        prefetch: int = 1,
        max_rows: int | None = None,
        memory_budget: int | None = None,
        exchange_dtype: torch.dtype | None = None,
        checkpoint_activations: bool = False,
        timeout: float | timedelta | None = None,
        debug: bool | None = None,
        log: LogLevel | None = None,
        return_memory: bool = True,
        **kwargs: Any,
    ) -> None:
        if kwargs.pop('broadcast_buffers', False):
            raise ValueError(
                "'broadcast_buffers' must be False (got True): global norms keep buffers equal"
            )
        unknown = kwargs.keys() - inspect.signature(_TorchDDP.__init__).parameters.keys()
        if unknown:
            raise TypeError(f'expected options of {_TorchDDP.__name__} (got {sorted(unknown)})')
        error: Exception | None = None
        try:
            module = wrap(
                module,
                mode=mode,
                prefetch=prefetch,
                max_rows=max_rows,
                memory_budget=memory_budget,
                exchange_dtype=exchange_dtype,
                checkpoint_activations=checkpoint_activations,
                log=log,
            )
            limit = as_timedelta(timeout)
        except Exception as found:  # whatever it is, the other ranks must not wait for this one
            error = found
        raise_together(error)
        plain = {k: v for k, v in kwargs.items() if isinstance(v, (bool, int, float))}
        check_same_model(module, {'timeout': timeout, 'debug': debug, **plain})
        set_timeout(limit)
        set_debug(debug)
        if return_memory:
            return_freed_memory()
        # torch's needs a process group, and refuses a model that has nothing to learn.
        if not is_distributed() or not any(p.requires_grad for p in module.parameters()):
            torch.nn.Module.__init__(self)
            self.module, self.is_single = module, True
            if is_distributed():
                for tensor in module.state_dict().values():
                    dist.broadcast(tensor, src=0, group=kwargs.get('process_group'))
            return
        if limit is not None and kwargs.get('process_group') is None:
            # The sum of the gradients waits no longer than the exchanges do.
            kwargs['process_group'] = _group_with(limit)
        try:
            super().__init__(module, **kwargs)
        except RuntimeError as failure:
            raise (lost_rank(failure, 'sending parameters to all ranks') or failure) from None
        self.broadcast_buffers = False
        self.is_single = False
        self.register_comm_hook(self.process_group, _sum_gradients)
        self._fix_buckets()

    def _fix_buckets(self) -> None:
        """Runs one backward of zeros, so that torch lays out its buckets before training starts.

        torch lays them out anew after the first backward that it sees, in the order in which
        gradients got ready. Where in a bucket a number lies decides in which order three or more
        ranks add it up, so training that goes on from a checkpoint, and begins with the first
        layout, would differ in the last bits from training that was never interrupted.
        """
        embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        is_sparse = any(isinstance(m, embeddings) and m.sparse for m in self.module.modules())
        if self.find_unused_parameters or self.static_graph or is_sparse:
            return
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        gradients = [p.grad for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        module, self.module = self.module, _Zeros(parameters)
        try:
            with torch.enable_grad():
                torch.autograd.backward(super().forward())  # type: ignore[no-untyped-call]
        finally:
            self.module = module
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Runs the wrapped model; the arguments are the model's own."""
        try:
            if self.is_single:
                return self.module(*inputs, **kwargs)
            return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        except BaseException as error:
            left_by(error)
            raise

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate; the next one outside sums what has gathered."""
        if self.is_single:
            yield
        else:
            with super().no_sync():
                yield


_groups: WeakKeyDictionary[dist.ProcessGroup, dict[timedelta, dist.ProcessGroup]] = (
    WeakKeyDictionary()
)
"""Of every default group those beside it: torch keeps a group, its threads and its connections
until it is destroyed, so models share them."""


def _group_with(timeout: timedelta) -> dist.ProcessGroup:
    """A group of all ranks with this timeout (collective where it is the first)."""
    default = dist.group.WORLD
    assert default is not None
    groups = _groups.setdefault(default, {})
    if timeout not in groups:
        with guard('connecting the ranks'):
            group = dist.new_group(timeout=for_operations(timeout))
        assert group is not None
        groups[timeout] = group
    return groups[timeout]


class _Zeros(torch.nn.Module):
    """A zero for every parameter; the last one's gradient is the first to be ready."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__()
        for number, parameter in enumerate(parameters):
            self.register_parameter(str(number), parameter)

    def forward(self) -> list[Tensor]:
        return [parameter.sum() * 0 for parameter in self.parameters()]


def _sum_gradients(
    group: dist.ProcessGroup,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work is not None
    # At the end of backward torch waits for the sums, and tells an error as text. This comes first.
    task = torch._C._current_graph_task_id()
    if task not in _under_way:
        _under_way.clear()
        _under_way[task] = []
        torch.autograd.Variable._execution_engine.queue_callback(_wait_for_sums)
    _under_way[task].append(work)
    future = work.get_future()
    summed: torch.futures.Future[Tensor] = future.then(_value)
    return summed


_under_way: dict[int, list[dist.Work]] = {}
"""The sums of the backward that runs, by its number."""


def _wait_for_sums() -> None:
    works = [work for of_task in _under_way.values() for work in of_task]
    _under_way.clear()
    for work in works:
        with guard('the sum of the gradients of parameters', is_wait=True):
            work.wait()


def _value(done: torch.futures.Future[list[Tensor]]) -> Tensor:
    return done.value()[0]
