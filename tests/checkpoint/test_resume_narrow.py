"""A restart gives the same bits where a narrower layer follows a sum, in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from few import few
from ranks import run_ranks
from small_graphs import cut, small_graph
from torch import Tensor
from torch_geometric.nn.models import GraphSAGE

import pyg_sar

HIDDEN = 32


def _epochs(parts: str, root: str, num_epochs: int, *, resume: bool) -> list[Tensor]:
    """The output and all parameters after each of some epochs, each with a checkpoint."""
    data = pyg_sar.local(pyg_sar.load_shard(parts))
    torch.manual_seed(3)
    model = GraphSAGE(6, HIDDEN, 3, data.num_classes, norm='batch_norm')
    model = pyg_sar.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    last = pyg_sar.load_checkpoint(root, model, optimizer) if resume else None
    start = 0 if last is None else last.epoch
    found: list[Tensor] = []
    for epoch in range(start, start + num_epochs):
        out = model(data.x.float(), data.edge_index)
        values = F.cross_entropy(out, data.y, reduction='none')
        loss = pyg_sar.over_all_nodes.global_mean(values, data.train_mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pyg_sar.save_checkpoint(root, model, optimizer, epoch=epoch + 1)
        found += [out.detach().clone(), *(p.detach().clone() for p in model.parameters())]
    return found


@pytest.mark.parametrize('world_size', few([3, 1]))
def test_a_restart_gives_the_same_bits(tmp_path: Any, world_size: int) -> None:
    parts = str(cut(small_graph(), world_size, tmp_path / 'parts'))
    straight, root = str(tmp_path / 'straight'), str(tmp_path / 'run')
    whole = run_ranks(_epochs, world_size, parts, straight, 3, resume=False)
    first = run_ranks(_epochs, world_size, parts, root, 1, resume=False)
    rest = run_ranks(_epochs, world_size, parts, root, 2, resume=True)
    for want, *pieces in zip(whole, first, rest, strict=True):
        found = [t for piece in pieces for t in piece]
        assert len(found) == len(want)
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
