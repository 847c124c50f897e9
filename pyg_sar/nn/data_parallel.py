"""A model that trains on several ranks as on one.

Programs that were written for torch's DistributedDataParallel find its options and methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from inspect import signature
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parameter import is_lazy

from pyg_sar.comm.collectives import broadcast
from pyg_sar.comm.errors import collective
from pyg_sar.comm.ranks import (
    as_timedelta,
    check_own,
    is_distributed,
    left_by,
    set_timeout,
    takes_turns,
    world_size,
)
from pyg_sar.comm.vote import raise_on_all
from pyg_sar.nn.averager import MIB
from pyg_sar.nn.gradients import Gradients
from pyg_sar.nn.sar_conv import refuse_tracing
from pyg_sar.nn.wrap import LazyLayers, check_same_model, check_same_values, wrap
from pyg_sar.ops.linear import compute_by_onednn
from pyg_sar.rows.rows import Rows
from pyg_sar.utils.class_swap import ClassSwap, become
from pyg_sar.utils.log import LogLevel
from pyg_sar.utils.malloc import return_freed_memory
from pyg_sar.utils.nested import leaves

_HARMLESS = (
    *('output_device', 'check_reduction', 'init_sync', 'find_unused_parameters', 'static_graph'),
    'gradient_as_bucket_view',
)
"""Options that change nothing here, whatever they are."""


def drop_harmless(options: dict[str, Any]) -> None:
    """Takes out torch's options that change nothing; raises a TypeError for others of torch's."""
    of_torchs = signature(torch.nn.parallel.DistributedDataParallel).parameters
    for name in sorted(options.keys() & of_torchs.keys()):
        if name not in _HARMLESS and options[name] not in (None, of_torchs[name].default):
            raise TypeError(
                f"'{name}' of torch's DistributedDataParallel has no meaning here: leave it out"
            )
        del options[name]


class OfTorchs:
    """What torch's wrapper has: ``model.module`` is the model, a method an error with what to do.

    A model's own attribute of that name stays.
    """

    def __init__(self, instead: str | None = None) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, model: Any, cls: Any = None) -> Any:
        if model is None:
            return self
        own: Any = super(self._owner, model)
        with suppress(AttributeError):
            return getattr(own, self._name)
        with suppress(AttributeError):
            return own.__getattr__(self._name)
        return model if self._instead is None else self._refuse

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(
            f"'{self._name}' of torch's DistributedDataParallel has no meaning here: "
            f'{self._instead}'
        )


Model = TypeVar('Model', bound=torch.nn.Module)


class DistributedDataParallel(torch.nn.Module, metaclass=ClassSwap):
    """Makes a PyG model train on a partitioned graph as on one machine.

    Gives `module` itself back, with another class that is made on the fly: a ``Net`` stays a
    ``Net``, and is a ``DistributedDataParallel``, too. Its attributes, methods, hooks and the keys
    of its ``state_dict()`` stay as they are. Every conv becomes a :class:`SARConv`, in place, and
    norms take the statistics of all ranks' rows; all other modules run as they are. The gradients
    of the ranks are averaged at the end of every backward, whichever method of the model or of a
    layer has used the parameters, also one that is put into the model later. On data of
    :func:`pyg_sar.load_shard` gradients are those of one process, also gradients of inputs. Rows of
    a :class:`pyg_sar.NodeEmbedding` are neither sent nor averaged.

    All ranks must have equal parameters and buffers. This is checked at construction. A checksum of
    the parameters travels with every sum of gradients, so ranks that part are told at the next
    backward. Buffers are compared at every 50th one.

    With the plain edges of a batch it runs the plain model (docs/models.md). Then ranks communicate
    only to sum gradients, and to make running statistics of norms equal. A rank whose batch is
    empty takes part.

    Lazy layers (``GATConv((-1, -1), 64)``) get their shapes at the first forward. It runs once
    before, without gradients and in evaluation mode; then all ranks get the parameters of rank 0.

    A copy (``deepcopy``, ``pickle``, ``torch.save``) averages its own gradients. A model that is
    given again takes the new options. ``model.module`` is the model, as with torch's wrapper.

    Hooks of parameters get the whole gradient, at the end of the backward; where some ranks alone
    have hooks (``if rank == 0: wandb.watch(model)``), they may only read. On batches, hooks of
    ``register_hook`` get this rank's share, as in torch, at once. ``torch.autograd.grad``
    returns the whole gradient; with ``create_graph=True`` or in ``no_sync()`` it raises an error.
    Without ``torch.distributed`` the model runs as it is.

    In place of torch's::

        model = pyg_sar.DistributedDataParallel(GraphSAGE(8, 8, 2, 3, norm='batch_norm'))
        out = model(data.x, data.edge_index)

    Collective: construction, forward and backward; every rank calls them the same number of times.

    Args:
        module: A PyG model, or a model of rows alone such as an MLP.
        timeout: How long exchanges and the sum of the gradients wait for a silent rank, once the
            model is built: seconds or a timedelta. None is the timeout of the default group.
        return_memory: Have glibc give freed tensors of 4 MiB or more back to the system at once.
            None does so where there are several ranks: on one, tensors below 32 MiB are kept.
        process_group: A group of all ranks for the gradients; None for that of the exchanges.
        bucket_cap_mb: Gradients are averaged in pieces of this many MiB, or of one larger gradient;
            None: 25.
        broadcast_buffers: False, as norms keep their buffers equal by themselves.
        device_ids: As in torch: None, or the one device where the model is already.
        dropout_seed: Draws the masks of dropouts in the model's forward from this number, the step,
            and the ids of nodes and edges in the whole graph. They are then the same on any number
            of ranks. None: each rank draws from torch's generator (docs/dropout.md).
        log: How much this process logs about layers, blocks and times (docs/profiling.md):
            ``'info'``, ``'debug'`` or ``'off'``. Lines go to stderr, or to handlers of the logger
            ``pyg_sar``. None leaves the level of PYG_SAR_LOG in the environment. Ranks may differ.
        **options: How every conv is computed: :class:`pyg_sar.nn.options.Options`. Options of
            torch's wrapper that change nothing (`output_device`, `static_graph`) are accepted.

    Raises:
        ValueError: On all ranks, if a module cannot be computed on a cut graph, with the reason; if
            an argument has no meaning for this model; if models or parameters differ between ranks,
            also later. At a forward in training, if the model draws numbers that `dropout_seed`
            cannot draw by id.
        ExchangeError: If another rank has ended or is silent.
    """

    _gradients: Gradients
    module = OfTorchs()
    join = OfTorchs('leave it out, all ranks take as many steps, also with empty batches')
    register_comm_hook = OfTorchs(
        'leave it out, exchange_dtype=torch.bfloat16 sends less in layers'
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Skips the hook of a user's class for its subclasses: this class is not the user's."""

    @staticmethod
    @collective('DistributedDataParallel', 'one small all-gather, and the tensors of rank 0')
    def _convert(
        module: Model,
        *,
        timeout: float | timedelta | None = None,
        return_memory: bool | None = None,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        broadcast_buffers: bool = False,
        device_ids: Sequence[int | torch.device] | None = None,
        dropout_seed: int | None = None,
        log: LogLevel | None = None,
        **options: Any,
    ) -> Model:
        bucket_cap_mb = 25 if bucket_cap_mb is None else bucket_cap_mb
        drop_harmless(options)

        def wrapped() -> tuple[Model, timedelta | None]:
            _check(module, process_group, bucket_cap_mb, broadcast_buffers, device_ids)
            model = wrap(module, dropout_seed=dropout_seed, log=log, **options)
            return model, as_timedelta(timeout)

        module, limit = raise_on_all(wrapped)
        check_same_model(module, {'timeout': timeout, 'bucket_cap_mb': bucket_cap_mb})
        returns = world_size() > 1 if return_memory is None else return_memory
        if returns and not takes_turns():  # threads share that setting
            return_freed_memory()
        if not any(map(is_lazy, (*module.parameters(), *module.buffers()))):
            check_same_values(
                module,
                'when the model is wrapped',
                'make the model after torch.manual_seed(0) on every rank, or load one file on all; '
                'what a module leaves uninitialised (torch.empty) has to be filled, as by '
                'torch.nn.init.zeros_(parameter)',
            )
        set_timeout(limit)  # last: until here ranks may be slow
        if not isinstance(module, DistributedDataParallel):
            become(module, DistributedDataParallel)
        gradients = Gradients(process_group, bucket_cap_mb * MIB).at(module)
        for part in module.modules():  # itself, if it is given again, and models inside
            if isinstance(part, DistributedDataParallel):
                if '_gradients' in vars(part):
                    part._gradients.let_go()
                vars(part)['_gradients'] = gradients
        gradients.of(module)
        LazyLayers(module, _send_from_rank_0)
        return module

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        compute_by_onednn(self)
        gradients = vars(self).get('_gradients')
        is_shared = gradients is not None and gradients.model() not in (None, *self.modules())
        if gradients is None or is_shared:  # copy.copy has that of the model itself
            gradients = vars(self)['_gradients'] = Gradients().at(self)
        gradients.of(self)
        LazyLayers(self, _send_from_rank_0)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model."""
        is_tracing = torch.jit.is_tracing()  # type: ignore[no-untyped-call]
        if is_tracing and any(isinstance(leaf, Rows) for leaf in leaves((args, kwargs))):
            refuse_tracing(self)
        try:
            return super().__call__(*args, **kwargs)
        except BaseException as error:
            left_by(error)
            raise

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate; the next one outside averages the sum."""
        gradients = self._gradients
        before, gradients.accumulates = gradients.accumulates, True
        try:
            yield
        finally:
            gradients.accumulates = before


