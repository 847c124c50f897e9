"""Numbers and plain tensors beside rows: equal on all ranks, or an error that names their line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from expressions import expressions
from on_ranks import on_ranks
from small_graphs import assert_all_raise, attempt
from torch import Tensor
from torch_geometric.nn import SAGEConv, SimpleConv

import pyg_sar
from pyg_sar.comm.ranks import rank
from pyg_sar.comm.vote import agree


class Scaled(SimpleConv):
    def forward(self, x: Tensor, edge_index: Tensor, scale: Any) -> Tensor:  # type: ignore[override]
        return super().forward(x, edge_index) * scale


PARTED = """
data.x[:, torch.arange(6).roll(r)]; data.x[:, np.roll(np.arange(6), r)]; data.x[:, [r, 1]]
data.x[:, r : r + 3]; data.x * (1 + r / 2); data.x + np.float64(r); data.x.clamp(min=-r)
torch.tensor([1.0] * 5 + [r]) * data.x; data.x.relu() > 0.1 * r
F.cross_entropy(data.x, data.y % 6, weight=torch.ones(6).double() + r, reduction='none')
data.x.sort(dim=1, descending=bool(r)).values; data.x @ (torch.eye(6).double() * (1 + r))
torch.cat([data.x, torch.full((1, 6), r).expand(40, 6)], 1)
torch.where(data.x > 0, data.x, float(r))
data.x @ torch.full((6, 500), 1.0 + r, dtype=torch.float64)
torch.arange(6).roll(r)[data.y]; torch.arange(12).roll(r).view(6, 2)[data.y, 0]
torch.arange(12).roll(r).view(2, 6)[:, data.y]; torch.arange(6).roll(r).index_select(0, data.y)
torch.take(torch.arange(6).roll(r), data.y); torch.arange(6).roll(r).gather(0, data.y)
data.x[(torch.arange(6) > r)[data.y]]; torch.arange(40).roll(r)[data.edge_index[0]]
torch.arange(9000).roll(r)[data.y]; F.embedding(data.y, torch.arange(6).roll(r).view(6, 1))
pyg_sar.DistributedDataParallel(Scaled())(data.x, data.edge_index, torch.tensor(1.0 + r))
"""


def _value(data: Any, kind: str, r: int) -> Tensor:
    """On one line, which errors name."""
    code = compile(kind, __file__, 'eval')
    return eval(code, globals(), {'data': data, 'r': r, 'np': np}).double().mean()


def _parted(data: Any, kind: str) -> None:
    found = agree(attempt(_value, data, kind, rank()))
    assert_all_raise(found, 'PartedError', 'one value on all ranks', ' of rows at test_values_')
    # The ranks have raised alike, and go on.
    assert len({*agree(float(_value(data, kind, 1)))}) == 1


@pytest.mark.parametrize('kind', expressions(PARTED))
@on_ranks()
def test_parted(data: Any, kind: str) -> None:
    _parted(data, kind)


@pytest.mark.parametrize('kind', expressions(PARTED)[::5])
@on_ranks(by='threads')
def test_parted_threads(data: Any, kind: str) -> None:
    _parted(data, kind)


@on_ranks(by='own processes')
def test_equal(data: Any) -> None:
    """What is not the same numbers in the same order, and right all the same."""
    model = pyg_sar.DistributedDataParallel(SAGEConv(6, 3).double())
    out = model(data.x, data.edge_index)
    if rank() == 1:  # rows that one rank alone looks at, without asking others
        assert (out * 3 + 1).detach().shape == (40, 3)
        assert (out[:, 1].detach() > 7).shape == (40,)
    table = torch.empty(40, dtype=torch.float64).fill_(rank())  # of which all that is read is equal
    table[:] = out[:, 0].detach()
    ids = torch.empty(40, dtype=torch.int64)
    ids[torch.arange(40)] = torch.arange(40)
    assert torch.equal(ids[data.y % 3], pyg_sar.gather(data.y % 3))
    few = torch.full((2000, 2), rank())  # as torch.empty, where nobody reads it
    few[5:8, 1] = torch.arange(3)
    assert torch.equal(pyg_sar.gather(few[data.y % 3 + 5, 1]), pyg_sar.gather(data.y % 3))
    out.requires_grad and out.retain_grad()
    loss = F.cross_entropy(out, data.y % 3, weight=torch.tensor([0.2, math.pi, 1.0]).double())
    loss.backward()
    assert len({*agree(loss.item())}) == 1
    noisy = torch.ones(6).double() + 1e-12 * rank()  # processors round differently
    with pytest.warns(UserWarning, match='ranks round differently'):
        float((data.x * noisy).sum())
    float((data.x * (noisy * (1 + 1e-12 * rank()))).sum())
