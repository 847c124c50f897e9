"""How far it is from a conv's call to a block's kernel: a reader steps through these frames."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from small_graphs import cut, small_graph
from torch_geometric.nn import SAGEConv

import pyg_sar
from pyg_sar.kernels import bag_sums

PACKAGE = str(Path(pyg_sar.__file__).parent)
KERNELS = bag_sums.__file__
MAX_FRAMES = 10


def _frames_at_the_kernel(call: Any) -> list[str]:
    """Frames of the package, outermost first, where the first kernel is entered; it is the last."""
    found: list[str] = []

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if found or event != 'call' or frame.f_code.co_filename != KERNELS:
            return
        at: FrameType | None = frame
        while at is not None:
            if at.f_code.co_filename.startswith(PACKAGE):
                found.append(f'{Path(at.f_code.co_filename).stem}.{at.f_code.co_name}')
            at = at.f_back

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found[::-1]


@pytest.mark.parametrize('needs_gradient', [False, True])
def test_the_linear_path(tmp_path, needs_gradient):
    data = pyg_sar.local(pyg_sar.load_shard(cut(small_graph(), 2, tmp_path / 'parts')))
    conv = pyg_sar.SARConv(SAGEConv(6, 8).double())
    x = data.x.clone().requires_grad_(needs_gradient)
    conv(x, data.edge_index)
    if not needs_gradient:
        x = x.clone()  # what is kept of raw features is not summed again
    frames = _frames_at_the_kernel(lambda: conv(x, data.edge_index))
    assert 0 < len(frames) <= MAX_FRAMES, frames


def test_the_frames_are_counted(tmp_path):
    assert _frames_at_the_kernel(lambda: torch.ones(3).sum()) == []
