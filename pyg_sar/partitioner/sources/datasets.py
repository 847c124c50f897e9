"""Datasets by name: OGB's, synthetic graphs, and every dataset class of PyG."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data, Dataset, HeteroData, TemporalData

from pyg_sar.partitioner.sources.named_class import named_class
from pyg_sar.partitioner.sources.ogb import OGB, load_ogb
from pyg_sar.partitioner.sources.synthetic import shape_of, synthetic_graph

# A class begins with a capital: 'graph.csv' is a file that is not there, not a class.
_DOTTED = re.compile(r'((?:[A-Za-z_]\w*\.)+)([A-Z]\w*)(?:\((.*)\))?')


def is_dataset(name: str) -> bool:
    """Whether a name is that of a dataset, and not that of a file."""
    return name.startswith(('ogbn-', 'synthetic:')) or _DOTTED.fullmatch(name) is not None


def load_dataset(
    name: str, *, root: str | os.PathLike[str] | None = None, seed: int = 0
) -> Data | HeteroData:
    """Loads a dataset by name.

    Args:
        name: ``'ogbn-arxiv'`` and the others of :data:`~pyg_sar.partitioner.sources.ogb.OGB`;
            ``'synthetic:arxiv'``, ``'synthetic:products'`` or ``'synthetic:N,E'``; or the path of a
            dataset class with its arguments, ``'torch_geometric.datasets.Planetoid(name=Cora)'``.
        root: The folder with datasets, or else ``$PYG_SAR_DATA``, or else ``dataset`` as for ogb.
        seed: Seed of a synthetic graph.

    Raises:
        ValueError: If there is no such dataset, or its files are not there.
    """
    if name.startswith('synthetic:'):
        return synthetic_graph(shape_of(name.removeprefix('synthetic:')), seed=seed)
    folder = Path(root or os.environ.get('PYG_SAR_DATA') or 'dataset')
    if not name.startswith('ogbn-'):
        return _load_pyg(name, folder)
    if name not in OGB:
        raise ValueError(f"expected one of {', '.join(OGB)} (got '{name}')")
    return load_ogb(name, folder)


def _load_pyg(name: str, root: Path) -> Data | HeteroData:
    cls, options = named_class(name, 'torch_geometric.datasets', Dataset)
    if 'root' in inspect.signature(cls).parameters:
        options.setdefault('root', str(root / cls.__name__))
    try:
        dataset: Any = cls(**options)
        graphs = len(dataset)
        data: Any = dataset[0] if graphs else None
    except Exception as error:  # of the dataset, of a download, of a file: anything
        where = f"; its files belong in '{options['root']}'" if 'root' in options else ''
        reason = ' '.join(f'{type(error).__name__}: {error}'.split())
        raise ValueError(f"could not load '{name}'{where} (got {reason})") from error
    if graphs != 1:
        raise ValueError(f"expected a dataset of one graph in '{name}' (got {graphs} graphs)")
    if isinstance(data, TemporalData):
        data = _edges_with_times(data)
    if not isinstance(data, (Data, HeteroData)):
        raise ValueError(f"expected a Data or HeteroData in '{name}' (got {type(data).__name__})")
    y = data.get('y') if isinstance(data, Data) else None
    if isinstance(y, torch.Tensor) and not y.is_floating_point() and 'num_classes' not in data:
        data.num_classes = int(dataset.num_classes)
    return data


def _edges_with_times(events: TemporalData) -> Data:
    names = {'t': 'edge_time', 'msg': 'edge_attr'}
    values = {
        names.get(key, f'edge_{key}'): value
        for key, value in events.to_dict().items()
        if key not in ('src', 'dst') and value is not None
    }
    return Data(
        edge_index=torch.stack([events.src, events.dst]), num_nodes=events.num_nodes, **values
    )
