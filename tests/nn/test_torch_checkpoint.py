"""torch.utils.checkpoint around wrapped convs: backward runs them, and their exchange, again."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from alike import cut_of, take_step
from ranks import run_ranks
from small_graphs import assert_close, small_graph
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.nn import EdgeConv, GATConv, GCNConv, SAGEConv, TransformerConv

import pyg_sar
from pyg_sar import SARConv
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


def _compare(data: Data, name: str, mode: Mode, reentrant: bool) -> None:
    plain, conv = (SARConv(_convs()[name].double(), mode=mode) for _ in range(2))
    want = take_step(plain, data)

    def again(*args: Tensor) -> Tensor:
        out: Tensor = checkpoint(conv, *args, use_reentrant=reentrant)
        return out

    again.parameters = conv.parameters  # type: ignore[attr-defined]
    for _ in range(2):  # the first one agrees with the other ranks
        conv.zero_grad()
        for a, b in zip(take_step(again, data), want, strict=True):
            assert_close(pyg_sar.gather(a), pyg_sar.gather(b))


def _num_raised() -> int:
    return current()._num_raised  # type: ignore[attr-defined]


def _checkpointed(root: str, mode: Mode, reentrant: bool) -> int:
    data, before = pyg_sar.load_shard(root), _num_raised()
    for name in _convs():
        _compare(data, name, mode, reentrant)
    return _num_raised() - before


_CASES = [(mode, reentrant) for mode in get_args(Mode)[:3] for reentrant in (False, True)]


@pytest.mark.parametrize(
    ('mode', 'reentrant'),
    [_CASES[0], *(pytest.param(*case, marks=pytest.mark.bench) for case in _CASES[1:])],
)
def test_every_path(mode: Mode, reentrant: bool) -> None:
    root = cut_of(small_graph, 3, 'empty part')
    # torch ends what it computes again by an exception: that is no failure.
    assert run_ranks(_checkpointed, 3, root, mode, reentrant) == [0, 0, 0]
