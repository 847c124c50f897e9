"""From the name of a graph, or a file, to a PyG Data or HeteroData."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from torch_geometric.data import Data, HeteroData

from pyg_sar.partitioner.npz import read_npz
from pyg_sar.partitioner.saved import read_saved
from pyg_sar.partitioner.synthetic import ARXIV, synthetic_graph


def load_source(name_or_path: str | os.PathLike[str], *, seed: int = 0) -> Data | HeteroData:
    """Loads a graph by name or from a file.

    Args:
        name_or_path: ``'wordnet-noun'`` and ``'wordnet-hetero'`` (shipped), ``'synthetic:arxiv'``
            (drawn), a .pt file (a PyG Data or HeteroData, or a dict of tensors) or an .npz file
            (plain arrays).
        seed: Seed of a synthetic graph.

    Returns:
        The graph, its features dense.

    Raises:
        ValueError: If there is no such source, or it holds no graph.
    """
    data, dropped = read_source(name_or_path, seed=seed)
    if dropped:
        warnings.warn(f'dropped from {name_or_path}: {", ".join(dropped)}', stacklevel=2)
    return data


def read_source(
    name_or_path: str | os.PathLike[str], *, seed: int = 0, dense: bool = True
) -> tuple[Data | HeteroData, list[str]]:
    """As :func:`load_source`, but returns what was dropped instead of warning of it.

    Args:
        name_or_path: See :func:`load_source`.
        seed: See :func:`load_source`.
        dense: Whether sparse features of an .npz file become dense.
    """
    name = os.fspath(name_or_path)
    if name in BUILT_IN:
        return BUILT_IN[name](seed, dense), []
    path = Path(name)
    if not path.is_file():
        raise ValueError(
            f'expected a .pt or .npz file or one of {", ".join(sorted(BUILT_IN))} '
            f"(got '{name}', {'a folder' if path.is_dir() else 'no such file'})"
        )
    if path.suffix == '.pt':
        return read_saved(path), []
    if path.suffix == '.npz':
        with path.open('rb') as file:
            return read_npz(file, name, dense=dense)
    raise ValueError(f"expected a .pt or .npz file (got '{name}')")


def _wordnet_noun(seed: int, dense: bool) -> Data | HeteroData:
    """The noun synsets of WordNet 3.0 and their relations; see WORDNET_LICENSE.txt."""
    data = _shipped('wordnet_noun.npz', dense)
    data.num_classes = int(data.y.max()) + 1
    return data


def _wordnet_hetero(seed: int, dense: bool) -> Data | HeteroData:
    """All synsets and words of WordNet 3.0 and 19 relations, one way; see WORDNET_LICENSE.txt."""
    data = _shipped('wordnet_hetero.npz', dense)
    data['synset'].num_classes = int(data['synset'].y.max()) + 1
    return data


def _shipped(name: str, dense: bool) -> Data | HeteroData:
    file = resources.files('pyg_sar') / 'datasets' / name
    with file.open('rb') as stream:
        return read_npz(stream, name, dense=dense)[0]


def _synthetic_arxiv(seed: int, dense: bool) -> Data | HeteroData:
    return synthetic_graph(ARXIV, seed=seed)


BUILT_IN: dict[str, Callable[[int, bool], Data | HeteroData]] = {
    'wordnet-hetero': _wordnet_hetero,
    'wordnet-noun': _wordnet_noun,
    'synthetic:arxiv': _synthetic_arxiv,
}
"""Graphs that need no file, by name."""
