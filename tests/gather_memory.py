"""Prints the peak memory of one layer by destination, above what the process held before.

``python gather_memory.py FOLDER AGGR MIN_EDGES RANK WORLD_SIZE STORE``: a fresh process for every
figure, as the C library keeps what earlier work freed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch_geometric.nn import SAGEConv, SimpleConv

import pyg_sar
from pyg_sar.ops import chunks
from pyg_sar.utils.installed import loops
from pyg_sar.utils.malloc import return_freed_memory

WIDTH = 64

CONVS = {'median': lambda: SimpleConv('median'), 'lstm': lambda: SAGEConv(WIDTH, WIDTH, 'lstm')}


def _status(name: str) -> int:
    """A line of the process's status, in bytes."""
    lines = Path('/proc/self/status').read_text(encoding='ascii').splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ':'))


def main(folder: str, aggr: str, min_edges: str, rank: str, world_size: str, store: str) -> None:
    """Forward and backward of one layer; prints bytes."""
    torch.set_num_threads(1)
    return_freed_memory()
    if int(world_size) > 1:
        if sys.platform == 'linux':
            os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
        dist.init_process_group(
            'gloo', init_method=f'file://{store}', rank=int(rank), world_size=int(world_size)
        )
    torch.manual_seed(0)
    data = pyg_sar.load_shard(folder)
    chunks.MIN_EDGES, chunks.CHUNK_BYTES = int(min_edges), 1
    conv = pyg_sar.SARConv(CONVS[aggr]())
    x = data.x.requires_grad_()
    # Libraries load their code when they are first used, and so do compiled loops.
    loops()
    ring = torch.stack([torch.arange(20) % 7, torch.arange(20) // 2])
    conv(torch.randn(10, WIDTH, requires_grad=True), ring).sum().backward()
    if int(world_size) > 1:
        dist.barrier()
    Path('/proc/self/clear_refs').write_text('5', encoding='ascii')
    before = _status('VmRSS')
    conv(x, data.edge_index).sum().backward()
    print(_status('VmHWM') - before)
    if int(world_size) > 1:
        dist.destroy_process_group()


if __name__ == '__main__':
    main(*sys.argv[1:])
