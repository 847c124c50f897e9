"""Ranks that speak by NCCL, as on one process of a CPU; with too few GPUs they share one."""

from __future__ import annotations

import functools
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import test_gpu_convs as convs
import test_gpu_training as others
import test_neighbor_training as batches
import test_norm_parity as norms
import test_restrict as restricted
import test_training as training
import torch
from checkpoint_runs import losses, resumed
from conv_cases import OF_CONVS
from few import few
from ranks import run_as_threads, run_ranks
from small_graphs import assert_close, cut, small_graph
from test_gpu_convs import Roots, roots, with_an_empty_rank  # noqa: F401 (fixtures)
from test_training import MODELS, partitions  # noqa: F401 (a fixture)
from torch import Tensor
from torch_geometric.nn import GATConv, SAGEConv

import pyg_sar

WORLD_SIZE = 3
pytestmark = pytest.mark.cuda_sim
BACKENDS = ['nccl', 'cpu:gloo,cuda:nccl']
KINDS = [
    ('sequential', {}),
    ('sequential', {'checkpoint_activations': True}),
    ('sequential', {'debug': True}),
    ('sequential_no_remat', {}),
    ('one_shot', {}),
]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """The group has NCCL alone, or gloo for what is on the host."""
    name: str = request.param
    return name


