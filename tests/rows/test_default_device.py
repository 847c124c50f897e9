"""``torch.set_default_device`` holds for what a program makes, not for what it reads from disk."""

from __future__ import annotations

import torch
from on_ranks import on_ranks

import pyg_sar


@on_ranks(2, by='own processes')
def test_made_and_read(data):
    """In a new process, where rows come before torch has looked for the default."""
    torch.set_default_device('meta')
    made = [make([1.0]) for make in (torch.tensor, torch.as_tensor, torch.asarray)]
    read = data.x, pyg_sar.load_shard(data.edge_index.handle.shard.root).x
    assert [t.device.type for t in (*made, torch.ones(1), *read)] == [*['meta'] * 4, 'cpu', 'cpu']
