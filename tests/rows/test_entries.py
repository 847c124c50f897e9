"""What takes data of load_shard takes that of load_shard, and gives rows of the whole graph."""

from __future__ import annotations

from pathlib import Path
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
from pyg_sar.rows.rows import Rows


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp('entries') / 'parts'
    data = awkward_graph()
    data.x = data.x.float()
    pyg_sar.partition_graph(data, 2, root, method=(torch.arange(data.num_nodes) % 5 > 1).long())
    return str(root)


def _model(**options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return pyg_sar.DistributedDataParallel(
        GraphSAGE(8, 8, 2, 3, dropout=0.5, norm='batch_norm'), **options
    )


def _batches(root: str, folder: str) -> None:
    both = []
    for load in (pyg_sar.load_shard, pyg_sar.load_shard):
        data = load(root)
        loader = pyg_sar.NeighborLoader(
            data, [3, 3], batch_size=8, input_nodes=data.train_mask, shuffle=True, seed=1
        )
        both.append([(b.n_id, b.x, b.edge_index, b.y) for b in loader])
    assert len(both[0]) == len(both[1]) > 1
    for shard, graph in zip(*both, strict=True):
        for a, b in zip(shard, graph, strict=True):
            assert type(b) is Tensor
            assert torch.equal(a, b)


def _files(root: str, folder: str) -> None:
    data = pyg_sar.load_shard(root)
    pyg_sar.save_rows(f'{folder}/rows.npy', data.x, data)
    x = pyg_sar.load_rows(f'{folder}/rows.npy', data)
    assert isinstance(x, Rows)
    assert torch.equal(x, data.x)


def _embedding(root: str, folder: str) -> None:
    data = pyg_sar.load_shard(root)
    embedding = pyg_sar.NodeEmbedding(data, 4, seed=1)
    x = embedding()
    assert x.shape == (data.num_nodes, 4)
    (x * data.x[:, :4]).sum().backward()
    grad = pyg_sar.local(embedding.weight.grad)
    assert torch.equal(grad, pyg_sar.local(data.x[:, :4]))
    chosen = embedding(data.n_id[data.train_mask])
    assert torch.equal(chosen, x[data.train_mask])


def _draws(root: str, folder: str) -> None:
    found = []
    for load in (pyg_sar.load_shard, pyg_sar.load_shard):
        data, model = load(root), _model(dropout_seed=3)
        found.append(pyg_sar.local(model(data.x, data.edge_index)))
    assert torch.equal(*found)


def _over_all_nodes(root: str, folder: str) -> None:
    data = pyg_sar.load_shard(root)
    pairs = pyg_sar.negative_sampling(data.edge_index, seed=1)
    assert isinstance(pairs, Rows)
    assert pairs.size(1) > 250
    ends = data.x[pairs[0]]
    assert ends.shape == (pairs.size(1), 8)


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


def _rows_in_a_model(root: str, folder: str) -> None:
    data, whole = pyg_sar.load_shard(root), awkward_graph()
    whole.x = whole.x.float()
    with pytest.raises(ValueError, match='NodeEmbedding'):
        pyg_sar.DistributedDataParallel(_WithRows(data.x, learns=True))
    outs = []
    for graph, wrap in ((whole, lambda m: m), (data, pyg_sar.DistributedDataParallel)):
        torch.manual_seed(0)
        outs.append(wrap(_WithRows(graph.x, learns=False).double())(graph.edge_index))
    torch.testing.assert_close(pyg_sar.gather(outs[1]), outs[0])


def _loops_of_training(root: str, folder: str) -> None:
    data, model = pyg_sar.load_shard(root), _model()
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


ENTRIES = [
    _batches,
    _files,
    _embedding,
    _draws,
    _over_all_nodes,
    _rows_in_a_model,
    _loops_of_training,
]


@pytest.mark.parametrize('entry', ENTRIES, ids=lambda each: each.__name__)
def test_entry(entry: Any, folder: str, tmp_path: Path) -> None:
    run_ranks(entry, 2, folder, str(tmp_path))
