"""One call of ``propagate`` or ``edge_updater`` on a cut graph: checks it and picks its path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.aggregate.halo import with_halo
from pyg_sar.aggregate.linear import linear_sum
from pyg_sar.aggregate.program import Arguments, Program, SoftmaxFn
from pyg_sar.aggregate.replay import replay
from pyg_sar.comm import Exchange
from pyg_sar.conv.aggregation import finish, merges_of
from pyg_sar.conv.agreement import Call, agree_on_call, signature
from pyg_sar.conv.binding import Binding, bind
from pyg_sar.conv.independence import check_rows_are_independent
from pyg_sar.conv.sampling import AttributeWatch
from pyg_sar.conv.softmax import UnsupportedMessageError, block_index, softmax_replaced
from pyg_sar.conv.support import STATISTICS_MODULES
from pyg_sar.conv.trace import Trace, trace
from pyg_sar.merge import Merge
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
        merges: dict[str, Merge] | None = None
        if type(conv).aggregate is MessagePassing.aggregate:
            merges = merges_of(conv.aggr_module)
        traced = self._trace(binding)
        # A linear message needs no replay where sums are all that is merged.
        sums_only = merges is not None and merges.keys() == {'sum'}
        if sums_only and traced is not None and traced.is_linear:
            out = self._linear(plan, binding, traced)
        elif self.mode == 'one_shot':
            out = self._one_shot(plan, binding, kwargs)
        else:
            assert merges is not None
            assert traced is not None
            out = self._replay(plan, binding, traced, merges)
        update_kwargs = {'dim_size': plan.shard.num_dst, 'size_i': plan.shard.num_dst, **kwargs}
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
        assert traced is not None
        program = _program(binding, traced, plan.shard.num_dst, has_messages=False)
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
        key = (function, *signature(kwargs))
        if key not in self.agreed:
            self.agreed[key] = self._agree(function, edge_index, size, kwargs)
        self._check(size)
        plan = plan_of(edge_index, self.exchange.shard)
        return plan, bind(self.conv, function, kwargs, plan, self.agreed[key])

    def _agree(
        self, function: str, edge_index: Tensor, size: Any, kwargs: dict[str, Any]
    ) -> frozenset[str]:
        """Checks a call once, with all ranks (collective); gives the names of its edge tensors."""
        call = Call()
        error: Exception | None = None
        try:
            self._check(size)
            plan = plan_of(edge_index, self.exchange.shard)
            binding = bind(self.conv, function, kwargs, plan)
            call = Call.of(binding.arguments, binding.rows, plan.num_edges)
            self._try(binding)
        except UnsupportedMessageError as unsupported:
            error = self._unsupported(function, unsupported)
        except Exception as failure:
            error = failure
        name = f'{type(self.conv).__name__}.{function}'
        return agree_on_call(name, call, error, self.exchange.shard.world_size)

    def _try(self, binding: Binding) -> None:
        if self.mode == 'one_shot':
            check_rows_are_independent(binding, uses_rng=False, sees_all_in_edges=True)
        else:
            traced = trace(binding, STATISTICS_MODULES)
            check_rows_are_independent(binding, traced.uses_rng, sees_all_in_edges=False)

    def _check(self, size: Any) -> None:
        shard = self.exchange.shard
        own = shard.num_own, shard.num_dst
        if size is not None and any(
            n not in (None, expected) for n, expected in zip(size, own, strict=True)
        ):
            raise ValueError(f"expected 'size' to be {own}, the own nodes (got {tuple(size)})")
        if self.conv.explain:
            raise ValueError(f'{type(self.conv).__name__} cannot be explained on a cut graph')
        check_hooks(self.conv)

    def _unsupported(self, function: str, error: Exception) -> ValueError:
        return ValueError(
            f"{type(self.conv).__name__}'s '{function}' cannot be computed block by block: {error}"
        )

    def _trace(self, binding: Binding) -> Trace | None:
        """What the function does; None if only mode one_shot can compute it."""
        try:
            return trace(binding, STATISTICS_MODULES)
        except UnsupportedMessageError as error:
            if self.mode == 'one_shot':
                return None
            raise self._unsupported(binding.function, error) from error

    def _linear(self, plan: Plan, binding: Binding, traced: Trace) -> Tensor:
        x = binding.arguments.src[0]
        weight = None
        if traced.weight is not None:
            weight = binding.arguments.edge[traced.weight].view(-1)
        one_shot = self.mode == 'one_shot'
        total = linear_sum(x, weight, plan, self.exchange, one_shot=one_shot)
        return finish(self.conv.aggr_module, {'sum': (total,)}, plan, 0)

    def _replay(
        self, plan: Plan, binding: Binding, traced: Trace, merges: dict[str, Merge]
    ) -> Tensor:
        program = _program(binding, traced, plan.shard.num_dst, has_messages=True)
        arguments = replace(binding.arguments, learnable=traced.learnable)
        states, outputs = replay(
            program,
            arguments,
            tuple(merges.values()),
            plan,
            self.exchange,
            keep_rows=self._keep_rows,
        )
        self._set_attributes(traced, outputs)
        by_name = dict(zip(merges, states, strict=True))
        return finish(self.conv.aggr_module, by_name, plan, self.conv.node_dim)

    def _set_attributes(self, traced: Trace, values: tuple[Tensor, ...]) -> None:
        for name, value in zip(traced.edge_attributes, values, strict=True):
            setattr(self.conv, name, value)

    def _one_shot(self, plan: Plan, binding: Binding, kwargs: dict[str, Any]) -> Tensor:
        messages = self._call_with_halo(plan, binding)
        aggregate_kwargs = {
            'index': plan.edge_index[1],
            'ptr': None,
            'dim_size': plan.shard.num_dst,
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
        return binding.call(arguments, plan.edge_index, dst, plan.shard.num_dst)


def check_hooks(conv: MessagePassing) -> None:
    """Raises a ValueError if hooks are registered inside a conv's message passing."""
    for name, hooks in vars(conv).items():
        if name.startswith(_HOOKED) and name.endswith(_HOOKS) and hooks:
            raise ValueError(
                f'expected no hooks inside message passing (got {name[1:]} '
                f'on {type(conv).__name__})'
            )


def _program(binding: Binding, traced: Trace, num_dst: int, *, has_messages: bool) -> Program:
    conv = binding.conv

    def run(
        arguments: Arguments, edge_index: Tensor, softmax: SoftmaxFn
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        attributes = AttributeWatch(conv)
        try:
            with softmax_replaced(conv, softmax):
                out = binding.call(arguments, edge_index, block_index(edge_index[1]), num_dst)
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
