"""Rows that a model holds, and loops of training on rows of the whole graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import awkward_graph
from ranks import run_ranks
from torch import Tensor
from torch_geometric.nn import GCNConv
from torch_geometric.nn.models import GraphSAGE

import pyg_sar


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp('entries') / 'parts'
    data = awkward_graph()
    data.x = data.x.float()
    pyg_sar.partition_graph(data, 2, root, method=(torch.arange(data.num_nodes) % 5 > 1).long())
    return str(root)


class _WithRows(torch.nn.Module):
    def __init__(self, x: Tensor, *, learns: bool) -> None:
        super().__init__()
        if learns:
            self.x: Any = torch.nn.Parameter(x.clone())
        else:
            self.register_buffer('x', x)
        self.conv = GCNConv(8, 3)

    def forward(self, edge_index: Tensor) -> Any:
        return self.conv(self.x, edge_index)


def _rows_in_a_model(root: str) -> None:
    data, whole = pyg_sar.load_shard(root), awkward_graph()
    whole.x = whole.x.float()
    with pytest.raises(ValueError, match='NodeEmbedding'):
        pyg_sar.DistributedDataParallel(_WithRows(data.x, learns=True))
    outs = []
    for graph, wrap in ((whole, lambda m: m), (data, pyg_sar.DistributedDataParallel)):
        torch.manual_seed(0)
        outs.append(wrap(_WithRows(graph.x, learns=False).double())(graph.edge_index))
    torch.testing.assert_close(pyg_sar.gather(outs[1]), outs[0])


def _loops_of_training(root: str) -> None:
    data = pyg_sar.load_shard(root)
    torch.manual_seed(0)
    model = pyg_sar.DistributedDataParallel(GraphSAGE(8, 8, 2, 3, norm='batch_norm'))
    data.extra = torch.cat([data.x, data.x.mean(0, keepdim=True).expand(data.num_nodes, -1)], 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    model.eval()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edge_index), data.y)
        loss.backward()
        return loss

    first = closure().item()
    for _ in range(3):
        optimizer.step(closure)
    assert closure().item() < first


@pytest.mark.parametrize('entry', [_rows_in_a_model, _loops_of_training])
def test_entry(entry: Any, folder: str) -> None:
    run_ranks(entry, 2, folder)
