"""``torch.set_default_device`` holds for what a program makes, not for what it reads from disk."""

from __future__ import annotations

import torch
from on_ranks import parts_of
from ranks import run_once

import pyg_sar


def _devices(root: str) -> list[str]:
    x = pyg_sar.load_shard(root).x
    torch.set_default_device('meta')
    made = [make([1.0]) for make in (torch.tensor, torch.as_tensor, torch.asarray)]
    return [t.device.type for t in (*made, torch.ones(1), x, pyg_sar.load_shard(root).x)]


def test_made_and_read() -> None:
    """In a new process, where rows come before torch has looked for the default."""
    root = parts_of(2)
    for devices in run_once(_devices, 2, root):
        assert devices == [*['meta'] * 4, 'cpu', 'cpu']
