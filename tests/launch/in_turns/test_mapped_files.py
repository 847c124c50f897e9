"""Pages of a partition's files that ranks have read go when their turns end."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.comm import collectives
from pyg_sar.launch.in_turns.run import play
from pyg_sar.rows import load

NUM_PARTS = 4


def _pages_of(folder: Path) -> int:
    """Bytes of files in a folder that this process has in memory."""
    text = Path('/proc/self/smaps').read_text()
    heads = r'^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ +(/.*)\n(?:.*\n)*?Rss: +(\d+) kB'
    found = re.findall(heads, text, re.MULTILINE)
    return sum(int(size) << 10 for name, size in found if name.startswith(str(folder)))


@pytest.mark.skipif(sys.platform != 'linux', reason='/proc')
def test_pages_of_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, ring = torch.randn(40_000, 128), torch.arange(40_000)
    edges = torch.stack([ring, ring.roll(1)])
    folder = tmp_path / 'parts'
    pyg_sar.partition_graph(Data(x=x, edge_index=edges), NUM_PARTS, folder, method='range')
    checked: list[int] = []
    check = load._check_same_partition

    def check_measured(data: Data) -> None:
        checked.append(_pages_of(folder))
        check(data)

    monkeypatch.setattr(load, '_check_same_partition', check_measured)

    def program() -> list[int]:
        data = pyg_sar.load_shard(folder)
        found = []
        for _ in range(3):
            pyg_sar.local(data).x.sum()
            found.append(_pages_of(folder))
            collectives.agree(0)
        return found

    results = play(program, NUM_PARTS, memory=0, spill=tmp_path).results
    of_one = x.nbytes / NUM_PARTS
    assert all(of_one < pages < 2 * of_one for rank in results for pages in rank)
    assert max(checked) < 2 * edges.nbytes / NUM_PARTS  # of which loading reads all
