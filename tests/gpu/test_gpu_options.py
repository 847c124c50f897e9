"""Trainings in every mode with every option, by NCCL: the losses of a CPU with the same options."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from few import few
from ranks import run_as_threads, run_ranks
from small_graphs import cut, small_graph
from torch_geometric import nn as pyg

import pyg_sar

pytestmark = pytest.mark.cuda_sim
WORLD_SIZE = 3

CONVS: dict[str, Callable[[int, int], torch.nn.Module]] = {
    'SAGE': pyg.SAGEConv,
    'GAT': lambda i, o: pyg.GATConv(i, o, heads=2, concat=False),
    'GCN': pyg.GCNConv,
    'GIN': lambda i, o: pyg.GINConv(torch.nn.Linear(i, o)),
    'GATv2': lambda i, o: pyg.GATv2Conv(i, o, heads=2, concat=False),
    'Transformer': pyg.TransformerConv,
    'max': lambda i, o: pyg.SAGEConv(i, o, aggr='max'),
    'median': lambda i, o: pyg.SAGEConv(i, o, aggr='median'),
    'FiLM': pyg.FiLMConv,
    'TAG': pyg.TAGConv,
    'Cheb': lambda i, o: pyg.ChebConv(i, o, K=2),
    'GEN': pyg.GENConv,
    'ResGated': pyg.ResGatedGraphConv,
}
MODES = ['sequential', 'sequential_no_remat', 'one_shot']
OPTIONS = [
    {'checkpoint_activations': again, 'exchange_dtype': dtype, 'debug': debug}
    for again, dtype, debug in product((False, True), (None, torch.bfloat16), (False, True))
]


class Net(torch.nn.Module):
    """Two convs with a batch norm between."""

    def __init__(self, conv: Callable[[int, int], torch.nn.Module], num_features: int) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([conv(num_features, 8), conv(8, 4)])
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.convs[0](x, edge_index)).relu()
        out: torch.Tensor = self.convs[1](x, edge_index)
        return out


def _losses(root: str, name: str, mode: str, device: str) -> list[list[float]]:
    """With every set of options those of four epochs."""
    data = pyg_sar.local(pyg_sar.load_shard(root)).to(device)
    found = []
    for options in OPTIONS:
        torch.manual_seed(0)
        net = Net(CONVS[name], data.num_features).double().to(device)
        model = pyg_sar.DistributedDataParallel(net, mode=mode, **options)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(4):
            out = model(data.x, data.edge_index)
            loss = pyg_sar.over_all_nodes.global_mean(
                F.cross_entropy(out, data.y, reduction='none')
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append(losses)
    pyg_sar.comm.set_debug(False)
    return found


def _cases() -> list[Any]:
    backends = 'nccl', 'cpu:gloo,cuda:nccl'
    return list(product(CONVS, MODES, backends))


@pytest.mark.parametrize(('name', 'mode', 'backend'), few(_cases(), every=78))
def test_losses(name: str, mode: str, backend: str, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp('parts')
    root = str(cut(small_graph(), WORLD_SIZE, folder / 'parts'))
    want = run_as_threads(_losses, WORLD_SIZE, root, name, mode, 'cpu')
    found = run_ranks(_losses, WORLD_SIZE, root, name, mode, 'cuda', backend=backend, timeout=300)
    for ours, theirs in zip(found, want, strict=True):
        assert len(ours) == len(OPTIONS)
        for got, expected in zip(ours, theirs, strict=True):
            assert got == pytest.approx(expected, rel=1e-9)
