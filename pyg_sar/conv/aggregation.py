"""Which merge states a conv's aggregation needs, and its last step.

The aggregate room merges messages into states; what remains (a division, a root, a choice of
scalers) is ordinary autograd code on one row per node.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric.nn.aggr import (
    Aggregation,
    DegreeScalerAggregation,
    MaxAggregation,
    MeanAggregation,
    MinAggregation,
    MultiAggregation,
    StdAggregation,
    SumAggregation,
    VarAggregation,
)

from pyg_sar.merge import Extremum, Merge, State, Sum, SumOfSquares
from pyg_sar.shard.plan import Plan

States = dict[str, State]
"""Finished merge states by name."""

_MERGES: dict[str, Callable[[], Merge]] = {
    'sum': Sum,
    'squares': SumOfSquares,
    'max': lambda: Extremum('amax'),
    'min': lambda: Extremum('amin'),
}

_NEEDED: dict[type[torch.nn.Module], tuple[str, ...]] = {
    SumAggregation: ('sum',),
    MeanAggregation: ('sum',),
    MaxAggregation: ('max',),
    MinAggregation: ('min',),
    VarAggregation: ('sum', 'squares'),
    StdAggregation: ('sum', 'squares'),
}


def merges_of(aggregation: torch.nn.Module) -> dict[str, Merge] | None:
    """The states an aggregation is made from, or None if it cannot be merged block by block."""
    names = _names(aggregation)
    return None if names is None else {name: _MERGES[name]() for name in dict.fromkeys(names)}


def _names(aggregation: torch.nn.Module) -> list[str] | None:
    if type(aggregation) in _NEEDED:
        return list(_NEEDED[type(aggregation)])
    inner: list[torch.nn.Module] = []
    if isinstance(aggregation, MultiAggregation):
        inner = list(aggregation.aggrs)
    elif isinstance(aggregation, DegreeScalerAggregation):
        inner = [aggregation.aggr]
    names = [_names(a) for a in inner]
    if not names or None in names:
        return None
    return [name for group in names for name in group or ()]


def finish(aggregation: torch.nn.Module, states: States, plan: Plan, dim: int) -> Tensor:
    """The result of an aggregation from its merged states.

    Args:
        aggregation: One for which :func:`merges_of` gave the states.
        states: The finished states, ``num_dst`` rows in dimension `dim`.
        plan: The blocks the messages came from.
        dim: The node dimension.
    """
    if type(aggregation) is MeanAggregation:
        # Nothing else reads the sums, and a row of every node is dear.
        (total,) = states['sum']
        return total.div_(_count(total, plan, dim))
    return _finish(aggregation, states, plan, dim)


def _finish(aggregation: torch.nn.Module, states: States, plan: Plan, dim: int) -> Tensor:
    kind = type(aggregation)
    if kind is SumAggregation:
        return states['sum'][0]
    if kind is MeanAggregation:
        return _mean(states['sum'][0], plan, dim)
    if kind is MaxAggregation or kind is MinAggregation:
        extremum, count = states['max' if kind is MaxAggregation else 'min']
        return extremum.masked_fill(count == 0, 0)
    if isinstance(aggregation, VarAggregation):
        mean_of_squares = _mean(states['squares'][0], plan, dim)
        if aggregation.semi_grad:
            mean_of_squares = mean_of_squares.detach()
        mean = _mean(states['sum'][0], plan, dim)
        return mean_of_squares - mean * mean
    if isinstance(aggregation, StdAggregation):
        variance = _finish(aggregation.var_aggr, states, plan, dim)
        return _last_step(aggregation, 'var_aggr', variance, plan, dim)
    if isinstance(aggregation, MultiAggregation):
        outs = [_finish(a, states, plan, dim) for a in aggregation.aggrs]
        combined: Tensor = aggregation.combine(outs)
        return combined
    assert isinstance(aggregation, DegreeScalerAggregation)
    return _last_step(aggregation, 'aggr', _finish(aggregation.aggr, states, plan, dim), plan, dim)


def _mean(total: Tensor, plan: Plan, dim: int) -> Tensor:
    return total / _count(total, plan, dim)


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


def _last_step(
    aggregation: torch.nn.Module, inner: str, result: Tensor, plan: Plan, dim: int
) -> Tensor:
    """PyG's own code after its inner aggregation, whose result is known."""
    modules = aggregation._modules
    own = modules[inner]
    modules[inner] = _Finished(result)
    try:
        out: Tensor = aggregation(result, plan.edge_index[1], dim_size=plan.shard.num_dst, dim=dim)
    finally:
        modules[inner] = own
    return out
