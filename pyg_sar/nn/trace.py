"""Finds out what a message function does, by running it once on a few edges.

What a function computes decides its path, not the name of the conv. A trace sees the operations
below autograd: how messages are made of x_j, and the softmaxes over in-edges. It also notes random
numbers, attributes that the function sets, and the learnable tensors that it uses; only these are
inputs of the autograd Function.

It refuses what would be silently wrong block by block: other uses of the destination index, tensors
with a history that are no argument, and norms, which need the statistics of all edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyg_sar.nn.call import Call
from pyg_sar.nn.intercept import Intercept, MessageError, WatchedIndex
from pyg_sar.nn.linear_in_softmax import SoftmaxUse
from pyg_sar.nn.products import ProductRecorder, RowSum
from pyg_sar.nn.reductions import Aggregate, ReductionRecorder
from pyg_sar.nn.sample_edges import (
    NUM_SAMPLES,
    UndoneSideEffects,
    edge_rows,
    learnable_leaves,
    node_of_now,
    not_saved,
    samples_of,
    states_of,
    written_among,
)
from pyg_sar.nn.whole_reads import run_aggregation, run_message, takes_statistics
from pyg_sar.ops.program import Arguments, no_autocast_cache
from pyg_sar.ops.reductions import Sum
from pyg_sar.rows.registry import name_of
from pyg_sar.rows.rows import Rows, tag
from pyg_sar.utils.class_swap import name_of as class_name


@dataclass(frozen=True, kw_only=True)
class SideEffects:
    """What a message function left behind when it ran on a few edges."""

    out: Tensor  # its result; in a run on all in-edges that of its aggregation
    # What it computes per edge: the attributes, after the result of `edge_update`.
    edge_outputs: tuple[Tensor, ...]
    # Attributes of the conv that it sets to a tensor with one row per edge.
    edge_attributes: tuple[str, ...]
    # Attributes of the conv that it sets to plain numbers, with their values.
    numbers: dict[str, Any]
    learnable: tuple[Tensor, ...]  # leaf tensors it reads that are not among its arguments
    uses_rng: bool
    written: tuple[str, ...]  # the rows of nodes that it changes in place


def set_attributes(call: Call, seen: SideEffects, values: Sequence[Tensor]) -> None:
    """Sets on the conv what its function sets: one row per edge, and numbers."""
    for name, number in seen.numbers.items():
        setattr(call.conv, name, number)
    for name, value in zip(seen.edge_attributes, values, strict=True):
        rows = call.in_given_order(value)
        rows = rows if call.edges is None else tag(rows, 0, call.edges._sharding)
        setattr(call.conv, name, rows)


@dataclass(frozen=True, kw_only=True)
class Trace(SideEffects):
    """What a message function does."""

    num_softmax: int  # softmaxes over in-edges
    num_calls: int  # reductions that its aggregation calls
    messages: tuple[Tensor, ...]  # the tensors that the conv's aggregation reduces
    aggregate: Aggregate | None  # the conv's aggregation; None for ``edge_update``
    is_copy: bool  # whether the messages are its only source tensor, unchanged
    # The index among the edge tensors of the weight that multiplies the only source tensor, one
    # for every edge, or for every edge and head; or None.
    weight: int | None
    is_plain_weight: bool  # whether that weight takes no gradient and multiplies rows of a matrix
    edge_bytes: int = 0  # what the largest tensor that it computes takes per edge
    # The result of its only softmax for the samples, if all it gives is linear in it.
    weights: Tensor | None = None
    # If it is x_j times a factor that it computes without x_j: the name of x_j, and what it does up
    # to that product.
    source: str = ''
    factor: Trace | None = None
    summed: RowSum | None = None  # which of the product's heads are summed

    @property
    def is_linear(self) -> bool:
        """Whether it sums x_j, or a weight without gradient times x_j, and nothing else."""
        return self._sums_message and (self.is_copy or self.is_plain_weight)

    @property
    def is_weighted(self) -> bool:
        """Whether it sums a weight times x_j, in a precision that does not round the products."""
        return self._sums_message and self.weight is not None and self._is_exact

    @property
    def computed(self) -> Trace:
        """What runs on every edge: the factor, or all of it."""
        return self if self.factor is None else self.factor

    def in_passes(self) -> Trace:
        """The trace of one that takes a pass for every softmax."""
        factor = None if self.factor is None else replace(self.factor, weights=None)
        return replace(self, weights=None, factor=factor)

    @property
    def may_have_factor(self) -> bool:
        """Whether it sums its messages and leaves nothing behind but a row per edge."""
        return self._sums_message and self._is_exact and not (self.numbers or self.written)

    @property
    def _is_exact(self) -> bool:
        return self.out.dtype in (torch.float32, torch.float64) and self.out.numel() > 0

    @property
    def _sums_message(self) -> bool:
        return self.aggregate is not None and self.aggregate.reduces_message


def with_factor(traced: Trace, call: Call, source: str) -> Trace:
    """The trace with that of what the message multiplies the argument `source` by."""
    of_factor = call.of_factor(source)
    factor = trace(of_factor)
    return replace(traced, source=source, factor=factor, summed=of_factor.summed)


@no_autocast_cache()
@not_saved()
def trace(call: Call) -> Trace:
    """Runs a message function, and the aggregation, on a few sampled edges; notes what they do.

    A checkpoint around the conv does not see what autograd saves here: nothing needs it later, and
    a second run of the conv in backward may save something else.
    """
    conv = call.conv
    samples, edge_index = samples_of(call)
    edge_index[1] = 0
    index = edge_index[1].as_subclass(WatchedIndex)
    num_softmax = 0

    def softmax(logits: Tensor, dst: Tensor) -> Tensor:
        nonlocal num_softmax
        num_softmax += 1
        weights = torch.softmax(logits, 0)
        use.begin(weights)
        return weights

    use = SoftmaxUse()
    in_message = Intercept(conv, softmax)
    in_aggregate = ReductionRecorder(conv, softmax)
    first_node = node_of_now()
    values = call.inputs(samples, edge_index, index, NUM_SAMPLES)
    rows = _only_source(call, values)
    states = states_of(values)
    recorder = ProductRecorder(rows, samples.edge, NUM_SAMPLES)
    aggregate = None
    # A gradient inside the function is taken in this thread, which alone numbers the history.
    here = torch.autograd.set_multithreading_enabled(False)
    with (
        here,
        UndoneSideEffects(conv, call.arguments) as undone,
        _refusing_statistics(conv),
        _NoRows(),
    ):
        with in_message, recorder, use:
            out = run_message(call, values, samples)
        if call.function == 'message':
            with in_aggregate, use:
                run_aggregation(call, {**values, 'dim_size': 1, 'size_i': 1}, out, samples)
            aggregate = in_aggregate.aggregate(out)

    reduced = in_aggregate.messages
    seen, outputs = left_behind(call, undone, states, samples, first_node, out, reduced)
    is_pure = recorder.is_pure and rows is not None and not (seen.edge_attributes or seen.written)
    weight = _weight_index(call, recorder, out) if is_pure else None
    # One number without gradient for every edge.
    is_plain = weight is not None and (
        samples.edge[weight].numel() == NUM_SAMPLES and not samples.edge[weight].requires_grad
    )
    is_matrix = rows is not None and out.dim() == rows.dim() == 2 and conv.node_dim in (0, -2)
    return Trace(
        **vars(seen),
        num_softmax=num_softmax,
        num_calls=0 if aggregate is None else len(aggregate.calls),
        messages=tuple(t.detach() for t in reduced),
        aggregate=aggregate,
        is_copy=is_pure and out is rows and is_matrix and recorder.product is None,
        weight=weight,
        is_plain_weight=is_plain and is_matrix,
        edge_bytes=recorder.edge_bytes,
        weights=_linear_weights(use, outputs, aggregate),
    )


class _NoRows(TorchFunctionMode):
    """Ends a run on samples that reads rows of the whole graph, as of a closure or of the conv."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, Rows) for kind in types):
            raise MessageError(f"'{name_of(func)}' of rows, where a message sees some edges")
        return func(*args, **(kwargs or {}))


