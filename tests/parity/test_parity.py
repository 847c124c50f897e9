"""Output, input gradients and every parameter gradient equal one-process PyG, elementwise."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from few import few
from graphs import awkward_graph as graph
from parity_cases import CASES, make, run
from ranks import run_as_threads, run_ranks
from torch import Tensor
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.comm import all_reduce_sum, is_distributed
from pyg_sar.partitioner import sub_parts

TOLERANCE = 1e-10
FLOAT32_TOLERANCE = 1e-4

MODES = ['sequential', 'sequential_no_remat', 'one_shot']

WIDELY = [
    *('SAGE', 'GCN', 'GIN', 'GINE', 'NN', 'PNA', 'RGCN', 'GEN-softmax', 'SAGE-median', 'SAGE-max'),
    *('GAT', 'GAT-edge', 'GATv2', 'Transformer', 'EdgeConv-max', 'Cheb', 'APPNP', 'FastRGCN'),
]
"""Every path and kind of conv: these run on every layout; the others on fewer (and all of PyG's on
three ranks in tests/conformance)."""


@pytest.fixture(scope='session')
def partitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder per method and number of parts; METIS's with nodes in another order than by id."""
    root = tmp_path_factory.mktemp('parity')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sub_parts, 'ROWS', 4)
        for num_parts in (1, 2, 3, 4, 6):
            for method in ('metis', 'random'):
                pyg_sar.partition_graph(
                    graph(), num_parts, root / f'{method}{num_parts}', method=method
                )
    return root


@functools.cache
def _expected(name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Output, the gradient it is given, and all gradients of one-process PyG."""
    module = make(name).to(dtype)
    out, inputs = run(name, module, _as(graph(), dtype))
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(dtype)
    out.backward(grad)
    gradients = {key: _grad(value) for key, value in inputs.items()}
    gradients |= {key: _grad(value) for key, value in module.named_parameters()}
    return out.detach(), grad, gradients


def _as(data: Data, dtype: torch.dtype) -> Data:
    return data.apply(lambda t: t.to(dtype) if t.is_floating_point() else t)


def _grad(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _differences(
    name: str,
    root: str,
    mode: str,
    dtype: torch.dtype = torch.float64,
    max_rows: int | None = None,
) -> dict[str, float]:
    """The largest absolute difference of each tensor on this rank."""
    expected, grad, gradients = _expected(name, dtype)
    data = pyg_sar.local(pyg_sar.load_shard(root))
    data = _as(data, dtype)
    module = pyg_sar.wrap(make(name).to(dtype), mode=mode, max_rows=max_rows)
    out, inputs = run(name, module, data)
    out.backward(grad[data.n_id])
    found = {'out': (expected[data.n_id], out)}
    for key, value in inputs.items():
        rows = data.n_id if key == 'x' else data.e_id
        found[key] = gradients[key][rows], _grad(value)
    keys = [key for key, _ in make(name).named_parameters()]
    for key, parameter in zip(keys, module.parameters(), strict=True):
        value = _grad(parameter).clone()
        if is_distributed():
            all_reduce_sum(value)
        found[key] = gradients[key], value
    return {
        key: ((a - b).abs() / _scale(name, key, dtype)).max().item() if a.numel() else 0.0
        for key, (a, b) in found.items()
    }


def _tensors(name: str, root: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Output and all gradients, those of parameters summed over the ranks."""
    data = _as(pyg_sar.local(pyg_sar.load_shard(root)), dtype)
    module = pyg_sar.wrap(make(name).to(dtype))
    out, inputs = run(name, module, data)
    out.backward(_expected(name, dtype)[1][data.n_id])
    gradients = {key: _grad(value) for key, value in inputs.items()}
    shared = {key: all_reduce_sum(_grad(p).clone()) for key, p in module.named_parameters()}
    return {'out': out.detach(), **gradients, **shared}


def _scale(name: str, key: str, dtype: torch.dtype) -> float:
    """Absolute differences in float64; in float32 relative to the tensor's largest entry.

    A gradient that is zero but for rounding (of a bias that softmax cancels) has no scale of its
    own: relative to the largest gradient then.
    """
    if dtype == torch.float64:
        return 1.0
    exact, rounded = (
        {'out': out, **gradients}
        for out, _, gradients in (_expected(name, dtype) for dtype in (torch.float64, dtype))
    )
    largest = {k: v.abs().max().item() for k, v in exact.items()}
    scale = largest[key] if largest[key] > 1e-10 else max(largest.values())
    # Where one process in float32 is further from float64, another may be as far on the other side.
    error = (exact[key] - rounded[key]).abs().max().item() / scale
    return scale * max(1.0, 2 * error / FLOAT32_TOLERANCE)


def _check(differences: list[dict[str, float]], tolerance: float = TOLERANCE) -> None:
    wrong = [
        (rank, key, value)
        for rank, found in enumerate(differences)
        for key, value in found.items()
        if not value <= tolerance
    ]
    assert not wrong, wrong


@pytest.mark.parametrize('name', few(CASES))
@pytest.mark.parametrize(
    ('parts', 'mode'),
    [
        ('metis1', 'sequential'),
        pytest.param('random4', 'one_shot', marks=pytest.mark.slow),
    ],
)
def test_one_process(partitions: Path, name: str, mode: str, parts: str) -> None:
    _check([_differences(name, str(partitions / parts), mode)])


@pytest.mark.parametrize('name', few(CASES))
@pytest.mark.parametrize(
    ('parts', 'mode'),
    [
        ('random3', 'sequential'),
        *(pytest.param('random3', mode, marks=pytest.mark.slow) for mode in MODES[1:]),
    ],
)
def test_three_ranks(partitions: Path, name: str, mode: str, parts: str) -> None:
    on_ranks = run_ranks if mode == 'sequential' else run_as_threads
    _check(on_ranks(_differences, 3, name, str(partitions / parts), mode))


LAYOUTS = (
    *((1, 'metis1'), (2, 'metis2'), (2, 'random4'), (3, 'metis3')),
    *((3, 'random6'), (4, 'metis4'), (4, 'random4')),
)


def test_names_of_cases() -> None:
    assert set(WIDELY) <= set(CASES)


@pytest.mark.slow
@pytest.mark.parametrize('name', [name for name in CASES if name not in WIDELY])
def test_four_ranks(partitions: Path, name: str) -> None:
    _check(run_as_threads(_differences, 4, name, str(partitions / 'random4'), 'sequential'))


@pytest.mark.slow
@pytest.mark.parametrize('name', WIDELY)
@pytest.mark.parametrize(
    ('world_size', 'parts', 'mode'),
    [
        *((*layout, 'sequential') for layout in LAYOUTS),
        *((*layout, mode) for layout in LAYOUTS[2::4] for mode in MODES[1:]),
    ],
)
def test_world_sizes(partitions: Path, name: str, world_size: int, parts: str, mode: str) -> None:
    """One part per rank and several."""
    _check(run_as_threads(_differences, world_size, name, str(partitions / parts), mode))


@pytest.mark.parametrize('name', few(WIDELY))
@pytest.mark.parametrize(
    'world_size',
    [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)],
)
def test_threads_have_the_bits_of_processes(partitions: Path, name: str, world_size: int) -> None:
    """So the tests above hold for processes, too."""
    root = str(partitions / ('random4' if world_size == 4 else 'random6'))
    for dtype in (torch.float32, torch.float64):
        threads, processes = (
            on_ranks(_tensors, world_size, name, root, dtype)
            for on_ranks in (run_as_threads, run_ranks)
        )
        for ours, theirs in zip(threads, processes, strict=True):
            assert ours.keys() == theirs.keys()
            for key, value in ours.items():
                assert torch.equal(value, theirs[key]), key


