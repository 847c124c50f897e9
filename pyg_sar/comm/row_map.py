"""Rows that move between ranks: all of the halo, parts of it, rows by their ids, and edges.

Every such move is a :class:`RowMap`, a linear map of the rows of all ranks. Its adjoint takes
gradients back to the rows that were copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.collectives import (
    all_to_all,
    all_to_all_counts,
    communicates,
    once_differentiable,
)
from pyg_sar.comm.ranks import world_size
from pyg_sar.comm.send_recv import Wire
from pyg_sar.shard.index_rows import add_rows_at

_EXACT = Wire(None)


@dataclass(frozen=True, eq=False)
class RowMap:
    """Which own rows go to which rank, and which of the rows that come are in the result.

    Rows move by one all-to-all (collective); a wire says in which dtype they travel.
    """

    send_index: Tensor  # own rows by the rank that they go to, int64 ``[sum(send_counts)]``
    send_counts: list[int]  # rows that go to each rank
    recv_counts: list[int]  # rows that come from each rank
    # Which of the rows that come is each row of the result, int64; None: all, in their order.
    recv_index: Tensor | None = None

    @classmethod
    def to_ranks(cls, ranks: Tensor) -> RowMap:
        """Row i goes to rank ``ranks[i]`` (collective: one all-to-all)."""
        counts = torch.bincount(ranks, minlength=world_size())
        recv_counts = all_to_all_counts(counts).tolist()
        return cls(torch.argsort(ranks, stable=True), counts.tolist(), recv_counts)

    @classmethod
    def from_ranks(cls, ranks: Tensor, rows: Tensor) -> RowMap:
        """Row ``rows[i]`` of rank ``ranks[i]`` becomes row i (collective: two all-to-alls)."""
        asked = cls.to_ranks(ranks)
        places = _written(torch.arange(ranks.numel(), device=ranks.device), asked.send_index)
        return cls(asked.fetch(rows), asked.recv_counts, asked.send_counts, places)

    def parts(self, rows: Sequence[Tensor]) -> list[RowMap]:
        """A map for each list of rows of the result, where that has all rows that come.

        The rows of a list ascend, int64; there are as many lists on all ranks. Collective: two
        all-to-alls.
        """
        sizes = torch.tensor([self.send_counts, self.recv_counts], device=rows[0].device)
        first_sent, first_received = sizes.cumsum(1) - sizes
        ranks = [torch.bucketize(r, sizes[1].cumsum(0), right=True) for r in rows]
        # For every rank: the number of rows of every list, and then their offsets.
        wanted = torch.stack([torch.bincount(r, minlength=sizes.size(1)) for r in ranks], dim=1)
        asked = all_to_all_counts(wanted)
        rank = torch.cat(ranks)
        offsets = (torch.cat([*rows]) - first_received[rank])[torch.argsort(rank, stable=True)]
        offsets = all_to_all(offsets, wanted.sum(1).tolist(), asked.sum(1).tolist())
        index = self.send_index[offsets + torch.repeat_interleave(first_sent, asked.sum(1))]
        number = torch.arange(asked.numel(), device=index.device) % len(rows)
        by_list = torch.argsort(torch.repeat_interleave(number, asked.flatten()), stable=True)
        indices = torch.split(index[by_list], asked.sum(0).tolist())
        return [*map(RowMap, indices, asked.t().tolist(), wanted.t().tolist())]

    def forward(self, x: Tensor, wire: Wire = _EXACT) -> Tensor:
        """The rows that come, from own rows ``[num_own, ...]`` to ``[num_rows, ...]``.

        | forward:  ``out = fetch(x)``
        | backward: ``grad_x`` has the sums of the gradients of all copies of its rows

        Collective: one all-to-all, and one in backward if x needs a gradient.
        """
        shape = x.shape

        def back(gradients: Tensor) -> Tensor:
            return self.give_back(gradients, gradients.new_zeros(shape), wire)

        return linear(x, partial(self.fetch, wire=wire), back)

    def fetch(self, x: Tensor, wire: Wire = _EXACT) -> Tensor:
        """As :meth:`forward`, without a gradient."""
        (form,) = wire.like([x])
        sent = form.new_empty(self.send_index.numel(), *x.shape[1:])
        wire.pack(sent, x, self.send_index)
        return self.move(sent).to(x.dtype)

    def give_back(self, gradients: Tensor, out: Tensor, wire: Wire = _EXACT) -> Tensor:
        """The adjoint of :meth:`fetch`: adds ``[num_rows, ...]`` to own rows of `out`."""
        wire.add(out, self.send_index, self.move_back(gradients, wire))
        return out

    def move(self, sent: Tensor) -> Tensor:
        """From rows that are picked already, ``[sum(send_counts), ...]``, to the result."""
        came = all_to_all(sent, self.send_counts, self.recv_counts)
        return came if self.recv_index is None else came.index_select(0, self.recv_index)

    def move_back(self, gradients: Tensor, wire: Wire = _EXACT) -> Tensor:
        """The adjoint of :meth:`move`; gives gradients in the dtype in which they travel."""
        sums = gradients
        if self.recv_index is not None:
            sums = gradients.new_zeros(sum(self.recv_counts), *gradients.shape[1:])
            add_rows_at(sums, self.recv_index, gradients)
        (form,) = wire.like([sums])
        return all_to_all(sums.to(form.dtype), self.recv_counts, self.send_counts)

    def inverse(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`fetch`, where every row goes to one place (collective)."""
        sent = values if self.recv_index is None else _written(values, self.recv_index)
        came = all_to_all(sent, self.recv_counts, self.send_counts)
        return _written(came, self.send_index)


def _written(values: Tensor, places: Tensor) -> Tensor:
    """Row i of the values at ``places[i]``: a permutation of them."""
    out = torch.empty_like(values, memory_format=torch.contiguous_format)
    out[places] = values
    return out


Move = Callable[[Tensor], Tensor]


def linear(x: Tensor, there: Move, back: Move) -> Tensor:
    """``there(x)``, whose gradient is ``back(grad_out)``: a linear move and its adjoint."""
    out: Tensor = _Linear.apply(x, there, back)
    return out


@communicates
class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Move, back: Move) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grads[0]), None, None
