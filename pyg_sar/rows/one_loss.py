"""One loss of all ranks: the gradient where rows become plain tensors, and plain tensors meet rows.

The pair f and g of Megatron-LM (Shoeybi et al. 2019, `arXiv 1909.08053
<https://arxiv.org/abs/1909.08053>`_). Plain tensors are equal on all ranks, and so is the loss.

========================= ============== ============================ =========================
function                  from, to       forward                      backward
========================= ============== ============================ =========================
:func:`for_rows`, f       plain, rows    the same numbers             a sum over ranks
:func:`sum_of_ranks`, g   rows, plain    a sum over ranks             the same gradient
:func:`for_rows`          parameter,     the same numbers             times the number of ranks
                          rows
:func:`read_alone`        rows, own      the same numbers             by the number of ranks
:func:`of_batches`        own, rows      the same numbers             times the number of ranks
========================= ============== ============================ =========================

The gradients of parameters of a :class:`pyg_sar.DistributedDataParallel` become their mean over the
ranks at the end of a backward. So they count where a rank reads them by itself (*own*): for a
batch, or in a term that all ranks have. What a rank reads of rows by itself is divided: the loss is
the mean of those of the ranks, or all ranks read the same for one loss.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.collectives import (
    all_reduce_sum,
    communicates,
    once_differentiable,
    per_rank,
    sum_and_count,
    torch_apply,
)
from pyg_sar.comm.comm import Comm
from pyg_sar.comm.ranks import check_lives, check_own, current, world_size
from pyg_sar.rows.end_of_backward import started
from pyg_sar.rows.replicated import note_alike, note_once
from pyg_sar.rows.rows import Rows


def for_rows(value: Any) -> Any:
    """A plain tensor for a function with rows, with the gradient of one process; all else as it is.

    Every rank computes the gradient of its own rows.
    """
    if not isinstance(value, Tensor) or not value.requires_grad or isinstance(value, Rows):
        return value
    comm = current()
    if comm.size == 1 or not torch.is_grad_enabled() or hasattr(value, '_is_for_rows'):
        return value
    is_leaf = value.is_leaf
    if is_leaf and comm.takes_turns:
        check_own(value)
    is_mean = is_leaf and is_averaged(value)
    if is_leaf and not is_mean:
        note_once(value)
    out: Any = _Scaled.apply(value, comm, False) if is_mean else _SumInBackward.apply(value)
    out._is_for_rows = True
    return out


def _learns(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled() and world_size() > 1


def is_averaged(*leaves: Tensor) -> bool:
    """Whether the gradients of leaves are averaged at the end of a backward, of all of them."""
    for leaf in leaves:
        for hook in (leaf._backward_hooks or {}).values():
            averager = getattr(hook, 'averager', None)  # a weak reference to that of a parameter
            owner = None if averager is None else averager()
            if getattr(owner, 'is_alive', False):
                break
        else:
            return False
    return True


def of_batches(tensor: Tensor) -> Tensor:
    """What a rank has by itself, for a function of all ranks: a parameter, or rows of its batch."""
    out: Tensor = _Scaled.apply(tensor, current(), False) if _learns(tensor) else tensor
    return out


def read_alone(tensor: Tensor) -> Tensor:
    """Rows that a rank reads by itself, for a loss of its own, or for one of all ranks."""
    out: Tensor = _Scaled.apply(tensor, current(), True) if _learns(tensor) else tensor
    return out


class _Scaled(torch.autograd.Function):
    """A factor in backward."""

    apply = torch_apply

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, comm: Comm, is_divided: bool) -> Tensor:
        ctx.comm, ctx.is_divided = comm, is_divided
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        if current() is not ctx.comm:
            check_lives(ctx.comm)
        if not ctx.is_divided:
            return grads[0] * ctx.comm.size, None, None
        started()  # a loss of all ranks, which need not depend on a model on this one
        return per_rank(grads[0].clone()), None, None


@communicates
class _SumInBackward(torch.autograd.Function):
    """The function f."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _total(grads[0]).to(grads[0].dtype)


def mean_of_ranks(tensor: Tensor) -> Tensor:
    """A new tensor with the mean over the ranks (collective)."""
    return per_rank(_total(tensor)).to(tensor.dtype)


def _total(tensor: Tensor) -> Tensor:
    total = tensor.to(widened(tensor.dtype), copy=True, memory_format=torch.contiguous_format)
    all_reduce_sum(torch.view_as_real(total) if total.is_complex() else total)
    return total


def has_fractions(values: Tensor) -> bool:
    """Whether numbers are not whole ones, which have no means and no gradients."""
    return values.is_floating_point() or values.is_complex()


def widened(dtype: torch.dtype) -> torch.dtype:
    """The type in which torch adds up numbers: half precision is rounded at the end alone."""
    return {torch.float16: torch.float32, torch.bfloat16: torch.float32}.get(dtype, dtype)


def sum_of_ranks(local: Tensor) -> Tensor:
    """Sums a tensor of one shape over the ranks; booleans are counted (collective).

    The sum has a history on all ranks if it has one on any: what follows communicates in backward.
    """
    if local.dtype == torch.bool:
        local = local.long()
    if world_size() == 1:
        return local
    if local.dtype != widened(local.dtype):
        return sum_of_ranks(local.to(widened(local.dtype))).to(local.dtype)
    if local.is_complex():
        return torch.view_as_complex(sum_of_ranks(torch.view_as_real(local).contiguous()))
    total = local.detach().clone(memory_format=torch.contiguous_format)
    if not local.is_floating_point():
        return all_reduce_sum(total)
    learns = local.requires_grad and torch.is_grad_enabled()
    if not sum_and_count(total, learns) or not torch.is_grad_enabled():
        return total
    out: Tensor = _Sum.apply(local if learns else local.detach().requires_grad_(), [total])
    return out


class _Sum(torch.autograd.Function):
    """The function g, with the sum that has been computed before."""

    apply = torch_apply

    @staticmethod
    def forward(ctx: Any, local: Tensor, total: list[Tensor]) -> Tensor:
        return total[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        started()
        note_alike('the gradient of a sum over all ranks', grads[0])
        return grads[0], None
