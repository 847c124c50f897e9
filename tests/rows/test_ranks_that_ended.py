"""Rows after their process group has ended: an error, never the numbers of one rank."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from expressions import expressions
from ranks import run_once
from small_graphs import attempt, cut, small_graph
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import degree

import pyg_sar
from pyg_sar.comm.threads import run_threads

USES = """
out.mean(); (out.argmax(1) == data.y).double().mean(); data.x.sum(0); data.x.max(); data.x[17]
F.cross_entropy(out[data.train_mask], data.y[data.train_mask]); data.y.unique(); out * 2
pyg_sar.gather(out); pyg_sar.gather(data.edge_index); model(data.x, data.edge_index)
degree(data.edge_index[1]); pyg_sar.negative_sampling(data.edge_index)
"""
NAMES = {'F': F, 'degree': degree, 'pyg_sar': pyg_sar}


def _ended(root: str, begins_again: bool) -> dict[str, str]:
    data = pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(SAGEConv(6, 3).double())
    out = model(data.x, data.edge_index).detach()
    store, rank, size = dist.FileStore(f'{root}-again'), dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    if begins_again:
        dist.init_process_group('gloo', store=store, rank=rank, world_size=size)
    names = NAMES | {'data': data, 'model': model, 'out': out}
    found = {use: attempt(eval, use, names) for use in expressions(USES)}
    assert out.shape == (40, 3)
    assert isinstance(pyg_sar.local(out), torch.Tensor)
    if begins_again:
        again = pyg_sar.load_shard(root)
        found['loaded again'] = attempt(lambda: model(again.x, again.edge_index).mean())
    return found


def test_ended(tmp_path: Path) -> None:
    root = cut(small_graph(), 3, tmp_path / 'parts')
    for begins_again in (False, True):
        for found in run_once(_ended, 3, str(root), begins_again):
            assert found.pop('loaded again', 'no error') == 'no error'
            for name, outcome in found.items():
                assert outcome.startswith('RuntimeError: expected the ranks'), f'{name}: {outcome}'


def test_rows_that_leave_their_threads(tmp_path: Path) -> None:
    root = cut(small_graph(), 2, tmp_path / 'parts')
    data = run_threads(pyg_sar.load_shard, 2, str(root))[0]
    assert attempt(lambda: data.x.mean()).startswith('RuntimeError: expected the ranks')
