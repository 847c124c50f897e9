"""One call of ``propagate`` or ``edge_updater`` on a cut graph: checks it and picks its path."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.aggregate.halo import with_halo
from pyg_sar.aggregate.linear import linear_sum
from pyg_sar.aggregate.program import Arguments, Program, SoftmaxFn
from pyg_sar.aggregate.replay import replay
from pyg_sar.comm import Exchange, agree, check_equal
from pyg_sar.conv.aggregation import finish, merges_of
from pyg_sar.conv.binding import Binding, bind
from pyg_sar.conv.support import STATISTICS_MODULES
from pyg_sar.conv.trace import (
    AttributeWatch,
    Trace,
    UnsupportedMessageError,
    block_index,
    check_rows_are_independent,
    softmax_replaced,
    trace,
)
from pyg_sar.shard.plan import Plan, plan_of

Mode = Literal['sequential', 'sequential_no_remat', 'one_shot']

_HOOKED = ('_propagate', '_message', '_aggregate', '_edge_update')
_HOOKS = ('_forward_hooks', '_forward_pre_hooks')


class Propagation:
    """Stands in for ``propagate`` and ``edge_updater`` of one conv for one forward.

    Args:
        conv: The conv.
        exchange: The exchange of the shard.
        mode: The mode of the SARConv.
        agreed: What the ranks have agreed on in earlier forwards; added to.
    """

    def __init__(
        self,
        conv: MessagePassing,
        exchange: Exchange,
        mode: Mode,
        agreed: dict[Any, frozenset[str]],
    ) -> None:
        self.conv = conv
        self.exchange = exchange
        self.mode = mode
        self.agreed = agreed

    def propagate(self, edge_index: Tensor, size: Any = None, **kwargs: Any) -> Tensor:
        """``MessagePassing.propagate`` over all in-edges of the own nodes, remote ones included."""
        conv = self.conv
        plan, binding = self._bind('message', edge_index, size, kwargs)
        if self.mode == 'one_shot':
            out = self._linear(plan, binding, one_shot=True)
            out = self._one_shot(plan, binding, kwargs) if out is None else out
        else:
            out = self._linear(plan, binding)
            out = self._replay(plan, binding) if out is None else out
        update_kwargs = {'dim_size': plan.shard.num_own, 'size_i': plan.shard.num_own, **kwargs}
        updated: Tensor = conv.update(
            out, **conv.inspector.collect_param_data('update', update_kwargs)
        )
        return updated

    def edge_updater(self, edge_index: Tensor, size: Any = None, **kwargs: Any) -> Tensor:
        """``MessagePassing.edge_updater``: one row per edge of `edge_index`, in its order."""
        plan, binding = self._bind('edge_update', edge_index, size, kwargs)
        if self.mode == 'one_shot':
            return self._call_with_halo(plan, binding)
        traced = self._trace(binding)
        program = _program(binding, traced, plan.shard.num_own, has_messages=False)
        arguments = replace(binding.arguments, learnable=traced.learnable)
        _, outputs = replay(program, arguments, (), plan, self.exchange, keep_rows=self._keep_rows)
        self._set_attributes(traced, outputs[1:])
        return outputs[0]

    @property
    def _keep_rows(self) -> bool:
        return self.mode == 'sequential_no_remat'

    def _bind(
        self, function: str, edge_index: Tensor, size: Any, kwargs: dict[str, Any]
    ) -> tuple[Plan, Binding]:
        """Binds the arguments of a call; see :meth:`_agree` for its first time."""
        key = (function, *_signature(kwargs))
        if key not in self.agreed:
            self.agreed[key] = self._agree(function, edge_index, size, kwargs)
        self._check(size)
        plan = plan_of(edge_index, self.exchange.shard)
        return plan, bind(self.conv, function, kwargs, plan, self.agreed[key])

    def _agree(
        self, function: str, edge_index: Tensor, size: Any, kwargs: dict[str, Any]
    ) -> frozenset[str]:
        """Checks a call once, on all ranks together (collective).

        Returns:
            The names of the edge tensors.

        Raises:
            ValueError: On all ranks, if the call is wrong or unsupported on one of them, or differs
                between them.
        """
        call = _Call()
        error: Exception | None = None
        try:
            self._check(size)
            plan = plan_of(edge_index, self.exchange.shard)
            binding = bind(self.conv, function, kwargs, plan)
            call = _Call(_tensor_types(binding.arguments), binding.rows, plan.num_edges)
            self._try(binding)
        except UnsupportedMessageError as unsupported:
            error = self._unsupported(function, unsupported)
        except Exception as failure:
            error = failure
        if self.exchange.shard.world_size == 1:
            if error is not None:
                raise error
            return frozenset(n for n, rows in call.rows.items() if rows == call.num_edges)

        name = f'{type(self.conv).__name__}.{function}'
        answers = agree((call, None if error is None else str(error)))
        calls = [other for other, _ in answers]
        edge_names: frozenset[str] = frozenset()
        if all(other.is_bound for other in calls):
            check_equal(f'arguments of {name}', sorted(call.rows), [sorted(c.rows) for c in calls])
            edge_names = frozenset(n for n in call.rows if _is_edge_tensor(n, name, calls))
        if error is not None:
            raise ValueError(str(error)) from error
        for rank, (_, other_error) in enumerate(answers):
            if other_error is not None:
                raise ValueError(f'rank {rank}: {other_error}')
        check_equal(f'tensors in {name}', call.types, [other.types for other in calls])
        return edge_names

    def _try(self, binding: Binding) -> None:
        if self.mode == 'one_shot':
            check_rows_are_independent(binding, uses_rng=False, sees_all_in_edges=True)
        else:
            traced = trace(binding, STATISTICS_MODULES)
            check_rows_are_independent(binding, traced.uses_rng, sees_all_in_edges=False)

    def _check(self, size: Any) -> None:
        num_own = self.exchange.shard.num_own
        if size is not None and any(n is not None and n != num_own for n in size):
            raise ValueError(
                f"expected 'size' to be ({num_own}, {num_own}), the own nodes (got {tuple(size)})"
            )
        if self.conv.explain:
            raise ValueError(f'{type(self.conv).__name__} cannot be explained on a cut graph')
        check_hooks(self.conv)

    def _unsupported(self, function: str, error: Exception) -> ValueError:
        return ValueError(
            f"{type(self.conv).__name__}'s '{function}' cannot be computed block by block: {error}"
        )

    def _trace(self, binding: Binding) -> Trace:
        try:
            return trace(binding, STATISTICS_MODULES)
        except UnsupportedMessageError as error:
            raise self._unsupported(binding.function, error) from error

    def _linear(self, plan: Plan, binding: Binding, *, one_shot: bool = False) -> Tensor | None:
        """The linear path, or None if the messages are not a weighting of x_j."""
        merges = merges_of(self.conv.aggr_module) if self._has_plain_aggregate() else None
        if merges is None or len(binding.arguments.src) != 1 or binding.arguments.dst:
            return None
        try:
            traced = trace(binding, STATISTICS_MODULES)
        except UnsupportedMessageError:
            return None
        if not traced.is_linear:
            return None
        x = binding.arguments.src[0]
        weight = None
        if traced.weight is not None:
            weight = binding.arguments.edge[traced.weight].view(-1)
        total = linear_sum(x, weight, plan, self.exchange, one_shot=one_shot)
        return finish(self.conv.aggr_module, (total,), plan, 0)

    def _has_plain_aggregate(self) -> bool:
        return type(self.conv).aggregate is MessagePassing.aggregate

    def _replay(self, plan: Plan, binding: Binding) -> Tensor:
        traced = self._trace(binding)
        merges = merges_of(self.conv.aggr_module)
        assert merges is not None
        program = _program(binding, traced, plan.shard.num_own, has_messages=True)
        arguments = replace(binding.arguments, learnable=traced.learnable)
        states, outputs = replay(
            program, arguments, merges, plan, self.exchange, keep_rows=self._keep_rows
        )
        self._set_attributes(traced, outputs)
        return finish(self.conv.aggr_module, states, plan, self.conv.node_dim)

    def _set_attributes(self, traced: Trace, values: tuple[Tensor, ...]) -> None:
        for name, value in zip(traced.edge_attributes, values, strict=True):
            setattr(self.conv, name, value)

    def _one_shot(self, plan: Plan, binding: Binding, kwargs: dict[str, Any]) -> Tensor:
        messages = self._call_with_halo(plan, binding)
        aggregate_kwargs = {
            'index': plan.edge_index[1],
            'ptr': None,
            'dim_size': plan.shard.num_own,
            **kwargs,
        }
        out: Tensor = self.conv.aggregate(
            messages, **self.conv.inspector.collect_param_data('aggregate', aggregate_kwargs)
        )
        return out

    def _call_with_halo(self, plan: Plan, binding: Binding) -> Tensor:
        """Plain autograd over all edges, with all halo rows beside the own ones."""
        src = tuple(with_halo(t, self.exchange) for t in binding.arguments.src)
        arguments = replace(binding.arguments, src=src)
        dst = plan.edge_index[1]
        return binding.call(arguments, plan.edge_index, dst, plan.shard.num_own)


def check_hooks(conv: MessagePassing) -> None:
    """Raises a ValueError if hooks are registered inside a conv's message passing."""
    for name, hooks in vars(conv).items():
        if name.startswith(_HOOKED) and name.endswith(_HOOKS) and hooks:
            raise ValueError(
                f'expected no hooks inside message passing (got {name[1:]} '
                f'on {type(conv).__name__})'
            )


