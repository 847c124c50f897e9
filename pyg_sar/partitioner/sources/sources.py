"""From the name of a graph, or a file, to a PyG Data or HeteroData.

A reader says which names it reads, and gives a graph or arrays by name; see :data:`_READERS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from pyg_sar.partitioner.on_disk.mapped import Scratch, map_array
from pyg_sar.partitioner.sources.arrays import graph_of_arrays, read_npz
from pyg_sar.partitioner.sources.named_class import is_class, load_class
from pyg_sar.partitioner.sources.ogb import OGB, load_ogb
from pyg_sar.partitioner.sources.pyg_folder import array_files, is_pyg_folder, read_pyg_folder
from pyg_sar.partitioner.sources.saved import read_saved
from pyg_sar.partitioner.sources.synthetic import SHAPES, shape_of, synthetic_graph
from pyg_sar.partitioner.sources.tables import TABLES, read_table

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


@dataclass(frozen=True)
class Source:
    """What was asked for; see :func:`load_source`."""

    name: str
    seed: int = 0
    root: str | os.PathLike[str] | None = None
    attrs: str | os.PathLike[str] | None = None
    scratch: Scratch | None = None

    @property
    def path(self) -> Path:
        """The name as that of a file or folder."""
        return Path(self.name)

    @property
    def datasets(self) -> Path:
        """The folder with datasets."""
        return Path(self.root or os.environ.get('PYG_SAR_DATA') or 'dataset')

    @cached_property
    def edge_files(self) -> list[Path]:
        """The files of edges in a folder of arrays, or the table that it is itself."""
        if self.path.suffix in TABLES:
            return [self.path] if self.path.is_file() else []
        names = ('edge_index.npy', *(f'edges{suffix}' for suffix in TABLES))
        found = [self.path / name for name in names if (self.path / name).is_file()]
        return found or [f for n, f in array_files(self.path).items() if n.startswith('edge|')][:1]

    def is_file(self, suffix: str) -> bool:
        """Whether it is a file with this ending."""
        return self.path.suffix == suffix and self.path.is_file()


def load_source(
    name_or_path: str | os.PathLike[str],
    *,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
    attrs: str | os.PathLike[str] | None = None,
    scratch: Scratch | None = None,
) -> Data | HeteroData:
    """Loads a graph by name or from a file.

    Args:
        name_or_path: ``'wordnet-noun'`` and ``'wordnet-hetero'`` (shipped); ``'ogbn-arxiv'`` and
            the others of :data:`~pyg_sar.partitioner.sources.ogb.OGB`; ``'synthetic:arxiv'``,
            ``'synthetic:products'`` or ``'synthetic:N,E'``; the path of a dataset class with its
            arguments, ``'torch_geometric.datasets.Planetoid(name=Cora)'``; a .pt file (a PyG Data
            or HeteroData, or a dict of tensors), an .npz file (plain arrays), a folder of .npy
            files (such arrays, a file each; or a file ``edges.parquet`` or ``edges.csv`` in place
            of ``edge_index.npy``), a .parquet or .csv file (a row per edge), or a folder of
            torch_geometric.distributed's own Partitioner.
        seed: Seed of a synthetic graph.
        root: The folder with datasets, or else ``$PYG_SAR_DATA``, or else ``dataset`` as for ogb.
        attrs: A file of what PyG's own Partitioner left out of its folder, see
            :func:`~pyg_sar.partitioner.sources.pyg_folder.read_pyg_folder`.
        scratch: Where tables and compressed arrays are unpacked. With it tensors are mapped into
            memory and not read, those of .pt files, .npy files and uncompressed .npz files where
            they lie; without, the graph is in memory and its features dense.

    Raises:
        ValueError: If there is no such source, or it holds no graph.
    """
    source = Source(os.fspath(name_or_path), seed, root, attrs, scratch)
    reads, read = next((r for r in _READERS if r[0](source)), (None, _refuse))
    if attrs is not None and reads is not _is_pyg_folder:
        raise ValueError(
            f"'attrs' applies to folders of torch_geometric.distributed alone (got '{source.name}')"
        )
    found = read(source)
    if not isinstance(found, Mapping):
        return found
    data = graph_of_arrays(found, source.name, is_sparse=scratch is not None)
    if scratch is None:
        for store in data.edge_stores:
            store['edge_index'] = store['edge_index'].to(torch.int64)
    return data


def _is_pyg_folder(source: Source) -> bool:
    return source.path.is_dir() and source.name not in NAMES and is_pyg_folder(source.path)


def _built_in(source: Source) -> Data | HeteroData:
    file = resources.files('pyg_sar') / 'datasets' / BUILT_IN[source.name]
    with resources.as_file(file) as path:
        arrays = read_npz(path)
    # What tells about the graph is not cut.
    kept = {k: v for k, v in arrays.items() if v.dtype.kind in 'iuf' and '_directed' not in k}
    data: Any = graph_of_arrays(kept, source.name, is_sparse=source.scratch is not None)
    for store in data.edge_stores:
        store['edge_index'] = store['edge_index'].to(torch.int64)
    labelled = data['synset'] if isinstance(data, HeteroData) else data
    labelled.num_classes = int(labelled.y.max()) + 1
    return data


def _read_ogb(source: Source) -> Data | HeteroData:
    if source.name not in OGB:
        raise ValueError(f"expected one of {', '.join(OGB)} (got '{source.name}')")
    return load_ogb(source.name, source.datasets, source.scratch or Scratch())


def _read_folder(source: Source) -> dict[str, Any]:
    edges = source.edge_files
    if len(edges) > 1:
        names = [file.name for file in edges]
        raise ValueError(f"expected one file of edges in '{source.path}' (got {names})")
    arrays: dict[str, Any] = {n: map_array(file) for n, file in array_files(source.path).items()}
    if source.scratch is None:
        arrays = {name: np.array(array) for name, array in arrays.items()}
    if edges[0].suffix in TABLES:
        arrays.update(read_table(edges[0], source.scratch or Scratch()))
    return arrays


def _refuse(source: Source) -> Data:
    path = source.path
    what = 'a folder' if path.is_dir() else 'a file' if path.exists() else 'no such file'
    raise ValueError(
        'expected a .pt, .npz, .parquet or .csv file, a folder with edge_index.npy or of '
        f"torch_geometric.distributed, or one of {', '.join(NAMES)} (got '{source.name}', {what})"
    )


_READERS: tuple[tuple[Callable[[Source], bool], Callable[[Source], Any]], ...] = (
    (_is_pyg_folder, lambda s: read_pyg_folder(s.path, s.attrs)),
    (lambda s: s.name in BUILT_IN, _built_in),
    (lambda s: s.is_file('.pt'), lambda s: read_saved(s.path, is_mapped=s.scratch is not None)),
    (lambda s: s.is_file('.npz'), lambda s: read_npz(s.path, scratch=s.scratch)),
    (lambda s: bool(s.edge_files), _read_folder),
    (
        lambda s: s.name.startswith('synthetic:'),
        lambda s: synthetic_graph(shape_of(s.name.removeprefix('synthetic:')), seed=s.seed),
    ),
    (lambda s: s.name.startswith('ogbn-'), _read_ogb),
    (lambda s: is_class(s.name), lambda s: load_class(s.name, s.datasets)),
)
"""Which sources a reader reads, and what it gives: a graph, or arrays by name."""
