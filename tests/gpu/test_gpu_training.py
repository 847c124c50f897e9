"""What is beside convs, on a device: trainings, norms, restricted layers, checkpoints, batches.

All as on one process of a CPU, whichever way ranks speak; with too few GPUs they share one.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import test_neighbor_training as batches
import test_norm_parity as norms
import test_restrict as restricted
import test_training as training
import torch
import torch.nn.functional as F
from alike import take_step
from checkpoint_runs import losses, resumed
from on_ranks import parts_of
from ranks import run_as_threads
from setups import ALL, IN_SIMULATION, SETUPS, WORLD_SIZE, on
from small_graphs import small_graph
from test_training import MODELS, partitions  # noqa: F401 (a fixture)
from torch import Tensor
from torch.testing import assert_close
from torch_geometric import nn as pyg
from torch_geometric.nn import GATConv, SAGEConv

import pyg_sar

MODES = ['sequential', 'sequential_no_remat', 'one_shot']


def _some(cases: Any, every: int) -> list[Any]:
    """On a device all; in the simulation one of `every` of the setups that it has."""
    found = [pytest.param(*case) for case in cases if case[0] in SETUPS[:2]]
    for i, case in enumerate(case for case in cases if case[0] not in SETUPS[:2]):
        marks = [pytest.mark.cuda_sim, *([pytest.mark.slow] if i % every else [])]
        found.append(pytest.param(*case, marks=marks))
    return found


@pytest.mark.parametrize(
    ('setup', 'name', 'mode'), _some([*product(SETUPS, MODELS, MODES)], every=13), ids=str
)
def test_trainings(setup, name, mode, partitions):  # noqa: F811
    for found in on(setup, training._train, name, str(partitions / str(WORLD_SIZE)), mode, 'cuda'):
        training._assert_equal(name, found)


@pytest.mark.parametrize(
    ('setup', 'counts'), _some([*product(SETUPS[1:], [[6, 0, 5], [3, 7, 1]])], every=3), ids=str
)
def test_norms(setup: str, counts: list[int]) -> None:
    def on_ranks(fn: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
        return on(setup, fn, *args)

    norms._check(counts, torch.float64, 1e-10, 'cuda', on_ranks)


@pytest.mark.parametrize(
    ('setup', 'name'), _some([*product(SETUPS, restricted.CONVS)], every=5), ids=str
)
def test_restrict(setup: str, name: str, tmp_path: Path) -> None:
    data, model = restricted._data(2 * WORLD_SIZE), (name, 3)
    root = tmp_path / 'parts'
    pyg_sar.partition_graph(data, 2 * WORLD_SIZE, root, method=data.part)
    found = on(setup, restricted._trained, root, *model, 'sequential', 'cuda')
    restricted._compare(found, data, *model)


@pytest.mark.parametrize('setup', _some([(s,) for s in SETUPS if s != 'threads'], every=3))
def test_checkpoint(setup: str, tmp_path: Path) -> None:
    """A run goes on where it was, with what dropout would have drawn."""
    parts, root = str(parts_of(WORLD_SIZE)), str(tmp_path / 'run')
    plain = run_as_threads(losses, WORLD_SIZE, parts, 4)[0]
    for found in on(setup, losses, parts, 4, device='cuda'):
        assert found == pytest.approx(plain, abs=1e-9)
    options: dict[str, Any] = {'device': 'cuda', 'dropout': 0.3}
    want = on(setup, losses, parts, 4, **options)
    for num_epochs in (2, 4):
        found = on(setup, resumed, parts, root, num_epochs, **options)
    assert found == [pytest.approx(each, abs=1e-9) for each in want]


def _as_on_a_cpu(setup: str, fn: Callable[[str, str], list[Tensor]]) -> None:
    root = str(parts_of(WORLD_SIZE))
    want = run_as_threads(fn, WORLD_SIZE, root, 'cpu')
    assert_close(on(setup, fn, root, 'cuda'), want, rtol=1e-10, atol=1e-10)


def _rounded(root: str, device: str) -> list[Tensor]:
    """Output and gradients of two convs whose rows travel as bfloat16."""
    data = pyg_sar.load_shard(root).to(device)
    found = []
    for make in (lambda: SAGEConv(6, 8, aggr='max'), lambda: GATConv(6, 4, heads=2)):
        torch.manual_seed(0)
        conv = pyg_sar.SARConv(make().double(), exchange_dtype=torch.bfloat16).to(device)
        found += take_step(conv, data)
    return [pyg_sar.local(t).cpu() for t in found]


@pytest.mark.parametrize('setup', ALL[1:])
def test_rounded_rows(setup: str) -> None:
    """The same numbers are rounded, to the same."""
    _as_on_a_cpu(setup, _rounded)


@pytest.mark.parametrize('setup', IN_SIMULATION)
def test_batches(setup: str) -> None:
    root = str(parts_of(WORLD_SIZE))
    want = run_as_threads(batches._train, 1, root)[0]
    batches.compare(on(setup, batches._train, root, 'cuda'), want)


def _losses_on_the_default_device(root: str, device: str) -> list[Tensor]:
    """Only what the graph's loader reads is moved; all else is made on `device`."""
    with torch.device(device):
        return _losses('GAT', 'sequential', root, device)


