"""Writes dgl_partitions.npz: two graphs, and what DGL's load_partition gives of their parts.

Run with DGL 2.1.0 and torch 2.2.1: ``python make_dgl_partitions.py dgl_partitions.npz``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import dgl
import numpy as np
import torch

generator = torch.Generator().manual_seed(0)


def draw(high: int, count: int) -> torch.Tensor:
    return torch.randint(high, (count,), generator=generator)


homo = dgl.graph((draw(12, 40), draw(12, 40)), num_nodes=12)
homo.ndata['features'] = torch.randn(12, 3, generator=generator)
homo.ndata['labels'] = draw(4, 12)
homo.ndata['train_mask'] = torch.rand(12, generator=generator) < 0.5
homo.edata['weight'] = torch.rand(40, generator=generator)
hetero = dgl.heterograph(
    {
        ('paper', 'cites', 'paper'): (draw(8, 20), draw(8, 20)),
        ('author', 'writes', 'paper'): (draw(5, 12), draw(8, 12)),
    },
    num_nodes_dict={'paper': 8, 'author': 5},
)
hetero.nodes['paper'].data['feat'] = torch.randn(8, 3, generator=generator)
hetero.nodes['author'].data['key'] = torch.arange(5)
hetero.edges['writes'].data['feat'] = torch.rand(12, 2, generator=generator)

arrays = {}
with tempfile.TemporaryDirectory() as folder:
    for name, graph in (('homo', homo), ('hetero', hetero)):
        for src, relation, dst in graph.canonical_etypes:
            ends = torch.stack(graph.edges(etype=(src, relation, dst)))
            arrays[f'{name}/edges/{src}:{relation}:{dst}'] = ends
            for key, values in graph.edges[src, relation, dst].data.items():
                arrays[f'{name}/edge_feats/{src}:{relation}:{dst}/{key}'] = values
        for kind in graph.ntypes:
            for key, values in graph.nodes[kind].data.items():
                arrays[f'{name}/node_feats/{kind}/{key}'] = values
        dgl.distributed.partition_graph(graph, name, 2, f'{folder}/{name}')
        config = Path(folder, name, f'{name}.json')
        arrays[f'{name}/json'] = torch.tensor(list(config.read_bytes()), dtype=torch.uint8)
        for part in range(2):
            loaded, node_feats, edge_feats, *_ = dgl.distributed.load_partition(str(config), part)
            content = {
                'edges': torch.stack(loaded.edges()),
                **{f'ndata/{key}': values for key, values in loaded.ndata.items()},
                **{f'edata/{key}': values for key, values in loaded.edata.items()},
                **{f'node_feats/{key}': values for key, values in node_feats.items()},
                **{f'edge_feats/{key}': values for key, values in edge_feats.items()},
            }
            arrays.update({f'{name}/{part}/{key}': values for key, values in content.items()})
np.savez_compressed(sys.argv[1], **{key: values.numpy() for key, values in arrays.items()})
