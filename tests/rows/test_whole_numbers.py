"""What torch refuses of whole numbers raises what this torch raises, whatever its version."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from as_whole import check
from expressions import expressions
from on_ranks import on_ranks
from small_graphs import attempt, small_graph

REFUSED = """
x.mean(0); torch.mean(x); x.std(0); torch.var_mean(x, 0); torch.norm(x); F.normalize(x, dim=0)
torch.linalg.vector_norm(x, dim=0); x.nanmean(0); x.quantile(0.5, 0); x.softmax(0)
F.log_softmax(x, dim=0); (x > 1).argmax(0); F.l1_loss(x, x)
torch.zeros(3, 6).index_add(0, x[:, 0].clamp(0, 2), x)
torch.zeros(3, 6).scatter_add(0, x.clamp(0, 2), x)
"""
LIKE_TORCH = 'y.std(); y.norm(); y.nanmean(); y.__rmatmul__(0)'
TAKEN = """
x.mean(0, dtype=torch.float64); x.softmax(0, dtype=torch.float64).sum(0); x.sum(0); x.logsumexp(0)
x.any(0); x.max(0).values; x.kthvalue(5, 0).values
x.new_zeros(3, 6).index_add(0, x[:, 0].clamp(0, 2), x)
"""


def run(expression: str, data: Any) -> Any:
    x = data.x.mul(9).long()
    return eval(expression, {'torch': torch, 'F': F, 'x': x, 'y': data.y})


@on_ranks(1, 2)
def test_refused_as_by_torch(data):
    for expression in expressions(REFUSED):
        with pytest.raises((RuntimeError, TypeError)) as plain:
            run(expression, small_graph())
        with pytest.raises(plain.type) as own:
            run(expression, data)
        assert str(own.value) == str(plain.value), expression
    for expression in expressions(LIKE_TORCH):
        outcomes = [attempt(run, expression, each).split(':')[0] for each in (small_graph(), data)]
        assert outcomes[0] == outcomes[1], expression


def test_taken_as_by_torch() -> None:
    check(__name__, 'TAKEN', tolerance=1e-6)