def _on_ranks(backend: str, *args: Any, **kwargs: Any) -> list[Any]:
    return run_ranks(*args, backend=backend, timeout=300, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize('names', convs.TWELVE, ids=lambda names: names[0])
def test_table(names: list[str], backend: str, roots: Roots) -> None:  # noqa: F811
    """All cases, with both kinds of groups."""
    convs._assert_exact(_on_ranks(backend, convs._run, WORLD_SIZE, names, roots))


@pytest.mark.parametrize('kind', range(2), ids=BACKENDS)
def test_a_case_of_every_conv(kind: int, roots: Roots) -> None:  # noqa: F811
    """Every other conv with one kind of group, those between with the other kind."""
    names = OF_CONVS[kind::2]
    convs._assert_exact(_on_ranks(BACKENDS[kind], convs._run, WORLD_SIZE, names, roots))


@pytest.mark.parametrize('backend', few(BACKENDS))
def test_a_rank_without_nodes(backend: str, with_an_empty_rank: Roots) -> None:  # noqa: F811
    found = _on_ranks(backend, convs._run, 3, OF_CONVS[::3], with_an_empty_rank)
    convs._assert_exact(found)


@pytest.mark.parametrize(
    ('name', 'backend', 'kind'), few(product(MODELS, BACKENDS, KINDS), every=13), ids=str
)
def test_trainings(name: str, backend: str, kind: Any, partitions: Path) -> None:  # noqa: F811
    mode, options = kind
    root = str(partitions / str(WORLD_SIZE))
    train = functools.partial(training._train, **options)
    for found in _on_ranks(backend, train, WORLD_SIZE, name, root, mode, 'cuda'):
        training._assert_equal(name, found)


@pytest.mark.parametrize(
    ('counts', 'backend'), few(product([[6, 0, 5], [3, 8]], BACKENDS)), ids=str
)
def test_norms(counts: list[int], backend: str) -> None:
    on_ranks = functools.partial(_on_ranks, backend)
    norms._check(counts[:WORLD_SIZE], torch.float64, 1e-10, 'cuda', on_ranks)


@pytest.mark.parametrize(('name', 'backend'), few(product(restricted.CONVS, BACKENDS), every=5))
def test_restrict(name: str, backend: str, tmp_path: Path) -> None:
    data, model = restricted._data(2 * WORLD_SIZE), (name, 3)
    root = tmp_path / 'parts'
    pyg_sar.partition_graph(data, 2 * WORLD_SIZE, root, method=data.part)
    found = _on_ranks(backend, restricted._trained, WORLD_SIZE, root, *model, 'sequential', 'cuda')
    restricted._compare(found, data, *model)


@pytest.mark.parametrize('backend', few(BACKENDS))
def test_checkpoint(backend: str, tmp_path: Path) -> None:
    """A run goes on where it was, with what dropout would have drawn."""
    parts, root = str(cut(small_graph(), WORLD_SIZE, tmp_path / 'parts')), str(tmp_path / 'run')
    device: dict[str, Any] = {'device': 'cuda'}
    plain = run_as_threads(losses, WORLD_SIZE, parts, 4)
    assert _on_ranks(backend, losses, WORLD_SIZE, parts, 4, **device) == [
        pytest.approx(each, abs=1e-9) for each in plain
    ]
    device['dropout'] = 0.3
    want = _on_ranks(backend, losses, WORLD_SIZE, parts, 4, **device)
    for num_epochs in (2, 4):
        found = _on_ranks(backend, resumed, WORLD_SIZE, parts, root, num_epochs, **device)
    assert found == [pytest.approx(each, abs=1e-9) for each in want]


def test_rounded_rows(backend: str, tmp_path: Path) -> None:
    root = str(cut(small_graph(), WORLD_SIZE, tmp_path / 'parts'))
    want = run_as_threads(others._rounded, WORLD_SIZE, root, 'cpu')
    found = _on_ranks(backend, others._rounded, WORLD_SIZE, root, 'cuda')
    for ours, theirs in zip(found, want, strict=True):
        for got, expected in zip(ours, theirs, strict=True):
            assert_close(got, expected, tolerance=1e-10)


def test_batches(backend: str, tmp_path: Path) -> None:
    root = str(cut(small_graph(), WORLD_SIZE, tmp_path / 'parts'))
    want = run_as_threads(batches._train, 1, root)[0]
    batches._compare(_on_ranks(backend, batches._train, WORLD_SIZE, root, 'cuda'), want)


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
    data = pyg_sar.local(pyg_sar.load_shard(root)).to(device)
    torch.manual_seed(0)
    net = torch.nn.ModuleList([GATConv(6, 4), GATConv(6, 2)]).double().to(device)
    first, last = net = torch.nn.ModuleList([pyg_sar.SARConv(conv) for conv in net])
    is_first_rank = data.edge_index.shard.rank == 0
    out = _Late.apply(first(data.x, data.edge_index), 0.0 if is_first_rank else 0.4)
    other = last(data.x, data.edge_index).cpu()
    other = _Late.apply(other, 0.4 if is_first_rank else 0.0)
    (out.cpu().square().sum() + other.square().sum()).backward()
    return [p.grad.cpu() for p in net.parameters()]


def test_a_loss_on_the_host(backend: str, tmp_path: Path) -> None:
    """Backward takes layers in one order on all ranks, whichever is ready first."""
    root = str(cut(small_graph(), WORLD_SIZE, tmp_path / 'parts'))
    want = run_as_threads(_gradients_of_a_loss_on_the_host, WORLD_SIZE, root, 'cpu')
    found = _on_ranks(backend, _gradients_of_a_loss_on_the_host, WORLD_SIZE, root, 'cuda')
    for ours, theirs in zip(found, want, strict=True):
        for got, expected in zip(ours, theirs, strict=True):
            assert_close(got, expected, tolerance=1e-10)


def _trained(folders: list[str], device: str) -> list[list[Any]]:
    """Of every partition what a model gives, and its gradients."""
    found = []
    for root in folders:
        data = pyg_sar.local(pyg_sar.load_shard(root)).to(device)
        torch.manual_seed(0)
        net = torch.nn.ModuleList([SAGEConv(6, 4), GATConv(4, 2, heads=2)]).double().to(device)
        net = torch.nn.ModuleList([pyg_sar.SARConv(conv) for conv in net])
        out = data.x
        for conv in net:
            out = conv(out, data.edge_index)
        loss = pyg_sar.over_all_nodes.global_mean(out.square())
        loss.backward()
        grads = [p.grad.clone() for p in net.parameters()]
        for grad in grads:
            pyg_sar.comm.all_reduce_sum(grad)
        found.append([loss.item(), *(grad.cpu() for grad in grads)])
    return found


@pytest.mark.parametrize('num', [10, pytest.param(200, marks=pytest.mark.slow)])
def test_random_partitions(num: int, backend: str, tmp_path: Path) -> None:
    """Idle ranks, steps without rows, blocks of one row: nobody waits for ever, nothing differs."""
    folders = []
    for seed in range(num):
        graph = small_graph(num_nodes=12 + seed % 9, num_edges=10 + 3 * (seed % 7), seed=seed)
        generator = torch.Generator().manual_seed(seed)
        part = torch.randint(0, 1 + seed % WORLD_SIZE, (graph.num_nodes,), generator=generator)
        folders.append(str(tmp_path / str(seed)))
        pyg_sar.partition_graph(graph, WORLD_SIZE, folders[-1], method=part)
    want = run_as_threads(_trained, 1, folders, 'cpu')[0]
    for found in _on_ranks(backend, _trained, WORLD_SIZE, folders, 'cuda'):
        for got, expected in zip(found, want, strict=True):
            assert got[0] == pytest.approx(expected[0], abs=1e-12)
            for own, other in zip(got[1:], expected[1:], strict=True):
                # Without a wrapper a rank's gradients are of the ranks' losses together.
                assert_close(own / WORLD_SIZE, other, tolerance=1e-10)
