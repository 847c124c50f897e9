"""A norm inside messages takes the statistics of all edges."""

from __future__ import annotations

import pytest
import torch
from few import few
from ranks import run_ranks
from small_graphs import assemble, assert_close, attempt, cut
from sum_conv import SumConv
from torch import Tensor

import pyg_sar
from pyg_sar import wrap


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


def _norm_in_message(
    root: str, training: list[bool], mode: str
) -> tuple[list[str], Tensor, Tensor | None]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    model = wrap(_norm_model(), mode=mode)
    outcomes = []
    out = None

    def forward() -> None:
        nonlocal out
        out = model[0](data.x, data.edge_index).detach()

    for is_training in training:
        model.train(is_training)
        out = None
        outcomes.append(attempt(forward))
    return outcomes, data.n_id, out


@pytest.mark.parametrize('before', [[], [False]], ids=['at once', 'after evaluation'])
@pytest.mark.parametrize('world_size', [1, 3])
@pytest.mark.parametrize('mode', few(['sequential', 'one_shot']))
@pytest.mark.parametrize('training', [False, True])
def test_batch_norm_inside_a_message(graph, tmp_path, before, world_size, mode, training):
    root = str(cut(graph, 3, tmp_path / 'parts'))
    plain = _norm_model()[0]
    for is_training in (*before, training):
        want = plain.train(is_training)(graph.x, graph.edge_index).detach()
    modes = [*before, training]
    results = run_ranks(_norm_in_message, world_size, root, modes, mode)
    assert [outcomes for outcomes, _, _ in results] == [['no error'] * len(modes)] * world_size
    assert_close(assemble([(ids, out) for _, ids, out in results], 40), want)
