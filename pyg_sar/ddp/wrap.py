"""Turns a PyG model into one that runs on a partitioned graph."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch_geometric.nn import MessagePassing

from pyg_sar.comm import as_timedelta, set_debug, set_timeout
from pyg_sar.compiled.installed import loops
from pyg_sar.conv.options import options_of
from pyg_sar.conv.sar_conv import SARConv, name_layers
from pyg_sar.conv.support import why_refused
from pyg_sar.dropout import SameDropout, of_model
from pyg_sar.monitor import LogLevel, check_log, say, set_log
from pyg_sar.norm import watch_norms
from pyg_sar.recompute import recompute_activations_of

_logger = logging.getLogger(__name__)

Model = TypeVar('Model', bound=torch.nn.Module)


def wrap(
    model: Model,
    *,
    checkpoint_activations: bool = False,
    timeout: float | timedelta | None = None,
    debug: bool | None = None,
    log: LogLevel | None = None,
    dropout_seed: int | None = None,
    **options: Any,
) -> Model:
    """Makes every conv of a model a :class:`SARConv`, in place.

    Convs and parameters stay the objects they were, and ``state_dict()`` has the keys of the plain
    model. So plain PyG loads its checkpoints, and it loads those of plain PyG. Convs that are
    SARConvs already stay as they are.

    All other modules run as they are, on the rows of :func:`pyg_sar.load_shard`; a norm, for
    example, takes the statistics of all ranks' rows. On batches of a loader, convs and norms are
    plain ones of this rank's rows. Then nothing is communicated, except that a SyncBatchNorm takes
    the statistics of all ranks' batches.

    Gradients that come from rows are averaged over the ranks. Those of batches and of plain own
    rows are not; :class:`pyg_sar.DistributedDataParallel` averages them, too. For inference::

        model = pyg_sar.wrap(GraphSAGE(8, 8, 2, 3))
        out = model(data.x, data.edge_index)

    Not collective, but with `timeout`; the model's forward and backward are.

    Args:
        model: A model with message-passing convs, a conv itself, or a model of rows alone, such as
            an MLP.
        checkpoint_activations: Whether norms, activations and dropouts of the model are computed
            again in backward instead of kept: the same bits, less memory
            (:mod:`pyg_sar.recompute`).
        timeout: How long ranks wait for a silent rank until they end, in seconds or as a timedelta;
            None for the timeout of the default group. In the last fifth of it, 5 s at most, the
            ranks find out which rank is silent. It holds for all models of the process (collective
            if it is given).
        debug: Whether the ranks compare operation, layer, forward or backward, and dtype and width
            of the rows before every exchange. Then a rank that skips a layer is an error at once,
            and not at the timeout. Slow. It holds for all models of the process; None changes
            nothing (the first value is False).
        log: How much this process logs about layers, blocks and times (docs/profiling.md):
            ``'info'``, ``'debug'`` or ``'off'``. Lines go to stderr, or to handlers of the logger
            ``pyg_sar``. None leaves the level of PYG_SAR_LOG in the environment. Ranks may differ.
        dropout_seed: Draws the masks of dropouts in the model's forward from this number, the step,
            and the ids of nodes and edges in the whole graph. They are then the same on any number
            of ranks. None: each rank draws from torch's generator (docs/dropout.md).
        **options: How every SARConv is computed: :class:`pyg_sar.conv.options.Options`.

    Returns:
        `model`.

    Raises:
        ValueError: If `timeout` is not positive or `log` no level; if a module cannot be computed
            on a cut graph (the error names it, with the reason, and the model is unchanged); if
            options of convs are given, but there is no conv; if `checkpoint_activations` is given
            for a conv alone, which has no activations around it; if `dropout_seed` is no integer
            of 64 bits. At a forward in training, if the model draws numbers that `dropout_seed`
            cannot draw by id.
    """
    limit = as_timedelta(timeout)
    check_log(log)
    if dropout_seed is not None and (
        type(dropout_seed) is not int or not -(2**63) <= dropout_seed < 2**63
    ):
        raise ValueError(
            f"'dropout_seed' must be an integer of 64 bits or None (got {dropout_seed!r})"
        )
    is_conv = isinstance(model, MessagePassing)
    if checkpoint_activations and is_conv:
        raise ValueError(
            "'checkpoint_activations' has a meaning for the model around the convs only (got a "
            f'{type(model).__name__})'
        )
    checked = options_of(options)
    convs = _convs_to_convert(model)
    if options and not any(isinstance(module, MessagePassing) for module in model.modules()):
        raise ValueError(
            f"'{next(iter(options))}' has a meaning for message-passing convs only (got a "
            f'{type(model).__name__} without any)'
        )
    set_debug(debug)
    set_log(log)
    watch_norms(model)
    for conv in convs:
        SARConv(conv, **vars(checked))
    name_layers(model)
    if checkpoint_activations:
        recompute_activations_of(model)
    if dropout_seed is not None:
        _draw_by_id(model, dropout_seed)
    if limit is not None:
        compile_loops(model)
        set_timeout(limit)  # once this rank has done what takes seconds
    _tell(model)
    return model


def compile_loops(model: torch.nn.Module) -> None:
    """Compiles the loops that rows of a model may take: before training, and not in a layer."""
    loops()
    if any(parameter.dtype == torch.float64 for parameter in model.parameters()):
        loops('float64')


def _draw_by_id(model: torch.nn.Module, seed: int) -> None:
    """Has the masks of a model's dropouts drawn by id from now on."""
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
        f'{layer._sar.place}, mode {layer.sar_options.mode!r}' for layer in layers
    )
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    text = f'wrapped {type(model).__name__}, {num_parameters} parameters, {len(layers)} layers'
    say(_logger, logging.INFO, f'{text}: {of_layers}')


def _convs_to_convert(model: torch.nn.Module) -> list[MessagePassing]:
    """The convs that are not inside of others; raises for what is refused."""
    convs: list[MessagePassing] = []
    inside: set[torch.nn.Module] = set()
    for name, module in model.named_modules():
        if isinstance(module, MessagePassing) and module not in inside:
            inside.update(module.modules())
            if not isinstance(module, SARConv):
                convs.append(module)
        reason = None if isinstance(module, SARConv) else why_refused(module)
        if reason is not None:
            place = f" at '{name}'" if name else ''
            raise ValueError(
                f'{type(module).__name__}{place} cannot run on a partitioned graph: {reason}'
            )
    return convs
