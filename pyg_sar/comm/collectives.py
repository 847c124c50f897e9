"""The few collectives beside the exchanges, and decorators of autograd Functions that communicate.

Each collective begins with a message that has the same form in all, so that they meet only if they
are at the same operation (:mod:`pyg_sar.comm.process_group`).

The backward of a Function is in the layer of its forward. It has no derivative itself: second
derivatives would take values that backward computes again for constants, and be silently wrong.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pyg_sar.comm.errors import in_layer, layer_and_phase, location
from pyg_sar.comm.ranks import check_lives, current
from pyg_sar.utils import hook
from pyg_sar.utils.tensor_state import as_bytes

Function = TypeVar('Function', bound=type)

torch_apply: Any = vars(torch.autograd.Function)['apply']
"""torch's own, before the one of users' Functions was replaced."""


def communicates(function: Function) -> Function:
    """For autograd Functions that communicate: their backward is in the layer of their forward."""
    forward: Callable[..., Any] = function.forward  # type: ignore[attr-defined]
    backward: Callable[..., Any] = function.backward  # type: ignore[attr-defined]

    @functools.wraps(forward)
    def noting(ctx: Any, *args: Any) -> Any:
        ctx.layer, ctx.comm = layer_and_phase.value[0], current()
        return forward(ctx, *args)

    @functools.wraps(backward)
    def naming(ctx: Any, *grads: Any) -> Any:
        with in_layer(ctx.layer, 'backward'):
            try:
                return backward(ctx, *grads)
            except BaseException as error:
                check_lives(ctx.comm)
                current().left_by(error)
                raise

    function.forward = staticmethod(noting)  # type: ignore[attr-defined]
    function.backward = staticmethod(naming)  # type: ignore[attr-defined]
    function.apply = torch_apply  # type: ignore[attr-defined]
    return function


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the backward of an autograd Function one that has no derivative itself.

    A gradient of what `backward` returns is a RuntimeError. torch's decorator of this name notices
    only what ``Tensor.backward`` visits and where the gradients that come in have a history:
    ``torch.autograd.grad(first, inputs)`` would leave out the second derivative without a word.
    """

    @functools.wraps(backward)
    def once(ctx: Any, *grads: Tensor | None) -> Any:
        if not torch.is_grad_enabled():  # no create_graph=True
            return backward(ctx, *grads)
        with torch.no_grad():
            out = backward(ctx, *grads)
        tensors = (*grads, *ctx.saved_tensors)
        sources = [t for t in tensors if t is not None and t.requires_grad]
        if not sources:
            return out
        results = out if isinstance(out, tuple) else (out,)
        return tuple(only_once(r, *sources) if isinstance(r, Tensor) else r for r in results)

    return once


def only_once(result: Tensor, *sources: Tensor) -> Tensor:
    """A first derivative, computed from `sources`: a gradient of it raises a RuntimeError."""
    out: Tensor = _Once.apply(location(), result, *sources)
    return out


class _Once(torch.autograd.Function):
    """A first derivative, with what it depends on."""

    @staticmethod
    def forward(ctx: Any, where: str, result: Tensor, *sources: Tensor) -> Tensor:
        ctx.where = where
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        where = f' through {ctx.where}' if ctx.where else ''
        raise RuntimeError(
            f'expected first derivatives only (got a gradient of a gradient{where}): on a graph '
            'that is cut pyg_sar computes no second ones'
        )


def all_reduce_sum(
    tensor: Tensor, what: str = 'a sum over all ranks', group: dist.ProcessGroup | None = None
) -> Tensor:
    """Sums `tensor`, of one shape and dtype, over the ranks in place (collective) and returns it.

    `what` is what it is, for messages; `group` is one of all ranks, None for that of the exchanges.
    """
    comm = current()
    if comm.size > 1:
        tag = f'{what} ({tensor.dtype} {tuple(tensor.shape)})'
        with comm.guard(what, tag=tag):
            if comm.goes_by_host(tensor.device, group):  # others: gloo has no part in it
                if tensor.device.type == 'cpu' and group is None and tensor.numel():
                    if tensor.nbytes <= comm.small_bytes:
                        comm.sum_small(tag, tensor)
                    else:
                        comm.sum_large(tag, tensor)
                    return tensor
                comm.vote(tag)
            comm.all_reduce(tensor, group)
    return tensor


