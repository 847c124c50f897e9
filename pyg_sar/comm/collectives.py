"""The few collectives beside the exchanges.

Each begins with a message that has the same form in all, so that they meet only if they are at the
same operation (:mod:`pyg_sar.comm.process_group`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pyg_sar.comm.errors import with_root_cause
from pyg_sar.comm.functions import communicates
from pyg_sar.comm.ranks import current
from pyg_sar.utils import hook
from pyg_sar.utils.checksum import as_bytes
from pyg_sar.utils.json import decode, encode

T = TypeVar('T')

_KINDS = {k.__name__: k for k in (FileNotFoundError, OSError, TypeError, ValueError, RuntimeError)}


def raise_on_all(step: Callable[[], T]) -> T:
    """Takes a step on every rank and returns its result (collective: see :func:`agree`).

    If it raises on any rank, all raise: a rank its own error, or else that of the first other rank,
    with its rank. A step has no collectives.
    """
    result: Any = None
    error = None
    try:
        result = step()
    except Exception as caught:  # whatever it is, the other ranks must not wait for this one
        error = caught
    raise_error_on_all(error)
    return result


def on_rank_0(step: Callable[[], T]) -> T:
    """Takes `step` on rank 0 alone; all get its plain values; raises as :func:`raise_on_all`."""
    own = raise_on_all(lambda: step() if current().rank == 0 else None)
    return agree(own)[0]


def raise_error_on_all(error: Exception | None) -> None:
    """Raises as :func:`raise_on_all`, where this rank's error was caught before."""
    kind = next((name for name, k in _KINDS.items() if isinstance(error, k)), 'RuntimeError')
    answers = agree(None if error is None else (kind, str(error)))
    if error is not None:
        raise error
    for rank, other in enumerate(answers):
        if other is not None:
            kind, text = other
            raise with_root_cause(rank, current().rank, _KINDS[kind](f'rank {rank}: {text}'))


def agree(value: Any) -> list[Any]:
    """The values of all ranks in rank order (collective: two small all-gathers).

    A value is plain: None, bool, int, float, str, torch.dtype, a dense tensor, or lists, tuples,
    sets and dicts of them. It comes back equal and of the same type.
    """
    comm = current()
    if comm.size == 1:
        return [value]
    text, what = encode(value), 'a comparison of all ranks'
    with comm.guard(what):
        texts = comm.gather_texts(text, what)
    return [decode(t) for t in texts]


def odd_and_usual(values: Sequence[object]) -> tuple[int, int]:
    """Of values that are not all equal a rank with a rare one, and a rank with the commonest."""
    counts = [values.count(value) for value in values]
    usual = counts.index(max(counts))
    others = [rank for rank, value in enumerate(values) if value != values[usual]]
    return min(others, key=lambda rank: counts[rank]), usual


def differ(text: str, rank: int) -> ValueError:
    """The error that all ranks raise where `rank` differs; only that rank prints a traceback."""
    return with_root_cause(rank, current().rank, ValueError(text))


def check_equal(what: str, values: Sequence[object]) -> None:
    """Raises a ValueError if the ranks' `values` of something differ."""
    if any(value != values[0] for value in values):
        odd, usual = odd_and_usual(values)
        raise differ(
            f'expected the same {what} on all ranks: {values[odd]} on rank {odd} (got '
            f'{values[usual]} on rank {usual}): give the same on every rank',
            odd,
        )


def all_ranks(value: bool, world_size: int) -> bool:
    """Whether `value` holds on all ranks (collective; see :func:`least_of_ranks`)."""
    return bool(least_of_ranks(int(value), world_size))


def least_of_ranks(value: int, world_size: int) -> int:
    """The smallest of the ranks' values 0, 1 or 2 (collective: one small all-gather)."""
    assert 0 <= value <= 2
    if world_size == 1:
        return value
    counts = _sum('a decision of all ranks', number=(1, 1 << 20, 0)[value])
    assert counts is not None
    ones, zeros = divmod(counts, 1 << 20)  # more than there are ranks
    return 0 if zeros else 1 if ones else 2


