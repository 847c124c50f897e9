"""Merge states: how the messages of one block join those of the blocks before it.

A state has one row per destination. It starts empty, takes in one block after another, and in
backward turns its gradient into that of a block's messages. Pure tensors: no autograd, no ranks.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from pyg_sar.shard.index_rows import add_rows_at, add_runs_at, rows_at

State = tuple[Tensor, ...]
"""One or more tensors with one row per destination."""


class Merge(Protocol):
    """A state that blocks are merged into, one after another."""

    num_tensors: int  # of a state
    reads_state: bool  # whether `grad` reads the finished state, so that it must be kept

    def init(self, messages: Tensor, num_dst: int, dim: int) -> State:
        """The empty state; `messages` of any block give shape and dtype."""

    def step(self, state: State, messages: Tensor, dst: Tensor, dim: int) -> None:
        """Merges one block's messages into the state, in place; `dst` ascends."""

    def grad(
        self, grad_state: Tensor, state: State, messages: Tensor, dst: Tensor, dim: int
    ) -> Tensor:
        """The gradient of one block's messages, from that of the state's first tensor."""


class Sum:
    """``state[i] = sum of messages[e] over the edges e into i``; sum and mean need no more."""

    num_tensors = 1
    reads_state = False

    def init(self, messages: Tensor, num_dst: int, dim: int) -> State:
        return (messages.new_zeros(_shape(messages, num_dst, dim)),)

    def step(self, state: State, messages: Tensor, dst: Tensor, dim: int) -> None:
        if dim % messages.dim():
            state[0].index_add_(dim, dst, messages)
        else:
            add_runs_at(state[0], dst, messages)

    def grad(
        self, grad_state: Tensor, state: State, messages: Tensor, dst: Tensor, dim: int
    ) -> Tensor:
        return grad_state.index_select(dim, dst)


class Product:
    """``state[i] = product of messages[e] over the edges e into i``.

    Kept as the product of the factors that are not zero, and the number of those that are: so the
    gradient of a factor, the product of all others, is right where one of them is zero.
    """

    num_tensors = 2
    reads_state = True

    def init(self, messages: Tensor, num_dst: int, dim: int) -> State:
        shape = _shape(messages, num_dst, dim)
        return messages.new_ones(shape), messages.new_zeros(shape, dtype=torch.int32)

    def step(self, state: State, messages: Tensor, dst: Tensor, dim: int) -> None:
        product, zeros = state
        is_zero = messages == 0
        zeros.index_add_(dim, dst, is_zero.to(zeros.dtype))
        index = _expand(dst, messages, dim)
        product.scatter_reduce_(dim, index, messages.masked_fill(is_zero, 1), 'prod')

    def grad(
        self, grad_state: Tensor, state: State, messages: Tensor, dst: Tensor, dim: int
    ) -> Tensor:
        product, zeros = state
        is_zero = messages == 0
        others = (grad_state * product).index_select(dim, dst) / messages.masked_fill(is_zero, 1)
        other_zeros = zeros.index_select(dim, dst) - is_zero.to(zeros.dtype)
        return others.masked_fill_(other_zeros > 0, 0)


class Extremum:
    """The largest (``'amax'``) or smallest message of every destination, and how many attain it.

    As in PyG, those that do share the gradient evenly; they may lie in different blocks. torch's
    ``scatter_reduce`` counts the zero that it starts from, too: at an extremum of 0 k messages get
    1 / (k + 1) each. NaN, which none attains, gives them 0 / 0. A destination without messages
    counts none, and its extremum means nothing.
    """

    num_tensors = 2
    reads_state = True

    def __init__(self, reduce: str) -> None:
        self.reduce = reduce

    def init(self, messages: Tensor, num_dst: int, dim: int) -> State:
        if messages.is_floating_point():
            low, high = float('-inf'), float('inf')
        elif messages.dtype == torch.bool:
            low, high = False, True
        else:
            low, high = torch.iinfo(messages.dtype).min, torch.iinfo(messages.dtype).max
        shape = _shape(messages, num_dst, dim)
        extremum = messages.new_full(shape, low if self.reduce == 'amax' else high)
        return extremum, messages.new_zeros(shape, dtype=torch.int32)

    def step(self, state: State, messages: Tensor, dst: Tensor, dim: int) -> None:
        """Takes in one block: where the extremum changes, counting starts again."""
        extremum, count = state
        new = extremum.scatter_reduce(dim, _expand(dst, messages, dim), messages, self.reduce)
        count.masked_fill_(new != extremum, 0)
        extremum.copy_(new)
        attains = messages == extremum.index_select(dim, dst)
        count.index_add_(dim, dst, attains.to(count.dtype))

    def grad(
        self, grad_state: Tensor, state: State, messages: Tensor, dst: Tensor, dim: int
    ) -> Tensor:
        extremum, count = state
        share = grad_state / (count + (extremum == 0))
        attains = messages == extremum.index_select(dim, dst)
        return share.index_select(dim, dst).mul_(attains)