def sum_and_count(tensor: Tensor, bit: bool) -> int:
    """Sums a tensor of floating point as :func:`all_reduce_sum` does, and counts ranks with a bit.

    No device is waited for.
    """
    comm, what = current(), 'a sum over all ranks'
    how = '' if torch.is_grad_enabled() else ', without gradients'  # others follow it in training
    tag = f'{what} ({tensor.dtype} {tuple(tensor.shape)}{how})'
    with comm.guard(what, tag=tag):
        if tensor.device.type == 'cpu' and 0 < tensor.nbytes <= comm.small_bytes:
            return comm.sum_small(tag, tensor, bit)
        if tensor.device.type == 'cpu':
            both = torch.cat([tensor.reshape(-1), tensor.new_full((1,), bit)])
            comm.sum_large(tag, both)
            tensor.copy_(both[:-1].view(tensor.shape))
            return int(both[-1])
        (count,) = comm.vote(tag, [bit]) or [0]
        comm.all_reduce(tensor)
        return count


def per_rank(numbers: Tensor) -> Tensor:
    """Divides by the number of ranks, in place."""
    return numbers.div_(current().size)


def all_gather_alike(tensor: Tensor) -> Tensor:
    """The ranks' tensors of one shape and dtype, ``[world_size, ...]`` (collective)."""
    comm = current()
    if comm.size == 1:
        return tensor.unsqueeze(0)
    what = 'a gather from all ranks'
    tag = f'{what} ({tensor.dtype} {tuple(tensor.shape)})'
    with comm.guard(what, tag=tag):
        if comm.goes_by_host(tensor.device):
            comm.vote(tag)
        return comm.all_gather(tensor.contiguous())


def broadcast(tensor: Tensor, what: str) -> None:
    """Gives all ranks what rank 0 has in a contiguous tensor (collective)."""
    comm = current()
    with comm.guard(what):
        comm.broadcast(tensor)


def await_device(device: torch.device, what: str) -> None:
    """Waits for all that travels to a device, before others see it; raises ExchangeError."""
    comm = current()
    if device.type == 'cuda' and comm.size > 1:
        torch.cuda.synchronize(device)
        comm.check(what)


def all_to_all(
    rows: Tensor,
    send_counts: Sequence[int],
    recv_counts: Sequence[int],
    *,
    is_compared: bool = False,
) -> Tensor:
    """Sends the first rows to rank 0, the next ones to rank 1, ... (collective).

    Gives ``[sum(recv_counts), ...]``, by the rank they came from. `is_compared` says that the ranks
    have just compared that they are at the same run of operations, to which this one belongs; and
    the counts follow from earlier ones of it.
    """
    if len(send_counts) == 1:
        return rows
    received = rows.new_empty(sum(recv_counts), *rows.shape[1:])
    # As bytes: every dtype goes through every backend.
    row_bytes = math.prod(rows.shape[1:]) * rows.element_size()
    sizes = [n * row_bytes for n in recv_counts], [n * row_bytes for n in send_counts]
    form = f'rows of {rows.dtype} {tuple(rows.shape[1:])}'  # not how many: ranks differ in that
    counts = recv_counts, send_counts
    exchange_bytes(as_bytes(received), as_bytes(rows), *sizes, counts, form, is_compared)
    return received


def exchange_bytes(
    received: Tensor,
    sent: Tensor,
    recv_sizes: list[int],
    send_sizes: list[int],
    counts: tuple[Sequence[int], Sequence[int]],
    form: str,
    is_compared: bool,
) -> None:
    """Sends runs of bytes to rank 0, 1, ...; those that come fill `received` (collective).

    `counts` are the rows that they are, from every rank and for every rank; `form` is what a row
    is, in words that are equal on all ranks; `is_compared` is that of :func:`all_to_all`.
    """
    what = 'an exchange of rows with all ranks at once'
    tag, comm = f'{what} ({form})', current()
    with comm.guard(what, tag=tag):
        if not is_compared and comm.goes_by_host(sent.device):
            comm.vote(tag)
        comm.all_to_all(received, sent, recv_sizes, send_sizes)
        if hook.watchers:
            # Its own rows stay here.
            moved = [sum(n) - n[comm.rank] for n in (*counts, recv_sizes, send_sizes)]
            hook.moved(hook.Transfer('all ranks', 'rows', *moved))


def all_to_all_counts(counts: Tensor, *, is_compared: bool = False) -> Tensor:
    """The counts of all ranks for this one: row r of ``[world_size, ...]`` goes to rank r."""
    ones = [1] * counts.size(0)
    return all_to_all(counts, ones, ones, is_compared=is_compared)
