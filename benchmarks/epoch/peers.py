"""Other libraries, measured beside plain PyG where they are installed: DGL, and SAR on DGL.

Their last releases need a torch of their own, so they may live in another environment: the
variable ``PYG_SAR_DGL_PYTHON`` names its Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cached_graphs import graph_file, load_graph
from measured_training import make_model, num_cores
from program_team import ProgramTeam

DGL, SAR = 'DGL', 'SAR on DGL'

_PROGRAM = str(Path(__file__).with_name('dgl_program.py'))


def is_peer(variant: str) -> bool:
    return variant.startswith((DGL, SAR))


def teams(
    graph: str,
    processes: int,
    modes: list[str],
    *,
    mmap_threshold: int | None = None,
    **options: Any,
) -> dict[str, Callable[[], Any]]:
    """What makes a team of every peer that is installed, by name; nothing where none is.

    Args:
        graph: The name of the graph.
        processes: Ranks of SAR on DGL; DGL runs in one process with all cores.
        modes: Of SAR, by our names for them.
        mmap_threshold: As of :class:`team.Team`.
        **options: `model`, `hidden`, `layers` and `lr`, as of :func:`training.train`.
    """
    python = os.environ.get('PYG_SAR_DGL_PYTHON', sys.executable)
    start = partial(_team, python, graph, mmap_threshold, options)
    found: dict[str, Callable[[], Any]] = {}
    if _has(python, 'dgl'):
        found[DGL] = partial(start, 1, None)
        if _has(python, 'sar'):
            found |= {f'{SAR}, {mode}': partial(start, processes, mode) for mode in modes}
    return found


@contextmanager
def _team(
    python: str,
    graph: str,
    mmap_threshold: int | None,
    options: dict[str, Any],
    processes: int,
    mode: str | None,
) -> Iterator[ProgramTeam]:
    data = load_graph(graph)
    arrays = graph_file(graph).parent / 'arrays'
    if not arrays.exists():
        _write_arrays(data, arrays)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / 'weights.npz'
        _write_weights(data, weights, **options)
        threads = str(max(1, num_cores() // processes))
        command = [python, _PROGRAM, f'--arrays={arrays}', f'--weights={weights}']
        command += [f'--threads={threads}', f'--processes={processes}']
        command += [f'--classes={data.num_classes}']
        command += [f'--{name}={value}' for name, value in options.items()]
        if mode is not None:
            # GATConv's self loops are edges of DGL's graph.
            loops = '-loops' if options['model'] == 'gat' else ''
            parts = arrays.with_name(f'dgl{processes}{loops}')
            if not parts.exists():
                _make_parts([*command, '--make-parts'], parts)
            command += [f'--parts={parts}', f'--mode={mode}', f'--store={folder}/store']
        environment = {'OMP_NUM_THREADS': threads}
        if mmap_threshold is not None:
            environment['MALLOC_MMAP_THRESHOLD_'] = str(mmap_threshold)
        with ProgramTeam(
            [[*command, f'--rank={rank}'] for rank in range(processes)], environment
        ) as team:
            yield team


def _write_arrays(data: Any, folder: Path) -> None:
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
    for name in ('x', 'y', 'edge_index', 'train_mask'):
        np.save(unfinished / f'{name}.npy', data[name].numpy())
    unfinished.rename(folder)


def _write_weights(
    data: Any, file: Path, *, model: str, hidden: int, layers: int, lr: float
) -> None:
    """Those that :func:`training.train` starts from."""
    torch.manual_seed(0)
    network = make_model(model, data.num_features, hidden, layers, data.num_classes)
    np.savez(file, **{name: value.numpy() for name, value in network.state_dict().items()})


def _make_parts(command: list[str], folder: Path) -> None:
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        subprocess.run([*command, f'--parts={unfinished}'], check=True, stdout=subprocess.DEVNULL)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@cache
def _has(python: str, module: str) -> bool:
    """Whether that Python has a module."""
    code = f'import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)'
    return subprocess.run([python, '-c', code]).returncode == 0