@pytest.mark.parametrize('setup', IN_SIMULATION)
def test_a_default_device(setup: str) -> None:
    _as_on_a_cpu(setup, _losses_on_the_default_device)


class _Late(torch.autograd.Function):
    """The identity, whose backward takes a while."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return grads[0], None


def _gradients_of_a_loss_on_the_host(root: str, device: str) -> list[Tensor]:
    """On rank 0 the first layer is ready before the last; on the others it becomes ready later."""
    data = pyg_sar.load_shard(root).to(device)
    torch.manual_seed(0)
    net = torch.nn.ModuleList([GATConv(6, 4), GATConv(6, 2)]).double().to(device)
    first, last = net = torch.nn.ModuleList([pyg_sar.SARConv(conv) for conv in net])
    is_first_rank = data.edge_index.handle.shard.rank == 0
    out = _Late.apply(first(data.x, data.edge_index), 0.0 if is_first_rank else 0.4)
    other = last(data.x, data.edge_index).cpu()
    other = _Late.apply(other, 0.4 if is_first_rank else 0.0)
    (out.cpu().square().sum() + other.square().sum()).backward()
    return [p.grad.cpu() for p in net.parameters()]


@pytest.mark.parametrize('setup', IN_SIMULATION[1:])
def test_a_loss_on_the_host(setup: str) -> None:
    """Backward takes layers in one order on all ranks, whichever is ready first."""
    _as_on_a_cpu(setup, _gradients_of_a_loss_on_the_host)


CONVS: dict[str, Callable[[int, int], torch.nn.Module]] = {
    'SAGE': pyg.SAGEConv,
    'GAT': lambda i, o: pyg.GATConv(i, o, heads=2, concat=False),
    'GATv2': lambda i, o: pyg.GATv2Conv(i, o, heads=2, concat=False),
    'max': lambda i, o: pyg.SAGEConv(i, o, aggr='max'),
    'median': lambda i, o: pyg.SAGEConv(i, o, aggr='median'),
    'FiLM': pyg.FiLMConv,
    'Cheb': lambda i, o: pyg.ChebConv(i, o, K=2),
}
OPTIONS = [{'exchange_dtype': dtype} for dtype in (None, torch.bfloat16)]


class Net(torch.nn.Module):
    """Two convs with a batch norm between."""

    def __init__(self, conv: Callable[[int, int], torch.nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = conv(6, 8), pyg.BatchNorm(8), conv(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.first(x, edge_index)).relu(), edge_index)
        return out


def _losses(name: str, mode: str, root: str, device: str) -> list[Tensor]:
    """With every set of options those of four epochs."""
    data = pyg_sar.load_shard(root).to(device)
    found = []
    for options in OPTIONS:
        net = Net(CONVS[name]).double().to(device)
        model = pyg_sar.DistributedDataParallel(net, mode=mode, **options)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(4):
            out = model(data.x, data.edge_index)
            loss = F.cross_entropy(out, data.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.detach().cpu())
    return found


@pytest.mark.parametrize(
    ('setup', 'name', 'mode'), _some([*product(SETUPS[3:], CONVS, MODES)], every=42), ids=str
)
def test_options(setup: str, name: str, mode: str) -> None:
    """In every mode with every option: the losses of a CPU with the same options."""
    _as_on_a_cpu(setup, functools.partial(_losses, name, mode))


def _trained(folders: list[str], device: str) -> list[list[Tensor]]:
    """Of every partition what a model gives, and its gradients."""
    found = []
    for i, root in enumerate(folders):
        data = pyg_sar.load_shard(root).to(device)
        net = Net(CONVS[['SAGE', 'GAT'][i % 2]]).double().to(device)
        model = pyg_sar.DistributedDataParallel(net)
        loss = model(data.x, data.edge_index).square().mean()
        loss.backward()
        found.append([t.detach().cpu() for t in (loss, *(p.grad for p in model.parameters()))])
    return found


@pytest.mark.parametrize('num', [10, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize('setup', IN_SIMULATION[1:])
def test_random_partitions(num: int, setup: str, tmp_path: Path) -> None:
    """Idle ranks, steps without rows, blocks of one row: nobody waits for ever, nothing differs."""
    folders = []
    for seed in range(num):
        graph = small_graph(num_nodes=12 + seed % 9, num_edges=10 + 3 * (seed % 7), seed=seed)
        generator = torch.Generator().manual_seed(seed)
        part = torch.randint(0, 1 + seed % WORLD_SIZE, (graph.num_nodes,), generator=generator)
        folders.append(str(tmp_path / str(seed)))
        pyg_sar.partition_graph(graph, WORLD_SIZE, folders[-1], method=part)
    (want,) = run_as_threads(_trained, 1, folders, 'cpu')
    for found in on(setup, _trained, folders, 'cuda'):
        assert_close(found, want, rtol=1e-10, atol=1e-10)
