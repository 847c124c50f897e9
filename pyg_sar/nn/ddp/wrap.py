"""Turns a PyG model into one that runs on a partitioned graph."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import torch
from torch_geometric.nn import MessagePassing

from pyg_sar.nn.batch_norm import watch_norms
from pyg_sar.nn.dropout_forward import SameDropout, of_model
from pyg_sar.nn.options import options_of
from pyg_sar.nn.sar_conv import SARConv, name_layers, why_refused
from pyg_sar.ops.linear import compute_by_onednn
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
