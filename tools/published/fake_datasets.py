"""Small graphs under the names of the datasets that published scripts download."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.utils import coalesce, to_undirected

NUM_NODES = 120


class Draw:
    """Draws numbers of its own, so that the program's draws stay as they are."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def ids(self, end: int, *size: int) -> Tensor:
        """Whole numbers below `end`."""
        return torch.randint(end, size, generator=self.generator)

    def normal(self, *size: int) -> Tensor:
        """Normal numbers in double precision."""
        return torch.randn(size, generator=self.generator, dtype=torch.double)

    def words(self, *size: int) -> Tensor:
        """Zeros and ones, as of a bag of words; the first is 1."""
        words = (torch.rand(size, generator=self.generator) < 0.3).double()
        words[:, 0] = 1
        return words

    def pairs(self, num_sources: int, num_targets: int, num_edges: int) -> Tensor:
        """Different edges between two types of nodes."""
        ends = [self.ids(num_sources, num_edges), self.ids(num_targets, num_edges)]
        return coalesce(torch.stack(ends), sort_by_row=True)

    def masks(self, num_nodes: int, *more: int) -> tuple[Tensor, Tensor, Tensor]:
        """Nodes for training, validation and tests."""
        draw = torch.rand((num_nodes, *more), generator=self.generator)
        return draw < 0.35, (draw >= 0.35) & (draw < 0.65), draw >= 0.65


def planetoid(
    *, num_features: int = 16, num_classes: int = 4, splits: tuple[int, ...] = (), directed: bool = False
) -> Data:
    """A graph of documents; `splits` is the number of its splits, if there are several."""
    draw = Draw()
    edge_index = draw.pairs(NUM_NODES, NUM_NODES, 300)
    if not directed:
        edge_index = to_undirected(edge_index)
    data = Data(x=draw.words(NUM_NODES, num_features), edge_index=edge_index)
    data.y = draw.ids(num_classes, NUM_NODES)
    data.y[:num_classes] = torch.arange(num_classes)
    data.train_mask, data.val_mask, data.test_mask = draw.masks(NUM_NODES, *splits)
    return data


def entities() -> Data:
    """Relations between nodes without features; few of them have a label."""
    draw = Draw()
    edge_index = draw.pairs(NUM_NODES, NUM_NODES, 400)
    chosen = torch.randperm(NUM_NODES, generator=draw.generator)
    return Data(
        edge_index=edge_index,
        edge_type=draw.ids(6, edge_index.size(1)),
        num_nodes=NUM_NODES,
        train_idx=chosen[:30],
        train_y=draw.ids(4, 30),
        test_idx=chosen[30:45],
        test_y=draw.ids(4, 15),
    )


def _hetero(
    sizes: dict[str, int], edges: list[tuple[str, str, str]], features: dict[str, int], seed: int = 0
) -> HeteroData:
    draw, data = Draw(seed), HeteroData()
    for kind, size in sizes.items():
        if kind in features:
            data[kind].x = draw.words(size, features[kind])
        else:
            data[kind].num_nodes = size
    for source, relation, target in edges:
        if (target, relation, source) in data.edge_types and source != target:
            data[source, relation, target].edge_index = data[
                target, relation, source
            ].edge_index.flip(0)
        else:
            data[source, relation, target].edge_index = draw.pairs(
                sizes[source], sizes[target], 2 * max(sizes[source], sizes[target])
            )
    return data


def _labelled(data: HeteroData, kind: str, num_classes: int) -> HeteroData:
    draw, store = Draw(7), data[kind]
    store.y = draw.ids(num_classes, store.num_nodes)
    store.y[:num_classes] = torch.arange(num_classes)
    store.train_mask, store.val_mask, store.test_mask = draw.masks(store.num_nodes)
    return data


def imdb() -> HeteroData:
    """Films with directors and actors."""
    ends = [('movie', 'director'), ('director', 'movie'), ('movie', 'actor'), ('actor', 'movie')]
    sizes = {'movie': 80, 'director': 30, 'actor': 60}
    data = _hetero(sizes, [(a, 'to', b) for a, b in ends], dict.fromkeys(sizes, 12))
    return _labelled(data, 'movie', 3)


def dblp() -> HeteroData:
    """Authors, papers, terms, and conferences without features."""
    ends = [('author', 'paper'), ('paper', 'term'), ('paper', 'conference')]
    edges = [(a, 'to', b) for one, other in ends for a, b in ((one, other), (other, one))]
    sizes = {'author': 60, 'paper': 80, 'term': 40, 'conference': 5}
    data = _hetero(sizes, edges, {'author': 12, 'paper': 10, 'term': 8})
    return _labelled(data, 'author', 4)


class _Fake(InMemoryDataset):
    make: Callable[..., Any] = staticmethod(planetoid)

    def __init__(self, *args: Any, transform: Any = None, pre_transform: Any = None, **kwargs: Any) -> None:
        for each in args[1:]:
            if callable(each) and transform is None:
                transform = each
        super().__init__(None, transform)
        made = self.make(*args[1:], **kwargs)
        graphs = made if isinstance(made, list) else [made]
        if pre_transform is not None:
            graphs = [pre_transform(graph) for graph in graphs]
        self._data, self.slices = self.collate(graphs)

    @property
    def num_relations(self) -> int:
        """Twice, as PyG's datasets count the way back."""
        return int(self._data.edge_type.max()) + 1


class _Ogb(_Fake):
    def get_idx_split(self) -> dict[str, Tensor]:
        """Lists of nodes."""
        masks = Draw(3).masks(self._data.num_nodes)
        return {
            name: mask.nonzero().view(-1) for name, mask in zip(('train', 'valid', 'test'), masks)
        }


def _dataset(make: Callable[..., Any], base: type = _Fake) -> type:
    return type('Fake', (base,), {'make': staticmethod(lambda *args, **kwargs: make())})


def _arxiv() -> Data:
    data = planetoid(directed=True)
    return Data(x=data.x, edge_index=data.edge_index, y=data.y.view(-1, 1), num_nodes=NUM_NODES)


DATASETS: dict[str, dict[str, type]] = {
    'torch_geometric.datasets': {
        'Planetoid': _dataset(planetoid),
        'Reddit': _dataset(planetoid),
        'Flickr': _dataset(planetoid),
        'WikipediaNetwork': _dataset(lambda: planetoid(splits=(10,), directed=True)),
        'LINKXDataset': _dataset(lambda: planetoid(splits=(5,))),
        'WikiCS': _dataset(lambda: planetoid(splits=(20,))),
        'Entities': _dataset(entities),
        'IMDB': _dataset(imdb),
        'DBLP': _dataset(dblp),
    },
    'ogb.nodeproppred': {'PygNodePropPredDataset': _dataset(_arxiv, _Ogb)},
}


def install() -> None:
    """Puts the small graphs in the place of datasets, in this process."""
    for module, datasets in DATASETS.items():
        if module.split('.')[0] == 'ogb' and 'ogb' not in sys.modules:
            continue
        for name, dataset in datasets.items():
            setattr(importlib.import_module(module), name, dataset)
