"""The node datasets of the Open Graph Benchmark, from a folder that holds them.

Nothing is downloaded and nothing asked: ogb's own dataset classes do both. The files are read by
ogb's readers; ogbn-papers100M is too large for these: its arrays are mapped, compressed ones from
scratch space.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.masks import MASKS, mask_of
from pyg_sar.partition.memmap import Scratch
from pyg_sar.partition.sources.arrays import read_npz

URL = 'http://snap.stanford.edu/ogb/data/nodeproppred'


@dataclass(frozen=True)
class OgbDataset:
    """Facts on a dataset that its files do not hold."""

    archive: str  # name of the archive and of the folder in it
    download: str  # size of the archive
    split: str
    num_classes: int  # classes, or tasks with several labels per node
    key_file: str = 'edge.csv.gz'  # a file in ``raw/`` that is there if the dataset is
    node_file: str | None = None  # name of a node attribute beside features and labels
    add_inverse_edge: bool = False  # whether the files hold one direction of every edge


OGB = {
    'ogbn-arxiv': OgbDataset('arxiv', '80 MB', 'time', 40, node_file='node_year'),
    'ogbn-mag': OgbDataset(
        'mag', '400 MB', 'time', 349, 'triplet-type-list.csv.gz', node_file='node_year'
    ),
    'ogbn-papers100M': OgbDataset('papers100M-bin', '56 GB', 'time', 172, 'data.npz'),
    'ogbn-products': OgbDataset('products', '1.4 GB', 'sales_ranking', 47, add_inverse_edge=True),
    'ogbn-proteins': OgbDataset(
        'proteins', '220 MB', 'species', 112, node_file='node_species', add_inverse_edge=True
    ),
}


def load_ogb(name: str, root: Path, scratch: Scratch) -> Data | HeteroData:
    """Loads a dataset of :data:`OGB` from a folder with OGB's datasets.

    ``x``, ``edge_index``, ``edge_attr``, ``y`` and the further node attribute are as ogb's own
    PygNodePropPredDataset gives them, except that one label per node is int64 [N], -1 where there
    is none; beside them the dataset's split, as masks and as lists (``train_idx``, ``valid_idx``,
    ``test_idx``), and ``num_classes``. Edges are as the dataset has them: arxiv, papers100M and mag
    are directed.
    """
    dataset = OGB[name]
    folder = _folder(name, dataset, root)
    if name == 'ogbn-papers100M':
        return _mapped(folder, dataset, scratch)
    if find_spec('ogb') is None:
        raise ValueError(
            f"'{name}' is read by the package ogb (got no such package): pip install 'pyg_sar[ogb]'"
        )
    read_graph_raw = _ogb_readers()
    raw, split = str(folder / 'raw'), folder / 'split' / dataset.split
    files = [] if dataset.node_file is None else [dataset.node_file]
    with contextlib.redirect_stdout(io.StringIO()):  # ogb tells of every step
        if name == 'ogbn-mag':
            graph = read_graph_raw.read_csv_heterograph_raw(raw, additional_node_files=files)[0]
            labels = read_graph_raw.read_node_label_hetero(raw)
            index = read_graph_raw.read_nodesplitidx_split_hetero(str(split))
            return _hetero(graph, labels, index, dataset)
        graph = read_graph_raw.read_csv_graph_raw(
            raw, add_inverse_edge=dataset.add_inverse_edge, additional_node_files=files
        )[0]
    data = Data(edge_index=_tensor(graph['edge_index']), num_nodes=int(graph['num_nodes']))
    names = ('x', 'node_feat'), ('edge_attr', 'edge_feat'), *((file, file) for file in files)
    for ours, theirs in names:
        if graph[theirs] is not None:
            data[ours] = _tensor(graph[theirs])
    import pandas

    labels = pandas.read_csv(folder / 'raw' / 'node-label.csv.gz', header=None).to_numpy()
    _add_task(data, labels, _read_split(split), dataset)
    return data


def _ogb_readers() -> Any:
    """The readers of ogb, imported without its look on the internet for a newer version."""
    is_known = 'outdated' in sys.modules
    if not is_known:
        sys.modules['outdated'] = None  # type: ignore[assignment]
    try:
        return importlib.import_module('ogb.io.read_graph_raw')
    finally:
        if not is_known:
            del sys.modules['outdated']


def _folder(name: str, dataset: OgbDataset, root: Path) -> Path:
    """Where a dataset lies: as ogb names the folder, or as its archive does."""
    wanted = root / name.replace('-', '_')
    for folder in (wanted, root / dataset.archive):
        if (folder / 'raw' / dataset.key_file).is_file():
            return folder
    raise ValueError(
        f"expected the files of {name} in '{wanted}' (got no '{wanted / 'raw' / dataset.key_file}')"
        f'. Fetch {URL}/{dataset.archive}.zip ({dataset.download}), unzip it in '
        f"'{root}' and name its folder '{wanted.name}', or say with --datasets where "
        'it is'
    )


def _hetero(
    graph: dict[str, Any], labels: dict[str, Any], index: Any, dataset: OgbDataset
) -> HeteroData:
    data = HeteroData()
    for key, count in graph['num_nodes_dict'].items():
        data[key].num_nodes = int(count)
    for key, edge_index in graph['edge_index_dict'].items():
        data[key].edge_index = _tensor(edge_index)
    for ours, theirs in (('x', 'node_feat_dict'), ('node_year', 'node_year')):
        for key, values in (graph[theirs] or {}).items():
            data[key][ours] = _tensor(values)
    for key, values in labels.items():
        _add_task(data[key], values, [part[key] for part in index], dataset)
    return data


def _mapped(folder: Path, dataset: OgbDataset, scratch: Scratch) -> Data:
    """ogbn-papers100M: its arrays stay on disk, but for the labels."""
    arrays = read_npz(folder / 'raw' / dataset.key_file, scratch=scratch)
    data = Data(num_nodes=int(arrays['num_nodes_list'][0]))
    for ours, theirs in (('edge_index', 'edge_index'), ('x', 'node_feat'), ('node_year',) * 2):
        if theirs in arrays:
            data[ours] = torch.from_numpy(arrays[theirs])
    labels = read_npz(folder / 'raw' / 'node-label.npz')['node_label']
    _add_task(data, labels, _read_split(folder / 'split' / dataset.split), dataset)
    return data


def _tensor(values: Any) -> Tensor:
    """An array as a tensor; what pandas gives may be read-only or of another memory order."""
    return torch.from_numpy(np.require(values, requirements=['C', 'W']))


def _add_task(store: Any, labels: Any, split: list[Any], dataset: OgbDataset) -> None:
    """Labels, int64 [N] and -1 where there is none, or several per node; split; classes."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind == 'f' and labels.ndim == 1:
        labels = np.where(np.isnan(labels), np.float32(-1), labels)
    store.y = _tensor(labels).long()
    for name, mask, ids in zip(('train', 'valid', 'test'), MASKS, split, strict=True):
        store[f'{name}_idx'] = _tensor(ids)
        store[mask] = mask_of(store[f'{name}_idx'], store.num_nodes)
    store.num_classes = dataset.num_classes


def _read_split(folder: Path) -> list[Any]:
    parts = []
    for name in ('train', 'valid', 'test'):
        path = folder / f'{name}.csv.gz'
        if not path.is_file():
            raise ValueError(f"expected the split of the dataset in '{path}' (got no such file)")
        parts.append(np.loadtxt(path, dtype=np.int64, ndmin=1))
    return parts
