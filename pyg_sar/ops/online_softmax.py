"""One pass for a softmax that only weights: the online softmax, as FlashAttention uses it.

Where every message is linear in the softmax over in-edges, ``message_e = alpha_e * v_e``, neither
pass has to know the finished softmax. Forward weights with the maxima of the edges seen so far and
corrects what it has summed when they grow (Milakov and Gimelshein 2018, arXiv 1805.02867):

| ``sum_i  = sum_i  * exp(m_i - m'_i) + sum of exp(l_e - m'_i)``
| ``part_i = part_i * exp(m_i - m'_i) + sum of exp(l_e - m'_i) * v_e``
| ``out_i  = part_i / sum_i``

Backward needs ``r_i = sum over in-edges of alpha_e * d_alpha_e`` before any edge's gradient. As
``d_alpha_e = <v_e, d_out_i>``, it is ``r_i = <out_i, d_out_i>`` (Dao et al. 2022, arXiv
2205.14135), over all that the destination gets, and what its edge outputs add is likewise the sum
of ``<output_e, d_output_e>``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.collectives import communicates, once_differentiable, torch_apply
from pyg_sar.ops.chunks import Run
from pyg_sar.ops.program import no_autocast_cache
from pyg_sar.ops.reductions import SoftmaxStats, State
from pyg_sar.ops.replay import ReplayBackward
from pyg_sar.shard.index_rows import add_rows_at, rows_at

_STEP_BYTES = 2 << 20


def online(run: Run) -> tuple[list[State], tuple[Tensor, ...]]:
    """What :func:`~pyg_sar.ops.replay.replay` gives, of a program with `weights`.

    Saved for backward: the arguments, maximum and sum of the softmax, and ``part`` of every
    reduction; never halo rows or messages (unless the run keeps the rows received).

    Communication: one exchange in forward; one in backward, and one exchange of gradients if a
    source tensor needs one.
    """
    outputs: list[Tensor] = []
    tensors = _Online.apply(run, outputs, *run.arguments.inputs())
    *states, sums = tensors[: len(run.program.reductions) + 1]
    dst = run.loop.plan.edge_index[1]
    edge_outputs = tuple(
        _EdgeOutput.apply([output], dst, link, sums)
        for output, link in zip(outputs, tensors[len(states) + 1 :], strict=True)
    )
    return [(state,) for state in states], edge_outputs


@communicates
class _Online(torch.autograd.Function):
    """Gives the states, and what takes the gradients of the edge outputs.

    These are zeros without memory: ``[num_dst, ...]`` as the softmax for what the edge outputs add
    to ``r_i``, and ``[num_edges, ...]`` for the gradient of each.
    """

    @staticmethod
    def forward(ctx: Any, run: Run, outputs: list[Tensor], *tensors: Tensor) -> tuple[Tensor, ...]:
        program, plan = run.program, run.loop.plan
        weights, num_dst = program.weights, plan.shard.num_dst
        assert weights is not None
        stats = SoftmaxStats(num_dst)
        stats.begin(weights)
        parts = [part for (part,) in program.init_states(num_dst)]
        outputs += [t.new_empty(plan.num_edges, *t.shape[1:]) for t in program.edge_outputs]
        # The maxima that edge outputs were weighted with, to correct them once all edges are in;
        # while these are one number for all they need no correction.
        maxima: Tensor | None = None
        with no_autocast_cache():
            for chunk, edge_index, arguments in run.chunks():
                so_far, stats.rows = stats.max, chunk.rows
                messages, of_edges = program.run(arguments, edge_index, stats.step)
                scale = stats.scale
                for r, part in zip(program.reductions, parts, strict=True):
                    rows = part[chunk.rows]
                    if scale is not None:
                        _by_weight(rows, scale).mul_(_factor(scale, rows))
                    r.merge.step((rows,), messages[r.message], edge_index[1], r.dim)
                for output, values in zip(outputs, of_edges, strict=True):
                    chunk.block.put(output, values)
                if outputs and scale is not None:
                    if maxima is None:
                        assert so_far is not None
                        maxima = so_far.expand(plan.num_edges, *weights.shape[1:]).clone()
                    chunk.block.put(maxima, stats.max_at(edge_index[1], chunk.rows))
                del arguments, messages, of_edges  # freed before the next chunk allocates
        stats.finish(plan.in_degree)
        assert stats.max is not None
        assert stats.sum is not None
        if outputs:
            _correct(outputs, maxima, stats, plan.edge_index[1], run.max_edges)
        run.save(ctx, *parts, stats.max, stats.sum)
        ctx.set_materialize_grads(False)
        sums = stats.sum.new_zeros(1).expand(stats.sum.shape)
        links = [t.new_zeros(1).expand(t.shape) for t in outputs]
        return (*(_divided(part, stats.sum) for part in parts), sums, *links)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        run, rest = Run.saved(ctx)
        *parts, largest, total = rest
        grad_states, (grad_sums, *grad_links) = grads[: len(parts)], grads[len(parts) :]
        stats = SoftmaxStats(run.loop.plan.shard.num_dst, largest, total)
        grads = (*grad_states, *grad_links)
        softmax = stats, _row_sum(parts, grad_states, grad_sums, total)
        replayed = ReplayBackward(run, [()] * len(parts), grads, softmax)
        with run.rng_and_autocast.again(run.arguments.learnable):
            return None, None, *replayed.gradients(ctx.needs_input_grad[2:])


class _EdgeOutput(torch.autograd.Function):
    """Adds the part of an edge output in ``r_i``, while its values are in memory anyway.

    | forward:  ``output``
    | backward: ``d_link = d_output``, ``d_sums_i = sum over in-edges of <output_e, d_output_e>``

    So :class:`_Online` need not save it: convs that keep their weights for the caller drop them
    when he does not ask.
    """

    apply = torch_apply

    @staticmethod
    def forward(ctx: Any, output: list[Tensor], dst: Tensor, link: Tensor, sums: Tensor) -> Tensor:
        ctx.save_for_backward(output[0], dst)
        ctx.shape = sums.shape
        return output[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        output, dst = ctx.saved_tensors
        grad, sums = grads[0], grads[0].new_zeros(ctx.shape)
        for edges in _steps(output):
            products = _products(output[edges], grad[edges], sums)
            add_rows_at(sums, dst[edges], products.view(-1, *ctx.shape[1:]))
        return None, None, grad, sums


def _correct(
    outputs: Sequence[Tensor], maxima: Tensor | None, stats: SoftmaxStats, dst: Tensor, step: int
) -> None:
    """Makes edge outputs that were weighted with ``exp(l - maxima)`` those of the softmax."""
    assert stats.sum is not None
    factor_of = stats.sum.reciprocal()
    for start in range(0, dst.numel(), step):
        edges = slice(start, start + step)
        index = dst[edges]
        factor = rows_at(factor_of, index)
        if maxima is not None:
            factor *= (maxima[edges] - stats.max_at(index)).exp_()
        for output in outputs:
            rows = output[edges]
            _by_weight(rows, factor).mul_(_factor(factor, rows))


def _divided(part: Tensor, total: Tensor) -> Tensor:
    """``out_i``."""
    out = torch.empty_like(part)  # no view: a conv may change it in place
    torch.div(_by_weight(part, total), _factor(total, part), out=_by_weight(out, total))
    return out


def _row_sum(
    parts: Sequence[Tensor], grads: Sequence[Tensor | None], grad_sums: Tensor | None, total: Tensor
) -> Tensor:
    """``r_i``, shaped as the statistics are."""
    row_sum = torch.zeros_like(total)
    for part, grad in zip(parts, grads, strict=True):
        if grad is None:
            continue
        for rows in _steps(part):
            products = _products(part[rows], grad[rows], total)
            row_sum[rows] += products.view(row_sum[rows].shape)
    row_sum /= total
    return row_sum if grad_sums is None else row_sum.add_(grad_sums)


def _steps(values: Tensor) -> Iterator[slice]:
    """Rows of a few MiB, one range of them after another."""
    step_bytes = _STEP_BYTES if values.device.type == 'cpu' else 64 * _STEP_BYTES
    step = max(step_bytes // max(prod(values.shape[1:]) * values.element_size(), 1), 1)
    for start in range(0, values.size(0), step):
        yield slice(start, start + step)


def _products(values: Tensor, grad: Tensor, weights: Tensor) -> Tensor:
    """``<values, grad>`` over all that a weight of the softmax weights, ``[n, num_weights]``."""
    products = _by_weight((values * grad).contiguous(), weights)
    return products.squeeze(-1) if products.size(-1) == 1 else products.sum(-1)


def _by_weight(values: Tensor, weights: Tensor) -> Tensor:
    """``[n, ...]`` as ``[n, num_weights, k]``: together what the softmax weights alike."""
    num_weights = prod(weights.shape[1:])
    return values.view(values.size(0), num_weights, prod(values.shape[1:]) // num_weights)


def _factor(weights: Tensor, values: Tensor) -> Tensor:
    """``[n, ...]`` of the softmax, to multiply what :func:`_by_weight` gives for `values`."""
    return weights.reshape(weights.size(0), prod(weights.shape[1:]), 1).to(values.dtype)
