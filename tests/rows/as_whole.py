"""Tables of programs on rows: on ranks each gives what it gives on the whole."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch
from expressions import expressions
from on_ranks import parts_of
from ranks import run_as_threads
from small_graphs import small_graph
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import pyg_sar

OURS = {'n_id', 'e_id', 'num_nodes_total', 'label_range', 'num_classes', '_global_store'}
"""What load_shard adds to a graph."""


class Fails(str):
    """Why a program fails; on ranks it may do anything where it fails on the whole."""


def check(
    module: str,
    table: str,
    data: Any = None,
    root: str = '',
    *,
    num_ranks: Iterable[int] = (1, 3),
    kind: str = 'uneven',
    tolerance: float = 1e-12,
) -> None:
    """Runs every program of a table on plain tensors, and on ranks.

    Args:
        module: Where the table is, and perhaps a function ``run(program, data)``.
        table: Its name; programs by what they are called, or expressions.
        data: The graph; by default the small one, as its parts are cached.
        root: Its folder.
        num_ranks: How many ranks.
        kind: How the small graph is cut.
        tolerance: Absolute and relative.
    """
    want = _results(module, table, small_graph() if data is None else data)
    root = root or str(parts_of(3, kind))
    for count in num_ranks:
        for found in run_as_threads(_results, count, module, table, root):
            for name, values in want.items():
                same(found[name], values, name, tolerance)


def _results(module: str, table: str, data: Any) -> dict[str, Any]:
    data = pyg_sar.load_shard(data) if isinstance(data, str) else data
    names = vars(import_module(module))
    run = names.get('run', lambda program, data: program(data))
    programs = names[table]
    if isinstance(programs, str):
        programs = {each: each for each in expressions(programs)}
    return {name: shown(run(program, data)) for name, program in programs.items()}


def shown(value: Any) -> Any:
    """Plain tensors of the whole, in lists and dicts."""
    if isinstance(value, Tensor):
        return pyg_sar.gather(value).detach()
    if isinstance(value, (Data, HeteroData)):
        return shown(value.to_dict())
    if isinstance(value, dict):
        return {k: shown(v) for k, v in value.items() if k not in OURS}
    return [shown(each) for each in value] if isinstance(value, (list, tuple)) else value


def same(found: Any, right: Any, name: str, tolerance: float) -> None:
    """Asserts that results are equal, with their shapes and types."""
    if isinstance(right, Fails):
        return
    if isinstance(right, Tensor):
        options = {'rtol': tolerance, 'atol': tolerance, 'equal_nan': True}
        torch.testing.assert_close(found, right, **options, msg=lambda m: f'{name}: {m}')
    elif isinstance(right, dict):
        assert found.keys() == right.keys(), name
        for key, value in right.items():
            same(found[key], value, f'{name}: {key}', tolerance)
    elif isinstance(right, list):
        assert len(found) == len(right), name
        for each, other in zip(found, right, strict=True):
            same(each, other, name, tolerance)
    else:
        assert found == right, name


def with_gradients(out: Any, *leaves: Tensor) -> list[Any]:
    """A result, and the gradients of a loss that is no sum of its rows alone."""
    first = out[0] if isinstance(out, tuple) else out
    first.sin().sum().backward()
    return [out, *(leaf.grad for leaf in leaves)]
