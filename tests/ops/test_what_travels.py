"""Linear attention over all nodes sums as many numbers, whatever the size of the graph."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from alike import cut_of
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


def _all_counted(root: str) -> dict[str, tuple[list[int], list[int], int]]:
    data = pyg_sar.load_shard(root)
    return {name: _counted(name, data) for name in ATTENTIONS}


def _counted(name: str, data: Any) -> tuple[list[int], list[int], int]:
    """Numbers of every all-reduce, in forward and in backward, and of the largest tensor."""
    model = pyg_sar.DistributedDataParallel(Layer(name))
    model(data.x).sum().backward()
    with (
        mock.patch.object(dist, 'all_reduce', wraps=dist.all_reduce) as sums,
        mock.patch.object(dist, 'all_to_all_single', side_effect=AssertionError),
        _Largest() as largest,
    ):
        out = model(data.x)
        forward = _sizes(sums)
        loss = out.square().mean()
        sums.reset_mock()
        loss.backward()
    return forward, _sizes(sums), largest.numel


def _sizes(sums: mock.Mock) -> list[int]:
    """Without those of one number each: whether all ranks are there."""
    sizes = [call.args[0].numel() for call in sums.call_args_list]
    return [size for size in sizes if size > 2]


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


COUNT = 2000


def _graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(COUNT, WIDTH, generator=generator),
        edge_index=torch.randint(COUNT, (2, COUNT), generator=generator),
    )


def test_all_reduces_of_a_layer() -> None:
    """Forward: one for each sum. Backward: one for its gradient, which comes from rows."""
    found = run_once(_all_counted, 2, cut_of(_graph, 2, 'random'))
    for name, (forward, backward, largest) in (
        each for of_rank in found for each in of_rank.items()
    ):
        with_flag = [n + 1 for n in SUMS[name]]  # whether a rank needs its gradient
        assert forward == _all_reduced(with_flag)
        *of_sums, of_parameters = backward
        assert sorted(of_sums) == sorted(_all_reduced(SUMS[name]))
        assert of_parameters > max(of_sums, default=0)
        assert largest < COUNT // 2 * WIDTH * WIDTH
