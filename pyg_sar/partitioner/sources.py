"""From the name of a graph, or a file, to a PyG Data or HeteroData."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from torch_geometric.data import Data, HeteroData

from pyg_sar.partitioner.datasets import is_dataset, load_dataset
from pyg_sar.partitioner.folders import read_folder
from pyg_sar.partitioner.npz import read_npz
from pyg_sar.partitioner.ogb import OGB
from pyg_sar.partitioner.saved import read_saved
from pyg_sar.partitioner.synthetic import SHAPES
from pyg_sar.shard.extra import Attrs


def load_source(
    name_or_path: str | os.PathLike[str],
    *,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
) -> Data | HeteroData:
    """Loads a graph by name or from a file.

    Args:
        name_or_path: ``'wordnet-noun'`` and ``'wordnet-hetero'`` (shipped); a dataset by name, see
            :func:`~pyg_sar.partitioner.datasets.load_dataset`; a .pt file (a PyG Data or
            HeteroData, or a dict of tensors), an .npz file or a folder of .npy files (plain
            arrays), or a folder of torch_geometric.distributed's own Partitioner.
        seed: Seed of a synthetic graph.
        root: The folder with datasets.

    Returns:
        The graph, its features dense.

    Raises:
        ValueError: If there is no such source, or it holds no graph.
    """
    data, dropped = read_source(name_or_path, seed=seed, root=root)
    if dropped:
        warnings.warn(f'dropped from {name_or_path}: {", ".join(dropped)}', stacklevel=2)
    return data


def read_source(
    name_or_path: str | os.PathLike[str],
    *,
    seed: int = 0,
    dense: bool = True,
    root: str | os.PathLike[str] | None = None,
    attrs: Attrs | None = None,
) -> tuple[Data | HeteroData, list[str]]:
    """As :func:`load_source`, but returns what was dropped instead of warning of it.

    Args:
        name_or_path: See :func:`load_source`.
        seed: See :func:`load_source`.
        dense: Whether sparse features of an .npz file become dense.
        root: See :func:`load_source`.
        attrs: What PyG's own Partitioner left out of its folder.
    """
    name = os.fspath(name_or_path)
    path = Path(name)
    if path.is_dir() and name not in NAMES:
        return read_folder(path, dense=dense, attrs=attrs)
    if attrs is not None:
        raise ValueError(
            f"'attrs' applies to folders of torch_geometric.distributed alone (got '{name}')"
        )
    if name in BUILT_IN:
        return BUILT_IN[name](seed, dense), []
    if is_dataset(name) and not path.is_file():
        return load_dataset(name, root=root, seed=seed), []
    if not path.is_file():
        raise ValueError(
            f'expected a .pt or .npz file, a folder of .npy files, or one of {", ".join(NAMES)} '
            f"(got '{name}', no such file)"
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


BUILT_IN: dict[str, Callable[[int, bool], Data | HeteroData]] = {
    'wordnet-hetero': _wordnet_hetero,
    'wordnet-noun': _wordnet_noun,
}
"""Graphs that are shipped, by name."""

NAMES = (
    *BUILT_IN,
    *(f'synthetic:{name}' for name in SHAPES),
    'synthetic:N,E',
    *OGB,
    'a dataset class such as torch_geometric.datasets.Planetoid(name=Cora)',
)
"""What stands for a graph beside files and folders."""