def _check(
    module: torch.nn.Module,
    process_group: dist.ProcessGroup | None,
    bucket_cap_mb: float,
    broadcast_buffers: bool,
    device_ids: Sequence[int | torch.device] | None,
) -> None:
    if isinstance(module, (torch.jit.ScriptModule, torch.jit.TopLevelTracedModule)):
        raise ValueError(
            "expected the module itself in 'module' (got one of TorchScript, whose code is fixed): "
            'write pyg_sar.DistributedDataParallel(model), without torch.jit.script or trace'
        )
    if broadcast_buffers:
        raise ValueError(
            "'broadcast_buffers' must be False (got True): norms keep their buffers equal"
        )
    for part in module.modules():  # PyG's convs may have one torch.nn.ReLU() in common
        if part is module or next(part.parameters(recurse=False), None) is not None:
            check_own(part)
    for name, p in module.named_parameters():
        if isinstance(p, Rows) and not p._sharding.is_learned:
            raise ValueError(
                f"'{name}' must be a plain parameter (got rows of the whole graph): a learned row "
                'for every node is pyg_sar.NodeEmbedding, and rows that do not learn are a buffer '
                '(register_buffer)'
            )
    if not bucket_cap_mb > 0:
        raise ValueError(f"'bucket_cap_mb' must be positive (got {bucket_cap_mb})")
    if process_group is not None and dist.get_world_size(process_group) != dist.get_world_size():
        raise ValueError(
            f"'process_group' must have all {dist.get_world_size()} ranks "
            f'(got one of {dist.get_world_size(process_group)})'
        )
    devices = {p.device for p in module.parameters()}
    if device_ids and {torch.zeros(0, device=device).device for device in device_ids} != devices:
        raise ValueError(
            f"'device_ids' must be where the model is, {sorted(map(str, devices))} "
            f'(got {list(device_ids)}): move the model and the shard there first'
        )


def _send_from_rank_0(tensors: list[Tensor]) -> None:
    """Sends the values of rank 0 to all ranks (collective); lazy tensors have none yet."""
    for tensor in tensors if is_distributed() else ():
        if isinstance(tensor, Rows) or is_lazy(tensor):
            continue
        sent = tensor.detach().contiguous()
        broadcast(sent, 'sending parameters to all ranks')
        tensor.detach().copy_(sent)
