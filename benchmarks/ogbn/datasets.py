"""The datasets of OGB as PyG graphs with masks, and synthetic graphs of the same shape."""

from __future__ import annotations

import torch
from cached_graphs import WORDNET, load_graph
from configs import CONFIGS, MAG_EDGES, MAG_NODES, SHIPPED, Config
from synthetic import GraphShape, synthetic_graph
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.datasets import KarateClub
from torch_geometric.transforms import ToUndirected
from torch_geometric.utils import scatter, to_undirected

from pyg_sar.partition.masks import random_split
from pyg_sar.partition.sources import load_source


def load(name: str, root: str, *, scale: float, seed: int) -> Data | HeteroData:
    """The graph with x, y, masks and num_classes; undirected.

    Args:
        name: One of ``CONFIGS`` or ``SHIPPED``, or ``synthetic:NAME`` for a graph of its shape.
        root: The folder with OGB's datasets.
        scale: Share of the nodes and edges of a synthetic graph.
        seed: Of a synthetic graph.

    Raises:
        ValueError: If there is no such dataset, its files are not there, or ogb is not installed.
    """
    if name in SHIPPED:
        return _shipped(name)
    kind, _, short = name.rpartition(':')
    short = short.removeprefix('ogbn-')
    if short not in CONFIGS or kind not in ('', 'synthetic'):
        raise ValueError(f"expected one of {', '.join(CONFIGS)}, or synthetic:NAME (got '{name}')")
    config = CONFIGS[short]
    data = _synthetic(short, config, scale, seed) if kind else _read(short, config, root)
    if short == 'mag':
        data = ToUndirected()(data)
        data['paper'].num_classes = config.num_outputs
    else:
        if short == 'proteins':  # as OGB's and PyG's examples do
            dst = data.edge_index[1]
            data.x = scatter(data.edge_attr, dst, 0, data.num_nodes, reduce='mean')
        data.num_classes = config.num_outputs
    return data


def check_name(name: str) -> None:
    """Raises a ValueError if there is no such dataset."""
    if name not in SHIPPED and name.removeprefix('synthetic:') not in CONFIGS:
        names = ', '.join((*SHIPPED, *CONFIGS))
        raise ValueError(f"expected one of {names}, or synthetic:NAME (got '{name}')")


def _shipped(name: str) -> Data:
    if name == WORDNET:
        return load_graph(name)
    data: Data = KarateClub()[0]
    data.val_mask = data.test_mask = ~data.train_mask
    data.num_classes = SHIPPED[name].num_outputs
    return data


def _read(name: str, config: Config, root: str) -> Data | HeteroData:
    data = load_source(f'ogbn-{name}', root=root)
    if name == 'proteins':
        data.y = data.y.float()
    elif config.is_directed and name != 'mag':
        data.edge_index = to_undirected(data.edge_index, num_nodes=data.num_nodes)
    return data


def _synthetic(name: str, config: Config, scale: float, seed: int) -> Data | HeteroData:
    if name == 'mag':
        return _synthetic_mag(config, scale, seed)
    num_nodes = max(round(config.num_nodes * scale), 50)
    # Dense graphs become complete ones when they shrink: not more than a sixteenth of all pairs.
    num_pairs = min(round(config.num_pairs * scale), num_nodes * (num_nodes - 1) // 32)
    is_multi = name == 'proteins'
    classes = 16 if is_multi else config.num_outputs
    shape = GraphShape(num_nodes, num_pairs, config.num_features, classes)
    data = synthetic_graph(shape, seed=seed)
    if is_multi:
        generator = torch.Generator().manual_seed(seed)
        src, dst = data.edge_index
        # Edge features tell of the classes they join, labels are random subsets of the classes.
        centres = torch.rand(classes, config.num_features, generator=generator)
        noise = torch.rand(data.num_edges, config.num_features, generator=generator)
        data.edge_attr = (centres[data.y[src]] + centres[data.y[dst]] + noise) / 3
        member = torch.rand(classes, config.num_outputs, generator=generator) < 0.3
        data.y = member[data.y].float()
    return data


def _synthetic_mag(config: Config, scale: float, seed: int) -> HeteroData:
    """Every node has a hidden class, and two thirds of the edges join nodes of one class."""
    generator = torch.Generator().manual_seed(seed)
    num_classes = config.num_outputs
    data = HeteroData()
    classes: dict[str, Tensor] = {}
    for key, full in MAG_NODES.items():
        count = max(round(full * scale), 50)
        data[key].num_nodes = count
        classes[key] = torch.randint(num_classes, (count,), generator=generator)
    for key, full in MAG_EDGES.items():
        count = max(round(full * scale), 100)
        src = torch.randint(classes[key[0]].numel(), (count,), generator=generator)
        dst = torch.randint(classes[key[2]].numel(), (count,), generator=generator)
        order = classes[key[2]].argsort(stable=True)
        ptr = torch.searchsorted(classes[key[2]][order], torch.arange(num_classes + 1))
        low, high = ptr[classes[key[0]][src]], ptr[classes[key[0]][src] + 1]
        pick = low + (torch.rand(count, generator=generator) * (high - low)).long()
        alike = (torch.rand(count, generator=generator) < 2 / 3) & (high > low)
        dst = torch.where(alike, order[pick.clamp(max=order.numel() - 1)], dst)
        data[key].edge_index = torch.stack([src, dst]).unique(dim=1)
    paper = data['paper']
    paper.y = classes['paper']
    centres = torch.randn(num_classes, config.num_features, generator=generator)
    noise = torch.randn(paper.y.numel(), config.num_features, generator=generator)
    paper.x = centres[paper.y] + 3 * noise
    paper.update(random_split(paper.y, paper.y.numel(), (0.85, 0.09, 0.06), seed=seed))
    return data
