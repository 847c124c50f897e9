"""From the name of a graph, or a file, to a PyG Data or HeteroData."""

from __future__ import annotations

import os
import warnings
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from pyg_sar.partitioner.on_disk.mapped import Array, Scratch, map_array
from pyg_sar.partitioner.sources.datasets import is_dataset, load_dataset
from pyg_sar.partitioner.sources.npz import graph_of_arrays, read_npz
from pyg_sar.partitioner.sources.ogb import OGB
from pyg_sar.partitioner.sources.pyg_folder import array_files, is_pyg_folder, read_pyg_folder
from pyg_sar.partitioner.sources.saved import read_saved
from pyg_sar.partitioner.sources.synthetic import SHAPES
from pyg_sar.partitioner.sources.tables import TABLES, read_table


def load_source(
    name_or_path: str | os.PathLike[str],
    *,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
    attrs: str | os.PathLike[str] | None = None,
    scratch: Scratch | None = None,
) -> Data | HeteroData:
    """Loads a graph by name or from a file; warns of arrays that are dropped.

    Args:
        name_or_path: ``'wordnet-noun'`` and ``'wordnet-hetero'`` (shipped); a dataset by name, see
            :func:`~pyg_sar.partitioner.sources.datasets.load_dataset`; a .pt file (a PyG Data or
            HeteroData, or a dict of tensors), an .npz file (plain arrays), a folder of .npy files
            (the same arrays, a file each; or a file ``edges.parquet`` or ``edges.csv`` in place of
            ``edge_index.npy``), a .parquet or .csv file (a row per edge), or a folder of
            torch_geometric.distributed's own Partitioner.
        seed: Seed of a synthetic graph.
        root: The folder with datasets.
        attrs: A file of what PyG's own Partitioner left out of its folder, see
            :func:`~pyg_sar.partitioner.sources.pyg_folder.read_pyg_folder`.
        scratch: Where tables are unpacked. With it tensors are mapped into memory and not read,
            those of .pt files, .npy files and uncompressed .npz files where they lie; without, the
            graph is in memory and its features dense.

    Raises:
        ValueError: If there is no such source, or it holds no graph.
    """
    name, is_mapped = os.fspath(name_or_path), scratch is not None
    path = Path(name)
    if path.is_dir() and name not in NAMES and is_pyg_folder(path):
        return read_pyg_folder(path, attrs)
    if attrs is not None:
        raise ValueError(
            f"'attrs' applies to folders of torch_geometric.distributed alone (got '{name}')"
        )
    if name in BUILT_IN:
        return _built_in(name, is_mapped=is_mapped)
    if path.suffix == '.pt' and path.is_file():
        return read_saved(path, is_mapped=is_mapped)
    if is_dataset(name) and not path.exists():
        return load_dataset(name, root=root, seed=seed)
    if path.suffix == '.npz' and path.is_file():
        data, dropped = read_npz(path, name, is_mapped=is_mapped)
    else:
        arrays = _read_arrays(path, scratch or Scratch())
        if arrays is None:
            what = 'a folder' if path.is_dir() else 'a file' if path.exists() else 'no such file'
            raise ValueError(
                'expected a .pt, .npz, .parquet or .csv file, a folder with edge_index.npy or of '
                f"torch_geometric.distributed, or one of {', '.join(NAMES)} (got '{name}', {what})"
            )
        if not is_mapped:
            arrays = {key: np.array(array) for key, array in arrays.items()}
        data, dropped = graph_of_arrays(arrays, name, is_mapped=is_mapped)
    if dropped:
        warnings.warn(f'dropped from {name}: {", ".join(dropped)}', stacklevel=2)
    return data if is_mapped else _with_int64(data)


def _with_int64(data: Data | HeteroData) -> Data | HeteroData:
    for store in data.edge_stores:
        store['edge_index'] = store['edge_index'].to(torch.int64)
    return data


def _read_arrays(path: Path, scratch: Scratch) -> dict[str, Array] | None:
    """The arrays of a table or of a folder; None if `path` is neither."""
    if path.suffix in TABLES and path.is_file():
        return read_table(path, scratch)
    tables = [path / f'edges{suffix}' for suffix in TABLES]
    edges = [file for file in (path / 'edge_index.npy', *tables) if file.is_file()]
    files = array_files(path)
    if len(edges) > 1:
        raise ValueError(f"expected one file of edges in '{path}' (got {[e.name for e in edges]})")
    if not edges and not any(name.startswith('edge|') for name in files):
        return None
    arrays = {name: map_array(file) for name, file in files.items()}
    if edges and edges[0].suffix in TABLES:
        arrays.update(read_table(edges[0], scratch))
    return arrays


def _built_in(name: str, *, is_mapped: bool) -> Data | HeteroData:
    file = resources.files('pyg_sar') / 'datasets' / BUILT_IN[name]
    with file.open('rb') as stream:
        # A stream cannot be mapped: its features stay sparse, its arrays are in memory.
        data = _with_int64(read_npz(stream, name, is_mapped=is_mapped)[0])
    labelled: Any = data['synset'] if isinstance(data, HeteroData) else data
    labelled.num_classes = int(labelled.y.max()) + 1
    return data


BUILT_IN = {'wordnet-hetero': 'wordnet_hetero.npz', 'wordnet-noun': 'wordnet_noun.npz'}
"""Graphs that are shipped, by name: all synsets and words of WordNet 3.0 and 19 relations, one way;
the noun synsets and their relations. See WORDNET_LICENSE.txt."""

NAMES = (
    *BUILT_IN,
    *(f'synthetic:{name}' for name in SHAPES),
    'synthetic:N,E',
    *OGB,
    'a dataset class such as torch_geometric.datasets.Planetoid(name=Cora)',
)
"""What stands for a graph beside files and folders."""
