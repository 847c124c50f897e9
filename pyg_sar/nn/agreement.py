"""Ranks agree on the path of a kind of call before the first, so that none waits in vain.

A rank alone cannot choose: its few edges may not show what a function does. The cheapest path that
is exact is found on samples.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.comm.vote import agree, check_equal, differ
from pyg_sar.nn.at_once import observe
from pyg_sar.nn.call import Call
from pyg_sar.nn.dropout import EdgeDraws
from pyg_sar.nn.independence import check_destinations_are_independent, check_edges_are_independent
from pyg_sar.nn.intercept import MessageError, UnsupportedMessageError
from pyg_sar.nn.linear_in_softmax import has_gradient_of_use
from pyg_sar.nn.options import Path
from pyg_sar.nn.plan import PLANS, ByDestination, CallPlan, OneShot, program_of
from pyg_sar.nn.sample_edges import NUM_SAMPLES, UndoneSideEffects, samples_of
from pyg_sar.nn.trace import Trace, trace, with_factor
from pyg_sar.ops.program import Arguments
from pyg_sar.utils.class_swap import name_of
from pyg_sar.utils.dry_run import is_of_user


@dataclass(frozen=True)
class Decision:
    """How a rank would compute a call, which it tells the others, or how all do."""

    types: tuple[Any, ...] = ()  # as _kinds_of gives them
    path: Path = 'one_shot'
    takes_gradient: bool = False  # whether weights of a sum take one
    one_pass: bool = False  # whether one pass computes its softmax
    across_edges: bool = False  # whether the function needs the edges of all ranks
    uses_rng: bool = True  # whether it draws random numbers, or may do so


def agree_on_plan(call: Call, draws: EdgeDraws | None) -> CallPlan:
    """Checks a kind of call once, with all ranks (collective: one all-gather), and picks its path.

    `draws` are those of a run on samples, where masks of dropout are drawn by edge.
    """
    own, traced, error = Decision(), None, None
    try:
        call.bind()
        call.draws = draws
        own, traced = _decision(call)
    except Exception as failure:
        error = failure
    name = f'{name_of(call.conv)}.{call.function}'
    agreed = _agreed(name, own, error, call.exchange.shard.world_size)
    path = agreed.path
    if agreed.across_edges:
        path, traced = 'one_shot', None
    # A function across edges is not seen to its end.
    is_seen = traced is not None or path == 'by destination'
    values: dict[str, Any] = {
        'function': name,
        'path': path,
        'drops': draws is not None and (draws.has_drawn or not is_seen),
        # Rows of the edges of all ranks draw for own rows by themselves.
        'uses_rng': agreed.uses_rng and draws is None and not agreed.across_edges,
    }
    if path == 'one_shot':
        return OneShot(**values, across_edges=agreed.across_edges)
    if path == 'by destination':
        return ByDestination(**values)
    assert traced is not None
    # A number that it sets may be another one at every call.
    learnable = None if traced.numbers else _homes(call.conv, traced.computed.learnable)
    traced = traced if agreed.one_pass else traced.in_passes()
    return PLANS[path](**values, trace=traced, learnable=learnable)


def _decision(call: Call) -> tuple[Decision, Trace | None]:
    """The cheapest path that is exact for a function, and its trace, if it has one."""
    conv = call.conv
    own = Decision(_kinds_of(call.arguments), across_edges=True)
    if call.as_they_are or _reads_edges(conv, call.function) or _has_hooks_inside(conv):
        return own, None
    traced: Trace | None = None
    with redirect_stdout(io.StringIO()) as printed:
        try:
            try:
                traced = trace(call)
                uses_rng = traced.uses_rng
                check_edges_are_independent(call, traced.num_calls, 0 if uses_rng else None)
            except UnsupportedMessageError:
                uses_rng, traced = observe(call)[0].uses_rng, None
            # One mask may keep none of a few rows.
            for seed in range(3) if uses_rng else (None,):
                check_destinations_are_independent(call, seed)
        except MessageError:
            return own, None
        except RuntimeError:
            if call.edges is None:
                raise
            return own, None  # it may read a tensor of all edges by itself; what else, fails again
    if printed.getvalue():  # it must print once, for all edges
        return own, None
    own = replace(own, across_edges=False, uses_rng=uses_rng)
    if traced is None:
        own = replace(own, path='by destination')
    elif traced.is_linear:
        own = replace(own, path='SpMM')
    elif traced.is_weighted:
        takes_gradient = any(map(_needs_grad, call.arguments.edge))
        own = replace(own, path='SpMM with learned values', takes_gradient=takes_gradient)
    elif call.options.mode != 'one_shot':
        traced = _with_factor(call, traced)
        of_edges = call if traced.factor is None else call.of_factor(traced.source)
        one_pass = traced.computed.weights is not None and has_gradient_of_use(
            of_edges, program_of(of_edges, traced.computed, num_dst=1)
        )
        path: Path = 'replay' if traced.factor is None else 'scalar times x_j'
        own = replace(own, path=path, one_pass=one_pass)
    return own, traced


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


def _agreed(name: str, own: Decision, error: Exception | None, world_size: int) -> Decision:
    """The decision that all ranks can keep.

    Raises ValueError on all ranks, if the call is wrong on one of them or differs between them.
    With one rank `error` itself is raised.
    """
    if world_size == 1 and error is not None:
        raise error
    answer = vars(own), None if error is None else str(error)
    answers = agree(answer) if world_size > 1 else [answer]
    all_of = [Decision(**other) for other, _ in answers]
    if error is not None:
        raise ValueError(str(error)) from error
    for rank, (_, other_error) in enumerate(answers):
        if other_error is not None:
            raise differ(f'rank {rank}: {other_error}', rank)
    check_equal(f'tensors in {name}', [other.types for other in all_of])
    across_edges = any(other.across_edges for other in all_of)
    if not across_edges:
        paths = [other.path + ', with gradient' * other.takes_gradient for other in all_of]
        check_equal(f'path of {name}', paths)
    return replace(
        own,
        one_pass=all(other.one_pass for other in all_of),
        across_edges=across_edges,
        uses_rng=any(other.uses_rng for other in all_of),
    )


def _kinds_of(arguments: Arguments) -> tuple[Any, ...]:
    """Kind, dtype, shape of a row and need of a gradient of every tensor that is read."""
    kinds = {'src': arguments.src, 'dst': arguments.dst, 'edge': arguments.edge}
    of_rows = [(k, t, t.shape[1:]) for k, tensors in kinds.items() for t in tensors]
    read = [*of_rows, *(('whole', t, t.shape) for t in arguments.whole)]
    return tuple((k, str(t.dtype), tuple(shape), _needs_grad(t)) for k, t, shape in read)


def _needs_grad(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _with_factor(call: Call, traced: Trace) -> Trace:
    """The trace of a message that is summed, with its factor and the name of x_j, if it has one."""
    conv, node_dim = call.conv, call.conv.node_dim
    is_watched = conv._message_forward_pre_hooks or conv._message_forward_hooks
    if is_watched or not traced.may_have_factor:
        return traced
    for slot in call.slots:
        x = call.arguments.src[slot.index] if slot.role == 'src' else None
        if x is None or x.dtype != traced.out.dtype or node_dim not in (0, -x.dim()):
            continue
        with suppress(MessageError, RuntimeError):  # it uses x_j otherwise, or in another shape
            found = with_factor(traced, call, slot.name)
            if _is_product(call, found, slot.index):
                return found
    return traced


def _is_product(call: Call, traced: Trace, source: int) -> bool:
    """Whether factor times x_j is the message on samples, also in what takes a gradient."""
    assert traced.factor is not None
    if traced.factor.out.shape[:1] != (NUM_SAMPLES,):
        return False
    of_factor = call.of_factor(traced.source)
    samples, edge_index = samples_of(call)
    edge_index[1] = 0
    rows = samples.src[source]
    with UndoneSideEffects(call.conv, call.arguments):
        (message,), _ = program_of(call, traced, 1).run(samples, edge_index, _softmax)
    with UndoneSideEffects(call.conv, call.arguments):  # with the same draws
        _, (factor, *_) = program_of(of_factor, traced.factor, 1).run(
            samples_of(of_factor)[0], edge_index, _softmax
        )
    takes_gradient = torch.is_grad_enabled() and (factor.requires_grad or rows.requires_grad)
    if message.requires_grad != takes_gradient:
        return False
    factor, flat = (t.detach().reshape(NUM_SAMPLES, -1) for t in (factor, rows))
    product = flat.view(*factor.shape, -1) * factor.unsqueeze(-1)
    if traced.summed is not None:
        shape, dim = traced.summed
        product = product.view(NUM_SAMPLES, *shape).sum(dim + 1)
    pair = product.flatten(), message.detach().flatten()
    return torch.allclose(*pair, rtol=0, atol=0, equal_nan=True)


def _softmax(logits: Tensor, dst: Tensor) -> Tensor:
    return torch.softmax(logits, 0)
