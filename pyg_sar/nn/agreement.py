"""Ranks agree on the plan of a kind of call before the first, so that none waits in vain."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.comm.vote import agree, check_equal, differ
from pyg_sar.nn.analysis import WrongMessageError, analyze
from pyg_sar.nn.call import Call
from pyg_sar.nn.dropout import EdgeDraws
from pyg_sar.nn.intercept import MessageError
from pyg_sar.nn.narrow_exchange import GLOBAL_HOOKS
from pyg_sar.nn.plan import Plan
from pyg_sar.ops.program import Arguments
from pyg_sar.utils.class_swap import name_of
from pyg_sar.utils.dry_run import is_of_user
from pyg_sar.utils.log import say

_logger = logging.getLogger(__name__)


class Reading:
    """What this rank finds by one run of a call's function, and picks as its plan.

    `draws` are those of the run, where masks of dropout are drawn by edge.

    Attributes:
        plan: The plan; one across all edges where the run failed.
    """

    def __init__(self, call: Call, draws: EdgeDraws | None) -> None:
        self._call, self._draws = call, draws
        self._error: Exception | None = None
        self._types: tuple[Any, ...] = ()
        name = f'{name_of(call.conv)}.{call.function}'
        self._across = self.plan = Plan(path='one_shot', function=name, across_edges=True)
        try:
            call.bind()
            self._types, call.draws = _kinds_of(call.arguments), draws
            self.plan = _analysis(call) or self._across
        except Exception as failure:
            self._error = failure

    def agreed(self) -> Plan:
        """The plan that all ranks take (collective: an all-gather).

        Raises ValueError on all ranks, if the call is wrong on one of them or differs between them.
        With one rank the error itself is raised.
        """
        plan, draws = self.plan, self._draws
        if self._call.exchange.shard.world_size > 1:
            plan = plan if _agree(plan, self._types, self._error) else self._across
        elif self._error is not None:
            raise self._error
        if draws is None:
            return plan
        drops = draws.has_drawn or plan.across_edges or plan.path == 'by destination'
        return replace(plan, drops=drops, uses_rng=False)


def _analysis(call: Call) -> Plan | None:
    """The plan for one rank, or None if the function needs the edges of all ranks."""
    conv = call.conv
    if call.as_they_are or call.writes_elsewhere:
        return None
    if _reads_edges(conv, call.function) or _has_hooks_inside(conv):
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


def _reads_edges(conv: MessagePassing, function: str) -> bool:
    """Whether ``message`` with its aggregation, or ``edge_update``, reads the edge_index itself."""
    functions = ('message', 'aggregate') if function == 'message' else (function,)
    names = {name for f in functions for name in conv.inspector.get_param_names(f)}
    return not names.isdisjoint(('edge_index', 'size'))


def _has_hooks_inside(conv: MessagePassing) -> bool:
    """Whether a program has put hooks on modules of a conv, or on its message.

    They see the edges of all ranks at once: a hook of a module in a message would be called for
    every block.
    """
    tables = [
        table
        for module in {*conv.modules()} - {conv}
        for table in (
            *(module._forward_pre_hooks, module._forward_hooks),
            *(module._backward_pre_hooks, module._backward_hooks),
        )
    ]
    tables += GLOBAL_HOOKS
    tables += [
        getattr(conv, f'_{step}_forward_{kind}')
        for step in ('message', 'aggregate')
        for kind in ('hooks', 'pre_hooks')
    ]
    return any(is_of_user(hook) for table in tables for hook in table.values())


def _agree(plan: Plan, types: tuple[Any, ...], error: Exception | None) -> bool:
    """Whether all ranks can take the path of the plan, or one needs the edges of all ranks."""
    name, path = plan.function, 'across' if plan.across_edges else plan.path
    answers = agree((str(types), path, None if error is None else str(error)))
    if error is not None:
        raise ValueError(str(error)) from error
    for rank, (_, _, other_error) in enumerate(answers):
        if other_error is not None:
            raise differ(f'rank {rank}: {other_error}', rank)
    check_equal(f'tensors in {name}', [other for other, _, _ in answers])
    paths = [other for _, other, _ in answers]
    if 'across' in paths:  # a hook of one rank
        return False
    check_equal(f'path of {name}', paths)
    return True


def _kinds_of(arguments: Arguments) -> tuple[Any, ...]:
    """Kind, dtype, shape of a row and need of a gradient of every tensor that is read."""
    kinds = {'src': arguments.src, 'dst': arguments.dst, 'edge': arguments.edge}
    of_rows = [(k, t, t.shape[1:]) for k, tensors in kinds.items() for t in tensors]
    read = [*of_rows, *(('whole', t, t.shape) for t in arguments.whole)]
    return tuple((k, str(t.dtype), tuple(shape), _needs_grad(t)) for k, t, shape in read)


def _needs_grad(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()
