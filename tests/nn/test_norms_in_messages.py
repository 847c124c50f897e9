"""Norms of messages: their statistics are those of the messages of all edges."""

from __future__ import annotations

import pytest
import torch
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


def _in_message(root: str) -> dict[str, Tensor]:
    data = pyg_sar.load_shard(root)
    return {
        n: gather(DistributedDataParallel(_conv(n))(data.x, data.edge_index).detach())
        for n in IN_MESSAGE
    }


def test_norms_in_messages(tmp_path):
    """Their statistics are of the messages of all edges."""
    graph = awkward_graph()
    results = run_ranks(_in_message, 3, str(cut(graph, 3, tmp_path / 'parts')))
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
