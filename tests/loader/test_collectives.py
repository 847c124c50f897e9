"""How many collectives batches take: fewer than two for a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from ranks import run_ranks
from torch_geometric.data import Data

import pyg_sar
from pyg_sar import partition_graph
from pyg_sar.loader.batch import ROUND
from pyg_sar.utils import hook


class _Operations(hook.Watcher):
    """What ranks do together, in turn; not what such an operation consists of."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._depth = 0

    def enter_operation(self, operation: str, peer: int | None) -> None:
        if not self._depth:
            self.names.append(operation)
        self._depth += 1

    def leave_operation(self) -> None:
        self._depth -= 1


def _operations(root: str, options: dict[str, Any]) -> tuple[int, int]:
    data = pyg_sar.load_shard(root)
    make = pyg_sar.LinkNeighborLoader if 'neg_sampling' in options else pyg_sar.NeighborLoader
    loader = make(data, batch_size=16, **options)
    iteration, operations = iter(loader), _Operations()
    hook.add(operations)
    try:
        num = sum(1 for _ in iteration)
    finally:
        hook.remove(operations)
    return len(operations.names), num


CASES = few(
    [
        (12, {'num_neighbors': [3, 2, 2]}),
        (4, {'num_neighbors': [3]}),
        (20, {'num_neighbors': [3, 2, 2], 'neg_sampling': 'binary'}),
        (8, {'num_neighbors': [3, 2]}),
        (18, {'num_neighbors': [3, 2, 2], 'neg_sampling': None, 'exclude_edges': True}),
        (20, {'num_neighbors': [3, 2, 2], 'neg_sampling': 'triplet'}),
    ],
    every=2,
)


@pytest.mark.parametrize(('of_round', 'options'), CASES)
def test_collectives_of_a_round(tmp_path: Path, of_round: int, options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    edges = torch.stack([torch.randint(600, (384,), generator=generator), torch.arange(384)])
    graph = Data(x=torch.rand(600, 3), edge_index=edges)
    partition_graph(graph, 4, tmp_path, method=torch.arange(600) % 4)
    for operations, num in run_ranks(_operations, 4, str(tmp_path), options):
        assert num > 2 * ROUND - 2
        assert operations == of_round * -(-num // ROUND) <= 2 * num
