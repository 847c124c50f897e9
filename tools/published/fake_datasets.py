"""Small graphs under the names of the datasets that published scripts download."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
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
    *,
    num_features: int = 16,
    num_classes: int = 4,
    splits: tuple[int, ...] = (),
    directed: bool = False,
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
    sizes: dict[str, int],
    edges: list[tuple[str, str, str]],
    features: dict[str, int],
    seed: int = 0,
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

    def __init__(
        self, *args: Any, transform: Any = None, pre_transform: Any = None, **kwargs: Any
    ) -> None:
        transform = transform or next((each for each in args if callable(each)), None)
        super().__init__(None, transform)
        made = self.make(*args, **kwargs)
        graphs = made if isinstance(made, list) else [made]
        if pre_transform is not None:
            graphs = [pre_transform(graph) for graph in graphs]
        self._data, self.slices = self.collate(graphs)

    def __getitem__(self, index: Any) -> Any:
        """A graph in double precision, or the graphs that a transform makes of it."""
        found = super().__getitem__(index)
        for each in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(each, (Data, HeteroData)):
                each.apply(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
        return found

    @property
    def num_classes(self) -> int:
        """As the labels say, which may be those of a list."""
        if 'train_y' in self._data:
            return int(max(self._data.train_y.max(), self._data.test_y.max())) + 1
        return super().num_classes

    @property
    def num_relations(self) -> int:
        """Twice, as PyG's datasets count the way back."""
        return int(self._data.edge_type.max()) + 1


class _Ogb(_Fake):
    def get_idx_split(self) -> dict[str, Tensor]:
        """Lists of nodes."""
        train, valid, test = (
            mask.nonzero().view(-1) for mask in Draw(3).masks(self._data.num_nodes)
        )
        return {'train': train, 'valid': valid, 'test': test}


def _dataset(make: Callable[..., Any], base: type = _Fake) -> type:
    return type('Fake', (base,), {'make': staticmethod(lambda *args, **kwargs: make())})


def _ogb(name: str, *args: Any, **kwargs: Any) -> Data:
    data = planetoid(directed=True)
    if name != 'ogbn-proteins':
        return Data(x=data.x, edge_index=data.edge_index, y=data.y.view(-1, 1), num_nodes=NUM_NODES)
    draw, num_edges = Draw(4), data.edge_index.size(1)
    return Data(
        edge_index=data.edge_index,
        edge_attr=draw.normal(num_edges, 8),
        y=draw.ids(2, NUM_NODES, 112),
        node_species=draw.ids(3, NUM_NODES, 1),
        num_nodes=NUM_NODES,
    )


def _movielens() -> HeteroData:
    data = _hetero({'user': 60, 'movie': 50}, [('user', 'rates', 'movie')], {'movie': 12})
    store = data['user', 'rates', 'movie']
    store.edge_label = Draw(5).ids(6, store.edge_index.size(1))
    store.time = Draw(6).ids(1000, store.edge_index.size(1))
    return data


def _books() -> HeteroData:
    data = _hetero(
        {'user': 60, 'book': 50}, [('user', 'rates', 'book'), ('book', 'rated_by', 'user')], {}
    )
    forth = data['user', 'rates', 'book']
    data['book', 'rated_by', 'user'].edge_index = forth.edge_index.flip(0)
    forth.edge_label_index = Draw(5).pairs(60, 50, 80)
    return data


def _knowledge(*args: Any, split: str = 'train') -> Data:
    draw = Draw(len(split))
    edge_index = draw.pairs(60, 60, 200 if split == 'train' else 20)
    edge_type = draw.ids(4, edge_index.size(1))
    edge_type[:4] = torch.arange(4)
    return Data(edge_index=edge_index, edge_type=edge_type, num_nodes=60)


def _relations() -> Data:
    train, valid, test = (_knowledge(split=split) for split in ('train', 'val', 'test!'))
    back = torch.cat([train.edge_index, train.edge_index.flip(0)], dim=1)
    return Data(
        num_nodes=60,
        edge_index=back,
        edge_type=torch.cat([train.edge_type, train.edge_type + 4]),
        train_edge_index=train.edge_index,
        train_edge_type=train.edge_type,
        valid_edge_index=valid.edge_index,
        valid_edge_type=valid.edge_type,
        test_edge_index=test.edge_index,
        test_edge_type=test.edge_type,
    )


def _tissues(*args: Any, split: str = 'train', **kwargs: Any) -> list[Data]:
    graphs = []
    for seed in range(2):
        draw = Draw(10 * len(split) + seed)
        edge_index = to_undirected(draw.pairs(60, 60, 150))
        graphs.append(
            Data(x=draw.normal(60, 12), edge_index=edge_index, y=draw.ids(2, 60, 5) * 1.0)
        )
    return graphs


def _trust() -> list[Data]:
    graphs = []
    for seed in range(4):
        draw = Draw(seed)
        edge_index = draw.pairs(80, 80, 90)
        edge_attr = draw.ids(20, edge_index.size(1)) - 10
        graphs.append(Data(edge_index=edge_index, edge_attr=edge_attr, num_nodes=80))
    return graphs


def _molecules() -> list[Data]:
    graphs = []
    for seed in range(24):
        draw = Draw(seed)
        x = torch.nn.functional.one_hot(draw.ids(3, 10), 3).double()
        edge_index = to_undirected(draw.pairs(10, 10, 14))
        graphs.append(Data(x=x, edge_index=edge_index, y=torch.tensor([seed % 2])))
    return graphs


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
        'MovieLens': _dataset(_movielens),
        'AmazonBook': _dataset(_books),
        'FB15k_237': type('Fake', (_Fake,), {'make': staticmethod(_knowledge)}),
        'RelLinkPredDataset': _dataset(_relations),
        'BitcoinOTC': _dataset(_trust),
        'PPI': type('Fake', (_Fake,), {'make': staticmethod(_tissues)}),
        'TUDataset': _dataset(_molecules),
    },
    'ogb.nodeproppred': {
        'PygNodePropPredDataset': type('Fake', (_Ogb,), {'make': staticmethod(_ogb)})
    },
}


def install() -> None:
    """Puts the small graphs in the place of datasets, in this process."""
    for module, datasets in DATASETS.items():
        if find_spec(module.split('.')[0]) is None:
            continue
        for name, dataset in datasets.items():
            setattr(importlib.import_module(module), name, dataset)
