"""The datasets of OGB as PyG graphs with masks, and synthetic graphs of the same shape."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import torch
from configs import CONFIGS, MAG_EDGES, MAG_NODES, Config
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToUndirected
from torch_geometric.utils import scatter, to_undirected

from pyg_sar.partitioner.split import random_split
from pyg_sar.partitioner.synthetic import GraphShape, synthetic_graph


def load(name: str, root: str, *, scale: float, seed: int) -> Data | HeteroData:
    """The graph with x, y, masks and num_classes; undirected.

    Args:
        name: One of ``CONFIGS``, or ``synthetic:NAME`` for a graph of its shape.
        root: Where ogb keeps its files.
        scale: Share of the nodes and edges of a synthetic graph.
        seed: Of a synthetic graph.

    Raises:
        ValueError: If there is no such dataset, or ogb is not installed.
    """
    kind, _, short = name.rpartition(':')
    short = short.removeprefix('ogbn-')
    if short not in CONFIGS or kind not in ('', 'synthetic'):
        raise ValueError(f"expected one of {', '.join(CONFIGS)}, or synthetic:NAME (got '{name}')")
    config = CONFIGS[short]
    data = _synthetic(short, config, scale, seed) if kind else _download(short, config, root)
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
    if name.removeprefix('synthetic:') not in CONFIGS:
        raise ValueError(f"expected one of {', '.join(CONFIGS)}, or synthetic:NAME (got '{name}')")


def _download(name: str, config: Config, root: str) -> Data | HeteroData:
    if find_spec('ogb') is None:
        raise ValueError(
            f'ogbn-{name} needs the ogb package, which then downloads about '
            f"{config.download_gb:g} GB into {root} (got no module 'ogb'): pip install ogb. "
            f'Without it: --datasets synthetic:{name} --scale 0.01'
        )
    # ogb reads its own pickles with torch.load, which refuses them from torch 2.6 on otherwise.
    os.environ.setdefault('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    from ogb.nodeproppred import PygNodePropPredDataset

    dataset = PygNodePropPredDataset(f'ogbn-{name}', root=root)
    raw, split = dataset[0], dataset.get_idx_split()
    if name == 'mag':
        data = HeteroData()
        for key, count in raw.num_nodes_dict.items():
            data[key].num_nodes = count
        for key, edge_index in raw.edge_index_dict.items():
            data[key].edge_index = edge_index
        nodes: Any = data['paper']
        nodes.x, nodes.y = raw.x_dict['paper'], raw.y_dict['paper'].view(-1)
        split = {key: part['paper'] for key, part in split.items()}
    else:
        data = nodes = Data(edge_index=raw.edge_index, num_nodes=raw.num_nodes)
        if name == 'proteins':
            data.edge_attr, data.y = raw.edge_attr, raw.y.float()
        else:
            data.x = raw.x
            data.y = raw.y.view(-1).nan_to_num(-1).long()  # papers100M: most are unlabelled
        if config.is_directed:
            data.edge_index = to_undirected(raw.edge_index, num_nodes=raw.num_nodes)
    for key, index in (('train', 'train'), ('val', 'valid'), ('test', 'test')):
        mask = torch.zeros(int(nodes.num_nodes), dtype=torch.bool)
        mask[split[index]] = True
        nodes[f'{key}_mask'] = mask
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