@dataclass(frozen=True)
class _Call:
    """What the ranks tell each other of a call.

    Attributes:
        types: Kind, dtype, row shape and need of a gradient of every tensor.
        rows: Rows of every tensor that is not read at a node.
        num_edges: Number of edges on the rank; -1 if the arguments could not be bound.
    """

    types: tuple[Any, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)
    num_edges: int = -1

    @property
    def is_bound(self) -> bool:
        return self.num_edges >= 0


def _signature(kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What tells one kind of call from another, on this rank."""
    found = []
    for name, value in sorted(kwargs.items()):
        for tensor in value if isinstance(value, (tuple, list)) else [value]:
            if isinstance(tensor, Tensor):
                found.append((name, tensor.dim(), tensor.dtype, _needs_grad(tensor)))
    return tuple(found)


def _tensor_types(arguments: Arguments) -> tuple[Any, ...]:
    groups = {'src': arguments.src, 'dst': arguments.dst}
    return tuple(
        (kind, str(t.dtype), tuple(t.shape[1:]), _needs_grad(t))
        for kind, tensors in groups.items()
        for t in tensors
    )


def _needs_grad(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _is_edge_tensor(name: str, where: str, calls: list[_Call]) -> bool:
    """Whether a tensor has one row per edge on every rank."""
    has_edge_rows = [call.rows[name] == call.num_edges for call in calls]
    if all(has_edge_rows):
        return True
    # On one rank a tensor of another kind may happen to have as many rows as there are edges.
    if any(has_edge_rows) and len({call.rows[name] for call in calls}) > 1:
        rank = has_edge_rows.index(False)
        raise ValueError(
            f"expected one row per edge in '{name}' of {where}: {calls[rank].num_edges} rows on "
            f'rank {rank} (got {calls[rank].rows[name]})'
        )
    return False


def _program(binding: Binding, traced: Trace, num_own: int, *, has_messages: bool) -> Program:
    conv = binding.conv

    def run(
        arguments: Arguments, edge_index: Tensor, softmax: SoftmaxFn
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        attributes = AttributeWatch(conv)
        try:
            with softmax_replaced(conv, softmax):
                out = binding.call(arguments, edge_index, block_index(edge_index[1]), num_own)
        finally:
            changed = attributes.restore()
        outputs = [_edge_rows(conv, changed, name, edge_index) for name in traced.edge_attributes]
        return (out, tuple(outputs)) if has_messages else (None, (out, *outputs))

    return Program(
        run=run,
        num_softmax=traced.num_softmax,
        num_edge_outputs=len(traced.edge_attributes) + (not has_messages),
        uses_rng=traced.uses_rng,
        dim=conv.node_dim,
    )


def _edge_rows(
    conv: torch.nn.Module, changed: dict[str, Any], name: str, edge_index: Tensor
) -> Tensor:
    value = changed.get(name)
    if not isinstance(value, Tensor) or value.size(0) != edge_index.size(1):
        raise ValueError(
            f"expected {type(conv).__name__} to set '{name}' to one row per edge in every block"
        )
    return value
