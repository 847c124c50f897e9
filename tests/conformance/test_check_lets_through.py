"""The check lets every model through that is right: all of PyG's, and all cases of conformance."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conformance_case
import pytest
from conformance_cases import ALL
from conformance_graphs import GRAPHS
from conformance_run import Inputs
from few import few
from graphs import awkward_graph
from model_cases import CASES
from torch import nn

import pyg_sar
from pyg_sar.checking.first_forward import check_model
from pyg_sar.checking.run import CannotRun

CANNOT_RUN = {'LINKX', 'LINKX-no-features', 'LightGCN-ranking', 'LightGCN-some-rankings'}
"""Models with a parameter of the size of the graph."""

NO_FORWARD = {'RECT_L-semantic-labels', 'LightGCN', 'CorrectAndSmooth-correct'}
"""Cases that call other methods, which the check does not see."""


class _Called(Exception):
    pass


def _arguments(module: nn.Module, call: Callable[[], Any]) -> tuple[Any, Any]:
    """What a module is called with."""
    found: list[tuple[Any, Any]] = []

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        found.append((args, kwargs))
        raise _Called

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    with pytest.raises(_Called):
        call()
    handle.remove()
    return found[0]


@pytest.mark.parametrize('name', few([name for name in CASES if name not in NO_FORWARD]))
def test_models(name: str, tmp_path: Path) -> None:
    pyg_sar.partition_graph(awkward_graph(60), 2, tmp_path / 'parts', method='random')
    data = pyg_sar.load_shard(tmp_path / 'parts', 0)
    case = CASES[name]
    model = case.make()
    try:
        model = pyg_sar.wrap(model.double())
    except ValueError:
        return  # it is refused anyway
    data = copy.copy(data)
    data.x = data.x.double().requires_grad_()
    args, kwargs = _arguments(model.train(), lambda: case.call(model, data))
    if name in CANNOT_RUN:
        with pytest.raises(CannotRun):
            check_model(model, args, kwargs)
    else:
        assert check_model(model, args, kwargs) is None


def _check_case(case: Any, root: Path) -> None:
    with case.during():
        try:
            module = pyg_sar.wrap(conformance_case.make(case))
            pyg_sar.partition_graph(GRAPHS[case.graph](), 2, root, method='random')
        except (ValueError, TypeError, NotImplementedError):
            return  # it is refused anyway
        data = pyg_sar.load_shard(root, 0)
        args, kwargs = _arguments(module.train(), lambda: case.call(module, Inputs(data)))
        assert check_model(module, args, kwargs) is None


NAMES = {case.name: case for case in ALL}


@pytest.mark.parametrize('name', few([*NAMES][::8]))
def test_some_convs(name: str, tmp_path: Path) -> None:
    _check_case(NAMES[name], tmp_path / 'parts')


@pytest.mark.bench
@pytest.mark.parametrize('name', NAMES)
def test_all_convs(name: str, tmp_path: Path) -> None:
    _check_case(NAMES[name], tmp_path / 'parts')
