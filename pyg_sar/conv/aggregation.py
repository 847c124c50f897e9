"""Which merge states a conv's aggregation needs, and its last step.

The aggregate room merges messages into states; what remains (a division, a choice of scalers) is
ordinary autograd code on one row per node.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.nn.aggr import (
    Aggregation,
    DegreeScalerAggregation,
    MeanAggregation,
    MultiAggregation,
    SumAggregation,
)

from pyg_sar.merge import Merge, Sum
from pyg_sar.shard.plan import Plan


def merges_of(aggregation: Aggregation) -> tuple[Merge, ...] | None:
    """The states an aggregation is made from, or None if it cannot be merged block by block."""
    return (Sum(),) if _is_mergeable(aggregation) else None


def _is_mergeable(aggregation: torch.nn.Module) -> bool:
    if type(aggregation) in (SumAggregation, MeanAggregation):
        return True
    if isinstance(aggregation, MultiAggregation):
        return all(_is_mergeable(a) for a in aggregation.aggrs)
    if isinstance(aggregation, DegreeScalerAggregation):
        return _is_mergeable(aggregation.aggr)
    return False


def finish(
    aggregation: torch.nn.Module, states: tuple[Tensor, ...], plan: Plan, dim: int
) -> Tensor:
    """The result of an aggregation from its merged states.

    Args:
        aggregation: One for which :func:`merges_of` gave the states.
        states: The sums of all messages, ``num_own`` rows in dimension `dim`.
        plan: The blocks the messages came from.
        dim: The node dimension.
    """
    (total,) = states
    if type(aggregation) is MeanAggregation:
        # Nothing else reads the sums, and a row of every node is dear.
        return total.div_(_count(total, plan, dim))
    return _finish(aggregation, total, plan, dim)


def _finish(aggregation: torch.nn.Module, total: Tensor, plan: Plan, dim: int) -> Tensor:
    if type(aggregation) is SumAggregation:
        return total
    if type(aggregation) is MeanAggregation:
        return total / _count(total, plan, dim)
    if isinstance(aggregation, MultiAggregation):
        outs = [_finish(a, total, plan, dim) for a in aggregation.aggrs]
        combined: Tensor = aggregation.combine(outs)
        return combined
    assert isinstance(aggregation, DegreeScalerAggregation)
    return _scaled(aggregation, _finish(aggregation.aggr, total, plan, dim), plan, dim)


def _count(total: Tensor, plan: Plan, dim: int) -> Tensor:
    """In-degrees, at least one, to divide `total` by."""
    shape = [1] * total.dim()
    shape[dim] = -1
    return plan.in_degree.clamp(min=1).to(total.dtype).view(shape)


class _Finished(Aggregation):  # type: ignore[misc]
    """Gives a result that is known already."""

    def __init__(self, result: Tensor) -> None:
        super().__init__()
        self.result = result

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        return self.result


def _scaled(aggregation: DegreeScalerAggregation, inner: Tensor, plan: Plan, dim: int) -> Tensor:
    """PyG's own scaling by degree, applied to the finished inner aggregation."""
    modules = aggregation._modules
    own = modules['aggr']
    modules['aggr'] = _Finished(inner)
    try:
        out: Tensor = aggregation(inner, plan.edge_index[1], dim_size=plan.shard.num_own, dim=dim)
    finally:
        modules['aggr'] = own
    return out