@pytest.mark.parametrize('name', ['SAGE-median', 'FastRGCN', 'RGAT-scaled'])
@pytest.mark.parametrize('max_rows', [1, 40])
def test_chunks(partitions: Path, name: str, max_rows: int) -> None:
    """Whatever the bound of the gather path."""
    root = str(partitions / 'random3')
    _check(run_as_threads(_differences, 3, name, root, 'sequential', max_rows=max_rows))


@pytest.mark.parametrize('name', CASES)
@pytest.mark.slow
def test_float32(partitions: Path, name: str) -> None:
    root = str(partitions / 'metis3')
    found = run_as_threads(_differences, 3, name, root, 'sequential', torch.float32)
    _check(found, FLOAT32_TOLERANCE)


@pytest.mark.parametrize('name', ['SAGE', 'GINE', 'NN', 'GAT-edge', 'Transformer'])
def test_autocast(partitions: Path, name: str) -> None:
    """bfloat16 rounds differently where sums are made block by block, but no gradient is lost."""
    data, plain = _as(graph(), torch.float32), make(name).float()
    shard = _as(pyg_sar.local(pyg_sar.load_shard(partitions / 'metis3')), torch.float32)
    wrapped = pyg_sar.wrap(make(name).float())
    with torch.autocast('cpu', dtype=torch.bfloat16):
        expected, inputs = run(name, plain, data)
        out, own_inputs = run(name, wrapped, shard)
    assert out.dtype == expected.dtype
    grad = torch.randn_like(expected)
    expected.backward(grad)
    out.backward(grad[shard.n_id])
    pairs = [(expected[shard.n_id], out), (inputs['x'].grad[shard.n_id], own_inputs['x'].grad)]
    parameters = zip(plain.parameters(), wrapped.parameters(), strict=True)
    pairs += [(_grad(a), _grad(b)) for a, b in parameters]
    largest = max(a.abs().max() for a, _ in pairs)  # some gradients are nothing but rounding
    for a, b in pairs:
        assert (a - b).abs().max() <= 0.1 * a.abs().max() + 0.01 * largest
