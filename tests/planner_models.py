"""Models that the tests of the planner plan for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, MessagePassing, SAGEConv

import pyg_sar
from pyg_sar.planner.counts import RankSizes, RelationSizes
from pyg_sar.planner.rehearsal import Job
from pyg_sar.shard.meta import EdgeInfo, Meta, NodeInfo


class UserModel(torch.nn.Module):
    """Two convs of a user's choice, batch norm, dropout and a skip connection."""

    def __init__(self, first: MessagePassing, second: MessagePassing, width: int) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.norm = torch.nn.BatchNorm1d(width)
        self.skip = torch.nn.Linear(6, width)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.norm(self.first(x, edge_index)).relu() + self.skip(x)
        return self.second(torch.dropout(h, 0.5, self.training), edge_index)


USER_MODELS = {
    'gat': lambda: UserModel(GATConv(6, 4, heads=2), GATConv(8, 3, heads=2, concat=False), 8),
    'gcn': lambda: UserModel(GCNConv(6, 8), GCNConv(8, 3), 8),
    'median': lambda: UserModel(SAGEConv(6, 8, aggr='median'), SAGEConv(8, 3), 8),
    'turned': lambda: UserModel(SAGEConv(6, 8, flow='target_to_source'), GCNConv(8, 3), 8),
    'lazy': lambda: UserModel(SAGEConv((-1, -1), 8), GCNConv(-1, 3), 8),
}


def meta_of(
    width: int,
    part_num_nodes: Sequence[int],
    halo_rows: Sequence[Sequence[int]],
    block_edges: Sequence[Sequence[int]],
    dtype: str = 'float32',
) -> Meta:
    """What META.json says of a cut of a graph with features."""
    counts = [sum(row) for row in block_edges]
    attrs = {'x': {'dtype': dtype, 'shape': [width]}}
    nodes = NodeInfo(sum(part_num_nodes), [*part_num_nodes], attrs, {})
    halo, edges = [[*row] for row in halo_rows], [[*row] for row in block_edges]
    info = EdgeInfo(None, None, sum(counts), counts, halo, edges, {}, {})
    notes = {'partition': {}}
    return Meta(len(part_num_nodes), 'made up', {None: nodes}, {None: info}, {}, notes)


def job_of(model: torch.nn.Module, width: int, dtype: str = 'float32', **options: Any) -> Job:
    return Job(model, meta_of(width, [1], [[0]], [[0]], dtype), **options)


def sizes_of_rank(
    own: int, own_edges: int, halo: tuple[int, ...], halo_edges: tuple[int, ...], share: float = 1.0
) -> RankSizes:
    """Counts of a rank with one part, of a graph of one type."""
    edges = RelationSizes((own_edges,), halo, halo_edges, sum(halo))
    return RankSizes({None: (own,)}, {None: edges}, share)


def cut_small_graph(folder: Path) -> Path:
    """A partition folder of 4 parts."""
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(600, 6, generator=generator),
        y=torch.randint(3, (600,), generator=generator),
        train_mask=torch.ones(600, dtype=torch.bool),
        edge_index=torch.randint(600, (2, 4000), generator=generator),
        edge_weight=torch.rand(4000, generator=generator),
        num_classes=3,
    )
    pyg_sar.partition_graph(data, 4, folder, seed=0)
    return folder
