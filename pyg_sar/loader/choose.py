"""Draws in-edges of nodes: pure functions of hashes.

Edges have numbers in an order that no partition changes; the in-edges of a node are ``start .. end
- 1``. Draws follow from the hash of the node alone, so every owner draws the same.

N nodes are their hashes `state`, the numbers `start` of their first edges, and `num`, how many
edges they have: int64 ``[N]`` each. The functions return the numbers of the edges that they draw,
node after node, and how many each node gets.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_sar.utils.rng import below, hashed_on, unit

_CDF_BITS = 52  # so that the sum of a node's weights is exact as a float64


def ranges(start: Tensor, count: Tensor) -> Tensor:
    """``start[i], start[i] + 1, ...``, `count[i]` of them, for every i in turn."""
    end = count.cumsum(0)
    out = torch.repeat_interleave(start - end + count, count)
    return out.add_(torch.arange(out.numel()))


def distinct(state: Tensor, num: Tensor, k: int) -> Tensor:
    """K different ones of ``num > k`` numbers, every set alike likely, by Floyd's algorithm.

    For j = num - k ... num - 1 it draws t from 0 ... j, and takes t, or j where t is taken
    (Bentley and Floyd, CACM 1987). The result is int64 ``[k, N]``.
    """
    slot = torch.arange(k).unsqueeze(1)
    bound = num - (k - 1) + slot
    drawn = below(hashed_on(state, slot), bound)
    for i in range(1, k):
        is_taken = (drawn[:i] == drawn[i]).any(0)
        drawn[i] = torch.where(is_taken, bound[i] - 1, drawn[i])
    return drawn


def uniform(state: Tensor, start: Tensor, num: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """K edges of every node without replacement, or all it has."""
    count = num.clamp(max=k)
    edge = ranges(start, count)
    many = (num > k).nonzero().view(-1)
    if many.numel() and k:
        drawn = distinct(state[many], num[many], k).add_(start[many])
        first = (count.cumsum(0) - count)[many]
        edge[first + torch.arange(k).unsqueeze(1)] = drawn
    return edge, count


def repeated(state: Tensor, start: Tensor, num: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """K edges of every node that has any, with replacement."""
    some = (num > 0).nonzero().view(-1)
    hashes = hashed_on(state[some].unsqueeze(1), torch.arange(k))
    drawn = below(hashes, num[some].unsqueeze(1)).add_(start[some].unsqueeze(1))
    return drawn.view(-1), (num > 0).long() * k


def weighted(
    state: Tensor, start: Tensor, num: Tensor, k: int, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """K edges of every node, one after another by weight among those left; never one of weight 0.

    Every edge waits an exponential time with its weight as rate; the k first are drawn (Efraimidis
    and Spirakis 2006, in logarithms). `weight` is that of all edges, float64 ``[E]``.
    """
    node, edge = torch.repeat_interleave(num), ranges(start, num)
    hashes = hashed_on(state[node], edge - start[node])
    time = unit(hashes).log_().neg_() / weight[edge]
    kept = time.isfinite().nonzero().view(-1)
    order = kept[torch.argsort(time[kept])]
    order = order[torch.argsort(node[order], stable=True)]
    count = torch.bincount(node[order], minlength=num.numel())
    rank = torch.arange(order.numel()) - (count.cumsum(0) - count)[node[order]]
    return edge[order[rank < k]], count.clamp(max=k)


def weighted_repeated(
    state: Tensor, start: Tensor, num: Tensor, k: int, cdf: Tensor
) -> tuple[Tensor, Tensor]:
    """K edges of every node by weight, with replacement; none where all weights are 0.

    `cdf` is what :func:`cumulated` returns for the weights.
    """
    last = (start + num - 1).clamp(min=0)
    total = torch.where(num > 0, cdf[last], 0) if cdf.numel() else torch.zeros_like(num)
    some = (total > 0).nonzero().view(-1)
    hashes = hashed_on(state[some].unsqueeze(1), torch.arange(k))
    low, end, top = (value[some].unsqueeze(1) for value in (start, start + num, total))
    target = torch.minimum((unit(hashes) * top).long(), top - 1)
    return first_above(cdf, low, end, target).view(-1), (total > 0).long() * k


def cumulated(weight: Tensor, ptr: Tensor) -> Tensor:
    """The sums of a node's weights up to each of its edges, in whole numbers, int64 ``[E]``.

    A node's weights are rounded to at least 2^-40 of its largest for up to 4,096 edges. Sums of
    whole numbers have no order: they are the same wherever the node is.
    """
    num = ptr.diff()
    node = torch.repeat_interleave(num)
    largest = weight.new_zeros(num.numel()).scatter_reduce_(0, node, weight, 'amax')
    bits = _CDF_BITS - num.clamp(min=1).double().log2().ceil()
    units = (weight / largest[node].clamp(min=torch.finfo(weight.dtype).tiny)) * 2 ** bits[node]
    sums = units.long().cumsum(0)  # modulo 2^64, as are the differences
    before = torch.cat([sums.new_zeros(1), sums])[ptr[:-1]]
    return sums - before[node]


def first_above(values: Tensor, start: Tensor, end: Tensor, target: Tensor) -> Tensor:
    """The first index in ``[start, end)`` with a value above `target`; `end` where there is none.

    `values` ``[E]`` ascend from every `start` to its `end`, int64, which broadcast to the shape of
    `target`.
    """
    low, high = start.expand_as(target), end.expand_as(target)
    while bool((low < high).any()):
        middle = (low + high) // 2
        is_above = values[middle.clamp(max=values.numel() - 1)] > target
        is_open = low < high
        high = torch.where(is_open & is_above, middle, high)
        low = torch.where(is_open & ~is_above, middle + 1, low)
    return low
