"""Training on a cut graph is training on one machine: losses, accuracies and weights."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from few import few
from ranks import run_ranks
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.models import GAT, GCN, GIN, PNA, GraphSAGE

import pyg_sar

EPOCHS = 20


def _graph() -> Data:
    """120 nodes in four communities that carry the labels; part of the nodes is for training."""
    generator = torch.Generator().manual_seed(3)
    community = torch.arange(120) % 4
    src = torch.randint(0, 120, (900,), generator=generator)
    near = src + 4 * torch.randint(-15, 16, (900,), generator=generator)
    far = torch.randint(0, 120, (900,), generator=generator)
    dst = torch.where(torch.rand(900, generator=generator) < 0.7, near.clamp(0, 119), far)
    noise = torch.randn(120, 8, generator=generator, dtype=torch.float64)
    return Data(
        x=noise + F.one_hot(community, 8),
        edge_index=torch.stack([src, dst]),
        y=community,
        train_mask=torch.rand(120, generator=generator) < 0.4,
        test_mask=torch.rand(120, generator=generator) < 0.3,
    )


PNA_OPTIONS = {
    'aggregators': ['mean', 'sum'],
    'scalers': ['identity', 'attenuation'],
    'deg': torch.tensor([1, 2, 4, 9, 5]),
}
MODELS = {
    'SAGE': lambda: GraphSAGE(8, 16, 3, 4, norm='batch_norm'),
    'GCN': lambda: GCN(8, 16, 2, 4, norm='batch_norm', jk='cat'),
    'GIN': lambda: GIN(8, 16, 2, 4, norm='batch_norm'),
    'GAT': lambda: GAT(8, 16, 2, 4, heads=4, v2=True),
    'PNA': lambda: PNA(8, 16, 2, 4, **PNA_OPTIONS),
}


def _model(name: str) -> torch.nn.Module:
    torch.manual_seed(7)
    return MODELS[name]().double()


def _epochs(model: torch.nn.Module, data: Data) -> tuple[list[float], list[float]]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, accuracies = [], []
    for _ in range(EPOCHS):
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        correct = out.argmax(-1) == data.y
        accuracies.append(correct[data.test_mask].double().mean().item())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses, accuracies


@functools.cache
def _plain(name: str) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """Losses, accuracies and final weights of one-process PyG."""
    model = _model(name)
    losses, accuracies = _epochs(model, _graph())
    return losses, accuracies, copy.deepcopy(model.state_dict())


def _train(
    name: str, root: str, mode: str, device: str = 'cpu', **options: Any
) -> tuple[list[float], list[float], dict[str, Tensor]]:
    data = pyg_sar.load_shard(root).to(device)
    model = pyg_sar.DistributedDataParallel(_model(name).to(device), mode=mode, **options)
    losses, accuracies = _epochs(model, data)
    return losses, accuracies, {k: v.cpu() for k, v in model.module.state_dict().items()}


@pytest.fixture(scope='module')
def partitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('training')
    for num_parts in (2, 3, 4):
        pyg_sar.partition_graph(_graph(), num_parts, root / str(num_parts))
    return root


def _assert_equal(name: str, found: tuple[list[float], list[float], dict[str, Tensor]]) -> None:
    losses, accuracies, weights = found
    plain_losses, plain_accuracies, plain_weights = _plain(name)
    torch.testing.assert_close(losses, plain_losses, rtol=0, atol=1e-9)
    assert accuracies == pytest.approx(plain_accuracies, abs=1e-12)
    assert list(weights) == list(plain_weights)
    for key, value in plain_weights.items():
        # Adam divides by the root of tiny gradients, which magnifies rounding.
        torch.testing.assert_close(weights[key], value, rtol=0, atol=1e-6, msg=key)


@pytest.mark.parametrize('name', few(MODELS, every=6))
@pytest.mark.parametrize(
    ('world_size', 'num_parts'),
    [(3, 3), *(pytest.param(*size, marks=pytest.mark.slow) for size in ((2, 4), (4, 4)))],
)
def test_losses_equal_one_process(
    partitions: Path, name: str, world_size: int, num_parts: int
) -> None:
    root = str(partitions / str(num_parts))
    for found in run_ranks(_train, world_size, name, root, 'sequential'):
        _assert_equal(name, found)


@pytest.mark.parametrize('mode', few(['sequential_no_remat', 'one_shot']))
def test_modes(partitions: Path, mode: str) -> None:
    for found in run_ranks(_train, 2, 'SAGE', str(partitions / '2'), mode):
        _assert_equal('SAGE', found)


@pytest.mark.parametrize('name', MODELS)
def test_single_process_with_several_parts(partitions: Path, name: str) -> None:
    _assert_equal(name, _train(name, str(partitions / '4'), 'sequential'))


def test_the_loss_falls() -> None:
    losses, accuracies, _ = _plain('SAGE')
    assert losses[-1] < 0.5 * losses[0]
    assert accuracies[-1] > 0.5
