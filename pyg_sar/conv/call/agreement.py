"""What ranks agree on before the first call of a kind, so that none waits in vain.

They take one path: the few edges of a rank may not show what a function does.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from pyg_sar.aggregate.program import Arguments
from pyg_sar.comm import agree, check_equal, differ
from pyg_sar.conv.call.by_destination import observe
from pyg_sar.conv.call.one_call import Call
from pyg_sar.conv.call.plans import (
    CallPlan,
    Gather,
    LinearSum,
    OneShot,
    Replay,
    TracedPlan,
    WeightedSum,
    program_of,
)
from pyg_sar.conv.inspect.independence import (
    check_destinations_are_independent,
    check_edges_are_independent,
)
from pyg_sar.conv.inspect.one_shot_memory import one_shot_bytes
from pyg_sar.conv.inspect.softmax_is_linear import has_gradient_of_use
from pyg_sar.conv.inspect.trace import Trace, trace
from pyg_sar.conv.message.arguments import Binding
from pyg_sar.conv.message.intercept import MessageError, UnsupportedMessageError
from pyg_sar.conv.options import Options
from pyg_sar.conv.support import has_hooks_inside, reads_edges
from pyg_sar.dropout import EdgeDraws
from pyg_sar.ground.class_swap import name_of


@dataclass(frozen=True)
class Offer:
    """What a rank tells the others of a call."""

    types: tuple[Any, ...] = ()  # see _kinds_of
    path: str = ''  # how the rank is going to compute it
    one_pass: bool = False  # whether one pass could compute its softmax here
    one_shot_bytes: int = 0  # what mode one_shot would hold on the rank, where that decides
    across_edges: bool = False  # whether it has seen it look across edges
    uses_rng: bool = False  # whether it draws random numbers, or may do so


def agree_on_plan(
    call: Call, names: tuple[str, ...], options: Options, draws: EdgeDraws | None
) -> CallPlan:
    """Checks a kind of call once, with all ranks (collective: one all-gather), and picks its path.

    `names` are those of the arguments. `draws` are those of a run on samples, where masks of
    dropout are drawn by edge.
    """
    conv = call.conv
    kind: type[CallPlan] = OneShot
    traced: Trace | None = None
    offer, error = Offer(), None
    try:
        binding = call.bind(names)
        if draws is not None:
            binding = binding.dropping(draws, None)
        found = _path_of(binding, options)
        kind, traced, uses_rng = found or (OneShot, None, True)
        offer = replace(_offer(binding, kind, traced), uses_rng=uses_rng)
        if found is None:
            offer = replace(offer, across_edges=True)
        elif options.mode == 'auto':
            is_sum = kind in (LinearSum, WeightedSum)
            num_bytes = one_shot_bytes(binding, call.plan, is_linear=is_sum)
            offer = replace(offer, one_shot_bytes=num_bytes)
    except Exception as failure:
        error = failure
    name = f'{name_of(conv)}.{call.function}'
    agreed = _agreed(name, offer, error, call.exchange.shard.world_size)
    if agreed.across_edges:
        kind, traced = OneShot, None
    mode = options.mode
    if mode == 'auto':
        assert options.memory_budget is not None
        mode = 'one_shot' if agreed.one_shot_bytes <= options.memory_budget else 'sequential'
        kind = OneShot if kind is Replay and mode == 'one_shot' else kind
    # A message that looks across edges is not traced to its end.
    may_draw = draws is not None and (draws.has_drawn or (kind is OneShot and traced is None))
    values: dict[str, Any] = {
        'function': name,
        'mode': mode,
        'one_shot_bytes': agreed.one_shot_bytes,
        'drops': may_draw,
        # Rows of the edges of all ranks know by themselves what is drawn for own rows.
        'uses_rng': agreed.uses_rng and draws is None and not agreed.across_edges,
    }
    if kind is OneShot:
        return OneShot(**values, across_edges=agreed.across_edges)
    if traced is None:
        return kind(**values)
    assert issubclass(kind, TracedPlan)
    # A number that it sets may be another one at every call.
    learnable = None if traced.numbers else _homes(conv, traced.learnable)
    traced = traced if agreed.one_pass else replace(traced, weights=None)
    return kind(**values, trace=traced, learnable=learnable)


def _path_of(
    binding: Binding, options: Options
) -> tuple[type[CallPlan], Trace | None, bool] | None:
    """The cheapest path that is exact for what a function does, and that, if it was traced.

    The third is whether it draws random numbers. None for a function that looks across edges: it
    runs on rows of the edges of all ranks.
    """
    conv = binding.conv
    if binding.at_nodes or reads_edges(conv, binding.function) or has_hooks_inside(conv):
        return None
    kind: type[CallPlan] = OneShot if options.mode == 'one_shot' else Replay
    traced: Trace | None = None
    printed = io.StringIO()
    with redirect_stdout(printed):
        try:
            try:
                traced = trace(binding)
                uses_rng = traced.uses_rng
                num_reductions = 0 if traced.aggregate is None else len(traced.aggregate.calls)
                check_edges_are_independent(binding, num_reductions)
            except UnsupportedMessageError:
                uses_rng = observe(binding).uses_rng
                kind, traced = Gather, None
            check_destinations_are_independent(binding)
        except MessageError:
            return None
    if printed.getvalue():  # what it prints is told once, of all edges
        return None
    if traced is not None and traced.is_linear:
        kind = LinearSum
    elif traced is not None and traced.is_weighted:
        kind = WeightedSum
    return kind, traced, uses_rng


def _offer(binding: Binding, kind: type[CallPlan], traced: Trace | None) -> Offer:
    takes_gradient = any(_needs_grad(t) for t in binding.arguments.edge)
    one_pass = False
    if kind is Replay and traced is not None and traced.weights is not None:
        one_pass = has_gradient_of_use(binding, program_of(binding, traced, num_dst=1))
    return Offer(
        types=_kinds_of(binding.arguments),
        path=kind.path + ', with gradient' * (kind is WeightedSum and takes_gradient),
        one_pass=one_pass,
    )


def _homes(
    conv: torch.nn.Module, tensors: tuple[Tensor, ...]
) -> tuple[tuple[ref[torch.nn.Module], str], ...] | None:
    """Which parameters of which modules some tensors are; None if one is none of them."""
    homes = {
        id(tensor): (ref(module), name)
        for module in conv.modules()
        for name, tensor in module.named_parameters(recurse=False, remove_duplicate=False)
    }
    if not all(id(tensor) in homes for tensor in tensors):
        return None
    return tuple(homes[id(tensor)] for tensor in tensors)


def _agreed(name: str, own: Offer, error: Exception | None, world_size: int) -> Offer:
    """The offer that all ranks can keep.

    Raises ValueError on all ranks, if the call is wrong on one of them or differs between them.
    With one rank `error` itself is raised.
    """
    if world_size == 1 and error is not None:
        raise error
    told = vars(own), None if error is None else str(error)
    answers = agree(told) if world_size > 1 else [told]
    offers = [Offer(**other) for other, _ in answers]
    if error is not None:
        raise ValueError(str(error)) from error
    for rank, (_, other_error) in enumerate(answers):
        if other_error is not None:
            raise differ(f'rank {rank}: {other_error}', rank)
    check_equal(f'tensors in {name}', [other.types for other in offers])
    across_edges = any(other.across_edges for other in offers)
    if not across_edges:
        check_equal(f'path of {name}', [other.path for other in offers])
    return replace(
        own,
        one_pass=all(other.one_pass for other in offers),
        one_shot_bytes=max(other.one_shot_bytes for other in offers),
        across_edges=across_edges,
        uses_rng=any(other.uses_rng for other in offers),
    )


def _kinds_of(arguments: Arguments) -> tuple[Any, ...]:
    """Kind, dtype, shape of a row and need of a gradient of every tensor that is read."""
    kinds = {'src': arguments.src, 'dst': arguments.dst, 'edge': arguments.edge}
    of_rows = [(k, t, t.shape[1:]) for k, tensors in kinds.items() for t in tensors]
    read = [*of_rows, *(('whole', t, t.shape) for t in arguments.whole)]
    return tuple((k, str(t.dtype), tuple(shape), _needs_grad(t)) for k, t, shape in read)


def _needs_grad(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()
