"""Tests whose body runs on every rank, often with the own rows of the small graph as ``data``."""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ranks import run_as_threads, run_once, run_ranks
from small_graphs import cut, small_graph

import pyg_sar

RUNS = {'processes': run_ranks, 'threads': run_as_threads, 'own processes': run_once}


@functools.cache
def parts_of(num_parts: int, kind: str = 'uneven') -> Path:
    """The folder of the small graph in so many parts, which no test may write to."""
    folder = tempfile.mkdtemp(prefix='parts-')
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return cut(small_graph(), num_parts, Path(folder) / 'parts', kind)


def on_ranks(
    world_size: int = 3,
    num_parts: int | None = None,
    *,
    kind: str = 'uneven',
    by: str = 'processes',
    is_local: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Marks a test whose first argument is the data of a rank; others are of pytest, plain values.

    Parameters of the test that are called `world_size`, `num_parts` and `kind` say the same.

    Args:
        world_size: Number of ranks.
        num_parts: Of the graph; by default one per rank. With 0 there is no data.
        kind: Of the cut, see ``small_graphs.assign``.
        by: ``'processes'``, ``'threads'``, or ``'own processes'`` that may be spoilt.
        is_local: Whether the data has plain tensors of own rows, or rows of the whole graph.
    """

    def marked(body: Callable[..., None]) -> Callable[..., None]:
        def test(**arguments: Any) -> None:
            size = arguments.get('world_size', world_size)
            parts = arguments.get('num_parts', size if num_parts is None else num_parts)
            root = str(parts_of(parts, arguments.get('kind', kind))) if parts else ''
            RUNS[by](_run, size, body.__module__, body.__name__, root, is_local, arguments)

        test.body = body  # type: ignore[attr-defined]
        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        parameters = [*inspect.signature(body).parameters.values()][num_parts != 0 :]
        test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return test

    return marked


def on_threads(world_size: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Marks a test without data, whose ranks are threads."""
    return on_ranks(world_size, 0, by='threads')


def _run(module: str, name: str, root: str, is_local: bool, arguments: dict[str, Any]) -> None:
    """Found by name: a function behind a decorator does not travel."""
    body = getattr(importlib.import_module(module), name).body
    data = [pyg_sar.load_shard(root)] if root else []
    body(*map(pyg_sar.local, data) if is_local else data, **arguments)
