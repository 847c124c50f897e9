"""What torch refuses of whole numbers raises what this torch raises, whatever its version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from as_whole import check
from on_ranks import on_ranks
from small_graphs import small_graph
from torch import Tensor

REFUSED: dict[str, Callable[[Tensor], Any]] = {
    'mean': lambda x: x.mean(0),
    'mean of all': torch.mean,
    'std': lambda x: x.std(0),
    'var_mean': lambda x: torch.var_mean(x, 0),
    'norm': torch.norm,
    'vector_norm': lambda x: torch.linalg.vector_norm(x, dim=0),
    'normalize': lambda x: F.normalize(x, dim=0),
    'nanmean': lambda x: x.nanmean(0),
    'quantile': lambda x: x.quantile(0.5, 0),
    'softmax': lambda x: x.softmax(0),
    'log_softmax': lambda x: F.log_softmax(x, dim=0),
    'argmax of truths': lambda x: (x > 1).argmax(0),
    'l1_loss': lambda x: F.l1_loss(x, x),
    'index_add': lambda x: torch.zeros(3, 6).index_add(0, x[:, 0].clamp(0, 2), x),
    'scatter_add': lambda x: torch.zeros(3, 6).scatter_add(0, x.clamp(0, 2), x),
}

TAKEN: dict[str, Callable[[Tensor], Tensor]] = {
    'mean as fractions': lambda x: x.mean(0, dtype=torch.float64),
    'softmax as fractions': lambda x: x.softmax(0, dtype=torch.float64).sum(0),
    'sum': lambda x: x.sum(0),
    'logsumexp': lambda x: x.logsumexp(0),
    'any': lambda x: x.any(0),
    'largest': lambda x: x.max(0).values,
    'fifth': lambda x: x.kthvalue(5, 0).values,
    'index_add': lambda x: x.new_zeros(3, 6).index_add(0, x[:, 0].clamp(0, 2), x),
}


@on_ranks(1, 2)
def test_refused_as_by_torch(data):
    for name, function in REFUSED.items():
        with pytest.raises((RuntimeError, TypeError)) as plain:
            run(function, small_graph())
        with pytest.raises(plain.type) as own:
            run(function, data)
        assert str(own.value) == str(plain.value), name


def run(function: Callable[[Tensor], Tensor], data: Any) -> Tensor:
    return function(data.x.mul(9).long())


def test_taken_as_by_torch() -> None:
    check(__name__, 'TAKEN')
