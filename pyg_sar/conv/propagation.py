"""One call of ``propagate`` or ``edge_updater`` on a cut graph: checks it and picks its path."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.aggregate.halo import with_halo
from pyg_sar.aggregate.linear import linear_sum
from pyg_sar.aggregate.program import Arguments, Program, SoftmaxFn
from pyg_sar.aggregate.replay import replay
from pyg_sar.comm import Exchange
from pyg_sar.conv.agreement import Call, agree_on_call, signature
from pyg_sar.conv.binding import Binding, bind
from pyg_sar.conv.gathering import observe, run_gather
from pyg_sar.conv.independence import (
    check_destinations_are_independent,
    check_edges_are_independent,
)
from pyg_sar.conv.intercept import MessageError, StatisticsError, UnsupportedMessageError
from pyg_sar.conv.reductions import finish, messages_of
from pyg_sar.conv.sampling import AttributeWatch, edge_rows
from pyg_sar.conv.support import STATISTICS_MODULES
from pyg_sar.conv.trace import Trace, trace
from pyg_sar.shard.plan import Plan, plan_of

Mode = Literal['sequential', 'sequential_no_remat', 'one_shot']
Path = Literal['linear', 'replay', 'gather', 'one_shot']


@dataclass(frozen=True)
class Agreement:
    """What the ranks have agreed on for one kind of call.

    Attributes:
        edge_names: The tensors with one row per edge.
        path: How the call is computed.
    """

    edge_names: frozenset[str]
    path: Path


class Propagation:
    """Stands in for ``propagate`` and ``edge_updater`` of one conv for one forward.

    Args:
        conv: The conv.
        exchange: The exchange of the shard.
        mode: The mode of the SARConv.
        max_rows: In-edges of a chunk of the gather path; None for what fits into free memory.
        agreed: What the ranks have agreed on in earlier forwards; added to.
    """

    def __init__(
        self,
        conv: MessagePassing,
        exchange: Exchange,
        mode: Mode,
        max_rows: int | None,
        agreed: dict[Any, Agreement],
    ) -> None:
        self.conv = conv
        self.exchange = exchange
        self.mode = mode
        self.max_rows = max_rows
        self.agreed = agreed

    def propagate(self, edge_index: Tensor, size: Any = None, **kwargs: Any) -> Tensor:
        """``MessagePassing.propagate`` over all in-edges of the own nodes, remote ones included."""
        conv = self.conv
        for hook in conv._propagate_forward_pre_hooks.values():
            result = hook(conv, (edge_index, size, kwargs))
            if result is not None:
                edge_index, size, kwargs = result
        num_layers = conv.decomposed_layers
        if num_layers == 1:
            out = self._propagate(edge_index, size, kwargs)
        else:
            names = {name[:-2] for name in conv._user_args if name.endswith('_j')}
            parts = {name: kwargs[name].chunk(num_layers, -1) for name in names}
            layers = [
                self._propagate(edge_index, size, {**kwargs, **{n: parts[n][i] for n in names}})
                for i in range(num_layers)
            ]
            out = torch.cat(layers, dim=-1)
        for hook in conv._propagate_forward_hooks.values():
            result = hook(conv, (edge_index, size, kwargs), out)
            out = out if result is None else result
        return out

    def _propagate(self, edge_index: Tensor, size: Any, kwargs: dict[str, Any]) -> Tensor:
        plan, binding, path = self._bind('message', edge_index, size, kwargs)
        compute = {
            'linear': self._linear,
            'replay': self._replay,
            'gather': self._gather,
            'one_shot': self._one_shot,
        }
        out = compute[path](plan, binding)
        num_dst = plan.shard.num_dst
        update_kwargs = self.conv.inspector.collect_param_data(
            'update', {'dim_size': num_dst, 'size_i': num_dst, **kwargs}
        )
        updated: Tensor = self.conv.update(out, **update_kwargs)
        return updated

    def edge_updater(self, edge_index: Tensor, size: Any = None, **kwargs: Any) -> Tensor:
        """``MessagePassing.edge_updater``: one row per edge of `edge_index`, in its order."""
        conv = self.conv
        for hook in conv._edge_update_forward_pre_hooks.values():
            result = hook(conv, (edge_index, size, kwargs))
            if result is not None:
                edge_index, size, kwargs = result
        plan, binding, path = self._bind('edge_update', edge_index, size, kwargs)
        if path == 'one_shot':
            with_rows = self._with_halo(binding)
            out = with_rows.call(
                with_rows.arguments, plan.edge_index, plan.edge_index[1], plan.shard.num_dst
            )
        elif path == 'gather':
            _, outputs, names = run_gather(binding, plan, self.exchange, self._max_rows(plan))
            out = outputs[0]
            self._set_attributes(names, outputs[1:])
        else:
            traced = trace(binding, STATISTICS_MODULES)
            program = _program(binding, traced, plan.shard.num_dst)
            arguments = replace(binding.arguments, learnable=traced.learnable)
            _, outputs = replay(program, arguments, plan, self.exchange, keep_rows=self._keep_rows)
            out = outputs[0]
            self._set_attributes(traced.edge_attributes, outputs[1:])
        for hook in conv._edge_update_forward_hooks.values():
            result = hook(conv, (edge_index, size, kwargs), out)
            out = out if result is None else result
        return out

    @property
    def _keep_rows(self) -> bool:
        return self.mode == 'sequential_no_remat'

    def _bind(
        self, function: str, edge_index: Tensor, size: Any, kwargs: dict[str, Any]
    ) -> tuple[Plan, Binding, Path]:
        """Binds the arguments of a call; see :meth:`_agree` for its first time."""
        takes_statistics = [
            m.training for m in self.conv.modules() if isinstance(m, STATISTICS_MODULES)
        ]
        key = (function, *signature(kwargs), any(takes_statistics))
        if key not in self.agreed:
            self.agreed[key] = self._agree(function, edge_index, size, kwargs)
        self._check(size)
        plan = plan_of(edge_index, self.exchange.shard)
        agreed = self.agreed[key]
        return plan, bind(self.conv, function, kwargs, plan, agreed.edge_names), agreed.path

    def _agree(
        self, function: str, edge_index: Tensor, size: Any, kwargs: dict[str, Any]
    ) -> Agreement:
        """Checks a call once, with all ranks (collective), and picks its path."""
        call = Call()
        path: Path = 'one_shot'
        error: Exception | None = None
        try:
            self._check(size)
            plan = plan_of(edge_index, self.exchange.shard)
            binding = bind(self.conv, function, kwargs, plan)
            path = self._path(binding)
            call = Call.of(binding.arguments, binding.rows, plan.num_edges, path)
        except MessageError as unsupported:
            error = ValueError(
                f"{type(self.conv).__name__}'s '{function}' cannot be computed on a cut graph: "
                f'{unsupported}'
            )
        except Exception as failure:
            error = failure
        name = f'{type(self.conv).__name__}.{function}'
        edge_names = agree_on_call(name, call, error, self.exchange.shard.world_size)
        return Agreement(edge_names, path)

    def _path(self, binding: Binding) -> Path:
        """How a call is computed: in the cheapest way that is exact for what it does.

        Raises:
            ValueError: If there is none.
        """
        try:
            traced = trace(binding, STATISTICS_MODULES)
            num_reductions = 0 if traced.aggregate is None else len(traced.aggregate.calls)
            check_edges_are_independent(binding, num_reductions)
        except StatisticsError:
            # The statistics are of all edges: all messages have to be there at once.
            return 'one_shot'
        except UnsupportedMessageError:
            observe(binding)
            check_destinations_are_independent(binding)
            return 'gather'
        except MessageError:
            if self.mode != 'one_shot':
                raise
            check_destinations_are_independent(binding)
            return 'one_shot'
        check_destinations_are_independent(binding)
        if traced.is_linear:
            return 'linear'
        return 'one_shot' if self.mode == 'one_shot' else 'replay'

    def _check(self, size: Any) -> None:
        shard = self.exchange.shard
        own = shard.num_own, shard.num_dst
        if size is not None and any(
            n not in (None, expected) for n, expected in zip(size, own, strict=True)
        ):
            raise ValueError(f"expected 'size' to be {own}, the own nodes (got {tuple(size)})")
        if self.conv.explain:
            raise ValueError(f'{type(self.conv).__name__} cannot be explained on a cut graph')
        if self.conv._aggregate_forward_pre_hooks:
            raise ValueError(
                f"expected no hooks before 'aggregate' of {type(self.conv).__name__} on a cut graph"
            )

    def _linear(self, plan: Plan, binding: Binding) -> Tensor:
        traced = trace(binding, STATISTICS_MODULES)
        if not traced.is_linear:  # a hook was registered since
            return self._replay(plan, binding)
        assert traced.aggregate is not None
        x = binding.arguments.src[0]
        weight = None
        if traced.weight is not None:
            weight = binding.arguments.edge[traced.weight].view(-1)
        one_shot = self.mode == 'one_shot'
        total = linear_sum(x, weight, plan, self.exchange, one_shot=one_shot)
        return finish(binding, traced.aggregate, [(total,)], traced.out, plan)

    def _replay(self, plan: Plan, binding: Binding) -> Tensor:
        traced = trace(binding, STATISTICS_MODULES)
        assert traced.aggregate is not None
        program = _program(binding, traced, plan.shard.num_dst)
        arguments = replace(binding.arguments, learnable=traced.learnable)
        states, outputs = replay(program, arguments, plan, self.exchange, keep_rows=self._keep_rows)
        self._set_attributes(traced.edge_attributes, outputs)
        return finish(binding, traced.aggregate, states, traced.out, plan)

    def _gather(self, plan: Plan, binding: Binding) -> Tensor:
        out, outputs, names = run_gather(binding, plan, self.exchange, self._max_rows(plan))
        assert out is not None
        self._set_attributes(names, outputs)
        return out

    def _max_rows(self, plan: Plan) -> int | None:
        return max(plan.num_edges, 1) if self.mode == 'one_shot' else self.max_rows

    def _set_attributes(self, names: tuple[str, ...], values: tuple[Tensor, ...]) -> None:
        for name, value in zip(names, values, strict=True):
            setattr(self.conv, name, value)

    def _one_shot(self, plan: Plan, binding: Binding) -> Tensor:
        """Plain autograd over all edges, with all halo rows beside the own ones."""
        binding = self._with_halo(binding)
        dst = plan.edge_index[1]
        values = binding.inputs(binding.arguments, plan.edge_index, dst, plan.shard.num_dst)
        return binding.aggregate(values, binding.run(values))

    def _with_halo(self, binding: Binding) -> Binding:
        src = tuple(with_halo(t, self.exchange) for t in binding.arguments.src)
        return replace(binding, arguments=replace(binding.arguments, src=src))


def _program(binding: Binding, traced: Trace, num_dst: int) -> Program:
    conv, aggregate = binding.conv, traced.aggregate
    num_calls = 0 if aggregate is None else len(aggregate.calls)

    def run(
        arguments: Arguments, edge_index: Tensor, softmax: SoftmaxFn
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        watch = AttributeWatch(conv)
        try:
            out = messages_of(binding, num_calls, arguments, edge_index, num_dst, softmax)
        finally:
            changed = watch.restore()
        outputs = [edge_rows(conv, changed, name, edge_index) for name in traced.edge_attributes]
        return (out, tuple(outputs)) if aggregate is not None else ((), (*out, *outputs))

    return Program(
        run=run,
        num_softmax=traced.num_softmax,
        num_edge_outputs=len(traced.edge_attributes) + (aggregate is None),
        uses_rng=traced.uses_rng,
        reductions=() if aggregate is None else aggregate.reductions,
    )
