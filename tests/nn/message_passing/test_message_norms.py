"""A norm inside messages takes the statistics of all edges."""

from __future__ import annotations

import pytest
import torch
from few import few
from on_ranks import on_ranks
from small_graphs import assert_close, small_graph
from sum_conv import SumConv
from torch import Tensor

from pyg_sar import DistributedDataParallel


class NormInMessage(SumConv):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(6)

    def message(self, x_j: Tensor) -> Tensor:
        return self.norm(x_j).tanh()


def _norm_model() -> torch.nn.ModuleList:
    model = torch.nn.ModuleList([NormInMessage()]).double()
    model[0].norm.running_mean.fill_(0.3)
    model[0].norm.running_var.fill_(2.0)
    return model


@pytest.mark.parametrize('before', [[], [False]], ids=['at once', 'after evaluation'])
@pytest.mark.parametrize('world_size', [1, 3])
@pytest.mark.parametrize('mode', few(['sequential', 'one_shot']))
@pytest.mark.parametrize('training', [False, True])
@on_ranks(num_parts=3)
def test_batch_norm_inside_a_message(data, before, world_size, mode, training):
    graph, plain, model = (
        small_graph(),
        _norm_model()[0],
        DistributedDataParallel(_norm_model(), mode=mode),
    )
    for is_training in (*before, training):
        want = plain.train(is_training)(graph.x, graph.edge_index).detach()
        out = model.train(is_training)[0](data.x, data.edge_index).detach()
    assert_close(out, want[data.n_id])
