"""Datasets by name, from a folder that holds them; and transforms of a graph by name.

A class, of PyG or of a user, comes with its arguments. The node datasets of the Open Graph
Benchmark are read by ogb's readers; nothing is downloaded and nothing asked, as ogb's own classes
do. The arrays of ogbn-papers100M are mapped, compressed ones from scratch space.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import inspect
import io
import re
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, Dataset, HeteroData

from pyg_sar.partition.attributes import owners
from pyg_sar.partition.graph import with_wide_ids
from pyg_sar.partition.masks import MASKS, mask_of
from pyg_sar.partition.memmap import Scratch
from pyg_sar.partition.sources.files import read_npz
from pyg_sar.shard.format import NODE_NAMES

_CLASS = re.compile(r'([A-Za-z_]\w*\.)+[A-Z]\w*(\(.*\))?')


def is_class(name: str) -> bool:
    """Whether a name is that of a class in a module: 'graph.csv' is a file that is not there."""
    return _CLASS.fullmatch(name) is not None


def named_class(text: str, module: str, kind: type = object) -> tuple[type[Any], dict[str, Any]]:
    """The class that a text names, a subclass of `kind`, and its arguments; words are strings.

    Such as ``'Class'``, of `module`, or ``'module.Class(name=Cora, num_nodes=100)'``.
    """
    try:
        named: Any = ast.parse(text, mode='eval').body
        call = named if isinstance(named, ast.Call) else ast.Call(named, [], [])
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError('arguments without a name')
        values = {str(keyword.arg): keyword.value for keyword in call.keywords}
        options = {
            k: v.id if isinstance(v, ast.Name) else ast.literal_eval(v) for k, v in values.items()
        }
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            "expected a class such as 'module.Class', with arguments such as (name=Cora, "
            f"num_nodes=100) (got '{text}': {error})"
        ) from error
    home, _, name = ast.unparse(call.func).rpartition('.')
    try:
        of = import_module(home or module)
        cls = getattr(of, name, None)
        alike = {name.lower(): name for name in dir(of)}
        near = difflib.get_close_matches(name.lower(), alike, 1)
        hint = f'; do you mean {alike[near[0]]}?' if near else f' in {home or module}'
        got = f'nothing of that name{hint}' if cls is None else repr(cls)
    except ImportError as error:
        cls, got = None, str(error)
    if not (isinstance(cls, type) and issubclass(cls, kind)):
        what = 'a class' if kind is object else f'a subclass of {kind.__name__}'
        raise ValueError(f"expected {what} in '{text}' (got {got})")
    return cls, options


def transformed(data: Data | HeteroData, text: str, *, seed: int = 0) -> Data | HeteroData:
    """The graph after a transform; what it writes to mapped features stays in memory.

    `text` names a class of torch_geometric.transforms, or ``'my_module.MyTransform'``, with its
    arguments. `seed` is for transforms that draw numbers. Names of nodes follow the nodes.
    """
    cls, options = named_class(text, 'torch_geometric.transforms')
    if isinstance(data, Data) and data.num_nodes == data.num_edges:
        _check_owners(data, text)
    torch.manual_seed(seed)
    names = _names_with_places(data)
    try:
        out: Any = cls(**options)(with_wide_ids(data))
    except Exception as error:  # of any transform, on any graph
        raise ValueError(f"could not apply the transform '{text}' {_got(error)}") from error
    if not isinstance(out, (Data, HeteroData)):
        raise ValueError(f"expected one graph from '{text}' (got {type(out).__name__})")
    for store in out.stores:
        places = store.pop(_PLACES, None)
        if places is None or store.get(NODE_NAMES) is not names.get(store._key):
            continue  # which the transform has set
        count, given = store.num_nodes, names[store._key]
        if len(places) != count or not places.all():
            raise ValueError(
                f"expected no new nodes from '{text}', as nodes have names (got {count} nodes and "
                f'{len(given)} names): a transform of yours may set {NODE_NAMES}, or delete it'
            )
        store[NODE_NAMES] = given.take(import_module('pyarrow').array((places - 1).numpy()))
    return out


_PLACES = f'places_in_{NODE_NAMES}'


def _check_owners(data: Data, text: str) -> None:
    """Raises ValueError where names of columns tell PyG of other owners than their tables do."""
    for name, owner in owners(data).items():
        if (owner == 'edge') != ('edge' in name):
            raise ValueError(
                f"expected 'edge' in the names of columns of edges alone, before '{text}' of "
                f'{data.num_nodes} nodes and as many edges, which PyG tells apart by it (got '
                f"'{name}' of {owner}s): rename the column"
            )


def _names_with_places(data: Data | HeteroData) -> dict[Any, Any]:
    """Names of nodes by type; their places, from 1 on, become rows, as a transform may drop."""
    found = {}
    for store in data.stores:
        if (names := store.get(NODE_NAMES)) is not None:
            if isinstance(names, list):  # of which PyG takes no rows
                store[NODE_NAMES] = names = import_module('pyarrow').array(names)
            found[store._key] = names
            store[_PLACES] = torch.arange(1, 1 + len(names))
    return found


def load_class(name: str, root: Path) -> Data | HeteroData:
    """The graph of a dataset class of PyG, whose files lie or come to lie in `root`."""
    cls, options = named_class(name, 'torch_geometric.datasets', Dataset)
    if 'root' in inspect.signature(cls).parameters:
        options.setdefault('root', str(root / cls.__name__))
    try:
        dataset: Any = cls(**options)
        graphs = len(dataset)
        data: Any = dataset[0] if graphs else None
    except Exception as error:  # of the dataset, of a download, of a file: anything
        where = f"; its files belong in '{options['root']}'" if 'root' in options else ''
        raise ValueError(f"could not load '{name}'{where} {_got(error)}") from error
    if graphs != 1:
        raise ValueError(f"expected a dataset of one graph in '{name}' (got {graphs} graphs)")
    if not isinstance(data, (Data, HeteroData)):
        raise ValueError(f"expected a Data or HeteroData in '{name}' (got {type(data).__name__})")
    y = data.get('y') if isinstance(data, Data) else None
    if isinstance(y, Tensor) and not y.is_floating_point() and 'num_classes' not in data:
        data.num_classes = int(dataset.num_classes)
    return data


def _got(error: Exception) -> str:
    return f'(got {" ".join(f"{type(error).__name__}: {error}".split())})'


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
    'ogbn-papers100M': OgbDataset('papers100M-bin', '56 GB', 'time', 172, 'data.npz', 'node_year'),
    'ogbn-products': OgbDataset('products', '1.4 GB', 'sales_ranking', 47, add_inverse_edge=True),
    'ogbn-proteins': OgbDataset(
        'proteins', '220 MB', 'species', 112, node_file='node_species', add_inverse_edge=True
    ),
}


def load_ogb(name: str, root: Path, scratch: Scratch) -> Data | HeteroData:
    """Loads a dataset of :data:`OGB` from a folder with OGB's datasets.

    It is as by ogb's PygNodePropPredDataset, directed where that is, except that one label per node
    is int64 [N], -1 where there is none. Beside it are the dataset's split, as masks and as lists
    (``train_idx``, ``valid_idx``, ``test_idx``), and ``num_classes``.
    """
    if name not in OGB:
        raise ValueError(f"expected one of {', '.join(OGB)} (got '{name}')")
    dataset = OGB[name]
    folder = _ogb_folder(name, dataset, root)
    raw, split = folder / 'raw', folder / 'split' / dataset.split
    if name == 'ogbn-papers100M':
        graph: Any = read_npz(raw / dataset.key_file, scratch=scratch)
        graph['num_nodes'] = graph['num_nodes_list'][0]
        labels = read_npz(raw / 'node-label.npz')['node_label']
        return _ogb_data(graph, labels, _read_split(split), dataset)
    if find_spec('ogb') is None:
        raise ValueError(
            f"'{name}' is read by the package ogb (got no such package): pip install 'pyg_sar[ogb]'"
        )
    readers = _ogb_readers()
    files = [] if dataset.node_file is None else [dataset.node_file]
    with contextlib.redirect_stdout(io.StringIO()):  # ogb tells of every step
        if name == 'ogbn-mag':
            graph = readers.read_csv_heterograph_raw(str(raw), additional_node_files=files)[0]
            labels = readers.read_node_label_hetero(str(raw))
            index = readers.read_nodesplitidx_split_hetero(str(split))
            return _ogb_hetero(graph, labels, index, dataset)
        graph = readers.read_csv_graph_raw(
            str(raw), add_inverse_edge=dataset.add_inverse_edge, additional_node_files=files
        )[0]
    import pandas

    labels = pandas.read_csv(raw / 'node-label.csv.gz', header=None).to_numpy()
    return _ogb_data(graph, labels, _read_split(split), dataset)


def _ogb_readers() -> Any:
    """The readers of ogb, imported without its look on the internet for a newer version."""
    is_known = 'outdated' in sys.modules
    if not is_known:
        sys.modules['outdated'] = None  # type: ignore[assignment]
    try:
        return import_module('ogb.io.read_graph_raw')
    finally:
        if not is_known:
            del sys.modules['outdated']


def _ogb_folder(name: str, dataset: OgbDataset, root: Path) -> Path:
    """Where a dataset lies: as ogb names the folder, or as its archive does."""
    wanted = root / name.replace('-', '_')
    for folder in (wanted, root / dataset.archive):
        if (folder / 'raw' / dataset.key_file).is_file():
            return folder
    raise ValueError(
        f"expected the files of {name} in '{wanted}' (got no '{wanted / 'raw' / dataset.key_file}')"
        f'. Fetch http://snap.stanford.edu/ogb/data/nodeproppred/{dataset.archive}.zip '
        f"({dataset.download}), unzip it in '{root}' and name its folder '{wanted.name}', or say "
        'with --datasets where it is'
    )


def _ogb_data(graph: Any, labels: Any, split: list[Any], dataset: OgbDataset) -> Data:
    data = Data(num_nodes=int(graph['num_nodes']))
    names = ('edge_index', 'edge_index'), ('x', 'node_feat'), ('edge_attr', 'edge_feat')
    for ours, theirs in (*names, (dataset.node_file, dataset.node_file)):
        if graph.get(theirs) is not None:
            data[ours] = _tensor(graph[theirs])
    _add_task(data, labels, split, dataset)
    return data


def _ogb_hetero(graph: Any, labels: Any, index: Any, dataset: OgbDataset) -> HeteroData:
    data = HeteroData()
    for key, count in graph['num_nodes_dict'].items():
        data[key].num_nodes = int(count)
    names = {'edge_index': 'edge_index_dict', 'x': 'node_feat_dict', 'node_year': 'node_year'}
    for ours, theirs in names.items():
        for key, values in (graph[theirs] or {}).items():
            data[key][ours] = _tensor(values)
    for key, values in labels.items():
        _add_task(data[key], values, [part[key] for part in index], dataset)
    return data


def _tensor(values: Any) -> Tensor:
    """An array as a tensor; what pandas gives may be read-only."""
    return torch.from_numpy(np.require(values, requirements='W'))


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
