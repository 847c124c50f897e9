"""The graphs of the benchmarks and their cuts, made once and kept in .cache/ beside this file."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import torch
from synthetic import shape_of, synthetic_graph
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import pyg_sar
from pyg_sar.partition.masks import random_split
from pyg_sar.partition.sources import load_source

CACHE = Path(__file__).resolve().parent / '.cache'
SEED = 0

ARXIV = 'synthetic:arxiv'
WORDNET = 'wordnet-noun'
NOUNS = CACHE.parents[1] / 'examples' / 'data' / 'wordnet_noun.npz'
TINY = 'synthetic:1500,6000'
"""1,500 nodes and 12,000 directed edges: to see that a benchmark runs."""


def make(name: str, seed: int = SEED) -> Data:
    """The graph of a name.

    ``'synthetic:NAME'`` has one of ``synthetic.SHAPES``, ``'synthetic:N,E'`` N nodes, E undirected
    edges, 32 features and 8 classes; ``'wordnet-noun'`` is in examples/data; any other name is
    what the partitioner takes.
    """
    kind, _, shape = name.partition(':')
    if kind == 'synthetic':
        return synthetic_graph(shape_of(shape), seed=seed)
    data: Data = load_source(NOUNS if name == WORDNET else name)
    if 'num_classes' not in data:
        data.num_classes = int(data.y.max()) + 1
    return data


def graph_file(name: str) -> Path:
    """A .pt file with the graph as a PyG Data, with masks and num_classes.

    Args:
        name: What :func:`make` takes.
    """
    path = _folder(name) / 'graph.pt'
    if not path.exists():
        data = make(name)
        if 'train_mask' not in data:
            data.update(random_split(data.y, data.num_nodes, (0.6, 0.2, 0.2), seed=SEED))
        _save(data, path)
    return path


def load_graph(name: str) -> Data:
    """The graph itself."""
    data: Data = torch.load(graph_file(name), weights_only=False)
    return data


def cut(name: str, num_parts: int) -> Path:
    """A partition folder with the graph cut into `num_parts` by METIS."""
    folder = _folder(name) / f'parts{num_parts}'
    if not folder.exists():
        pyg_sar.partition_graph(load_graph(name), num_parts, folder, seed=SEED)
    return folder


def sizes(name: str) -> dict[str, int]:
    data = load_graph(name)
    return {
        'num_nodes': data.num_nodes,
        'num_edges': data.num_edges,
        'num_features': data.num_features,
        'num_classes': data.num_classes if 'num_classes' in data else int(data.y.max()) + 1,
    }


def read_all(data: Data | HeteroData) -> None:
    """Reads a shard's files, which are only mapped: so that loading is not measured later."""
    for store in pyg_sar.local(data).stores:
        for value in store.values():
            if isinstance(value, Tensor) and value.layout == torch.strided:
                value.as_subclass(Tensor).sum()


def _folder(name: str) -> Path:
    folder = CACHE / re.sub(r'\W+', '-', name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _save(data: Data, path: Path) -> None:
    """Writes the file as a whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    os.close(handle)
    torch.save(data, name)
    Path(name).replace(path)