def are_alike(fingerprint: str, flag: bool) -> tuple[bool, bool]:
    """Whether a fingerprint is the same on all ranks and, if so, whether a flag is set on all.

    Collective: one small all-gather.
    """
    unset = _sum('a comparison of forwards', number=not flag, state=fingerprint)
    return unset is not None, unset == 0


def count_ranks(tag: str, flag: bool) -> int:
    """How many ranks have set a flag (collective: one small all-gather).

    All raise ExchangeError where `tag`, the operation that a rank is at, differs.
    """
    count = _sum(tag, number=flag)
    assert count is not None
    return count


def _sum(what: str, *, number: int, state: str = '') -> int | None:
    """An operation that is nothing but the number it begins with."""
    comm = current()
    if comm.size == 1:
        return number
    with comm.guard(what):
        return comm.sum_alike(what, number=number, state=state)


def form_of(tensor: Tensor, *, is_rows: bool = False) -> str:
    """Dtype and shape, without the number of rows where that differs between the ranks."""
    shape = tuple(tensor.shape)
    return f'rows of {tensor.dtype} {shape[1:]}' if is_rows else f'{tensor.dtype} {shape}'


def all_reduce_sum(
    tensor: Tensor, what: str = 'a sum over all ranks', group: dist.ProcessGroup | None = None
) -> Tensor:
    """Sums `tensor`, of one shape and dtype, over the ranks in place (collective) and returns it.

    `what` is what it is, for messages; `group` is one of all ranks, None for that of the exchanges.
    """
    comm = current()
    if comm.size > 1:
        tag = f'{what} ({form_of(tensor)})'
        with comm.guard(what, tag=tag):
            if comm.goes_by_host(tensor.device, group):  # others: gloo has no part in it
                if tensor.device.type == 'cpu' and group is None and tensor.numel():
                    if tensor.nbytes <= comm.summed_bytes:
                        comm.sum_alike(tag, summed=tensor)
                    else:
                        comm.sum_large(tag, tensor)
                    return tensor
                comm.sum_alike(tag)
            comm.all_reduce(tensor, group)
    return tensor


def all_gather_alike(tensor: Tensor, what: str = 'a gather from all ranks') -> Tensor:
    """The ranks' tensors of one shape and dtype, ``[world_size, ...]`` (collective)."""
    comm = current()
    if comm.size == 1:
        return tensor.unsqueeze(0)
    tag = f'{what} ({form_of(tensor)})'
    with comm.guard(what, tag=tag):
        if comm.goes_by_host(tensor.device):
            comm.sum_alike(tag)
        return comm.all_gather(tensor.contiguous())


def broadcast(tensor: Tensor, what: str) -> None:
    """Gives all ranks what rank 0 has in a contiguous tensor (collective)."""
    comm = current()
    with comm.guard(what):
        comm.broadcast(tensor)


def check_arrived(what: str) -> None:
    """Raises ExchangeError if transfers were lost while the program waited for its device.

    Such a wait ends with whatever the memory holds, so this comes between it and what the program
    does with what it has read.
    """
    current().check(what)


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
    form = form_of(rows, is_rows=True)
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
            comm.sum_alike(tag)
        comm.all_to_all(received, sent, recv_sizes, send_sizes)
        if hook.watchers:
            # Its own rows stay here.
            moved = [sum(n) - n[comm.rank] for n in (*counts, recv_sizes, send_sizes)]
            hook.moved(hook.Transfer('all ranks', 'rows', *moved))


def all_to_all_counts(counts: Tensor, *, is_compared: bool = False) -> Tensor:
    """The counts of all ranks for this one: row r of ``[world_size, ...]`` goes to rank r."""
    ones = [1] * counts.size(0)
    return all_to_all(counts, ones, ones, is_compared=is_compared)


def sum_over_ranks(local: Tensor) -> Tensor:
    """Sums a tensor of one shape over the ranks.

    | forward:  ``out = sum of the ranks' local``
    | backward: ``grad_local = sum of the ranks' grad_out``, as every rank's share of the loss
      depends on the sum

    Collective: one all-reduce in forward, one in backward.
    """
    out: Tensor = _SumOverRanks.apply(local)
    return out


@communicates
class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        return all_reduce_sum(local.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return sum_over_ranks(grads[0])
