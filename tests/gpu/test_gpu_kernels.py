"""The forms of a block's sums that a device takes, against those of the CPU."""

from __future__ import annotations

import pytest
import torch
from small_graphs import assert_close

from pyg_sar.ops.spmm import add_weighted_sums, edge_dots
from pyg_sar.shard.csr import Segments, make_segments

CUTS = {'many rows': (30, 20, 90), 'few of many': (90, 20, 40), 'repeated': (2, 3, 50)}
"""Rows, columns and edges: all rows, those with edges only, more edges than places."""


@pytest.mark.parametrize('cut', CUTS)
@pytest.mark.parametrize('is_sorted', [True, False])
@pytest.mark.parametrize(('heads', 'channels'), [(4, 32), (1, 128), (8, 8), (3, 5), (8, 1)])
def test_weighted_sums(cut: str, is_sorted: bool, heads: int, channels: int) -> None:
    num_rows, num_cols, num_edges = CUTS[cut]
    rows, cols = torch.randint(num_rows, (num_edges,)), torch.randint(num_cols, (num_edges,))
    rows = rows.sort().values if is_sorted else rows
    segments = make_segments(rows, cols, num_rows, is_sorted=is_sorted)
    values = torch.randn(num_cols, heads, channels, dtype=torch.float64)
    weight = torch.randn(num_edges, heads, dtype=torch.float64)
    left = torch.randn(num_rows, heads, channels, dtype=torch.float64)
    there = Segments(*(t.cuda() if isinstance(t, torch.Tensor) else t for t in segments))
    for replace in (True, False):
        got = add_weighted_sums(left.cuda(), values.cuda(), there, weight.cuda(), replace=replace)
        want = add_weighted_sums(left.clone(), values, segments, weight, replace=replace)
        assert_close(got.cpu(), want)
    if is_sorted:
        got = edge_dots(torch.empty_like(weight).cuda(), left.cuda(), values.cuda(), there)
        assert_close(got.cpu(), edge_dots(torch.empty_like(weight), left, values, segments))
