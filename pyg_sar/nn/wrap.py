"""Turns a PyG model into one that runs on a partitioned graph.

Layers that learn their widths at their first forward, such as ``GATConv((-1, -1), 64)``, would draw
values of their own on each rank. So the first forward runs once before, without gradients and in
evaluation, and leaves only the layers' values behind. Then rank 0 sends its values to all.

The ranks compare their models before they train together.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch_geometric.nn import MessagePassing

from pyg_sar.comm.ranks import is_distributed
from pyg_sar.comm.vote import agree, check_equal, differ, odd_and_usual, vote
from pyg_sar.nn.batch_norm import watch_norms
from pyg_sar.nn.buckets import common
from pyg_sar.nn.dropout_forward import SameDropout, of_model
from pyg_sar.nn.options import options_of
from pyg_sar.nn.sar_conv import SARConv, name_layers, why_refused
from pyg_sar.ops.linear import compute_by_onednn
from pyg_sar.utils.class_swap import plain_class
from pyg_sar.utils.dry_run import dry_run
from pyg_sar.utils.log import LogLevel, check_log, say, set_log
from pyg_sar.utils.nested import PLAIN
from pyg_sar.utils.tensor_state import checksum, digest

_logger = logging.getLogger(__name__)

Model = TypeVar('Model', bound=torch.nn.Module)


def wrap(
    model: Model, *, log: LogLevel | None = None, dropout_seed: int | None = None, **options: Any
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

        Raises ValueError on all ranks if the layers' shapes differ.
        """
        if self._is_running or module not in self._waiting:
            return
        if any(map(is_lazy, self._waiting[module].values())):
            self._is_running = True
            try:
                with torch.no_grad(), dry_run(module, (args, kwargs)), _in_evaluation(module):
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


_PLAIN = (*PLAIN, torch.dtype)


def check_same_model(model: torch.nn.Module, options: dict[str, object]) -> None:
    """Compares the ranks' models: classes, settings, parameters, options (collective).

    One small all-gather of a checksum; if the checksums differ another one of descriptions. Then
    all ranks raise a ValueError with the first line that differs.
    """
    own = _describe(model, options)
    if len(set(agree(hashlib.sha256('\n'.join(own).encode()).hexdigest()))) == 1:
        return
    of_ranks = agree(own)
    odd, usual = odd_and_usual(of_ranks)
    for a, b in zip_longest(of_ranks[odd], of_ranks[usual], fillvalue='nothing more'):
        if a != b:
            raise differ(
                f'expected the same model on all ranks: {a} on rank {odd} (got {b} on rank '
                f'{usual}): make it by the same lines on every rank',
                odd,
            )


def check_same_values(model: torch.nn.Module, when: str, advice: str) -> None:
    """Compares the ranks' parameters and buffers (collective: one small all-gather).

    Raises ValueError on all ranks, with the name of the first that differs, `when` and `advice`.
    """
    values = {**common(model.named_parameters()), **common(model.named_buffers())}
    sums = digest(values.values()) if is_distributed() else 0
    if vote('a comparison of values', fingerprint=f'{sums}') is None:
        check_values(agree(sums_of(values)), when, advice)


def sums_of(values: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The checksum of every tensor, by name."""
    return {name: checksum(tensor) for name, tensor in values.items()}


def check_values(of_ranks: list[dict[str, tuple[int, ...]]], when: str, advice: str) -> None:
    """Raises what :func:`check_same_values` does, by the ranks' checksums."""
    for name in of_ranks[0]:
        sums = [of_rank.get(name) for of_rank in of_ranks]
        if len(set(sums)) > 1:
            odd, usual = odd_and_usual(sums)
            raise differ(
                f"'{name}' must be equal on all ranks (rank {odd} has other numbers than rank "
                f'{usual} {when}): {advice}',
                odd,
            )


def _describe(model: torch.nn.Module, options: dict[str, object]) -> list[str]:
    """One line for every setting and tensor that must be alike on all ranks."""
    lines = [f'option {name}={value!r}' for name, value in options.items()]
    for path, module in model.named_modules():
        kind = _class_of(module)
        names = []
        if kind.startswith('torch'):  # a class of the user's may well hold its rank
            names = [n for n in vars(module) if not n.startswith('_') and n != 'training']
        settings = {n: vars(module)[n] for n in names if isinstance(vars(module)[n], _PLAIN)}
        if isinstance(module, SARConv):
            settings |= vars(module.sar_options)
        name = f"'{path}'" if path else 'the model'
        lines.append(f'{name}: {kind}')
        lines += [f'{name}: {option}={value}' for option, value in sorted(settings.items())]
    for path, tensor in [*model.named_parameters(), *model.named_buffers()]:
        is_set = not torch.nn.parameter.is_lazy(tensor)
        shape: object = tuple(tensor.shape) if is_set else 'not known yet'
        needs = ', with gradient' if tensor.requires_grad else ''
        where = '' if tensor.device.type == 'cpu' else f', on {tensor.device.type}'
        lines.append(f"'{path}': {tensor.dtype} of shape {shape}{needs}{where}")
    return lines


def _class_of(module: torch.nn.Module) -> str:
    """The first of its classes with a lasting name: PyG generates some with random names."""
    for cls in plain_class(module).__mro__:
        if getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is cls:
            return f'{cls.__module__}.{cls.__qualname__}'
    return type(module).__qualname__
