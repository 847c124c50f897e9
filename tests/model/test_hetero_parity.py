"""Heterogeneous models: outputs of every type and all gradients equal one-process PyG."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from hetero_graphs import assignment, hetero_graph
from hetero_models import MODELS, Tensors, inputs_of, make
from ranks import run_as_threads
from torch import Tensor
from torch_geometric.data import HeteroData

import pyg_sar
from pyg_sar.comm import all_reduce_sum, is_distributed, world_size

TOLERANCE = 1e-10
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture(scope='module')
def partitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder per method and number of parts."""
    root = tmp_path_factory.mktemp('hetero')
    for num_parts in (1, 2, 3, 4):
        for method in ('metis', 'random', 'uneven'):
            given: Any = assignment(num_parts) if method == 'uneven' else method
            folder = root / f'{method}{num_parts}'
            pyg_sar.partition_graph(hetero_graph(), num_parts, folder, method=given)
    return root


@functools.cache
def _expected(name: str) -> tuple[Tensors, Tensors, Tensors]:
    """Output of every type, the gradients they are given, and all gradients of plain PyG."""
    model, data = make(name), hetero_graph()
    x, edge = inputs_of(data)
    with torch.no_grad():
        out = model.eval()(x, data.edge_index_dict, edge)  # the shapes
    generator = torch.Generator().manual_seed(1)
    given = {
        key: torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for key, value in out.items()
    }
    out, gradients = _run(model.train(), data, given)
    return {key: value.detach() for key, value in out.items()}, given, gradients


def _run(
    model: torch.nn.Module, data: HeteroData, given: Tensors
) -> tuple[Tensors, dict[Any, Tensor]]:
    """Output, and the gradient of every input and parameter."""
    x, edge = inputs_of(data)
    out = model(x, data.edge_index_dict, edge)
    sum((value * given[key]).sum() for key, value in out.items()).backward()
    leaves: dict[Any, Tensor] = {key: value for key, value in x.items() if value.requires_grad}
    for values in edge.values():
        leaves |= values
    # By order: the names inside a wrapped model have an infix.
    leaves |= {f'parameter {i}': p for i, p in enumerate(model.parameters())}
    return out, {key: _grad(value) for key, value in leaves.items()}


def _grad(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _largest(found: dict[Any, tuple[Tensor, Tensor]]) -> dict[Any, float]:
    return {key: (a - b).abs().max().item() if a.numel() else 0.0 for key, (a, b) in found.items()}


def _differences(name: str, root: str, mode: str) -> dict[str, float]:
    """The largest absolute difference of each tensor on this rank."""
    expected, given, gradients = _expected(name)
    data = pyg_sar.load_shard(root)
    model = pyg_sar.wrap(make(name), mode=mode)
    out, own_gradients = pyg_sar.local(_run(model, data, given))
    data = pyg_sar.local(data)
    assert out.keys() == expected.keys()
    found = {f'out {key}': (expected[key][data[key].n_id], value) for key, value in out.items()}
    for key, value in own_gradients.items():
        if key in data.node_types:
            found[key] = gradients[key][data[key].n_id], value
        elif key in data.edge_types:
            found[key] = gradients[key][data[key].e_id], value
        else:
            value = value.clone()
            if is_distributed():
                value = all_reduce_sum(value) / world_size()  # as of the sum of equal losses
            found[key] = gradients[key], value
    assert found.keys() >= gradients.keys()
    buffers = zip(_trained(name).buffers(), model.buffers(), strict=True)
    found |= {f'buffer {i}': (a.double(), b.double()) for i, (a, b) in enumerate(buffers)}
    return _largest(found)


@functools.cache
def _trained(name: str) -> torch.nn.Module:
    """The plain model after one forward."""
    model, data = make(name), hetero_graph()
    x, edge = inputs_of(data)
    model(x, data.edge_index_dict, edge)
    return model


def _check(differences: list[dict[str, float]]) -> None:
    wrong = [
        (rank, key, value)
        for rank, found in enumerate(differences)
        for key, value in found.items()
        if not value <= TOLERANCE
    ]
    assert not wrong, wrong


@pytest.mark.parametrize('name', few(MODELS, every=2))
@pytest.mark.parametrize(
    ('parts', 'mode'),
    [('random4', 'sequential'), slow('metis1', 'sequential'), slow('random4', 'one_shot')],
)
def test_one_process(partitions: Path, name: str, mode: str, parts: str) -> None:
    _check([_differences(name, str(partitions / parts), mode)])


@pytest.mark.parametrize('name', few(MODELS))
@pytest.mark.parametrize(
    ('world_size', 'parts', 'mode'),
    [
        (3, 'uneven3', 'sequential'),
        *(slow(3, 'uneven3', mode) for mode in ('sequential_no_remat', 'one_shot')),
        slow(2, 'random4', 'sequential'),
        slow(3, 'metis3', 'sequential'),
    ],
)
def test_world_sizes(partitions: Path, name: str, mode: str, world_size: int, parts: str) -> None:
    """One part per rank and several; ranks without a node of some type."""
    _check(run_as_threads(_differences, world_size, name, str(partitions / parts), mode))
