"""Linear attention over all nodes sums as many numbers, whatever the size of the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ranks import run_once
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Data
from torch_geometric.nn.attention import PerformerAttention, PolynormerAttention, SGFormerAttention
from torch_geometric.utils import to_dense_batch

import pyg_sar
from pyg_sar.rows.rows import plainly

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


SUMS = {
    'SGFormer': [HEADS * WIDTH * WIDTH, HEADS * WIDTH],
    'Polynormer': [WIDTH * WIDTH // HEADS, WIDTH],
    'Performer': [HEADS * 16, HEADS * 16 * WIDTH],
}
"""What each attention sums over the nodes: products of keys and values, and keys."""


def _counted(name: str, root: str) -> tuple[list[int], list[int], int]:
    """Numbers of every all-reduce, in forward and in backward, and of the largest tensor."""
    data = pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(Layer(name))
    model(data.x).sum().backward()
    sizes: list[int] = []
    plain = dist.all_reduce

    def all_reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes.append(tensor.numel())
        return plain(tensor, *args, **kwargs)

    with (
        mock.patch.object(dist, 'all_reduce', all_reduce),
        mock.patch.object(dist, 'all_to_all_single', side_effect=AssertionError),
        _Largest() as largest,
    ):
        out = model(data.x)
        forward = [n for n in sizes if n > 2]  # one number each: whether all ranks are there
        loss = out.square().mean()
        sizes.clear()
        loss.backward()
    return forward, [n for n in sizes if n > 2], largest.numel


def _all_reduced(sizes: list[int]) -> list[int]:
    """Without sums of up to 1016 bytes, which go with the message that all sums begin with."""
    return [size for size in sizes if 4 * size > 1016]


class _Largest(TorchDispatchMode):
    """Notes how many numbers the largest tensor has."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with plainly():
            out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.numel = max(self.numel, out.untyped_storage().nbytes() // out.element_size())
        return out


@pytest.mark.parametrize('name', ATTENTIONS)
def test_all_reduces_of_a_layer(name: str, tmp_path: Path) -> None:
    """Forward: one for each sum. Backward: one for its gradient, which comes from rows."""
    count = 2000
    generator = torch.Generator().manual_seed(0)
    graph = Data(
        x=torch.randn(count, WIDTH, generator=generator),
        edge_index=torch.randint(count, (2, count), generator=generator),
    )
    pyg_sar.partition_graph(graph, 2, tmp_path, method='random')
    for forward, backward, largest in run_once(_counted, 2, name, str(tmp_path)):
        with_flag = [n + 1 for n in SUMS[name]]  # whether a rank needs its gradient
        assert forward == _all_reduced(with_flag)
        *of_sums, of_parameters = backward
        assert sorted(of_sums) == sorted(_all_reduced(SUMS[name]))
        assert of_parameters > max(of_sums, default=0)
        assert largest < count // 2 * WIDTH * WIDTH