def _shape(messages: Tensor, num_dst: int, dim: int) -> list[int]:
    shape = list(messages.shape)
    shape[dim] = num_dst
    return shape


def _expand(dst: Tensor, messages: Tensor, dim: int) -> Tensor:
    shape = [1] * messages.dim()
    shape[dim] = -1
    return dst.view(shape).expand_as(messages)


_ALL = slice(None)
_FAR = 20.0
"""Logits this far from what is subtracted leave sums and products well inside of float32."""

_WIDE = (torch.float32, torch.float64)


class SoftmaxStats:
    """What is subtracted from logits and the sum of a softmax over the in-edges of destinations.

    The online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867): with a block's logits l,
    ``m' = max(m, max l)`` and ``s' = s * exp(m - m') + sum exp(l - m')``. The finished softmax is
    ``exp(l - m) / s``, for any m that keeps the sum from overflow and underflow. On a CPU, where
    the maximum of every destination takes most of the time, m is one number for all of them as long
    as no logit is further than 20 from it. Else it is ``[num_dst, ...]``, as the sum is, and -inf
    where no edge ends.
    """

    def __init__(self, num_dst: int, max: Tensor | None = None, sum: Tensor | None = None) -> None:
        self.num_dst, self.max, self.sum = num_dst, max, sum
        self.rows = _ALL  # of the next `step`, whose `dst` counts from the first of them
        # exp(m - m') of each of `rows` in the last `step`, by how much what was weighted before
        # shrinks; None for ones.
        self.scale: Tensor | None = None

    def begin(self, logits: Tensor) -> None:
        """Starts without an edge; `logits` of any edges give shape and dtype."""
        self.max = logits.new_full((), float('-inf'))
        self.sum = logits.new_zeros((self.num_dst, *logits.shape[1:]))

    def finish(self, in_degree: Tensor) -> None:
        """Makes the sum a divisor, also where nothing was summed.

        Where all of a destination's logits are -inf its softmax is not a number, as in PyG.
        """
        if self.sum is None:
            return
        is_empty = self.sum == 0
        # On a device the question costs more than the answer.
        if is_empty.device.type != 'cpu' or bool(is_empty.any()):
            has_edges = (in_degree > 0).view(-1, *[1] * (self.sum.dim() - 1))
            self.sum.masked_fill_(is_empty, 1).masked_fill_(is_empty & has_edges, float('nan'))

    def step(self, logits: Tensor, dst: Tensor) -> Tensor:
        """Merges the logits ``[num_edges, ...]`` of some edges; gives ``exp(l - m')`` of each."""
        if self.max is None:
            self.begin(logits)
        assert self.max is not None
        assert self.sum is not None
        rows, self.scale = self.rows, None
        total = self.sum[rows]
        is_wide_on_cpu = logits.dtype in _WIDE and logits.device.type == 'cpu'
        if self.max.dim() == 0 and is_wide_on_cpu and logits.numel():
            low, high = torch.aminmax(logits)
            if self.max == float('-inf'):
                self.max = high
            # Not what is infinite or no number either.
            if (high - self.max <= _FAR) & (self.max - low <= _FAR):
                weight = (logits - self.max).exp_()
                add_rows_at(total, dst, weight)
                return weight
        if self.max.dim() == 0:  # it was one number until now
            self.max = torch.where(self.sum == 0, float('-inf'), self.max)
        old_max = self.max[rows]
        index = dst.view(-1, *[1] * (logits.dim() - 1)).expand_as(logits)
        new_max = old_max.scatter_reduce(0, index, logits, 'amax')
        # Where nothing has arrived yet both are -inf, and -inf - -inf is not a number.
        scale = (old_max - new_max).masked_fill_(old_max == float('-inf'), float('-inf')).exp_()
        old_max.copy_(new_max)
        edge_max = rows_at(new_max, dst)
        weight = (logits - edge_max).masked_fill_(edge_max == float('-inf'), float('-inf')).exp_()
        add_rows_at(total.mul_(scale), dst, weight)
        self.scale = scale
        return weight

    def alpha(self, logits: Tensor, dst: Tensor, rows: slice = _ALL) -> Tensor:
        """The softmax of the logits of some edges into `rows`, once all edges are in."""
        if self.max is None or self.sum is None:  # no edge at all
            return logits.exp()
        weight = (logits - self.max_at(dst, rows)).exp_()
        return weight.div_(rows_at(self.sum[rows], dst))

    def max_at(self, dst: Tensor, rows: slice = _ALL) -> Tensor:
        """What is subtracted from the logits of edges."""
        assert self.max is not None
        return rows_at(self.max[rows], dst) if self.max.dim() else self.max
