"""Writes pyg_partitions.zip with torch_geometric.distributed's own Partitioner.

Needs torch_sparse or pyg-lib; the files here were written by torch_geometric 2.8.1 and torch_sparse
0.6.18: ``python make_pyg_partitions.py FOLDER``, then zip the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.distributed import Partitioner

folder = Path(sys.argv[1])
folder.mkdir()
generator = torch.Generator().manual_seed(0)


def draw(*args: int) -> torch.Tensor:
    return torch.randint(*args[:-1], (args[-1],), generator=generator)


def edges(num_src: int, num_dst: int, count: int) -> torch.Tensor:
    return torch.stack([draw(num_src, count), draw(num_dst, count)])


homo = Data(
    x=torch.randn(12, 2, generator=generator),
    edge_index=edges(12, 12, 30),
    edge_attr=torch.randn(30, 1, generator=generator),
    edge_time=draw(9, 30),
    edge_weight=torch.rand(30, generator=generator),
    y=draw(3, 12),
    train_mask=torch.rand(12, generator=generator) < 0.5,
)
bare = Data(x=homo.x, edge_index=homo.edge_index, y=homo.y)
hetero = HeteroData()
hetero['a'].x, hetero['a'].y = torch.randn(6, 2, generator=generator), draw(3, 6)
hetero['b'].x = torch.randn(5, 2, generator=generator)
hetero['a', 'to', 'a'].edge_index = edges(6, 6, 14)
hetero['b', 'to', 'a'].edge_index = edges(5, 6, 9)
for key, count in (('a', 6), ('b', 5)):
    hetero[key].time = draw(9, count)
for edge_type in hetero.edge_types:
    count = hetero[edge_type].edge_index.size(1)
    hetero[edge_type].edge_attr = torch.randn(count, 2, generator=generator)

for name, data in (('homo', homo), ('bare', bare), ('hetero', hetero)):
    torch.save(data.to_dict(), folder / f'{name}.pt')
    Partitioner(data, 2, str(folder / name)).generate_partition()
