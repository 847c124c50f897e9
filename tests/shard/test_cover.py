"""A cover has an end of every edge, and on graphs that need no choice it is a smallest one."""

from __future__ import annotations

import pytest
import torch

from pyg_sar.shard.vertex_cover import vertex_cover


@pytest.mark.parametrize('num_edges', [20, 60, 200, 600])
def test_drawn_graphs(num_edges: int) -> None:
    """At most 10 % larger than a largest matching, which no cover is smaller than."""
    generator = torch.Generator().manual_seed(num_edges)
    src, dst = (torch.rand(2, num_edges, generator=generator).square() * 60).long()
    is_src, is_dst = vertex_cover(src, dst, 60, 60)
    assert bool((is_src[src] | is_dst[dst]).all())
    matching = _matching(src.tolist(), dst.tolist())
    assert matching <= int(is_src.sum() + is_dst.sum()) <= 1.1 * matching


def _matching(src: list[int], dst: list[int]) -> int:
    """The size of a largest matching, by augmenting paths."""
    ends: dict[int, list[int]] = {}
    for s, d in zip(src, dst, strict=True):
        ends.setdefault(s, []).append(d)
    source_of: dict[int, int] = {}

    def matched(s: int, seen: set[int]) -> bool:
        for d in ends[s]:
            if d not in seen:
                seen.add(d)
                if d not in source_of or matched(source_of[d], seen):
                    source_of[d] = s
                    return True
        return False

    return sum(matched(s, set()) for s in ends)
