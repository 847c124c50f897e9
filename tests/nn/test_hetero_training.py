"""Wrapping heterogeneous models; that they train as on one process is in test_models.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist
from hetero_graphs import REVIEWS, WRITES, hetero_graph
from hetero_models import MODELS, with_shapes
from ranks import run_ranks
from small_graphs import assert_all_raise, attempt
from torch_geometric.nn import SAGEConv

import pyg_sar
from pyg_sar import SARConv

# HeteroConv says so of a last layer that has only the relations which are read.
pytestmark = pytest.mark.filterwarnings('ignore:There exist node types')


def test_wrap_takes_every_conv_and_keeps_the_keys() -> None:
    for name in ('SAGE', 'mixed', 'to_hetero', 'HeteroDictLinear'):
        plain, model = (with_shapes(MODELS[name]()) for _ in range(2))
        pyg_sar.DistributedDataParallel(model)
        num_convs = sum(hasattr(m, 'propagate') for m in plain.modules())
        assert sum(isinstance(m, SARConv) for m in model.modules()) == num_convs
        assert list(model.state_dict()) == list(plain.state_dict())
        model.load_state_dict(plain.state_dict())


def _other_relation(root: str) -> str:
    data = pyg_sar.load_shard(root)
    rel = WRITES if dist.get_rank() == 0 else REVIEWS
    conv = SARConv(SAGEConv((4, 6), 5).double())
    return attempt(conv, (data['author'].x, data['paper'].x), data[rel].edge_index)


def test_ranks_that_walk_different_relations_raise(tmp_path: Path) -> None:
    pyg_sar.partition_graph(hetero_graph(), 2, tmp_path / 'parts')
    outcomes = run_ranks(_other_relation, 2, str(tmp_path / 'parts'))
    assert_all_raise(outcomes, 'ValueError', 'author__writes__paper', 'author__reviews__paper')
