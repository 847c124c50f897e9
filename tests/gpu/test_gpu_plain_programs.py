"""Plain programs of tests/programs on a device, on rows of two ranks: those that PyG runs there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from alike import leaves, whole
from one_program import all_programs, differences, is_hetero
from program_graphs import graph, hetero_graph, parts_of
from ranks import run_ranks
from setups import BACKENDS
from torch import Tensor

import pyg_sar

NAMES = Path(__file__).with_name('plain_programs.txt').read_text(encoding='ascii').split()

pytestmark = pytest.mark.cuda_sim


def _runs() -> Iterator[tuple[str, str]]:
    """Both kinds of groups for attention and meshes, one of them in turn for the others."""
    for number, name in enumerate(NAMES):
        is_both = name.startswith(('attention.', 'mesh.'))
        for backend in BACKENDS if is_both else BACKENDS[number % 2 :][:1]:
            yield name, backend


def _results(program: Callable[..., Any], data: Any, wrapped: Callable[[Any], Any]) -> Any:
    found = leaves(program(data, lambda model: wrapped(model.to('cuda'))))
    results = {name: whole(leaf) for name, leaf in found.items()}
    return {k: v.cpu() if isinstance(v, Tensor) else v for k, v in results.items()}


def _on_rank(name: str, root: str) -> Any:
    data = pyg_sar.load_shard(root).to('cuda')
    return _results(all_programs()[name], data, pyg_sar.DistributedDataParallel)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(('name', 'backend'), list(_runs()))
def test_a_plain_program(name: str, backend: str, tmp_path: Path) -> None:
    program, data = all_programs()[name], hetero_graph() if is_hetero(name) else graph()
    torch.manual_seed(0)
    want = _results(program, data.clone().to('cuda'), lambda model: model)
    pyg_sar.partition_graph(data, 2, tmp_path / 'parts', method=parts_of(data, 2))
    for found in run_ranks(_on_rank, 2, name, str(tmp_path / 'parts'), backend=backend):
        assert differences(want, found) == []
