"""Every conv of PyG on a device: output and gradients are those of one process on the CPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conv_case import Case
from conv_cases import CASES, EXACT, OF_CONVS
from exact import Result, run_case
from few import few
from outcome import NO_NODES, assert_exact, cut_graphs
from ranks import run_as_threads
from setups import BACKENDS, SETUPS, on

LOOPS_ONCE = {
    'APPNP: fixed weights',
    'APPNP: learnable weights',
    'GCN2Conv: theta',
    'GCNConv: fixed weights',
    'GCNConv: flow=target_to_source',
    'GCNConv: improved',
    'GCNConv: learnable weights',
    'MessagePassing: remaining self loops up to the largest id',
    'PDNConv: normalized',
}
"""Cases that add the self loops that are missing, and keep the weights of those that are there."""

MODES = ['sequential_no_remat', 'one_shot']
TWELVE = [EXACT[first::12] for first in range(12)]
"""Cases that are run in one call: parts of all of them."""

Roots = dict[str, str]


@pytest.fixture(scope='module')
def roots(tmp_path_factory: pytest.TempPathFactory) -> Roots:
    """Every graph in six parts."""
    return _cut(tmp_path_factory.mktemp('six'), 'random', 6)


@pytest.fixture(scope='module')
def with_an_empty_rank(tmp_path_factory: pytest.TempPathFactory) -> Roots:
    return _cut(tmp_path_factory.mktemp('empty'), *next(iter(NO_NODES.items())))


def _cut(folder: Path, method: str, num_parts: int) -> Roots:
    return cut_graphs(folder, method, num_parts, {_case(name).graph for name in EXACT})[0]


def _run(names: list[str], roots: Roots, mode: str = 'sequential') -> dict[str, Result]:
    cases = {name: _case(name) for name in names}
    return {n: run_case(c, roots[c.graph], device='cuda', mode=mode) for n, c in cases.items()}


def _case(name: str) -> Case:
    return replace(CASES[name], graph='loops once') if name in LOOPS_ONCE else CASES[name]


def _assert_exact(results: list[dict[str, Result]]) -> None:
    for name in results[0]:
        assert_exact(name, [result[name] for result in results])


@pytest.mark.cuda_sim
@pytest.mark.parametrize(
    'name', [n if n in OF_CONVS else pytest.param(n, marks=pytest.mark.slow) for n in EXACT]
)
def test_one_process(name: str, roots: Roots) -> None:
    """All parts on one device."""
    _assert_exact([_run([name], roots)])


@pytest.mark.parametrize('name', EXACT)
@pytest.mark.parametrize('world_size', [2, 3])
def test_ranks_as_threads(world_size: int, name: str, roots: Roots) -> None:
    _assert_exact(run_as_threads(_run, world_size, [name], roots))


@pytest.mark.parametrize('name', OF_CONVS)
def test_modes_and_a_rank_without_nodes(name: str, roots: Roots, with_an_empty_rank: Roots) -> None:
    for mode in MODES:
        _assert_exact(run_as_threads(_run, 3, [name], roots, mode))
    _assert_exact(run_as_threads(_run, 3, [name], with_an_empty_rank))


@pytest.mark.cuda_sim
@pytest.mark.parametrize(
    ('names', 'setup'),
    [
        *((OF_CONVS[kind::3], setup) for kind, setup in enumerate(SETUPS[2:])),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in product(TWELVE, SETUPS[2:])),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_processes(names: list[str], setup: str, roots: Roots) -> None:
    """A third of the convs with every kind of group, and all cases with all kinds."""
    _assert_exact(on(setup, _run, names, roots))


@pytest.mark.cuda_sim
@pytest.mark.parametrize('setup', few(BACKENDS))
def test_processes_of_which_one_has_no_nodes(setup: str, with_an_empty_rank: Roots) -> None:
    _assert_exact(on(setup, _run, OF_CONVS[::3], with_an_empty_rank))


@pytest.mark.parametrize('backend', BACKENDS)
def test_one_rank_with_nccl(backend: str, roots: Roots, tmp_path: Path) -> None:
    torch.cuda.set_device(0)
    dist.init_process_group(backend, init_method=f'file://{tmp_path}/s', rank=0, world_size=1)
    try:
        _assert_exact([_run(OF_CONVS, roots)])
    finally:
        dist.destroy_process_group()
