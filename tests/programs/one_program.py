"""Runs one program: on the whole graph, or on one rank. And says whether results are the same."""

from __future__ import annotations

import inspect
import random
import traceback
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from alike import RUNS, itself, leaves, whole
from program_graphs import graph, hetero_graph
from ranks import RankError
from shared import Program
from torch import Tensor

import pyg_sar

TOLERANCE = 1e-10  # of what is largest in a result
WIDER = {'edge_loss.bgrl': 1e-8}  # Adam divides gradients before a batch norm, which are noise
HERE = Path(__file__).parent
MARK = 'refused: '


class ProgramFailed(Exception):
    """What a program raised, in one line."""


@cache
def all_programs() -> dict[str, Program]:
    """By theme and name: of every file its functions of `data` and `ddp`, and its PROGRAMS."""
    found: dict[str, Program] = {}
    for file in sorted(HERE.glob('*_programs.py')):
        if file.stem == 'test_plain_programs':
            continue
        module, theme = import_module(file.stem), file.stem.removesuffix('_programs')
        named = dict(getattr(module, 'PROGRAMS', {}))
        for name, value in vars(module).items():
            own = inspect.isfunction(value) and value.__module__ == file.stem
            if own and list(inspect.signature(value).parameters) == ['data', 'ddp']:
                assert name not in named, name
                named[name] = value
        found |= {f'{theme}.{name}': program for name, program in named.items()}
    return found


def is_hetero(name: str) -> bool:
    """Whether a program takes a HeteroData."""
    return name.startswith('hetero.')


def refusal(name: str, world_size: int, folder: str, by: str) -> str:
    """Why ranks refuse a program; empty if they give the results of plain PyG.

    Ranks are threads or processes, see `alike.RUNS`. Raises AssertionError if they give others, and
    TimeoutError or RankError if they do not end.
    """
    want = on_whole_graph(all_programs()[name], hetero_graph() if is_hetero(name) else graph())
    try:
        found = RUNS[by](on_rank, world_size, name, folder)
    except (RankError, ProgramFailed) as failure:
        marked = [line for line in str(failure).splitlines() if MARK in line]
        if not marked:
            raise
        return marked[-1].split(MARK, 1)[1]
    for results in found:
        assert differences(want, results, WIDER.get(name, TOLERANCE)) == []
        assert differences(found[0], results, 0.0) == [], 'the ranks differ'
    return ''


def on_whole_graph(program: Program, data: Any) -> dict[str, Any]:
    """The results of one process of plain PyG."""
    random.seed()  # PyG names the code that it generates by it
    torch.manual_seed(0)  # as ranks have it
    return leaves(program(data.clone(), itself))


def on_rank(name: str, folder: str) -> dict[str, Any]:
    """The results of this rank, rows of nodes and edges gathered."""
    random.seed()
    try:
        data = pyg_sar.load_shard(folder)
        results = all_programs()[name](data, pyg_sar.DistributedDataParallel)
        return {path: whole(leaf) for path, leaf in leaves(results).items()}
    except Exception as failure:
        raise ProgramFailed(MARK + _in_one_line(failure)) from failure


def _in_one_line(failure: BaseException) -> str:
    """The error, and the last line of the program's files that it came through."""
    frames = traceback.extract_tb(failure.__traceback__)[1:]
    where = [
        f' ({Path(f.filename).name}:{f.lineno})' for f in frames if HERE in Path(f.filename).parents
    ]
    first = next(iter(str(failure).strip().splitlines()), '')
    return f'{type(failure).__name__}: {first}{where[-1] if where else ""}'


def differences(
    want: dict[str, Any], got: dict[str, Any], tolerance: float = TOLERANCE
) -> list[str]:
    """Which results differ, and by how much; empty if they are the same."""
    if want.keys() != got.keys():
        return [f'other results: {sorted(want.keys() ^ got.keys())}']
    return [
        f'{name}: {text}'
        for name in want
        if (text := _difference(want[name], got[name], tolerance))
    ]


def _difference(want: Any, got: Any, tolerance: float) -> str:
    """Of numbers beyond the tolerance, relative to the largest of them that is finite."""
    kinds = [Tensor if isinstance(each, Tensor) else type(each) for each in (got, want)]
    if kinds[0] is not kinds[1]:
        return f'{kinds[0].__name__} for {kinds[1].__name__}'
    if not isinstance(want, (Tensor, float)):
        return '' if want == got else f'{got!r} for {want!r}'
    numbers = torch.as_tensor(want)
    largest = 0.0
    if numbers.is_floating_point():
        finite = numbers[numbers.isfinite()].double().abs()
        largest = max(finite.max().item() if finite.numel() else 0.0, 1e-3)
    try:
        torch.testing.assert_close(got, want, rtol=0, atol=tolerance * largest, equal_nan=True)
    except AssertionError as error:
        return str(error)
    return ''
