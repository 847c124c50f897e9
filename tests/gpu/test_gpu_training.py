"""What is beside convs, on a device: trainings, norms, restricted layers, checkpoints, rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import test_norm_parity as norms
import test_restrict as restricted
import test_training as training
import torch
import torch.distributed as dist
from checkpoint_runs import losses, resumed
from few import few
from ranks import run_as_threads, run_ranks
from small_graphs import assert_close, cut, small_graph
from test_training import MODELS, partitions  # noqa: F401 (a fixture)
from torch import Tensor
from torch_geometric.nn import GATConv, SAGEConv

import pyg_sar

MODES = ['sequential', 'sequential_no_remat', 'one_shot']
AGAIN = {'checkpoint_activations': True}


@pytest.mark.parametrize('name', MODELS)
@pytest.mark.parametrize('options', [{}, AGAIN], ids=['kept', 'computed again'])
def test_one_process(name: str, options: dict[str, Any], partitions: Path) -> None:  # noqa: F811
    root = str(partitions / '4')
    training._assert_equal(name, training._train(name, root, 'sequential', 'cuda', **options))


@pytest.mark.parametrize('name', MODELS)
@pytest.mark.parametrize('mode', MODES)
def test_ranks_as_threads(name: str, mode: str, partitions: Path) -> None:  # noqa: F811
    for world_size, options in ((2, {}), (3, AGAIN)):
        root = str(partitions / str(world_size))
        found = run_as_threads(training._train, world_size, name, root, mode, 'cuda', **options)
        for of_rank in found:
            training._assert_equal(name, of_rank)


@pytest.mark.cuda_sim
@pytest.mark.parametrize(('name', 'mode'), few(((n, m) for n in MODELS for m in MODES), every=8))
def test_processes_share_the_device(name: str, mode: str, partitions: Path) -> None:  # noqa: F811
    root = str(partitions / '2')
    for found in run_ranks(training._train, 2, name, root, mode, 'cuda', **AGAIN):
        training._assert_equal(name, found)


@pytest.mark.parametrize('name', MODELS)
@pytest.mark.parametrize('backend', ['nccl', 'cpu:gloo,cuda:nccl'])
def test_nccl(name: str, backend: str, partitions: Path, tmp_path: Path) -> None:  # noqa: F811
    dist.init_process_group(backend, init_method=f'file://{tmp_path}/s', rank=0, world_size=1)
    try:
        found = training._train(name, str(partitions / '4'), 'sequential', 'cuda')
    finally:
        dist.destroy_process_group()
    training._assert_equal(name, found)


@pytest.mark.parametrize('counts', [[11], [3, 8], [6, 0, 5]], ids=str)
def test_norms(counts: list[int]) -> None:
    norms._check(counts, torch.float64, 1e-10, 'cuda', run_ranks)


@pytest.mark.parametrize('name', restricted.CONVS)
@pytest.mark.parametrize(('world_size', 'num_parts'), [(1, 3), (3, 3), (2, 6)])
def test_restrict(world_size: int, num_parts: int, name: str, tmp_path: Path) -> None:
    data = restricted._data(num_parts)
    pyg_sar.partition_graph(data, num_parts, tmp_path / 'parts', method=data.part)
    restricted._check_exact(tmp_path / 'parts', data, world_size, name, 3, 'sequential', 'cuda')


@pytest.mark.parametrize('world_size', [1, 2])
def test_checkpoint(world_size: int, tmp_path: Path) -> None:
    """Without dropout it trains as on the CPU; with it a resumed run draws the same."""
    parts, root = str(cut(small_graph(), world_size, tmp_path / 'parts')), str(tmp_path / 'run')
    want = run_ranks(losses, world_size, parts, 4)
    assert run_ranks(losses, world_size, parts, 4, device='cuda') == [
        pytest.approx(each, abs=1e-9) for each in want
    ]
    want = run_ranks(losses, world_size, parts, 4, dropout=0.3, device='cuda')
    for num_epochs in (2, 4):
        found = run_ranks(resumed, world_size, parts, root, num_epochs, dropout=0.3, device='cuda')
    assert found == [pytest.approx(each, abs=1e-9) for each in want]


def _rounded(root: str, device: str) -> list[Tensor]:
    """Output and gradients of two convs whose rows travel as bfloat16."""
    data = pyg_sar.local(pyg_sar.load_shard(root)).to(device)
    found = []
    for make in (lambda: SAGEConv(6, 8, aggr='max'), lambda: GATConv(6, 4, heads=2)):
        torch.manual_seed(0)
        conv = pyg_sar.SARConv(make().double(), exchange_dtype=torch.bfloat16).to(device)
        x = data.x.clone().requires_grad_()
        out = conv(x, data.edge_index)
        out.square().sum().backward()
        found += [out.detach(), x.grad, *(p.grad for p in conv.parameters())]
    return [t.cpu() for t in found]


def test_rounded_rows(tmp_path: Path) -> None:
    """The same numbers are rounded, to the same."""
    root = str(cut(small_graph(), 3, tmp_path / 'parts'))
    want = run_as_threads(_rounded, 3, root, 'cpu')
    for on_ranks in (run_as_threads, run_ranks):
        for ours, theirs in zip(on_ranks(_rounded, 3, root, 'cuda'), want, strict=True):
            for got, expected in zip(ours, theirs, strict=True):
                assert_close(got, expected, tolerance=1e-10)
