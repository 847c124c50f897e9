"""Turns a PyG model into one that runs on a partitioned graph: its convs and its norms."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TypeVar

import torch
from torch_geometric.nn import MessagePassing

from pyg_sar.comm import set_debug, set_timeout
from pyg_sar.conv.call.paths import Mode
from pyg_sar.conv.options import Options
from pyg_sar.conv.sar_conv import SARConv
from pyg_sar.conv.support import why_refused
from pyg_sar.models import make_global
from pyg_sar.monitor import LogLevel, check_log, say, set_log
from pyg_sar.norm import GlobalNorm, to_global
from pyg_sar.recompute import recompute_activations_of

_logger = logging.getLogger(__name__)

Model = TypeVar('Model', bound=torch.nn.Module)


def wrap(
    model: Model,
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
) -> Model:
    """Wraps every conv of a model in a :class:`SARConv` and makes its norms global, in place.

    Parameters stay the objects they were, and ``state_dict()`` has the keys of the plain model, so
    checkpoints move both ways. Convs that are wrapped already stay as they are.

    Norms over rows (torch's BatchNorm1d and SyncBatchNorm, all of ``torch_geometric.nn.norm``) take
    the statistics of all ranks' rows from then on, per graph where they are given a batch vector.
    All ranks must call them together, also in evaluation unless they use running statistics.

    Args:
        model: A model with at least one message-passing conv. If it is a conv itself, the SARConv
            around it is returned.
        mode: The mode of every SARConv.
        prefetch: The prefetch depth of every SARConv.
        max_rows: The bound of every SARConv on the rows of a chunk.
        memory_budget: The memory budget of every SARConv, in bytes, with mode ``'auto'``.
        exchange_dtype: What every SARConv rounds rows to on their way between ranks.
        checkpoint_activations: Whether norms, activations and dropouts of the model are computed
            again in backward instead of kept: the same bits, less memory
            (:mod:`pyg_sar.recompute`).
        timeout: After how long at most all end that wait for a rank that says nothing, in seconds
            or as a timedelta; None for the timeout of the default group. The last fifth of it, 5 s
            at most, goes into finding out which rank that is. It holds for all models of the
            process (collective if it is given).
        debug: Whether the ranks compare what they do (operation, layer, forward or backward, and
            dtype, width and number of the rows) before every exchange, and at the end of backward,
            so that a rank that skips a layer is an error and not a wrong number.
            Slow. It holds for all models of the process; None leaves it as it is (off at first).
        log: ``'info'`` or ``'debug'``: what this process tells on stderr, or to handlers of the
            logger ``pyg_sar``, about layers, blocks and times (docs/profiling.md); ``'off'``; None
            leaves it as it is, which is what PYG_SAR_LOG in the environment says. Ranks may differ.

    Returns:
        `model`.

    Raises:
        ValueError: If `timeout` is not positive or `log` no level; if the model has no conv, or
            holds a module that cannot be computed on a cut graph; it is named with the reason, and
            the model is unchanged. If activations of a conv by itself are to be recomputed, which
            has none around it.
    """
    limit = as_timedelta(timeout)
    check_log(log)
    is_conv = isinstance(model, MessagePassing)
    if checkpoint_activations and is_conv:
        raise ValueError(
            "'checkpoint_activations' has a meaning for the model around the convs only (got a "
            f'{type(model).__name__})'
        )
    options = Options(mode, prefetch, max_rows, memory_budget, exchange_dtype)
    wrapped = _plan_wrapping(model, options)
    make_global(model)
    set_timeout(limit)
    set_debug(debug)
    set_log(log)
    if is_conv and not isinstance(model, SARConv):
        _tell(wrapped[model])
        return wrapped[model]  # type: ignore[return-value]
    _replace_children(model, wrapped)
    in_convs: set[torch.nn.Module] = set()
    for name, module in model.named_modules():
        if isinstance(module, SARConv):
            module._path = name
            in_convs.update(module.modules())
        elif module not in in_convs and isinstance(module, GlobalNorm):
            module._path = name
    if checkpoint_activations:
        recompute_activations_of(model)
    _tell(model)
    return model


def _tell(model: torch.nn.Module) -> None:
    if not _logger.isEnabledFor(logging.INFO):
        return
    layers = [module for module in model.modules() if isinstance(module, SARConv)]
    of_layers = '; '.join(f'{layer.place}, mode {layer.mode!r}' for layer in layers)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    text = f'wrapped {type(model).__name__}, {num_parameters} parameters, {len(layers)} layers'
    say(_logger, logging.INFO, f'{text}: {of_layers}')


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


def _plan_wrapping(
    model: torch.nn.Module, options: Options
) -> dict[torch.nn.Module, torch.nn.Module]:
    """What every conv and norm is replaced by; raises before anything is changed."""
    replacements: dict[torch.nn.Module, torch.nn.Module] = {}
    convs: list[MessagePassing] = []
    num_wrapped = 0
    inside: set[torch.nn.Module] = set()
    for name, module in model.named_modules():
        if module in inside:
            pass
        elif isinstance(module, SARConv):
            num_wrapped += 1
            inside.update(module.modules())
            continue
        elif isinstance(module, MessagePassing):
            convs.append(module)
            inside.update(module.modules())
        norm = to_global(module)
        if norm is None:
            _check(name, module)
        else:
            replacements[module] = norm
    if not convs and not num_wrapped:
        raise ValueError(
            f'expected a model with at least one message-passing conv (got {type(model).__name__} '
            'without any)'
        )
    for conv in convs:
        _replace_children(conv, replacements)
        replacements[conv] = SARConv(conv, **vars(options))
    return replacements


def _check(name: str, module: torch.nn.Module) -> None:
    reason = why_refused(module)
    if reason is not None:
        place = f" at '{name}'" if name else ''
        raise ValueError(
            f'{type(module).__name__}{place} cannot run on a partitioned graph: {reason}'
        )


def _replace_children(
    module: torch.nn.Module, replacements: dict[torch.nn.Module, torch.nn.Module]
) -> None:
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            # A SARConv holds the conv it replaces. A global norm shares the dict of the plain
            # norm's children, so what is replaced there is replaced in both.
            if child is not None and child in replacements and not isinstance(parent, SARConv):
                parent._modules[name] = replacements[child]
