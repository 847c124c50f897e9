"""torch.utils.checkpoint around wrapped convs: backward runs them, and their exchange, again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch
from ranks import run_ranks
from small_graphs import assert_close, cut, small_graph
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.nn import EdgeConv, GATConv, GCNConv, SAGEConv, TransformerConv

import pyg_sar
from pyg_sar import SARConv
from pyg_sar.comm.collectives import all_reduce_sum
from pyg_sar.comm.ranks import current
from pyg_sar.nn.options import Mode


def _convs() -> dict[str, torch.nn.Module]:
    """One for each path."""
    torch.manual_seed(0)
    return {
        'linear': SAGEConv(6, 4),
        'linear with weights': GCNConv(6, 4),
        'weighted': GATConv(6, 4, heads=2),
        'replay': EdgeConv(torch.nn.Linear(12, 4), aggr='max'),
        'softmax': TransformerConv(6, 4),
        'gather': SAGEConv(6, 4, aggr='median'),
    }


def _gradients(
    model: torch.nn.Module, x: Tensor, forward: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    out = forward(x)
    out.square().sum().backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    assert x.grad is not None
    return [out.detach(), x.grad, *map(all_reduce_sum, found)]


def _compare(name: str, mode: Mode, reentrant: bool, data: Data) -> None:
    plain, conv = (SARConv(_convs()[name].double(), mode=mode) for _ in range(2))
    want = _gradients(plain, data.x, lambda x: plain(x, data.edge_index))

    def forward(x: Tensor) -> Tensor:
        out: Tensor = checkpoint(conv, x, data.edge_index, use_reentrant=reentrant)
        return out

    for _ in range(2):  # the first one agrees with the other ranks
        got = _gradients(conv, data.x, forward)
        assert len(got) == len(want), name
        for a, b in zip(got, want, strict=True):
            assert_close(a, b)


def _num_raised() -> int:
    return current()._num_raised  # type: ignore[attr-defined]


def _checkpointed(root: str, mode: Mode, reentrant: bool) -> int:
    data, before = pyg_sar.load_shard(root), _num_raised()
    for name in _convs():
        _compare(name, mode, reentrant, data)
    return _num_raised() - before


_CASES = [(mode, reentrant) for mode in get_args(Mode)[:3] for reentrant in (False, True)]


@pytest.mark.parametrize(
    ('mode', 'reentrant'),
    [_CASES[0], *(pytest.param(*case, marks=pytest.mark.bench) for case in _CASES[1:])],
)
def test_every_path(tmp_path: Path, mode: Mode, reentrant: bool) -> None:
    root = cut(small_graph(), 3, tmp_path / 'parts', 'empty part')
    # torch ends what it computes again by an exception: that is no failure.
    assert run_ranks(_checkpointed, 3, str(root), mode, reentrant) == [0, 0, 0]
