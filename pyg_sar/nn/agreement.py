"""Ranks agree on the plan of a kind of call before the first, so that none waits in vain."""

from __future__ import annotations

import logging
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.comm.vote import agree, check_equal, differ
from pyg_sar.nn.analysis import Analysis, WrongMessageError, analyze
from pyg_sar.nn.call import Call
from pyg_sar.nn.dropout import EdgeDraws
from pyg_sar.nn.intercept import MessageError
from pyg_sar.nn.options import Path
from pyg_sar.nn.plan import Plan
from pyg_sar.ops.program import Arguments
from pyg_sar.utils.class_swap import name_of
from pyg_sar.utils.dry_run import is_of_user
from pyg_sar.utils.log import say

_logger = logging.getLogger(__name__)


def agree_on_plan(call: Call, draws: EdgeDraws | None) -> Plan:
    """Analyses a kind of call once and picks its path, with all ranks (collective: an all-gather).

    `draws` are those of the analysis, where masks of dropout are drawn by edge.

    Raises ValueError on all ranks, if the call is wrong on one of them or differs between them.
    With one rank the error itself is raised.
    """
    found, error, types = None, None, ()
    try:
        call.bind()
        types, call.draws = _kinds_of(call.arguments), draws
        found = _analysis(call)
    except Exception as failure:
        error = failure
    name, world_size = f'{name_of(call.conv)}.{call.function}', call.exchange.shard.world_size
    path = _path(call, found)
    if world_size == 1:
        if error is not None:
            raise error
    else:
        path = _agreed(name, types, path, error)
    is_across = path == _ACROSS
    has_drawn = draws is not None and (draws.has_drawn or is_across or path == 'by destination')
    if is_across:
        return Plan(path='one_shot', function=name, across_edges=True, drops=has_drawn)
    assert found is not None
    return Plan(
        path=path,
        function=name,
        found=found,
        learnable=_homes(call.conv, found.learnable),
        drops=has_drawn,
        uses_rng=draws is None and found.uses_rng,
    )


_ACROSS: Any = 'across'
"""Path one_shot of a function that needs the edges of all ranks."""


def _analysis(call: Call) -> Analysis | None:
    """What a function does, or None if it needs the edges of all ranks."""
    conv = call.conv
    if call.as_they_are or _reads_edges(conv, call.function) or _has_hooks_inside(conv):
        return None
    try:
        return analyze(call)
    except WrongMessageError:
        raise
    except Exception as error:  # what is wrong fails again, on the edges of all ranks
        if call.edges is None and not isinstance(error, MessageError):
            raise
        text = f'{name_of(conv)}.{call.function} needs the edges of all ranks: {error}'
        say(_logger, logging.INFO, text)
        return None


def _path(call: Call, found: Analysis | None) -> Path:
    """The cheapest path that is exact for a function."""
    if found is None:
        return _ACROSS
    if found.by_destination:
        return 'by destination'
    if found.source and not found.is_factored:
        is_linear = found.weight is None or found.is_plain
        return 'SpMM' if is_linear else 'SpMM with learned values'
    if call.options.mode == 'one_shot':
        return 'one_shot'
    return 'scalar times x_j' if found.is_factored else 'replay'


def _reads_edges(conv: MessagePassing, function: str) -> bool:
    """Whether ``message`` with its aggregation, or ``edge_update``, reads the edge_index itself."""
    functions = ('message', 'aggregate') if function == 'message' else (function,)
    names = {name for f in functions for name in conv.inspector.get_param_names(f)}
    return not names.isdisjoint(('edge_index', 'size'))


def _has_hooks_inside(conv: MessagePassing) -> bool:
    """Whether a program has put forward hooks on modules of a conv, or on its message."""
    tables = [
        table
        for module in {*conv.modules()} - {conv}
        for table in (module._forward_pre_hooks, module._forward_hooks)
    ]
    tables += [
        getattr(conv, f'_{step}_forward_{kind}')
        for step in ('message', 'aggregate')
        for kind in ('hooks', 'pre_hooks')
    ]
    return any(is_of_user(hook) for table in tables for hook in table.values())


def _homes(
    conv: torch.nn.Module, tensors: tuple[Tensor, ...]
) -> tuple[tuple[ref[torch.nn.Module], str], ...] | None:
    """Module and name of every tensor as a parameter of `conv`; None if one is no parameter."""
    homes = {
        id(tensor): (ref(module), name)
        for module in conv.modules()
        for name, tensor in module.named_parameters(recurse=False, remove_duplicate=False)
    }
    if not all(id(tensor) in homes for tensor in tensors):
        return None
    return tuple(homes[id(tensor)] for tensor in tensors)


def _agreed(name: str, types: tuple[Any, ...], path: Path, error: Exception | None) -> Path:
    """The path that all ranks take."""
    answers = agree((str(types), path, None if error is None else str(error)))
    if error is not None:
        raise ValueError(str(error)) from error
    for rank, (_, _, other_error) in enumerate(answers):
        if other_error is not None:
            raise differ(f'rank {rank}: {other_error}', rank)
    check_equal(f'tensors in {name}', [other for other, _, _ in answers])
    paths = [other for _, other, _ in answers]
    if _ACROSS in paths:  # a hook of one rank
        return _ACROSS
    check_equal(f'path of {name}', paths)
    return path


def _kinds_of(arguments: Arguments) -> tuple[Any, ...]:
    """Kind, dtype, shape of a row and need of a gradient of every tensor that is read."""
    kinds = {'src': arguments.src, 'dst': arguments.dst, 'edge': arguments.edge}
    of_rows = [(k, t, t.shape[1:]) for k, tensors in kinds.items() for t in tensors]
    read = [*of_rows, *(('whole', t, t.shape) for t in arguments.whole)]
    return tuple((k, str(t.dtype), tuple(shape), _needs_grad(t)) for k, t, shape in read)


def _needs_grad(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()
