"""Turns a PyG model into one that runs on a partitioned graph.

Layers that learn their widths at their first forward, such as ``GATConv((-1, -1), 64)``, would draw
values of their own on each rank. So the first forward runs once before, without gradients and in
evaluation, and leaves only the layers' values behind. Then rank 0 sends its values to all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch_geometric.nn import MessagePassing

from pyg_sar.comm.vote import agree, check_equal
from pyg_sar.nn.batch_norm import watch_norms
from pyg_sar.nn.dropout_forward import SameDropout, of_model
from pyg_sar.nn.options import options_of
from pyg_sar.nn.sar_conv import SARConv, name_layers, why_refused
from pyg_sar.ops.linear import compute_by_onednn
from pyg_sar.utils.dry_run import inert
from pyg_sar.utils.log import LogLevel, check_log, say, set_log

_logger = logging.getLogger(__name__)

Model = TypeVar('Model', bound=torch.nn.Module)


def wrap(
    model: Model,
    *,
    log: LogLevel | None = None,
    dropout_seed: int | None = None,
    **options: Any,
) -> Model:
    """Makes the convs and norms of a model those of ranks, in place; returns the model.

    See :class:`pyg_sar.DistributedDataParallel` for the arguments and errors.
    """
    check_log(log)
    if dropout_seed is not None and (
        type(dropout_seed) is not int or not -(2**63) <= dropout_seed < 2**63
    ):
        raise ValueError(
            f"'dropout_seed' must be an integer of 64 bits or None (got {dropout_seed!r})"
        )
    checked = options_of(options)
    convs = _convs_to_convert(model)
    if options and not any(isinstance(module, MessagePassing) for module in model.modules()):
        raise ValueError(
            f"'{next(iter(options))}' has a meaning for message-passing convs only (got a "
            f'{type(model).__name__} without any)'
        )
    set_log(log)
    watch_norms(model)
    for conv in convs:
        SARConv(conv, **vars(checked))
    compute_by_onednn(model)
    name_layers(model)
    if dropout_seed is not None:
        _draw_by_id(model, dropout_seed)
    _tell(model)
    return model


def _draw_by_id(model: torch.nn.Module, seed: int) -> None:
    """Draws the masks of a model's dropouts by id from now on."""
    for old in of_model(model).values():
        old.let_go()
    for module in model.modules():
        if isinstance(module, SARConv):
            module._sar.drops_by_id = True
    SameDropout(seed).watch(model)


def _tell(model: torch.nn.Module) -> None:
    if not _logger.isEnabledFor(logging.INFO):
        return
    layers = [m for m in model.modules() if isinstance(m, SARConv) and not m._sar.is_inside]
    of_layers = '; '.join(
        f'{layer._sar.label}, mode {layer.sar_options.mode!r}' for layer in layers
    )
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    text = f'wrapped {type(model).__name__}, {num_parameters} parameters, {len(layers)} layers'
    say(_logger, logging.INFO, f'{text}: {of_layers}')


def _convs_to_convert(model: torch.nn.Module) -> list[MessagePassing]:
    """The convs that are not inside of others; raises for modules that are refused."""
    convs: list[MessagePassing] = []
    inside: set[torch.nn.Module] = set()
    for name, module in model.named_modules():
        if isinstance(module, MessagePassing) and module not in inside:
            inside.update(module.modules())
            if not isinstance(module, SARConv):
                convs.append(module)
        reason = None if isinstance(module, SARConv) else why_refused(module)
        if reason is not None:
            where = f" at '{name}'" if name else ''
            raise ValueError(
                f'{type(module).__name__}{where} cannot run on a partitioned graph: {reason}'
            )
    return convs


class LazyLayers:
    """Gives a model's lazy parameters and buffers their shapes, at the first call of their module.

    A forward pre-hook of every module that holds one, as users call ``model.encode(...)`` as well;
    the outermost that is called is the first. A copy has no model and does nothing. `send` gives
    all ranks rank 0's values of some tensors (collective).
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        send: Callable[[list[Tensor]], None] = lambda tensors: None,
    ) -> None:
        self._send = send
        self._is_running = False
        self._waiting: dict[torch.nn.Module, dict[str, Tensor]] = {}
        for module in () if model is None else model.modules():
            tensors = (*module.named_parameters(), *module.named_buffers())
            waiting: dict[str, Tensor] = {name: t for name, t in tensors if is_lazy(t)}
            if waiting:
                # Before all hooks, but after one that gives it shapes itself.
                is_first = not hasattr(module, 'initialize_parameters')
                module.register_forward_pre_hook(self, with_kwargs=True, prepend=is_first)
                self._waiting[module] = waiting

    def __reduce__(self) -> Any:
        return LazyLayers, ()

    @torch.compiler.disable
    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Runs the module once before its first forward (collective, as that is).

        Raises:
            ValueError: On all ranks, if the layers' shapes differ.
        """
        if self._is_running or module not in self._waiting:
            return
        if any(map(is_lazy, self._waiting[module].values())):
            self._is_running = True
            try:
                with torch.no_grad(), inert(module, (args, kwargs)), _in_evaluation(module):
                    module.forward(*args, **kwargs)
            finally:
                self._is_running = False
        ready = {name: t for name, t in self._waiting[module].items() if not is_lazy(t)}
        shapes = {name: tuple(t.shape) for name, t in ready.items()}
        check_equal('shapes of lazy layers', agree(shapes))
        # All tensors: a layer draws its bias anew as well.
        self._send([*module.parameters(), *module.buffers()])
        done = set(ready.values())
        for inner, waiting in list(self._waiting.items()):
            self._waiting[inner] = {name: t for name, t in waiting.items() if t not in done}
            if not self._waiting[inner]:
                del self._waiting[inner]


@contextmanager
def _in_evaluation(model: torch.nn.Module) -> Iterator[None]:
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training
