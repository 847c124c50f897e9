"""Where a step waits for its device once it has run: each wait is a place where a GPU runs dry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from device_waits import device_waits
from few import few
from on_ranks import parts_of
from ranks import run_ranks
from setups import BACKENDS
from torch_geometric import nn as pyg

import pyg_sar

WORLD_SIZE = 3
PARTS = 6
pytestmark = pytest.mark.cuda_sim

LAYERS: dict[str, tuple[Callable[[], torch.nn.Module], int]] = {
    'SAGE': (lambda: pyg.SAGEConv(6, 4), 0),
    'GCN': (lambda: pyg.GCNConv(6, 4), 0),
    'GIN': (lambda: pyg.GINConv(torch.nn.Linear(6, 4)), 0),
    'max': (lambda: pyg.SAGEConv(6, 4, aggr='max'), 0),
    'FiLM': (lambda: pyg.FiLMConv(6, 4), 0),
    'GAT': (lambda: pyg.GATConv(6, 4, heads=2, add_self_loops=False), 0),
    'GAT that adds loops': (lambda: pyg.GATConv(6, 4, heads=2), PARTS),
    'GATv2': (lambda: pyg.GATv2Conv(6, 4, heads=2, add_self_loops=False), PARTS),
    'Transformer': (lambda: pyg.TransformerConv(6, 4, heads=2), PARTS),
    'batch norm': (lambda: pyg.BatchNorm(6), 0),
    'layer norm': (lambda: pyg.LayerNorm(6, mode='node'), 0),
    'graph norm': (lambda: pyg.GraphNorm(6), 4),  # its sums ask whether any rank has a history
}
"""And how often one may wait, forward and backward, for all blocks together."""
OF_PARAMETERS = ('utils/tensor_state.py', 'nn/buckets.py')
"""Where a backward pass waits three times for the sum of gradients, whatever the layers."""


def _waits_of_layer(root: str, name: str) -> Counter[str]:
    data = pyg_sar.load_shard(root).to('cuda')
    torch.manual_seed(0)
    layer = pyg_sar.DistributedDataParallel(torch.nn.ModuleList([LAYERS[name][0]()]).double()).to(
        'cuda'
    )[0]
    x = data.x.clone().requires_grad_()

    def step() -> None:
        out = layer(x, data.edge_index) if 'norm' not in name else layer(x)
        out.backward(torch.ones_like(out))

    step()
    step()
    with device_waits() as found:
        step()
    of_parameters = [found.pop(line) for line in list(found) if line.startswith(OF_PARAMETERS)]
    assert sum(of_parameters) <= 3, of_parameters
    return found


def _waits_of_loss(root: str) -> Counter[str]:
    data = pyg_sar.load_shard(root).to('cuda')
    values = data.x.sum(1).detach().requires_grad_()
    values[data.train_mask].mean().backward()
    with device_waits() as found:
        values[data.train_mask].mean().backward()
    return found


def _waits_of_reading() -> Counter[str]:
    with device_waits() as found:
        ones = torch.ones(3, device='cuda')
        ones.sum().item()
        ones.nonzero()
        ones.cpu()
    return found


def test_waits_are_counted() -> None:
    assert _waits_of_reading().total() == 3


@pytest.mark.parametrize(('name', 'backend'), few(((n, b) for n in LAYERS for b in BACKENDS), 2))
def test_layers(name: str, backend: str) -> None:
    root = str(parts_of(PARTS))
    for found in run_ranks(_waits_of_layer, WORLD_SIZE, root, name, backend=backend):
        assert found.total() <= LAYERS[name][1], found


@pytest.mark.parametrize('backend', BACKENDS)
def test_the_loss(backend: str) -> None:
    for found in run_ranks(_waits_of_loss, WORLD_SIZE, str(parts_of(PARTS)), backend=backend):
        assert found.total() == 1, found
