"""The paths on which one call of a conv's message passing can be computed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.aggregate.halo import with_halo
from pyg_sar.aggregate.program import Arguments, Program, SoftmaxFn
from pyg_sar.aggregate.replay import replay
from pyg_sar.aggregate.weighted_sum import linear_sum, weighted_sum
from pyg_sar.comm import Exchange
from pyg_sar.conv.call.by_destination import Observation, run_gather
from pyg_sar.conv.exchanges import Oriented
from pyg_sar.conv.inspect.trace import Trace, trace
from pyg_sar.conv.message.arguments import Binding
from pyg_sar.conv.message.forward_state import state_of
from pyg_sar.conv.message.reductions import finish, messages_of
from pyg_sar.conv.message.sample_edges import AttributeWatch, edge_rows
from pyg_sar.conv.reuse.narrow_exchange import is_hooked, is_sum, sum_for_layer
from pyg_sar.conv.reuse.raw_feature_sums import KeptSums, are_raw
from pyg_sar.conv.support import STATISTICS_MODULES
from pyg_sar.merge import State
from pyg_sar.shard.plan import Plan

Mode = Literal['sequential', 'sequential_no_remat', 'one_shot', 'auto']
Path = Literal['linear', 'weighted', 'replay', 'gather', 'one_shot']


@dataclass(frozen=True)
class Paths:
    """Computes calls of ``propagate`` up to the conv's ``update``, and of ``edge_updater``.

    Attributes:
        conv: The conv.
        exchange: The exchange of the shard.
        mode: The mode of this call; never ``'auto'``.
        max_rows: In-edges of a chunk of the gather path; None for what fits into free memory.
        oriented: The edges; results per edge go back to the caller's order.
        one_pass: Whether the ranks have agreed that one pass computes the softmax.
    """

    conv: MessagePassing
    exchange: Exchange
    mode: Mode
    max_rows: int | None
    oriented: Oriented
    one_pass: bool = False

    def aggregate(self, path: Path, plan: Plan, binding: Binding) -> Tensor:
        """The aggregated messages ``[num_dst, ...]`` of a call of ``propagate``."""
        compute = {
            'linear': self._linear,
            'weighted': self._weighted,
            'replay': self._replay,
            'gather': self._gather,
            'one_shot': self._one_shot,
        }
        return compute[path](plan, binding)

    def edge_update(self, path: Path, plan: Plan, binding: Binding) -> Tensor:
        """The result ``[num_edges, ...]`` of a call of ``edge_updater``."""
        if path == 'one_shot':
            binding = self._with_halo(binding)
            dst = plan.edge_index[1]
            out = binding.call(binding.arguments, plan.edge_index, dst, plan.shard.num_dst)
            return self.oriented.to_given(self._with_all_parameters(out, plan))
        if path == 'gather':
            _, outputs, seen = run_gather(binding, plan, self.exchange, self._max_rows(plan))
            self._set_attributes(seen, outputs[1:])
        else:
            traced = trace(binding, STATISTICS_MODULES)
            _, outputs = self._replayed(plan, binding, traced)
            self._set_attributes(traced, outputs[1:])
        return self.oriented.to_given(outputs[0])

    def _linear(self, plan: Plan, binding: Binding) -> Tensor:
        traced = trace(binding, STATISTICS_MODULES)
        if not traced.is_linear:  # a hook was registered since
            return self._replay(plan, binding)
        assert traced.aggregate is not None
        self._set_attributes(traced, ())
        x = binding.arguments.src[0]
        weight = None if traced.weight is None else binding.arguments.edge[traced.weight]

        def sum_of(rows: Tensor) -> Tensor:
            return self._linear_sum(rows, weight, plan, binding, traced)

        if not is_sum(self.conv):
            return sum_of(x)
        if are_raw(x):
            kept = KeptSums(plan, self.conv)
            out = kept.find(x, weight, is_hooked=is_hooked(self.conv))
            if out is not None:
                return out
            if kept.keeps:
                return kept.keep(x, weight, sum_of(x))
        return sum_for_layer(self.conv, x, plan, sum_of)

    def _linear_sum(
        self, x: Tensor, weight: Tensor | None, plan: Plan, binding: Binding, traced: Trace
    ) -> Tensor:
        assert traced.aggregate is not None
        mean = [kind for _, kind in traced.aggregate.calls] == ['mean']
        flat = None if weight is None else weight.view(-1)
        one_shot = self.mode == 'one_shot'
        total = linear_sum(x, flat, plan, self.exchange, one_shot=one_shot, mean=mean)
        return finish(binding, traced.aggregate, [(total,)], traced.out, plan, is_mean=mean)

    def _weighted(self, plan: Plan, binding: Binding) -> Tensor:
        traced = trace(binding, STATISTICS_MODULES)
        if not traced.is_weighted:  # a hook was registered since
            return self._replay(plan, binding)
        assert traced.aggregate is not None
        assert traced.weight is not None
        self._set_attributes(traced, ())
        x, weight = binding.arguments.src[0], binding.arguments.edge[traced.weight]
        heads = math.prod(weight.shape[1:])
        total = weighted_sum(
            x.reshape(x.size(0), heads, math.prod(x.shape[1:]) // heads),
            weight.reshape(plan.num_edges, heads),
            plan,
            self.exchange,
            keep_rows=self.mode == 'sequential_no_remat',
            one_shot=self.mode == 'one_shot',
        )
        dim = traced.aggregate.reductions[0].dim % traced.out.dim()
        row_shape = [size for i, size in enumerate(traced.out.shape) if i != dim]
        state = total.view(plan.shard.num_dst, *row_shape).movedim(0, dim)
        return finish(binding, traced.aggregate, [(state,)], traced.out, plan)

    def _replay(self, plan: Plan, binding: Binding) -> Tensor:
        traced = trace(binding, STATISTICS_MODULES)
        assert traced.aggregate is not None
        states, outputs = self._replayed(plan, binding, traced)
        self._set_attributes(traced, outputs)
        return finish(binding, traced.aggregate, states, traced.out, plan)

    def _replayed(
        self, plan: Plan, binding: Binding, traced: Trace
    ) -> tuple[list[State], tuple[Tensor, ...]]:
        program = program_of(binding, traced, plan.shard.num_dst)
        if not self.one_pass:
            program = replace(program, weights=None)
        arguments = replace(binding.arguments, learnable=traced.learnable)
        keep_rows = self.mode == 'sequential_no_remat'
        return replay(program, arguments, plan, self.exchange, keep_rows=keep_rows)

    def _gather(self, plan: Plan, binding: Binding) -> Tensor:
        out, outputs, seen = run_gather(binding, plan, self.exchange, self._max_rows(plan))
        assert out is not None
        self._set_attributes(seen, outputs)
        return out

    def _max_rows(self, plan: Plan) -> int | None:
        return max(plan.num_edges, 1) if self.mode == 'one_shot' else self.max_rows

    def _set_attributes(self, seen: Trace | Observation, values: tuple[Tensor, ...]) -> None:
        """Sets on the conv what its function sets: one row per edge, and numbers."""
        for name, number in seen.numbers.items():
            setattr(self.conv, name, number)
        for name, value in zip(seen.edge_attributes, values, strict=True):
            setattr(self.conv, name, self.oriented.to_given(value))

    def _one_shot(self, plan: Plan, binding: Binding) -> Tensor:
        """Plain autograd over all edges, with all halo rows beside the own ones."""
        binding = self._with_halo(binding)
        dst = plan.edge_index[1]
        values = binding.inputs(binding.arguments, plan.edge_index, dst, plan.shard.num_dst)
        out = binding.aggregate(values, binding.run(values))
        return self._with_all_parameters(out, plan)

    def _with_all_parameters(self, out: Tensor, plan: Plan) -> Tensor:
        """Where a rank has no edges a conv may skip parameters that other ranks have gradients of.

        DistributedDataParallel would wait for them.
        """
        if plan.num_edges or not out.is_floating_point():
            return out
        for parameter in self.conv.parameters():
            out = out + 0 * parameter.sum()
        return out

    def _with_halo(self, binding: Binding) -> Binding:
        src = tuple(with_halo(t, self.exchange) for t in binding.arguments.src)
        return replace(binding, arguments=replace(binding.arguments, src=src))


def program_of(binding: Binding, traced: Trace, num_dst: int) -> Program:
    """A conv's message as the aggregate room runs it."""
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
        messages=traced.messages,
        edge_outputs=traced.edge_outputs,
        uses_rng=traced.uses_rng,
        reductions=() if aggregate is None else aggregate.reductions,
        edge_bytes=traced.edge_bytes,
        weights=traced.weights,
        as_in_forward=state_of(conv),
    )