def left_behind(
    call: Call,
    undone: UndoneSideEffects,
    states: Mapping[str, tuple[Tensor, object]],
    samples: Arguments,
    first_node: Any,
    out: Tensor,
    reduced: Sequence[Tensor],
) -> tuple[SideEffects, list[Tensor]]:
    """What the function that computed `out` left behind, and the tensors `reduced` or per edge."""
    if call.draws is not None and undone.uses_rng:
        raise ValueError(
            f"'dropout_seed' needs a '{call.function}' of {class_name(call.conv)} that draws "
            'random numbers by F.dropout or torch.nn.Dropout only (got others)'
        )
    undone.check_edges_alone()
    names = undone.edge_attributes
    edge_outputs = edge_rows(call.conv, undone.changed, names, NUM_SAMPLES)
    if call.function != 'message':
        edge_outputs = (out, *edge_outputs)
    outputs = [*reduced, *edge_outputs]
    seen = SideEffects(
        out=out.detach(),
        edge_outputs=tuple(t.detach() for t in edge_outputs),
        edge_attributes=names,
        numbers=undone.numbers,
        learnable=learnable_leaves([out, *outputs], samples, first_node),
        uses_rng=undone.uses_rng,
        written=written_among(call, states),
    )
    return seen, outputs


def _linear_weights(
    use: SoftmaxUse, outputs: Sequence[Tensor], aggregate: Aggregate | None
) -> Tensor | None:
    reductions = () if aggregate is None else aggregate.reductions
    is_summed = all(isinstance(r.merge, Sum) and r.dim == 0 for r in reductions)
    if use.weights is None or not is_summed or not use.is_linear(outputs):
        return None
    return use.weights.detach()


def _only_source(call: Call, inputs: dict[str, Any]) -> Tensor | None:
    """x_j, if it is the only node tensor the function reads."""
    nodes = [slot for slot in call.slots if slot.role in ('src', 'dst')]
    if len(nodes) != 1 or nodes[0].role != 'src':
        return None
    rows: Tensor = inputs[nodes[0].name]
    return rows if rows.is_floating_point() else None


def _weight_index(call: Call, recorder: ProductRecorder, out: Tensor) -> int | None:
    product = recorder.product
    if product is None or product.out is not out:
        return None
    weight, (x,) = call.arguments.edge[product.index], call.arguments.src
    needs_grad = torch.is_grad_enabled() and (weight.requires_grad or x.requires_grad)
    if out.requires_grad != needs_grad:  # one of them is detached
        return None
    node_dim = call.conv.node_dim % len(product.rows_shape)
    return product.index if product.is_by_head(node_dim) else None


@contextmanager
def _refusing_statistics(conv: torch.nn.Module) -> Iterator[None]:
    """While it lasts, a module that takes statistics over its rows refuses to run."""

    def refuse(module: torch.nn.Module, _: Any) -> None:
        if module.training or getattr(module, 'running_mean', None) is None:
            raise MessageError(
                f'{type(module).__name__} runs inside it and would see one block of edges only'
            )

    handles = [m.register_forward_pre_hook(refuse) for m in conv.modules() if takes_statistics(m)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
