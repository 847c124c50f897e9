"""Linear attention over all nodes sums as many numbers, whatever the size of the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.attention import (
    PerformerAttention,
    PolynormerAttention,
    SGFormerAttention,
)
from torch_geometric.utils import to_dense_batch

import pyg_sar

WIDTH, HEADS = 8, 2
ATTENTIONS = {
    'SGFormer': lambda: SGFormerAttention(WIDTH, HEADS, head_channels=WIDTH),
    'Polynormer': lambda: PolynormerAttention(WIDTH, HEADS, head_channels=WIDTH // HEADS),
    'Performer': lambda: PerformerAttention(WIDTH, HEADS, head_channels=WIDTH),
}


class Layer(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.attention = ATTENTIONS[name]()

    def forward(self, x: Tensor) -> Tensor:
        out, mask = to_dense_batch(x)
        out = self.attention(out, mask)
        rows: Tensor = out[mask]
        return rows


def _traffic(name: str, root: str) -> dict[str, list[int]]:
    """Bytes of every collective of a step, without that of the parameters' gradients."""
    data = pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(Layer(name))
    found: dict[str, list[int]] = {'all_reduce': [], 'all_to_all_single': []}
    plain = {kind: getattr(dist, kind) for kind in found}

    def counting(kind: str) -> Any:
        def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            found[kind].append(tensor.nbytes)
            return plain[kind](tensor, *args, **kwargs)

        return call

    model(data.x).square().mean().backward()
    for kind in found:
        setattr(dist, kind, counting(kind))
    try:
        model(data.x).square().mean().backward()
    finally:
        for kind, function in plain.items():
            setattr(dist, kind, function)
    return found


@pytest.mark.parametrize('name', ATTENTIONS)
def test_bytes_do_not_grow_with_the_graph(name: str, tmp_path: Path) -> None:
    found = []
    for count in (60, 600):
        generator = torch.Generator().manual_seed(0)
        graph = Data(
            x=torch.randn(count, WIDTH, generator=generator),
            edge_index=torch.randint(count, (2, 4 * count), generator=generator),
        )
        root = str(tmp_path / f'parts{count}')
        pyg_sar.partition_graph(graph, 2, root)
        found.append(run_ranks(_traffic, 2, name, root)[0])
    small, large = found
    assert small == large
    assert small['all_to_all_single'] == []
    numbers = HEADS * (16 * WIDTH + 16)  # the features of Performer are 16 numbers a head
    sums = [n for n in small['all_reduce'] if n > 64]
    assert max(sums[:-1], default=0) <= 8 * numbers
