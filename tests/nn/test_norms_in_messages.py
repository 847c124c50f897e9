"""Norms of messages: their statistics are those of the messages of all edges."""

from __future__ import annotations

import pytest
import torch
from few import few
from graphs import awkward_graph
from norm_models import GIVEN, NORMS
from ranks import run_ranks
from small_graphs import assert_close, cut
from torch import Tensor
from torch_geometric.nn import MessagePassing

import pyg_sar
from pyg_sar import DistributedDataParallel, gather


class NormInMessage(MessagePassing):
    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        # Random numbers: nothing could be compared.
        return torch.nn.functional.dropout(self.norm(x_j), 1e-9).tanh()


IN_MESSAGE = sorted(set(NORMS) - set(GIVEN))


def _conv(name: str) -> NormInMessage:
    torch.manual_seed(0)
    return NormInMessage(NORMS[name]()).double()


def _in_message(root: str, mode: str, before: list[bool]) -> dict[str, Tensor]:
    data, found = pyg_sar.load_shard(root), {}
    for name in IN_MESSAGE:
        model = DistributedDataParallel(_conv(name), mode=mode)
        for is_training in (*before, True):
            out = model.train(is_training)(data.x, data.edge_index)
        found[name] = gather(out.detach())
    return found


@pytest.mark.parametrize('before', [[], [False]], ids=['at once', 'after evaluation'])
@pytest.mark.parametrize('world_size', [1, 3])
@pytest.mark.parametrize('mode', few(['sequential', 'one_shot']))
def test_norms_in_messages(tmp_path, mode, world_size, before):
    """Their statistics are of the messages of all edges."""
    graph = awkward_graph()
    root = str(cut(graph, 3, tmp_path / 'parts'))
    results = run_ranks(_in_message, world_size, root, mode, before)
    for name in IN_MESSAGE:
        want = _conv(name)(graph.x, graph.edge_index).detach()
        for found in results:
            assert_close(found[name], want)


@pytest.mark.parametrize('name', ['BatchNorm', 'DiffGroupNorm', 'InstanceNorm'])
def test_running_statistics_in_messages(tmp_path, name):
    graph = awkward_graph()
    torch.manual_seed(0)
    plain = NormInMessage(NORMS[name]()).double().eval()
    want = plain(graph.x, graph.edge_index)
    data = pyg_sar.load_shard(cut(graph, 3, tmp_path / 'parts'))
    assert_close(gather(DistributedDataParallel(plain)(data.x, data.edge_index)), want)
