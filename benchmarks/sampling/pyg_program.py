"""Epochs of PyG's NeighborLoader: a program, for an environment that has torch_sparse.

It imports nothing of pyg_sar. After the setup, and after every epoch that a line on stdin asks for,
it writes a line of JSON to stdout.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch_geometric.loader import NeighborLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from process_memory import read_libraries


def main(graph: str, batch_size: int, batches: int, *fan_outs: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    read_libraries()
    data = torch.load(graph, weights_only=False)
    nodes = data.train_mask.nonzero().view(-1)
    order = torch.randperm(nodes.numel(), generator=torch.Generator().manual_seed(0))
    seeds = nodes[order[: batches * batch_size]]
    loader = NeighborLoader(data, list(fan_outs), seeds, batch_size=batch_size, shuffle=True)
    print(json.dumps({}), flush=True)
    for _ in sys.stdin:
        start, edges = time.perf_counter(), 0
        for batch in loader:
            edges += batch.num_edges
        seconds = time.perf_counter() - start
        print(json.dumps({'seconds': seconds, 'batches': len(loader), 'edges': edges}), flush=True)


if __name__ == '__main__':
    main(sys.argv[1], *map(int, sys.argv[2:]))
