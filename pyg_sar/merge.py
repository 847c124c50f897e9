"""Merge states: how the messages of one block join those of the blocks before it.

A merge state is a plain tensor of one row per destination. It starts as zeros, takes in the
messages of a block, and in backward turns the gradient of the finished state into the gradient of
a block's messages. Pure tensors: no autograd, no ranks.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Merge(Protocol):
    """A state that blocks are merged into, one after another."""

    def init(self, messages: Tensor, num_dst: int, dim: int) -> Tensor:
        """The empty state; `messages` of any block give shape and dtype."""

    def step(self, state: Tensor, messages: Tensor, dst: Tensor, dim: int) -> None:
        """Merges one block's messages into the state, in place."""

    def grad(self, grad_state: Tensor, messages: Tensor, dst: Tensor, dim: int) -> Tensor:
        """The gradient of one block's messages."""


class Sum:
    """``state[i] = sum of messages[e] over the edges e into i``; sum and mean need no more."""

    def init(self, messages: Tensor, num_dst: int, dim: int) -> Tensor:
        """Zeros of one row per destination."""
        shape = list(messages.shape)
        shape[dim] = num_dst
        return messages.new_zeros(shape)

    def step(self, state: Tensor, messages: Tensor, dst: Tensor, dim: int) -> None:
        """Adds every message to its destination's row."""
        state.index_add_(dim, dst, messages)

    def grad(self, grad_state: Tensor, messages: Tensor, dst: Tensor, dim: int) -> Tensor:
        """The gradient of its destination's row."""
        return grad_state.index_select(dim, dst)


class SoftmaxStats:
    """Running maximum and sum of a softmax over the in-edges of every destination.

    The online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867): with a block's logits l,
    ``m' = max(m, max l)`` and ``s' = s * exp(m - m') + sum exp(l - m')``. The finished softmax is
    ``exp(l - m) / (s + 1e-16)``, as in ``torch_geometric.utils.softmax``.

    Args:
        num_dst: Number of destinations.
        max: The finished maximum ``[num_dst, ...]``, if there is one; -inf where no edge ends.
        sum: The finished sum ``[num_dst, ...]``.
    """

    def __init__(self, num_dst: int, max: Tensor | None = None, sum: Tensor | None = None) -> None:
        self.num_dst = num_dst
        self.max = max
        self.sum = sum

    def step(self, logits: Tensor, dst: Tensor) -> None:
        """Merges the logits ``[num_edges, ...]`` of one block."""
        shape = (self.num_dst, *logits.shape[1:])
        if self.max is None or self.sum is None:
            self.max = logits.new_full(shape, float('-inf'))
            self.sum = logits.new_zeros(shape)
        index = dst.view(-1, *[1] * (logits.dim() - 1)).expand_as(logits)
        new_max = self.max.scatter_reduce(0, index, logits, 'amax')
        # Where nothing has arrived yet both are -inf, and -inf - -inf is not a number.
        scale = (self.max - new_max).masked_fill_(self.max == float('-inf'), float('-inf'))
        self.sum.mul_(scale.exp_())
        self.max = new_max
        edge_max = new_max.index_select(0, dst)
        shifted = (logits - edge_max).masked_fill_(edge_max == float('-inf'), float('-inf'))
        self.sum.index_add_(0, dst, shifted.exp_())

    def alpha(self, logits: Tensor, dst: Tensor) -> Tensor:
        """The softmax of one block's logits ``[num_edges, ...]``, once all blocks are in."""
        assert self.max is not None
        assert self.sum is not None
        weight = (logits - self.max.index_select(0, dst)).exp_()
        return weight.div_(self.sum.index_select(0, dst) + 1e-16)
